"""A rank's part of the workload's data, repeated endlessly by DataLoader and DistributedSampler.

A workload's own loader and iterable datasets divide the data themselves; only their batches are checked.
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import torch
from torch.utils._pytree import tree_leaves
from torch.utils.data import DataLoader, Dataset, DistributedSampler, IterableDataset

from ddpbench.spec import Case
from ddpbench.strategies.trees import cast_type, map_tensors, samples, tensors
from ddpbench.user_files import shared_folders
from ddpbench.worker.training.loader_server import PARENT, SHARED


class TooFewSamplesError(ValueError):
    """A pass over the data yielded no batch."""


def _pin_worker(cores: tuple[int, ...], _worker: int) -> None:
    if cores:
        os.sched_setaffinity(0, cores)


def make_loader(
    dataset: Dataset[Any],
    case: Case,
    *,
    rank: int,
    processes: int,
    loader_cores: tuple[int, ...] = (),
    collate: Callable[[list[Any]], Any] | None = None,
) -> DataLoader[Any]:
    """Return the DataLoader of one of `processes` ranks. Each batch has `global_batch / processes` samples.

    Raises:
        ValueError: the dataset has too few samples for one step of all ranks.
    """
    sampler: DistributedSampler[Any] | None = None
    if not isinstance(dataset, IterableDataset):
        if problem := case.too_few(len(dataset)):  # type: ignore[arg-type]
            raise ValueError(problem)
        sampler = DistributedSampler(
            dataset, num_replicas=processes, rank=rank, shuffle=True, seed=case.seed, drop_last=True
        )
    return DataLoader(
        dataset,
        batch_size=case.global_batch // processes,
        sampler=sampler,
        collate_fn=collate,
        drop_last=True,
        **worker_settings(case, loader_cores),
    )


def worker_settings(case: Case, cores: tuple[int, ...]) -> dict[str, Any]:
    """Return the DataLoader's arguments for pinned memory and for worker processes, which run on `cores`."""
    workers = case.loader_workers
    if workers:
        # Workers are forked from a separate server process of the rank; otherwise each would import torch.
        preloaded = ["ddpbench.worker.training.loader_server", "torch.utils.data"]
        multiprocessing.get_context("forkserver").set_forkserver_preload(preloaded)
        os.environ |= {PARENT: str(os.getpid()), SHARED: shared_folders()}
    return {
        "num_workers": workers,
        "pin_memory": case.device == "cuda",
        "persistent_workers": workers > 0,
        "multiprocessing_context": "forkserver" if workers else None,
        "worker_init_fn": partial(_pin_worker, cores) if workers else None,
    }


def steps_a_pass(loader: Iterable[Any]) -> int | None:
    """Return the number of batches in one pass over the data, or None if the loader has no length."""
    try:
        return len(loader)  # type: ignore[arg-type]
    except (TypeError, NotImplementedError):
        return None


def endless(
    loader: Iterable[Any],
    device: torch.device,
    dtype: torch.dtype | None,
    *,
    size: int | None = None,
    count: Callable[[Any], int] = samples,
    on_pass: Callable[[int], None] = lambda _: None,
    on_batch: Callable[[int], None] = lambda _: None,
    on_cast: Callable[[torch.dtype], object] = lambda _: None,
) -> Iterator[Any]:
    """Yield batches on `device` endlessly. Each pass reshuffles the data in the same way on all ranks (`set_epoch`).

    Tensors are cast to `dtype` (`trees.cast_type`), or keep their type if it is None. If `size` is given, every batch
    must have that many samples by `count`; a smaller last batch of a pass is skipped.

    `on_pass` gets the number of steps in each finished pass, `on_batch` the steps begun in the current pass, and
    `on_cast` the original type of each tensor that is cast.

    Raises:
        ValueError: a pass has no batch, or a batch of a wrong size.
    """

    types: dict[torch.dtype, torch.dtype] = {}

    def placed(tensor: torch.Tensor) -> torch.Tensor:
        wanted = types.get(tensor.dtype)
        if wanted is None:
            wanted = types[tensor.dtype] = cast_type(tensor.dtype, dtype)
        if tensor.dtype is wanted and tensor.device == device:
            return tensor
        if tensor.dtype is not wanted:
            on_cast(tensor.dtype)
        return tensor.to(device, wanted, non_blocking=True)

    epoch = 0
    while True:
        _set_epoch(loader, epoch)
        steps = 0
        for batch in loader:
            if size is not None and (found := count(batch)) != size:
                if found > size or not steps:
                    raise ValueError(
                        f"the loader returned a batch of {found} samples instead of {size}: return batches of "
                        "`batch` samples from loader(rank, world_size, batch), or use more data. If a row packs "
                        "several samples, define samples(self, batch), which returns their number"
                    )
                continue
            steps += 1
            on_batch(steps)
            yield map_tensors(placed, batch)
        if not steps:
            raise TooFewSamplesError(_nothing(loader, epoch))
        on_pass(steps)
        epoch += 1


def _set_epoch(loader: Iterable[Any], epoch: int) -> None:
    """Call `set_epoch`, which reshuffles, on loader, sampler and dataset where it exists."""
    for part in (loader, *(getattr(loader, name, None) for name in ("sampler", "batch_sampler", "dataset"))):
        if callable(set_epoch := getattr(part, "set_epoch", None)):
            set_epoch(epoch)


def _nothing(loader: Iterable[Any], epoch: int) -> str:
    if epoch:
        return (
            f"the data are exhausted after pass {epoch}: they must yield their batches again each time they are "
            "iterated over (a DataLoader does, a generator does not)"
        )
    dataset, size = getattr(loader, "dataset", None), getattr(loader, "batch_size", None)
    if isinstance(dataset, IterableDataset) and size:
        found = sum(1 for _ in dataset)
        if found >= size:
            workers = getattr(loader, "num_workers", 0)
            return (
                f"the dataset gave this rank {found} samples, enough for one step ({size}), but none of its "
                f"{workers} loader workers has enough by itself: use fewer loader_workers, a smaller batch or "
                "more data"
            )
        return f"the dataset gave this rank {found} samples; one step needs {size}: use a smaller batch or more data"
    return "the loader gave no batch at all: use a smaller batch or more data"


MEMORY_BATCHES = 32
"""Largest number of batches that `data = "memory"` cycles through, more than fit into a processor's cache."""
MEMORY_BYTES = 256 << 20
"""Total bytes of kept batches on each rank at which no further batch is added."""


def in_memory(batches: Iterator[Any], on_batch: Callable[[], None]) -> Iterator[Any]:
    """Keep the first batches (1 to `MEMORY_BATCHES`) in memory and return an endless iterator over them.

    `on_batch` is called after each of them, to show progress.

    Raises:
        ValueError: raised by the iterator, if a step changes the values of a batch each time.
    """
    kept: list[Any] = []
    size = 0
    while len(kept) < MEMORY_BATCHES and size < MEMORY_BYTES:
        kept.append(next(batches))
        size += sum(
            value.numel() * value.element_size()
            for value in tree_leaves(kept[-1])
            if isinstance(value, torch.Tensor)
        )
        on_batch()
    return _cycled(kept)


def _cycled(kept: list[Any]) -> Iterator[Any]:
    """Yield the kept batches endlessly.

    A step may write into a batch if later steps on it write the same values again.

    Raises:
        ValueError: a step changes the values of a batch each time.
    """
    versions: list[list[int] | None] = [_versions(batch) for batch in kept]  # None once compared
    for number in itertools.cycle(range(len(kept))):
        batch, before = kept[number], versions[number]
        found = _versions(batch) if before is not None else None
        if found == before:
            yield map_tensors(lambda tensor: tensor, batch)
            continue
        written = [
            (tensor, tensor.detach().clone())
            for tensor, old, new in zip(tensors(batch), before or (), found or (), strict=True)
            if old != new
        ]
        yield map_tensors(lambda tensor: tensor, batch)
        if not all(_alike(tensor, values) for tensor, values in written):
            raise ValueError(
                'the loss or step changes its batch in place, but data = "memory" uses the same batches again: '
                'copy the batch before changing it, or set data = "loader"'
            )
        versions[number] = None


def _versions(batch: Any) -> list[int]:
    """Return how often each tensor was written to; 0 for tensors made in inference mode."""
    return [0 if tensor.is_inference() else tensor._version for tensor in tensors(batch)]


def _alike(one: torch.Tensor, other: torch.Tensor) -> bool:
    if one.shape != other.shape:
        return False
    return bool(((one == other) | ((one != one) & (other != other))).all())  # noqa: PLR0124
