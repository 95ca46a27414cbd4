"""A user's class whose update is more than its optimizer's, and whose model draws random numbers."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.utils.data import TensorDataset


def _samples() -> TensorDataset:
    generator = torch.Generator().manual_seed(3)
    inputs = torch.randn(64, 6, generator=generator)
    return TensorDataset(inputs, inputs.sum(1, keepdim=True))


class Clipped:
    """Clips its gradients to a hundredth of what they are, and halves its learning rate after every update."""

    def model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))

    def dataset(self) -> TensorDataset:
        return _samples()

    def loss(self, model: nn.Module, batch: Any) -> torch.Tensor:
        inputs, targets = batch
        return nn.functional.mse_loss(model(inputs), targets)

    def optimizer(self, parameters: Any) -> Any:
        optimizer = torch.optim.SGD(parameters, lr=0.1, momentum=0.9)
        return optimizer, torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)

    def before_update(self, model: nn.Module) -> None:
        nn.utils.clip_grad_norm_(model.parameters(), 0.02)


class Dropping(Clipped):
    """Drops half of its units by chance."""

    def model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(6, 32), nn.Dropout(), nn.Linear(32, 1))

    def optimizer(self, parameters: Any) -> Any:
        return torch.optim.SGD(parameters, lr=0.1)

    def before_update(self, model: nn.Module) -> None:
        pass
