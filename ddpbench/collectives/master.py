"""All-reduce in which rank 0 receives every gradient, adds them up and sends the sum back."""

from __future__ import annotations

import torch

from ddpbench.collectives.base import Collective


class Master(Collective):
    """All-reduce by a master, rank 0, which receives every gradient and sends the sum to each rank.

    With n ranks and S bytes of gradients, the master's link carries (n-1) · S bytes in each direction, and every other
    link S bytes.
    """

    name = "master"

    def _all_reduce(self, tensor: torch.Tensor) -> None:
        transport = self.transport
        if self.rank:
            arrival = transport.receive(tensor, 0)
            transport.send(tensor, 0)
            arrival.wait()
            return
        others = range(1, self.size)
        memory = self.scratch(tensor, len(others) * tensor.numel()).view(len(others), tensor.numel())
        arrivals = [transport.receive(memory[other - 1], other) for other in others]
        for contribution, arrival in zip(
            memory, arrivals, strict=True
        ):  # in rank order, to be reproducible bit for bit
            arrival.wait()
            tensor.add_(contribution)
        for other in others:
            transport.send(tensor, other)
