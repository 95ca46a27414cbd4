"""Ring all-reduce: a reduce-scatter, then an all-gather (Patarasuk & Yuan 2009)."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Sequence

import torch

from ddpbench.collectives.base import Collective, shares
from ddpbench.collectives.transport import Arrival, Transport

SEGMENT_BYTES = 1 << 21
"""Maximum size of a piece (bytes). The parts of a tensor are sent in pieces, so that one piece is passed on while the
next arrives. Half this size would cost a tenth of loopback's bandwidth, and gain nothing on links.
"""
PIECES = 4
"""Minimum number of pieces of a part, unless pieces would be smaller than `LEAST_BYTES`."""
LEAST_BYTES = 16 << 10
AHEAD = 2
"""Number of receive operations that a rank keeps open, so that every piece has memory waiting when it is sent. With 3
or 4, links carry 2 % more, but loopback carries 5 % less, because a received piece has left the cache before it is
added.
"""


class Ring(Collective):
    """Ring all-reduce: a reduce-scatter, then an all-gather.

    With n ranks and S bytes of gradients, every link carries 2(n-1)/n · S bytes, the minimum, in 2(n-1) hops.
    """

    name = "ring"

    def _all_reduce(self, tensor: torch.Tensor) -> None:
        Rounds(self, tensor, range(self.size)).run(0, 2 * (self.size - 1))


class Rounds:
    """The rounds in which ranks that form a ring all-reduce a tensor, which is split into one part per rank.

    In round t, the rank at position i sends part i - t and receives part i - t - 1. In the first n - 1 rounds
    (reduce-scatter) it adds the received part to its own, and ends with the sum of part i + 1. In the next n - 1 rounds
    (all-gather) the received part replaces its own.
    """

    def __init__(self, collective: Collective, tensor: torch.Tensor, ring: Sequence[int]) -> None:
        """Take `ring`, the ranks in ring order, including this one."""
        self._collective = collective
        self._transport: Transport = collective.transport
        self._ring = list(ring)
        self._place = self._ring.index(collective.rank)
        self._shares = shares(tensor, len(self._ring))
        longest = max(share.numel() for share in self._shares) * tensor.element_size()
        piece = min(SEGMENT_BYTES, max(LEAST_BYTES, -(-longest // PIECES)))
        self._elements = max(1, piece // tensor.element_size())
        self._tensor = tensor

    @property
    def owned(self) -> torch.Tensor:
        """Return the part of the tensor whose sum this rank has after the reduce-scatter."""
        return self._shares[(self._place + 1) % len(self._ring)]

    def run(self, first: int, end: int) -> None:
        """Run rounds `first` to `end` - 1. Rounds 0 to n - 2 are the reduce-scatter, n - 1 to 2n - 3 the all-gather."""
        n, transport = len(self._ring), self._transport
        right, left = self._ring[(self._place + 1) % n], self._ring[self._place - 1]
        memory_of_all = self._collective.scratch(self._tensor, AHEAD * self._elements)
        scratch = torch.split(memory_of_all, self._elements)
        pieces = [torch.split(share, self._elements) if share.numel() else () for share in self._shares]
        to_come = ((t, piece) for t in range(first, end) for piece in pieces[(self._place - t - 1) % n])
        expected: deque[tuple[int, torch.Tensor, torch.Tensor, Arrival]] = deque()
        slots = itertools.cycle(scratch)

        def expect_more() -> None:
            while len(expected) < AHEAD and (found := next(to_come, None)) is not None:
                t, piece = found
                memory = next(slots)[: piece.numel()] if t < n - 1 else piece
                expected.append((t, piece, memory, transport.receive(memory, left)))

        expect_more()
        if first < end:
            for piece in pieces[(self._place - first) % n]:
                transport.send(piece, right)
        while expected:
            t, piece, memory, arrival = expected.popleft()
            arrival.wait()
            if t < n - 1:
                piece.add_(memory)
            if t + 1 < end:
                transport.send(piece, right)
            expect_more()
