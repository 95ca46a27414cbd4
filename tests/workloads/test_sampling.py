"""Division of a workload's data among ranks, with the worker's own loaders."""

from __future__ import annotations

from itertools import islice

import pytest
import torch

import tests.ranks  # loader workers come from the same fork server  # noqa: F401
from ddpbench.spec import Case
from ddpbench.worker.training.batches import endless, make_loader
from ddpbench.workloads.text import Contexts

CONTEXT, SAMPLES, LOCAL_BATCH = 1, 50, 2


def epochs(rank: int, processes: int, count: int = 2, **settings: int) -> list[list[int]]:
    """Return the samples of one rank, epoch by epoch: a context's one byte identifies it."""
    case = Case(
        workload="tests",
        strategy="ddp",
        world_size=processes,
        local_batch=LOCAL_BATCH,
        global_batch=LOCAL_BATCH * processes,
        **settings,
    )
    dataset = Contexts(torch.arange(SAMPLES + 1, dtype=torch.uint8), CONTEXT)
    assert len(dataset) == SAMPLES
    loader = make_loader(dataset, case, rank=rank, processes=processes)
    batches = endless(loader, torch.device("cpu"), torch.float32)
    steps = SAMPLES // processes // LOCAL_BATCH
    seen = []
    for _ in range(count):
        inputs, targets = zip(*islice(batches, steps), strict=True)
        assert all(len(batch) == LOCAL_BATCH for batch in inputs)
        assert torch.equal(torch.cat(targets), torch.cat(inputs)[:, 0].long() + 1)
        seen.append(torch.cat(inputs)[:, 0].tolist())
    return seen


@pytest.mark.parametrize("processes", [1, 2, 3, 4])
def test_ranks_see_different_samples_and_together_nearly_all(processes: int) -> None:
    ranks = [epochs(rank, processes) for rank in range(processes)]
    for epoch in range(2):
        seen = [sample for rank in ranks for sample in rank[epoch]]
        assert len(seen) == len(set(seen))
        # Less is left out than one step of the entire job.
        assert SAMPLES - LOCAL_BATCH * processes < len(seen) <= SAMPLES
        assert set(seen) <= set(range(SAMPLES))


def test_each_epoch_has_an_order_of_its_own() -> None:
    first, second = epochs(0, 1)
    assert sorted(first) == sorted(second) == list(range(SAMPLES))
    assert first != second
    assert first != sorted(first)


def test_the_seed_decides_the_order() -> None:
    assert epochs(1, 2, seed=5) == epochs(1, 2, seed=5)
    assert epochs(1, 2, seed=5) != epochs(1, 2, seed=6)


@pytest.mark.multiprocess
def test_loader_workers_change_nothing() -> None:
    assert epochs(1, 2, loader_workers=1) == epochs(1, 2, loader_workers=0)


def test_too_few_samples_say_how_many_are_needed() -> None:
    case = Case(workload="tests", strategy="ddp", world_size=2, local_batch=26, global_batch=52)
    dataset = Contexts(torch.arange(SAMPLES + 1, dtype=torch.uint8), CONTEXT)
    with pytest.raises(ValueError, match=r"50 samples.*needs 52"):
        make_loader(dataset, case, rank=0, processes=2)
