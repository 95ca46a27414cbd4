"""Batches from one order of samples common to all ranks, so that training can continue on any number of ranks.

The order is the dataset's, reshuffled for each pass with the case's seed. In a step of n ranks, each takes one of the
next n local batches, so a snapshot only stores how many samples were trained on. A batch's samples are identified by
the dataset's answers, because it may return others than the requested ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, default_collate

from ddpbench.strategies.trees import cast_type, map_tensors

Runs = tuple[tuple[int, int], ...]


class _Numbered(Dataset[Any]):
    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, index: int) -> tuple[int, Any]:
        return index, self._dataset[index]


def _collated(
    collate: Callable[[list[Any]], Any] | None, items: list[tuple[int, Any]]
) -> tuple[list[int], Any]:
    return [index for index, _ in items], (collate or default_collate)([item for _, item in items])


@dataclass(slots=True)
class Order:
    """The order of samples over all passes. It maps positions in that order to dataset indices, and back."""

    samples: int
    seed: int
    _passes: dict[int, tuple[list[int], list[int]]] = field(default_factory=dict)

    def _pass(self, number: int) -> tuple[list[int], list[int]]:
        """Return a pass's indices in order, and each index's position; two passes are cached."""
        if number not in self._passes:
            generator = torch.Generator().manual_seed(self.seed + number)
            order = torch.randperm(self.samples, generator=generator)
            places = torch.empty_like(order)
            places[order] = torch.arange(self.samples)
            self._passes = {kept: each for kept, each in self._passes.items() if kept == number - 1}
            self._passes[number] = (order.tolist(), places.tolist())
        return self._passes[number]

    def indices(self, first: int, count: int) -> list[int]:
        """Return the dataset indices at `count` positions, starting at position `first`."""
        return [
            self._pass(place // self.samples)[0][place % self.samples]
            for place in range(first, first + count)
        ]

    def runs(self, indices: Sequence[int], first: int) -> Runs:
        """Return the positions of samples received for the requested positions `first`, `first + 1`, ...

        `indices` are the received samples' dataset indices. Positions are runs (first, count); a sample that was not
        requested gets its position within the same pass.
        """
        runs: list[tuple[int, int]] = []
        for index, asked in zip(indices, range(first, first + len(indices)), strict=True):
            number = asked // self.samples
            place = number * self.samples + self._pass(number)[1][index]
            if runs and place == sum(runs[-1]):
                runs[-1] = (runs[-1][0], runs[-1][1] + 1)
            else:
                runs.append((place, 1))
        return tuple(runs)


def _asked(order: Order, first: int, stride: int, count: int) -> Iterator[list[int]]:
    while True:
        yield order.indices(first, count)
        first += stride


@dataclass(frozen=True, kw_only=True, slots=True)
class Share:
    """The samples that a rank takes, starting at position `first`. In each step, each rank takes one local batch."""

    first: int
    rank: int
    world_size: int
    local_batch: int


def batches_from(
    dataset: Dataset[Any],
    order: Order,
    share: Share,
    *,
    device: torch.device,
    dtype: torch.dtype | None,
    collate: Callable[[list[Any]], Any] | None,
    loader: dict[str, Any],
) -> Iterator[tuple[Runs, Any]]:
    """Yield a rank's batches endlessly, each with its samples' positions as runs (first, count).

    `loader` holds further arguments of the DataLoader. Tensors are cast to `dtype`, or keep their type if it is None.
    """

    def placed(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(device, cast_type(tensor.dtype, dtype), non_blocking=True)

    count = share.local_batch
    stride, own = share.world_size * count, share.first + share.rank * count
    loaded = DataLoader(
        _Numbered(dataset),
        batch_sampler=_Endless(order, own, stride, count),
        collate_fn=partial(_collated, collate),
        generator=torch.Generator(),  # a separate one, since each new iterator draws from it
        **loader,
    )
    for indices, batch in loaded:
        yield order.runs(indices, own), map_tensors(placed, batch)
        own += stride


@dataclass(frozen=True, slots=True)
class _Endless:
    order: Order
    first: int
    stride: int
    count: int

    def __iter__(self) -> Iterator[list[int]]:
        return _asked(self.order, self.first, self.stride, self.count)
