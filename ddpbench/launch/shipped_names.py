"""Names of ddpbench's own workloads, strategies and algorithms, which hide equal names of packages."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from ddpbench.collectives import NAMES as ALGORITHMS
from ddpbench.installed import hidden
from ddpbench.strategies import TABLE as STRATEGIES
from ddpbench.workloads import TABLE as WORKLOADS

SHIPPED: Mapping[str, Collection[str]] = {
    "workload": WORKLOADS,
    "strategy": STRATEGIES,
    "algorithm": ALGORITHMS,
}
"""ddpbench's own names, by the setting that accepts them. These settings also accept names of users' classes."""


def hidden_names(named: Mapping[str, Iterable[str]] | None = None) -> list[str]:
    """Return sentences about packages' classes that cannot be used by name, because ddpbench itself uses the name.

    `named` maps kinds to the names in an experiment, and limits the result to these names.
    """
    kinds = SHIPPED if named is None else named
    return [
        sentence
        for kind in kinds
        for name, sentence in hidden(kind, SHIPPED[kind]).items()
        if named is None or name in {one.partition(":")[0] for one in named[kind]} | {*named[kind]}
    ]
