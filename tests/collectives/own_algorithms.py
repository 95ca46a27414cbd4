"""All-reduces from a user's file: a right one, and some with faults."""

from __future__ import annotations

import torch

from ddpbench.collectives.base import Collective
from ddpbench.strategies import NoOptions, Strategy


class ToEach(Collective):
    """Every rank sends its gradient to all others, and sums in the order of ranks."""

    def _all_reduce(self, tensor: torch.Tensor) -> None:
        n, rank, transport = self.size, self.rank, self.transport
        kept = self.scratch(tensor, n * tensor.numel()).view(n, tensor.numel())
        kept[rank].copy_(tensor)
        for t in range(1, n):
            arrival = transport.receive(kept[(rank - t) % n], (rank - t) % n)
            transport.send(kept[rank], (rank + t) % n)
            arrival.wait()
        tensor.copy_(kept[0])
        for other in kept[1:]:
            tensor.add_(other)


class Twice(ToEach):
    def _all_reduce(self, tensor: torch.Tensor) -> None:
        super()._all_reduce(tensor)
        tensor.mul_(2)


class OwnFirst(ToEach):
    """Every rank sums beginning with its own gradient: with three ranks, each in another order."""

    def _all_reduce(self, tensor: torch.Tensor) -> None:
        own = tensor.clone()
        super()._all_reduce(tensor)
        kept = self.scratch(tensor, self.size * tensor.numel()).view(self.size, tensor.numel())
        tensor.copy_(own)
        for t in range(1, self.size):
            tensor.add_(kept[(self.rank + t) % self.size])


class Other:
    pass


class Another(Other, Strategy[NoOptions]):
    """A class for another setting."""


class FromTheSecondCall(ToEach):
    """Multiplies by 1.5 from its second call on, which is in the second step where there is one bucket."""

    calls = 0

    def _all_reduce(self, tensor: torch.Tensor) -> None:
        super()._all_reduce(tensor)
        self.calls += 1
        if self.calls > 1:
            tensor.mul_(1.5)
