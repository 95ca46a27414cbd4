"""All-reduce algorithms over point-to-point messages, one file each. An algorithm defines what is sent, not when.

    collective = load_collective("ring")(Transport(), ranks_per_node=1)
    collective.all_reduce(tensor)                     # sums in place; the same bits on every rank

Importing this package does not import torch.
"""

from __future__ import annotations

import inspect
from types import ModuleType
from typing import TYPE_CHECKING

from ddpbench.errors import StrategyError
from ddpbench.registry import Entry
from ddpbench.user_files import is_import_path, load_class, sentence_of

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
"""Algorithms by name, in the order of lists and legends. The communication library's own, `all_reduce`, is not
included.
"""

NAMES = {"default", "all_reduce", *TABLE}
"""Values of the setting `algorithm` that do not name a user's class."""


def is_collective(name: str) -> bool:
    """Return whether an algorithm uses point-to-point messages, as algorithms in `TABLE` and users' own classes do."""
    return name in TABLE or is_import_path(name)


def load_collective(name: str) -> type[Collective]:
    """Return the algorithm class with this name, or import the class from a path such as `mine.py:MyRing`.

    Raises:
        KeyError: no algorithm has that name.
        StrategyError: the user's file cannot be imported, or the class in it is not a complete `Collective`.
    """
    if is_import_path(name):
        return _own(name)
    found: type[Collective] = TABLE[name].load()
    return found


def _own(name: str) -> type[Collective]:
    from ddpbench.collectives.base import Collective

    head, _, attribute = name.rpartition(":")
    try:
        found = load_class(name, _is_algorithm, first=False)
    except ImportError as error:
        raise StrategyError(sentence_of(error)) from error
    if not issubclass(found, Collective):
        raise StrategyError(
            f"class {attribute} in {head} is not an algorithm: derive it from ddpbench.collectives.base.Collective"
        )
    if inspect.isabstract(found):
        raise StrategyError(f"class {attribute} in {head} lacks _all_reduce()")
    if not isinstance(getattr(found, "name", None), str):
        found.name = attribute
    return found


def _is_algorithm(value: object, module: ModuleType) -> bool:
    from ddpbench.collectives.base import Collective

    return inspect.isclass(value) and issubclass(value, Collective) and value.__module__ == module.__name__
