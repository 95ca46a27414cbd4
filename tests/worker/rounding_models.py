"""Users' classes with gradients that are zero in exact arithmetic, so that in float32 they are rounding errors only."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import TensorDataset


def pictures() -> TensorDataset:
    generator = torch.Generator().manual_seed(0)
    return TensorDataset(
        torch.rand(256, 1, 28, 28, generator=generator), torch.randint(10, (256,), generator=generator)
    )


def numbers() -> TensorDataset:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(256, 8, generator=generator)
    return TensorDataset(inputs, inputs[:, :4].argmax(1))


class Weak(nn.Linear):
    """A layer with a further bias whose gradient is a hundred-thousandth of the usual one."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs)
        self.weak = nn.Parameter(torch.zeros(outputs))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) + 1e-5 * self.weak


class ConvNorm:
    """A convolution with a bias that BatchNorm subtracts again."""

    dataset = staticmethod(pictures)

    def model(self) -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(1, 8, 3),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            Weak(8, 10),
        )

    def loss(self, model: nn.Module, batch: Any) -> torch.Tensor:
        return cross_entropy(model(batch[0]), batch[1])

    def optimizer(self, parameters: Any) -> torch.optim.Optimizer:
        return torch.optim.Adam(parameters, 1e-3)


class LinearNorm(ConvNorm):
    """Barlow twins' loss after a layer with a bias that BatchNorm subtracts again, which Adam moves like all others."""

    dataset = staticmethod(numbers)

    def model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 8))

    def loss(self, model: nn.Module, batch: Any) -> torch.Tensor:
        views = [model(batch[0] + 0.1 * torch.randn_like(batch[0])) for _ in range(2)]
        one, other = ((each - each.mean(0)) / (each.std(0) + 1e-3) for each in views)
        shared = one.T @ other / len(one)
        return ((shared - torch.eye(8, dtype=shared.dtype)) ** 2).sum()


class Gates(nn.Module):
    """A gate from 0 to 1 for each channel, open at first, as in pruning."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.gate = nn.Parameter(torch.ones(channels))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.gate.clamp(0, 1)


class Gated(ConvNorm):
    """A layer with gates at the end of their range."""

    dataset = staticmethod(numbers)

    def model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), Gates(16), nn.Linear(16, 4))
