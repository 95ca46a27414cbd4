"""All-reduce in three stages: within each node, across nodes, and within each node again."""

from __future__ import annotations

import torch

from ddpbench.collectives.base import Collective
from ddpbench.collectives.ring import Rounds
from ddpbench.collectives.transport import Transport


class Hierarchical(Collective):
    """Reduce-scatters within each node, runs a ring across nodes for each part, and all-gathers within each node.

    With S bytes of gradients, m nodes and r ranks per node, each node's link carries 2(m-1)/m · S bytes, the minimum.
    All ranks of a node use the node's link at the same time. Within a node, each rank sends 2(r-1)/r · S bytes.
    """

    name = "hierarchical"

    def __init__(self, transport: Transport, *, ranks_per_node: int = 1) -> None:
        """Check that every node has `ranks_per_node` ranks.

        Raises:
            ValueError: the number of ranks is not a multiple of `ranks_per_node`.
        """
        if transport.size % ranks_per_node:
            raise ValueError(f"{transport.size} ranks do not fill nodes of {ranks_per_node} evenly")
        super().__init__(transport, ranks_per_node=ranks_per_node)

    def _all_reduce(self, tensor: torch.Tensor) -> None:
        r = self.ranks_per_node
        node, place = divmod(self.rank, r)
        within = Rounds(self, tensor, range(node * r, node * r + r))
        within.run(0, r - 1)
        share = within.owned
        if share.numel() and self.size > r:
            ring = Rounds(self, share, range(place, self.size, r))
            ring.run(0, 2 * (self.size // r - 1))
        within.run(r - 1, 2 * (r - 1))
