"""The job's order of samples: the same at any number of ranks, continued anywhere, and reported by what came."""

from __future__ import annotations

from itertools import islice
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset

from ddpbench.worker.training.positions import Order, Share, batches_from

SAMPLES, BATCH = 37, 4


class Squares(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.tensor(float(index)), torch.tensor(index**2)


def taken(steps: int, *, ranks: int, first: int = 0, workers: int = 0) -> list[list[Any]]:
    """Return the samples that each rank takes in `steps` steps."""
    return [
        list(
            islice(
                batches_from(
                    Squares(),
                    Order(SAMPLES, 3),
                    Share(first=first, rank=rank, world_size=ranks, local_batch=BATCH),
                    device=torch.device("cpu"),
                    dtype=torch.float64,
                    collate=None,
                    loader={"num_workers": workers},
                ),
                steps,
            )
        )
        for rank in range(ranks)
    ]


def places(batches: list[list[Any]]) -> list[int]:
    """Return all places, step by step and rank by rank."""
    return [
        place
        for step in zip(*batches, strict=True)
        for runs, _ in step
        for first, count in runs
        for place in range(first, first + count)
    ]


def test_ranks_take_the_order_together_across_passes() -> None:
    batches = taken(12, ranks=2)
    assert places(batches) == list(range(12 * 2 * BATCH))
    inputs = [int(value) for step in zip(*batches, strict=True) for _, (x, _) in step for value in x]
    assert sorted(inputs[:SAMPLES]) == list(range(SAMPLES))  # a pass is all samples
    assert sorted(inputs[SAMPLES : 2 * SAMPLES]) == list(range(SAMPLES))
    assert inputs[:SAMPLES] != inputs[SAMPLES : 2 * SAMPLES]  # in another order
    assert batches[0][0][1][0].dtype == torch.float64
    assert batches[0][0][1][1].dtype == torch.int64


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_it_goes_on_where_it_was_with_any_number_of_ranks(ranks: int) -> None:
    whole = [float(value) for _, (x, _) in taken(30, ranks=1)[0] for value in x]
    first = 5 * 2 * BATCH
    later = taken(4, ranks=ranks, first=first)
    values = [float(value) for step in zip(*later, strict=True) for _, (x, _) in step for value in x]
    assert values == whole[first : first + len(values)]
    assert places(later) == list(range(first, first + len(values)))


def test_places_are_told_by_what_came_and_not_by_what_was_asked() -> None:
    order = Order(SAMPLES, 3)
    asked = order.indices(8, 4)
    assert order.runs(asked, 8) == ((8, 4),)
    other = [asked[0], *order.indices(20, 2), asked[3]]
    assert order.runs(other, 8) == ((8, 1), (20, 2), (11, 1))
    assert order.runs([asked[0]] * 4, 8) == ((8, 1),) * 4
