"""The networks of the `resnet` workload.

They follow He et al. 2015 (arXiv 1512.03385, table 1) as torchvision builds them: in a bottleneck, the 3 x 3
convolution has the stride, shortcuts that change the shape are 1 x 1 convolutions, and convolutions have no bias and
are initialised from N(0, 2 / fan_out). So parameters and operations can be compared with published numbers.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from ddpbench.workloads.piece import Piece

STEM = 64
WIDENING = 4
"""Ratio of a bottleneck's output channels to its width."""


def _convolution(channels: int, width: int, size: int, stride: int = 1) -> nn.Sequential:
    """Return a convolution with BatchNorm; `stride` must divide the image's size."""
    convolution = nn.Conv2d(channels, width, size, stride=stride, padding=size // 2, bias=False)
    nn.init.kaiming_normal_(convolution.weight, mode="fan_out", nonlinearity="relu")
    return nn.Sequential(convolution, nn.BatchNorm2d(width))


class Residual(nn.Module):
    """A residual block of two 3 x 3 convolutions, or a bottleneck of 1 x 1, 3 x 3 and 1 x 1."""

    def __init__(self, channels: int, width: int, *, stride: int, bottleneck: bool) -> None:
        super().__init__()
        self.channels = width * WIDENING if bottleneck else width
        if bottleneck:
            parts = [
                _convolution(channels, width, 1),
                _convolution(width, width, 3, stride),
                _convolution(width, self.channels, 1),
            ]
        else:
            parts = [_convolution(channels, width, 3, stride), _convolution(width, width, 3)]
        self.parts = nn.ModuleList(parts)
        same = stride == 1 and channels == self.channels
        self.shortcut = nn.Identity() if same else _convolution(channels, self.channels, 1, stride)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = x
        for part in self.parts[:-1]:
            out = self.relu(part(out))
        summed: torch.Tensor = self.relu(self.parts[-1](out) + self.shortcut(x))
        return summed


class Classifier(nn.Module):
    """Maps images [batch, 3, height, width] to logits [batch, classes].

    Each stage after the first halves the image's height and width.
    """

    def __init__(self, blocks: Sequence[int], *, bottleneck: bool, classes: int) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            _convolution(3, STEM, 7, 2), nn.ReLU(inplace=True), nn.MaxPool2d(3, stride=2, padding=1)
        )
        layers: list[Residual] = []
        channels = STEM
        for stage, count in enumerate(blocks):
            for number in range(count):
                stride = 2 if stage > 0 and number == 0 else 1
                layers.append(Residual(channels, STEM << stage, stride=stride, bottleneck=bottleneck))
                channels = layers[-1].channels
        self.layers = nn.Sequential(*layers)
        self.head = nn.Linear(channels, classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self._classified(self.layers(self.stem(images)))

    def stages(self) -> list[nn.Module]:
        """Return the model as modules to call one after another."""
        return [self.stem, *self.layers, Piece(self._classified, self.head)]

    def _classified(self, x: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.head(x.mean((2, 3)))
        return logits
