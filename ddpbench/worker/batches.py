"""A rank's share of the workload's data, endlessly: DataLoader and DistributedSampler, epoch after epoch."""

from __future__ import annotations

import itertools
import multiprocessing
import os
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch.utils._pytree import tree_leaves
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from ddpbench.spec import Case


def _pin_worker(cores: tuple[int, ...], _worker: int) -> None:
    if cores:
        os.sched_setaffinity(0, cores)


def make_loader(
    dataset: Dataset[Any], case: Case, *, rank: int, processes: int, loader_cores: tuple[int, ...] = ()
) -> DataLoader[Any]:
    """The loader of one rank. A process that holds all replicas of a case loads the whole global batch.

    Raises:
        ValueError: the dataset has not enough samples for one step of the whole job.
    """
    size = len(dataset)  # type: ignore[arg-type]
    if size < case.global_batch:
        message = f"the dataset has {size} samples; one step of this case needs {case.global_batch}"
        raise ValueError(f"{message}: use a smaller batch or more data")
    sampler: DistributedSampler[Any] = DistributedSampler(
        dataset, num_replicas=processes, rank=rank, shuffle=True, seed=case.seed, drop_last=True
    )
    workers = case.loader_workers
    if workers:
        # Workers are forked from a process of the rank's own, which else would import torch in each of them.
        multiprocessing.get_context("forkserver").set_forkserver_preload(["torch.utils.data"])
    return DataLoader(
        dataset,
        batch_size=case.global_batch // processes,
        sampler=sampler,
        num_workers=workers,
        drop_last=True,
        pin_memory=case.device == "cuda",
        persistent_workers=workers > 0,
        multiprocessing_context="forkserver" if workers else None,
        worker_init_fn=partial(_pin_worker, loader_cores) if workers else None,
    )


def endless(loader: DataLoader[Any], device: torch.device, dtype: torch.dtype) -> Iterator[tuple[Any, Any]]:
    """Batches on the device, for ever; each epoch is shuffled anew, alike on all ranks (`set_epoch`).

    Floating-point values come in `dtype`, others as they are.
    """
    epoch = 0
    while True:
        assert isinstance(loader.sampler, DistributedSampler)
        loader.sampler.set_epoch(epoch)
        for inputs, targets in loader:
            yield _place(inputs, device, dtype), _place(targets, device, dtype)
        epoch += 1


MEMORY_BATCHES = 32
"""Batches that `data = "memory"` cycles through: too many for a processor's cache to make them one."""
MEMORY_BYTES = 256 << 20
"""No further batch is taken once they are this large together, on each rank."""


def in_memory(batches: Iterator[Any], on_batch: Callable[[], None]) -> Iterator[Any]:
    """The next few of these batches, taken now and then cycled through for ever: no step loads anything.

    At least one, at most `MEMORY_BATCHES`; `on_batch` is called after each: a sign of life.
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
    return itertools.cycle(kept)


def _place(value: torch.Tensor, device: torch.device, dtype: torch.dtype) -> torch.Tensor:
    wanted = dtype if value.is_floating_point() else value.dtype
    return value.to(device, wanted, non_blocking=True)
