"""Users' classes whose models have other types than float32, or results that are not repeatable."""

from __future__ import annotations

import random
import sys
import time
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, default_collate


def numbers(dtype: torch.dtype = torch.float32) -> TensorDataset:
    generator = torch.Generator().manual_seed(0)
    return TensorDataset(
        torch.randn(64, 16, generator=generator).to(dtype), torch.randint(4, (64,), generator=generator)
    )


def words() -> TensorDataset:
    generator = torch.Generator().manual_seed(0)
    return TensorDataset(
        torch.randint(50, (64, 4), generator=generator), torch.randint(4, (64,), generator=generator)
    )


class Classes:
    """Common base of most classes here."""

    dataset: Any = staticmethod(numbers)

    def loss(self, model: nn.Module, batch: Any) -> torch.Tensor:
        return nn.functional.cross_entropy(model(batch[0]).float(), batch[1])

    def optimizer(self, parameters: Any) -> torch.optim.Optimizer:
        return torch.optim.SGD([each for each in parameters if each.requires_grad], lr=0.1)


class Spectral(nn.Module):
    """A model in which complex weights multiply the Fourier coefficients of the signal."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(9, dtype=torch.complex64))
        self.out = nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.out(torch.fft.irfft(torch.fft.rfft(x) * self.weight, n=16))
        return found


class Complex(Classes):
    model = Spectral


class Adapted(nn.Module):
    """A backbone in bfloat16 below an adapter in float32."""

    def __init__(self, trained: bool = True) -> None:
        super().__init__()
        self.backbone = nn.Linear(16, 32).bfloat16().requires_grad_(trained)
        self.adapter = nn.Linear(32, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        inner = self.backbone(x.to(self.backbone.weight.dtype))
        found: torch.Tensor = self.adapter(inner.to(self.adapter.weight.dtype))
        return found


class Mixed(Classes):
    model = Adapted


class Frozen(Classes):
    def model(self) -> nn.Module:
        return Adapted(trained=False)


class Double(Classes):
    def model(self) -> nn.Module:
        return nn.Linear(16, 4).double()

    def dataset(self) -> TensorDataset:
        return numbers(torch.float64)


class OnlyNarrow(Classes):
    """Its loss casts its batch to bfloat16, so that the model cannot be computed in float64."""

    def model(self) -> nn.Module:
        return nn.Linear(16, 4).bfloat16()

    def loss(self, model: nn.Module, batch: Any) -> torch.Tensor:
        return super().loss(model, (batch[0].bfloat16(), batch[1]))


class DoubleBatch(Classes):
    """A float64 batch for a float32 model."""

    def model(self) -> nn.Module:
        return nn.Linear(16, 4)

    def dataset(self) -> TensorDataset:
        return numbers(torch.float64)


class Scaled(nn.Module):
    """Two layers with a factor for each hidden feature between them, which subclasses draw."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.leave = nn.Linear(16, 8), nn.Linear(8, 4)

    def factor(self) -> Any:
        raise NotImplementedError

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.leave(self.enter(x) * torch.as_tensor(self.factor()).to(x.dtype))
        return found


class OfNumpy(Scaled):
    def factor(self) -> Any:
        return np.random.rand(8)


class OfRandom(Scaled):
    def factor(self) -> Any:
        return [random.random() for _ in range(8)]


class OfOwnSource(Scaled):
    def __init__(self) -> None:
        super().__init__()
        self.source = np.random.default_rng()

    def factor(self) -> Any:
        return self.source.random(8)


class Counting(Scaled):
    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def factor(self) -> Any:
        self.calls += 1
        return [float(self.calls)] * 8


class Drifting(Counting):
    def factor(self) -> Any:
        self.calls += 1
        return [1 + 6e-5 * self.calls] * 8  # one forward more is within float32's tolerance; several are not


class DrawsFromNumpy(Classes):
    model = OfNumpy


class DrawsFromRandom(Classes):
    model = OfRandom


class DrawsFromItsOwn(Classes):
    model = OfOwnSource


class Stateful(Classes):
    model = Counting


class SlowlyStateful(Classes):
    model = Drifting


class Renormalised(Classes):
    """`max_norm` makes the forward write to the weights that it looks up."""

    dataset = staticmethod(words)

    def model(self) -> nn.Module:
        return nn.Sequential(nn.Embedding(50, 8, max_norm=1.0), nn.Flatten(), nn.Linear(32, 4))


class MadeByNumpy(Classes):
    """Initial weights from NumPy's global generator."""

    def model(self) -> nn.Module:
        made = nn.Linear(16, 4)
        with torch.no_grad():
            made.weight.copy_(torch.from_numpy(np.random.rand(4, 16)))
        return made


class MadeByItsOwn(Classes):
    """Initial weights that don't depend on the seed."""

    def model(self) -> nn.Module:
        made = nn.Linear(16, 4)
        with torch.no_grad():
            made.weight.copy_(torch.from_numpy(np.random.default_rng().random((4, 16))))
        return made


class EndsInDouble(Classes):
    """Its loss ends the process in float64."""

    def model(self) -> nn.Module:
        return nn.Linear(16, 4)

    def loss(self, model: nn.Module, batch: Any) -> torch.Tensor:
        if batch[0].dtype == torch.float64:
            sys.exit("float32 only")
        return super().loss(model, batch)


class EndsInDoubleInStep(EndsInDouble):
    """A class with `step` that does the same."""

    loss: Any = None

    def optimizer(self, model: Any) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=0.1)

    def step(self, model: nn.Module, batch: Any, optimizer: torch.optim.Optimizer) -> torch.Tensor:
        optimizer.zero_grad()
        loss = EndsInDouble.loss(self, model, batch)
        loss.backward()
        optimizer.step()
        return loss.detach()


class EndsAmongTwo(Classes):
    """Its loss ends the process if there is another rank."""

    def model(self) -> nn.Module:
        return nn.Linear(16, 4)

    def loss(self, model: nn.Module, batch: Any) -> torch.Tensor:
        if dist.get_world_size() > 1:
            self.among_several()
        return super().loss(model, batch)

    def among_several(self) -> None:
        sys.exit(3)


class WaitsAmongTwo(EndsAmongTwo):
    """Its loss waits for another rank."""

    def among_several(self) -> None:
        while True:
            time.sleep(0.01)


class StepDraws:
    """Its own step draws from a source that the seed doesn't set."""

    dataset = staticmethod(numbers)

    def __init__(self) -> None:
        self.source = random.Random()

    def model(self) -> nn.Module:
        return nn.Linear(16, 4)

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=0.1)

    def step(self, model: nn.Module, batch: Any, optimizer: torch.optim.Optimizer) -> torch.Tensor:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(batch[0]), batch[1]) * self.source.random()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        return loss


class LayerDrop(nn.Module):
    """Leaves out layers that Python's `random` draws."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.leave = nn.Linear(16, 8), nn.Linear(8, 4)
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.enter(x)
        for layer in self.layers:
            if random.random() > 0.5:
                x = x + layer(x)
        found: torch.Tensor = self.leave(x)
        return found


class Dropping(Classes):
    model = LayerDrop


class OwnLoader(Classes):
    """Brings its loader, with a number of workers that it chooses."""

    dataset = None

    def model(self) -> nn.Module:
        return nn.Linear(16, 4)

    def loader(self, rank: int, world_size: int, batch: int) -> DataLoader[Any]:
        return DataLoader(numbers(), batch_size=batch, num_workers=1)


class Note:
    """A sample's note, without a dictionary of attributes."""

    __slots__ = ("length", "taken")

    def __init__(self, length: int) -> None:
        self.length, self.taken = length, timedelta(seconds=length)


class Notes(Classes):
    """Has objects in its batches, a list of them that one rank's may leave empty, and a type."""

    def model(self) -> nn.Module:
        return nn.Linear(16, 4)

    def collate(self, samples: list[Any]) -> Any:
        inputs, targets = default_collate(samples)
        long = [Note(int(each)) for each in targets if each > 2]
        return inputs, targets, {"long": long, "kind": type(long[0]) if long else None}


class NotesInPlace(Notes):
    """Has objects in its batches that no other process could make."""

    def collate(self, samples: list[Any]) -> Any:
        return *default_collate(samples), lambda: None


class PartsMatter(Classes):
    """Dropout, BatchNorm and a mean over words: the mean of two halves' gradients is not that of the whole."""

    def model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(16, 8), nn.BatchNorm1d(8), nn.Dropout(0.3), nn.Linear(8, 4))

    def loss(self, model: nn.Module, batch: Any) -> torch.Tensor:
        return nn.functional.cross_entropy(model(batch[0]), batch[1], ignore_index=0)


class WarmedUp(Classes):
    """Dropout, under a rate that starts at zero."""

    def model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(16, 8), nn.Dropout(0.3), nn.Linear(8, 4))

    def optimizer(self, parameters: Any) -> Any:
        made = torch.optim.SGD(parameters, lr=0.1)
        return made, torch.optim.lr_scheduler.LambdaLR(made, lambda step: min(1.0, step / 10))
