"""All-reduce over point-to-point messages, one algorithm a file: what is sent, apart from when.

    collective = load_collective("ring")(Transport(), ranks_per_node=1)
    collective.all_reduce(tensor)                     # sums in place; the same bits on every rank

Importing this imports no torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ddpbench.collectives.base import Collective

TABLE: dict[str, str] = {
    "ring": "ddpbench.collectives.ring:Ring",
    "naive_ring": "ddpbench.collectives.naive_ring:NaiveRing",
    "tree": "ddpbench.collectives.tree:Tree",
    "halving_doubling": "ddpbench.collectives.halving_doubling:HalvingDoubling",
    "master": "ddpbench.collectives.master:Master",
    "sharded_master": "ddpbench.collectives.sharded_master:ShardedMaster",
    "hierarchical": "ddpbench.collectives.hierarchical:Hierarchical",
}
"""Name -> `module:Class`, in the order of lists and legends. The library's own is `all_reduce`, and not in it."""


def load_collective(name: str) -> type[Collective]:
    """Return the algorithm of that name.

    Raises:
        KeyError: there is none.
    """
    module, _, attribute = TABLE[name].partition(":")
    found: type[Collective] = getattr(importlib.import_module(module), attribute)
    return found
