"""All-reduce by a ring that passes full gradients on, as in many tutorials."""

from __future__ import annotations

import torch

from ddpbench.collectives.base import Collective


class NaiveRing(Collective):
    """All-reduce by a ring in which each rank passes on the full gradients of all others.

    With n ranks and S bytes of gradients, every link carries (n-1) · S bytes, n/2 times as many as in `Ring`. Gradients
    are added in rank order at the end. Adding them as they arrive would give ranks different last bits.
    """

    name = "naive_ring"

    def _all_reduce(self, tensor: torch.Tensor) -> None:
        n, rank, transport = self.size, self.rank, self.transport
        kept = self.scratch(tensor, n * tensor.numel()).view(n, tensor.numel())
        kept[rank].copy_(tensor)
        for t in range(n - 1):
            arrival = transport.receive(kept[(rank - t - 1) % n], (rank - 1) % n)
            transport.send(kept[(rank - t) % n], (rank + 1) % n)
            arrival.wait()
        tensor.copy_(kept[0])
        for other in kept[1:]:
            tensor.add_(other)
