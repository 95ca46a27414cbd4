"""A ring that passes full gradients on, as in many tutorials. Imports torch at once."""

from __future__ import annotations

import torch

from ddpbench.collectives.base import Collective


class NaiveRing(Collective):
    """Every link carries (n-1) · S bytes: n/2 times as much as in the proper ring.

    Sums that are added up on the way would differ from rank to rank in their last bits, because each rank starts with
    its own gradient. So all contributions are kept, n times the gradient, and added in the order of ranks.
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
