"""A user's own classes that derive from nothing: a sound one, and some that go wrong in one way each."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from multiprocessing import process, shared_memory
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, DistributedSampler, IterableDataset, TensorDataset


class Net(nn.Module):
    """A classifier of two inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.Linear(6, 16), nn.Embedding(5, 16), nn.Linear(16, 4)

    def forward(self, features: torch.Tensor, kind: torch.Tensor) -> torch.Tensor:
        return self.head(torch.tanh(self.first(features) + self.second(kind)))


class Items(Dataset):
    """Items are dictionaries of three tensors."""

    def __init__(self, count: int = 256, seed: int = 0) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.features = torch.randn(count, 6, generator=generator)
        self.kind = torch.randint(5, (count,), generator=generator)
        self.label = torch.randint(4, (count,), generator=generator)

    def __len__(self) -> int:
        return len(self.label)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"features": self.features[index], "kind": self.kind[index], "label": self.label[index]}


class Sound:
    """A sound class."""

    model = Net

    def dataset(self) -> Any:
        return Items()

    def loss(self, model: nn.Module, batch: Any) -> Any:
        return nn.functional.cross_entropy(model(batch["features"], batch["kind"]), batch["label"])


class Tuned(Sound):
    """Has options."""

    def __init__(self, width: int = 8, name: str = "a") -> None:
        self.width = width


class Endless(IterableDataset):
    """Yields items endlessly, others in every rank."""

    def __init__(self, rank: int) -> None:
        self.rank = rank

    def __iter__(self) -> Iterator[Any]:
        items = Items(64, seed=self.rank)
        while True:
            yield from (items[index] for index in range(64))


class Endlessly(Sound):
    """An endless stream that shards itself by the rank that it gets."""

    def dataset(self, rank: int) -> Any:  # type: ignore[override]
        return Endless(rank)


class EndlesslyTheSame(Sound):
    """An endless stream that forgets to shard."""

    def dataset(self) -> Any:
        return Endless(0)


class Stream(IterableDataset):
    """This many items, and an end."""

    def __init__(self, count: int) -> None:
        self.items = Items(count, seed=int(os.environ.get("RANK", "0")))

    def __iter__(self) -> Iterator[Any]:
        return iter([self.items[index] for index in range(len(self.items))])


class TooShort(Sound):
    """Three items, where a step needs four."""

    def dataset(self) -> Any:
        return Stream(3)


class UsedUp(Sound):
    """A generator that has only one pass."""

    def loader(self, rank: int, world_size: int, batch: int) -> Any:
        return iter(list(DataLoader(Items(64, seed=rank), batch_size=batch)))


class OwnLoader(Sound):
    """Brings its own loader; the last batch of a pass is smaller."""

    def loader(self, rank: int, world_size: int, batch: int) -> Any:
        data = Items(258)
        sampler = DistributedSampler(data, world_size, rank)
        return DataLoader(data, batch_size=batch, sampler=sampler)


class Uneven(Sound):
    """Rank 1 has fewer batches than rank 0."""

    def loader(self, rank: int, world_size: int, batch: int) -> Any:
        return DataLoader(Items(64 - 16 * rank, seed=rank), batch_size=batch, drop_last=True)


class UnevenUntold(Sound):
    """Rank 1 has fewer batches, and no length shows it beforehand."""

    def dataset(self) -> Any:
        return Stream(64 - 16 * int(os.environ.get("RANK", "0")))


class WrongBatch(Sound):
    """A loader that ignores the batch size."""

    def loader(self, rank: int, world_size: int, batch: int) -> Any:
        return DataLoader(Items(), batch_size=32)


class Vector(Sound):
    """A loss for each sample."""

    def loss(self, model: nn.Module, batch: Any) -> Any:
        outputs = model(batch["features"], batch["kind"])
        return nn.functional.cross_entropy(outputs, batch["label"], reduction="none")


class Number(Sound):
    """A loss that is a number, not a tensor."""

    def loss(self, model: nn.Module, batch: Any) -> Any:
        return float(super().loss(model, batch))


class Infinite(Sound):
    """A loss that is infinite from the start."""

    def loss(self, model: nn.Module, batch: Any) -> Any:
        return super().loss(model, batch) * float("inf")


class OtherModel(Sound):
    """Trains a model that is not the one it is given."""

    def __init__(self) -> None:
        self.mine = Net()

    def loss(self, model: nn.Module, batch: Any) -> Any:
        return super().loss(self.mine, batch)


class NoModule(Sound):
    """A model that is not a module."""

    def model(self) -> Any:
        return lambda features, kind: features


class Nothing(Sound):
    """A model without parameters."""

    def model(self) -> Any:
        return nn.Identity()


class Wrong(Sound):
    """A mistake in the loss."""

    def loss(self, model: nn.Module, batch: Any) -> Any:
        return super().loss(model, {"features": batch["feature"]})  # this line is named in the sentence


class Dies(Sound):
    """Kills its process."""

    def model(self) -> Any:
        os.kill(os.getpid(), signal.SIGSEGV)


class Leaves(Sound):
    """Ends the process without a message."""

    def model(self) -> Any:
        os._exit(0)


class Forks(Sound):
    """Its constructor forks, and the child returns from it as its parent does."""

    def __init__(self) -> None:
        os.fork()


KEPT: list[Any] = []


class Litters(Sound):
    """Leaves something of every kind behind and notes what; then waits, if asked to."""

    def __init__(self, notes: str, waits: bool = False) -> None:
        self.notes, self.waits = Path(notes), waits

    def model(self) -> Any:
        if self.notes.exists():
            return Net()
        if not (forked := os.fork()):
            time.sleep(600)
        run_away = "sleep 600 >/dev/null 2>&1 & echo $!"  # in a separate session, and without a parent
        found = subprocess.run(
            ["sh", "-c", run_away], capture_output=True, check=True, start_new_session=True
        )
        KEPT.append(multiprocessing.get_context("forkserver").Lock())
        KEPT.append(shared_memory.SharedMemory(create=True, size=16))
        loader = DataLoader(TensorDataset(torch.ones(4)), num_workers=1, multiprocessing_context="forkserver")
        KEPT.append(iter(loader))
        next(KEPT[-1])
        Path(
            f"/dev/shm/torch_{os.getpid()}_1_0"
        ).touch()  # like that of a process that died before it could unlink it
        found = {
            "processes": [forked, int(found.stdout)],
            "files": [
                f"/dev/shm/sem.{KEPT[0]._semlock.name[1:]}",
                f"/dev/shm/{KEPT[1].name}",
                f"/dev/shm/torch_{os.getpid()}_1_0",
                tempfile.mkdtemp(),
                process.current_process()._config["tempdir"],
            ],
        }
        fresh = self.notes.with_suffix(".new")
        fresh.write_text(json.dumps(found), encoding="utf-8")
        fresh.replace(self.notes)
        time.sleep(600 if self.waits else 0)
        return Net()


class Sleeps(Sound):
    """Never finishes."""

    def model(self) -> Any:
        time.sleep(600)


class Masked(Sound):
    """A mean over the samples that carry a mark: not a mean over a batch's samples, and only in float32."""

    def loss(self, model: nn.Module, batch: Any) -> Any:
        outputs = model(batch["features"].float(), batch["kind"])
        marked = batch["label"] > 0
        return nn.functional.cross_entropy(outputs[marked], batch["label"][marked])


class Pairs(Sound):
    """Batches are pairs, from a dataset of torch's own."""

    def dataset(self) -> Any:
        items = Items()
        return TensorDataset(items.features, items.kind, items.label)

    def loss(self, model: nn.Module, batch: Any) -> Any:
        features, kind, label = batch
        return nn.functional.cross_entropy(model(features, kind), label)
