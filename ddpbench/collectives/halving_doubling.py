"""All-reduce by recursive halving, then doubling (Thakur et al. 2005, section 4.5)."""

from __future__ import annotations

import torch

from ddpbench.collectives.base import Collective


class HalvingDoubling(Collective):
    """All-reduce by recursive halving, then doubling.

    For n ranks, a power of two, every rank sends as many bytes as in a ring, in 2 log2 n hops. Otherwise, with the next
    lower power p, n - p ranks first send their gradients to a neighbour, and get the result back at the end. These are
    two more hops with the full gradients.
    """

    name = "halving_doubling"

    def _all_reduce(self, tensor: torch.Tensor) -> None:
        rank, transport = self.rank, self.transport
        power = 1 << (self.size.bit_length() - 1)
        beyond = self.size - power  # the number of pairs (0, 1), (2, 3) ... with one rank too many
        if rank < 2 * beyond:
            if rank % 2:
                arrival = transport.receive(tensor, rank - 1)
                transport.send(tensor, rank - 1)
                arrival.wait()
                return
            memory = self.scratch(tensor, tensor.numel())
            transport.receive(memory, rank + 1).wait()
            tensor.add_(memory)
        self._among_a_power_of_two(tensor, power, beyond)
        if rank < 2 * beyond:
            transport.send(tensor, rank + 1)

    def _among_a_power_of_two(self, tensor: torch.Tensor, power: int, beyond: int) -> None:
        place = self.rank // 2 if self.rank < 2 * beyond else self.rank - beyond
        transport = self.transport
        memory = self.scratch(tensor, tensor.numel())
        low, high = 0, tensor.numel()
        taken: list[tuple[int, int, int, int, int]] = []
        distance = power // 2
        while distance:
            partner = place ^ distance
            other = 2 * partner if partner < beyond else partner + beyond
            middle = low + (high - low) // 2
            mine, theirs = (
                ((low, middle), (middle, high)) if place < partner else ((middle, high), (low, middle))
            )
            arrival = transport.receive(memory[mine[0] : mine[1]], other)
            transport.send(tensor[theirs[0] : theirs[1]], other)
            arrival.wait()
            tensor[mine[0] : mine[1]].add_(memory[mine[0] : mine[1]])
            taken.append((other, *mine, *theirs))
            low, high = mine
            distance //= 2
        for other, my_low, my_high, their_low, their_high in reversed(taken):
            arrival = transport.receive(tensor[their_low:their_high], other)
            transport.send(tensor[my_low:my_high], other)
            arrival.wait()
