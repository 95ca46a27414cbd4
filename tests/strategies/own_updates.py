"""A user's class whose update is more than its optimizer's, and whose model draws random numbers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.utils.data import TensorDataset


def _samples() -> TensorDataset:
    generator = torch.Generator().manual_seed(3)
    inputs = torch.randn(64, 6, generator=generator)
    return TensorDataset(inputs, inputs.sum(1, keepdim=True))


class Clipped:
    """Clips its gradients to a hundredth of their norm, and halves its learning rate after every update."""

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
    """Drops half of its units at random."""

    def model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(6, 32), nn.Dropout(), nn.Linear(32, 1))

    def optimizer(self, parameters: Any) -> Any:
        return torch.optim.SGD(parameters, lr=0.1)

    def before_update(self, model: nn.Module) -> None:
        pass


class _Routing(nn.Module):
    """Sends a batch through one of two layers, depending on its content."""

    def __init__(self) -> None:
        super().__init__()
        self.common = nn.Linear(6, 8)
        self.rare, self.usual = nn.Linear(8, 1), nn.Linear(8, 1)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        hidden = torch.tanh(self.common(inputs))
        found: torch.Tensor = self.rare(hidden) if bool(inputs[0, 0] > 0) else self.usual(hidden)
        return found


class Routed(Dropping):
    """Has parameters that only the first batch reaches; its optimizer remembers them."""

    def model(self) -> nn.Module:
        return _Routing()

    def loader(self, rank: int, world_size: int, batch: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
        generator = torch.Generator().manual_seed(rank)
        inputs = torch.randn(4, batch, 6, generator=generator)
        inputs[:, :, 0] = -1
        inputs[0, :, 0] = 1
        return [(each, each.sum(1, keepdim=True)) for each in inputs]

    def optimizer(self, parameters: Any) -> Any:
        return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


class _InTheSameMemory:
    """Four batches, each in the memory of the one before."""

    def __init__(self, rank: int, batch: int) -> None:
        self._rank, self._batch = rank, batch

    def __len__(self) -> int:
        return 4

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        generator = torch.Generator().manual_seed(self._rank)
        inputs, targets = torch.empty(self._batch, 6), torch.empty(self._batch, 1)
        for _ in range(len(self)):
            inputs.copy_(torch.randn(self._batch, 6, generator=generator))
            targets.copy_(inputs.sum(1, keepdim=True))
            yield inputs, targets


class Refilled(Clipped):
    """Has a loader whose next batch overwrites the previous one."""

    def loader(self, rank: int, world_size: int, batch: int) -> _InTheSameMemory:
        return _InTheSameMemory(rank, batch)
