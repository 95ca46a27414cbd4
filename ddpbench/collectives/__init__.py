"""All-reduce over point-to-point messages, one algorithm a file: what is sent, apart from when.

    collective = load_collective("ring")(Transport(), ranks_per_node=1)
    collective.all_reduce(tensor)                     # sums in place; the same bits on every rank

Importing this imports no torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ddpbench.table import Entry

if TYPE_CHECKING:
    from ddpbench.collectives.base import Collective

TABLE: dict[str, Entry] = {
    "ring": Entry(
        "ddpbench.collectives.ring:Ring",
        "a ring: a reduce-scatter, then an all-gather; 2(n-1)/n of the gradients over each link",
    ),
    "naive_ring": Entry(
        "ddpbench.collectives.naive_ring:NaiveRing",
        "a ring that passes whole gradients on, as in many tutorials: n - 1 times the gradients",
    ),
    "tree": Entry(
        "ddpbench.collectives.tree:Tree",
        "a binomial tree: sums go up to rank 0, the result comes down",
    ),
    "halving_doubling": Entry(
        "ddpbench.collectives.halving_doubling:HalvingDoubling",
        "recursive halving, then doubling: the ring's bytes in 2 log2 n hops",
    ),
    "master": Entry(
        "ddpbench.collectives.master:Master",
        "rank 0 takes every gradient, adds them up and sends the sum to each",
    ),
    "sharded_master": Entry(
        "ddpbench.collectives.sharded_master:ShardedMaster",
        "every rank is the master of an n-th of the gradients: the ring's bytes in two hops",
    ),
    "hierarchical": Entry(
        "ddpbench.collectives.hierarchical:Hierarchical",
        "a ring within each node, one across nodes, and one within again",
    ),
}
"""By name, in the order of lists and legends. The library's own is `all_reduce`, and not in it."""


def load_collective(name: str) -> type[Collective]:
    """Return the algorithm of that name.

    Raises:
        KeyError: there is none.
    """
    found: type[Collective] = TABLE[name].load()
    return found
