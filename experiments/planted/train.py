"""A small training whose step takes longer where that is asked for: what a regression looks like."""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import nn

FEATURES, CLASSES, SAMPLES = 768, 8, 4096


class Measured:
    """`slower_ms` is how long each step sleeps."""

    def __init__(self, slower_ms: float = 0.0) -> None:
        self.slower_s = slower_ms / 1e3

    def model(self) -> nn.Module:
        layers: list[nn.Module] = []
        for _ in range(6):
            layers += [nn.Linear(FEATURES, FEATURES), nn.ReLU()]
        return nn.Sequential(*layers, nn.Linear(FEATURES, CLASSES))

    def dataset(self) -> Any:
        generator = torch.Generator().manual_seed(0)
        inputs = torch.randn(SAMPLES, FEATURES, generator=generator)
        return torch.utils.data.TensorDataset(
            inputs, torch.randint(0, CLASSES, (SAMPLES,), generator=generator)
        )

    def loss(self, model: nn.Module, batch: Any) -> torch.Tensor:
        if self.slower_s:
            time.sleep(self.slower_s)
        inputs, labels = batch
        return nn.functional.cross_entropy(model(inputs), labels)

    def optimizer(self, parameters: Any) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=0.01)
