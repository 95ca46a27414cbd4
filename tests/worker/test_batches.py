"""What ranks are fed: different samples, together all of them, shuffled anew each epoch."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
import torch
from torch.utils.data import TensorDataset

from ddpbench.spec import Case
from ddpbench.worker.batches import MEMORY_BATCHES, MEMORY_BYTES, endless, in_memory, make_loader

CPU = torch.device("cpu")


def epochs(world: int, rank: int, count: int, *, samples: int = 24, local_batch: int = 2) -> list[list[int]]:
    """The numbers of the samples a rank sees, epoch by epoch."""
    numbers = torch.arange(samples)
    case = Case(
        workload="x",
        strategy="ddp",
        world_size=world,
        local_batch=local_batch,
        global_batch=local_batch * world,
    )
    loader = make_loader(TensorDataset(numbers, numbers), case, rank=rank, processes=world)
    steps = samples // (local_batch * world)
    batches = endless(loader, CPU, torch.float32)
    return [
        [int(number) for inputs, _ in itertools.islice(batches, steps) for number in inputs]
        for _ in range(count)
    ]


@pytest.mark.parametrize("world", [1, 2, 3, 4])
def test_ranks_see_different_samples_and_together_all(world: int) -> None:
    per_rank = [epochs(world, rank, 3) for rank in range(world)]
    for epoch in range(3):
        seen = [number for rank in per_rank for number in rank[epoch]]
        assert sorted(seen) == list(range(24))  # all of them, none twice


def test_every_epoch_has_an_order_of_its_own() -> None:
    orders = epochs(2, 0, 4)
    assert len({tuple(order) for order in orders}) == 4


def test_a_step_of_all_ranks_is_the_one_process_step_of_the_same_seed() -> None:
    # What proof and strong scaling rest on: the ranks' shares of an epoch are the whole epoch's, dealt in turn.
    whole = epochs(1, 0, 1, local_batch=4)[0]
    shares = [epochs(2, rank, 1, local_batch=2)[0] for rank in range(2)]
    assert [number for pair in zip(*shares, strict=True) for number in pair] == whole


def test_one_process_with_all_replicas_loads_the_global_batch() -> None:
    numbers = torch.arange(12)
    case = Case(workload="x", strategy="data_parallel", world_size=3, local_batch=2, global_batch=6)
    loader = make_loader(TensorDataset(numbers, numbers), case, rank=0, processes=1)
    inputs, _ = next(endless(loader, CPU, torch.float32))
    assert len(inputs) == 6


def test_too_little_data_says_how_much_is_needed() -> None:
    case = Case(workload="x", strategy="ddp", world_size=4, local_batch=2, global_batch=8)
    with pytest.raises(ValueError, match="has 7 samples; one step of this case needs 8"):
        make_loader(TensorDataset(torch.arange(7), torch.arange(7)), case, rank=0, processes=4)


def test_floating_point_inputs_come_in_the_cases_dtype_and_others_as_they_are() -> None:
    case = Case(workload="x", strategy="single", local_batch=2, global_batch=2)
    data = TensorDataset(torch.ones(4, 3), torch.arange(4))
    inputs, targets = next(endless(make_loader(data, case, rank=0, processes=1), CPU, torch.float64))
    assert (inputs.dtype, targets.dtype) == (torch.float64, torch.int64)


def test_batches_in_memory_are_taken_once_and_then_cycled() -> None:
    taken: list[int] = []

    def source() -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        for number in itertools.count():
            taken.append(number)
            yield torch.full((2, 3), float(number)), torch.zeros(2)

    beats: list[None] = []
    batches = in_memory(source(), lambda: beats.append(None))
    assert len(taken) == len(beats) == MEMORY_BATCHES  # before anything is asked for
    numbers = [int(next(batches)[0][0, 0]) for _ in range(2 * MEMORY_BATCHES + 3)]
    assert numbers == [*range(MEMORY_BATCHES), *range(MEMORY_BATCHES), 0, 1, 2]
    assert len(taken) == MEMORY_BATCHES


@pytest.mark.parametrize(("mebibytes", "kept"), [(100, 3), (300, 1)])
def test_no_further_batch_is_kept_above_the_bound(mebibytes: int, kept: int) -> None:
    inputs = torch.empty(mebibytes << 20, dtype=torch.uint8, device="meta")
    assert MEMORY_BYTES == 256 << 20
    beats: list[None] = []
    in_memory(itertools.repeat(({"image": inputs}, [inputs[:0]])), lambda: beats.append(None))
    assert len(beats) == kept
