"""All-reduce in which every rank is the master of an n-th of the gradients, like a sharded parameter server."""

from __future__ import annotations

import torch

from ddpbench.collectives.base import Collective, shares


class ShardedMaster(Collective):
    """All-reduce by n masters, each for an n-th of the gradients.

    Every rank sends as many bytes as in a ring, 2(n-1)/n of the gradients, in two hops with all others at once.
    """

    name = "sharded_master"

    def _all_reduce(self, tensor: torch.Tensor) -> None:
        n, rank, transport = self.size, self.rank, self.transport
        parts = shares(tensor, n)
        own = parts[rank]
        # Each rank starts with its right neighbour; otherwise all would begin with rank 0 and queue there.
        others = [(rank + distance) % n for distance in range(1, n)]
        memory = self.scratch(tensor, n * own.numel()).view(n, own.numel())
        arrivals = {other: transport.receive(memory[other], other) for other in reversed(others)}
        for other in others:
            transport.send(parts[other], other)
        memory[rank].copy_(own)
        own.zero_()
        for contributor in range(n):  # in rank order, to be reproducible bit for bit
            if contributor != rank:
                arrivals[contributor].wait()
            own.add_(memory[contributor])
        arrivals = {other: transport.receive(parts[other], other) for other in reversed(others)}
        for other in others:
            transport.send(own, other)
        for arrival in arrivals.values():
            arrival.wait()
