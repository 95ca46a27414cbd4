"""All-reduce by a binomial tree: sums go up to rank 0, the result goes down (Thakur et al. 2005)."""

from __future__ import annotations

import torch

from ddpbench.collectives.base import Collective


class Tree(Collective):
    """All-reduce by a binomial tree, in ⌈log2 n⌉ steps up and ⌈log2 n⌉ steps down.

    Each step sends the full gradients, without pipelining.
    """

    name = "tree"

    def _all_reduce(self, tensor: torch.Tensor) -> None:
        rank, transport = self.rank, self.transport
        memory = self.scratch(tensor, tensor.numel())
        bit = 1
        while bit < self.size and not rank & bit:  # children come nearest first
            if rank + bit < self.size:
                transport.receive(memory, rank + bit).wait()
                tensor.add_(memory)
            bit <<= 1
        if rank:  # the rank's lowest set bit leads to its parent
            arrival = transport.receive(tensor, rank - bit)
            transport.send(tensor, rank - bit)
            arrival.wait()
        while bit := bit >> 1:  # the farthest child has the largest subtree
            if rank + bit < self.size:
                transport.send(tensor, rank + bit)
                transport.flush()  # one after the other: copies that share a link would all arrive late
