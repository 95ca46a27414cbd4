"""The ranks' batches: different samples, together all of them, reshuffled each epoch."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator

import pytest
import torch
from torch.utils.data import IterableDataset, TensorDataset, get_worker_info

from ddpbench.spec import Case
from ddpbench.worker.training.batches import (
    MEMORY_BATCHES,
    MEMORY_BYTES,
    endless,
    in_memory,
    make_loader,
    steps_a_pass,
)

CPU = torch.device("cpu")


def epochs(world: int, rank: int, count: int, *, samples: int = 24, local_batch: int = 2) -> list[list[int]]:
    """Return the numbers of the samples that a rank gets, epoch by epoch."""
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
    # Proof and strong scaling rely on this: the ranks' shares of an epoch are the whole epoch's, dealt in turn.
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


def test_what_a_loss_takes_out_of_a_batch_in_memory_is_there_the_next_time() -> None:
    batches = in_memory(itertools.repeat({"x": torch.ones(2), "y": torch.zeros(2)}), lambda: None)
    for _ in range(2 * MEMORY_BATCHES):
        batch = next(batches)
        assert sorted(batch) == ["x", "y"]
        batch.pop("y")


def test_a_loss_that_writes_into_batches_in_memory_is_refused() -> None:
    batches = in_memory((({"x": torch.ones(2)}, None) for _ in itertools.count()), lambda: None)
    for _ in range(
        MEMORY_BATCHES + 1
    ):  # in the second pass it is known whether writing again changes anything
        next(batches)[0]["x"].div_(255)
    with pytest.raises(
        ValueError, match=r'changes its batch in place, but data = "memory" .*data = "loader"'
    ):
        next(batches)


def test_what_a_loss_writes_alike_each_time_into_batches_in_memory_is_taken() -> None:
    source = (torch.tensor([1.0, 0.0, torch.nan]) for _ in itertools.count())
    batches = in_memory(source, lambda: None)
    for _ in range(3 * MEMORY_BATCHES):
        labels = next(batches)
        labels[labels == 0] = -100
    assert labels[:2].tolist() == [1, -100]


def test_batches_in_memory_may_be_made_in_inference_mode() -> None:
    with torch.inference_mode():
        made = [torch.full((2,), float(number)) for number in range(MEMORY_BATCHES)]
    batches = in_memory(iter(made), lambda: None)
    assert [float(next(batches)[0]) for _ in range(MEMORY_BATCHES + 2)] == [*range(MEMORY_BATCHES), 0, 1]


@pytest.mark.parametrize(("mebibytes", "kept"), [(100, 3), (300, 1)])
def test_no_further_batch_is_kept_above_the_bound(mebibytes: int, kept: int) -> None:
    inputs = torch.empty(mebibytes << 20, dtype=torch.uint8, device="meta")
    assert MEMORY_BYTES == 256 << 20
    beats: list[None] = []
    in_memory(itertools.repeat(({"image": inputs}, [inputs[:0]])), lambda: beats.append(None))
    assert len(beats) == kept


class Numbers(IterableDataset):
    """This many numbers, then an end; a pass can be started again."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.epochs: list[int] = []

    def set_epoch(self, epoch: int) -> None:
        self.epochs.append(epoch)

    def __iter__(self) -> Iterator[torch.Tensor]:
        return iter(torch.arange(self.count))


ONE = Case(workload="x", strategy="single", local_batch=4, global_batch=4)


def test_an_iterable_dataset_goes_round_without_its_short_last_batch() -> None:
    data, passes = Numbers(10), list[int]()
    loader = make_loader(data, ONE, rank=0, processes=1)
    batches = endless(loader, CPU, torch.float32, on_pass=passes.append)
    seen = [next(batches).tolist() for _ in range(5)]
    assert seen == [[0, 1, 2, 3], [4, 5, 6, 7]] * 2 + [[0, 1, 2, 3]]
    assert passes == [2, 2]
    assert data.epochs == [0, 1, 2]
    assert steps_a_pass(loader) is None


def test_too_short_a_stream_says_what_it_gave_and_what_is_needed() -> None:
    loader = make_loader(Numbers(3), ONE, rank=0, processes=1)
    with pytest.raises(ValueError, match="gave this rank 3 samples; one step needs 4"):
        next(endless(loader, CPU, torch.float32))


class Divided(Numbers):
    """A dataset of which each loader worker gives its own part."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        info = get_worker_info()
        first, every = (0, 1) if info is None else (info.id, info.num_workers)
        return iter(torch.arange(first, self.count, every))


def test_a_stream_that_is_enough_but_for_its_loader_workers_is_not_called_too_short() -> None:
    case = dataclasses.replace(ONE, loader_workers=2)
    loader = make_loader(Divided(6), case, rank=0, processes=1)
    with pytest.raises(ValueError, match=r"gave this rank 6 samples, enough .* none of its 2 loader workers"):
        next(endless(loader, CPU, torch.float32))


def test_an_own_loaders_batches_are_counted() -> None:
    passes = list[int]()
    loader = [torch.zeros(4), torch.ones(4), torch.zeros(2)]
    batches = endless(loader, CPU, torch.float32, size=4, on_pass=passes.append)
    assert [float(next(batches)[0]) for _ in range(4)] == [0, 1, 0, 1]
    assert passes == [2]
    assert steps_a_pass(loader) == 3
    for wrong in ([torch.zeros(2)], [torch.zeros(4), torch.zeros(6)]):
        with pytest.raises(ValueError, match=r"returned a batch of \d samples instead of 4"):
            list(itertools.islice(endless(wrong, CPU, torch.float32, size=4), 2))


def test_what_gives_nothing_or_only_one_pass_is_refused() -> None:
    with pytest.raises(ValueError, match="gave no batch at all"):
        next(endless([], CPU, torch.float32, size=4))
    used_up = endless(iter([torch.zeros(4)]), CPU, torch.float32, size=4)
    next(used_up)
    with pytest.raises(ValueError, match="exhausted after pass 1"):
        next(used_up)


def test_every_tensor_of_a_batch_is_placed() -> None:
    loader = [{"x": torch.zeros(4), "pair": (torch.zeros(4, dtype=torch.int64), "text")}]
    batch = next(endless(loader, CPU, torch.float64, size=4))
    assert batch["x"].dtype == torch.float64
    assert batch["pair"][0].dtype == torch.int64
    assert batch["pair"][1] == "text"
