"""The network of the `cnn` workload."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from ddpbench.workloads.digits import SIDE


class DigitsNet(nn.Module):
    """Two convolutions with pooling and two linear layers, from images [batch, 1, 8, 8] to logits [batch, classes]."""

    def __init__(self, *, channels: tuple[int, int], hidden: int, classes: int) -> None:
        super().__init__()
        first, second = channels
        self.conv1 = nn.Conv2d(1, first, 3, padding=1)
        self.conv2 = nn.Conv2d(first, second, 3, padding=1)
        self.fc1 = nn.Linear(second * (SIDE // 4) ** 2, hidden)
        self.fc2 = nn.Linear(hidden, classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        x = functional.max_pool2d(functional.relu(self.conv1(images)), 2)
        x = functional.max_pool2d(functional.relu(self.conv2(x)), 2)
        x = functional.relu(self.fc1(x.flatten(1)))
        logits: torch.Tensor = self.fc2(x)
        return logits

    def stages(self) -> list[nn.Module]:
        """Return the model as modules to call one after another."""
        return [
            nn.Sequential(self.conv1, nn.ReLU(), nn.MaxPool2d(2)),
            nn.Sequential(self.conv2, nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),
            nn.Sequential(self.fc1, nn.ReLU()),
            self.fc2,
        ]
