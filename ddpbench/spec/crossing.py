"""Decide which combinations of world sizes and numbers of nodes are cases, if both are axes."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from ddpbench.errors import Problem
from ddpbench.spec.settings import Experiment
from ddpbench.units import counted

Pair = tuple[int, int]
"""A world size, and the number of nodes on which its ranks are laid out."""


def crossed_axis(experiment: Experiment) -> str:
    """Return the axis of node counts if world sizes are an axis too; otherwise empty.

    Also empty if ranks per node are given, because nodes then decide the world size.
    """
    axes, fabric = experiment.axes, experiment.fabric
    name = "fabric.nodes" if experiment.emulates else "nodes"
    if experiment.emulates and (
        "fabric.ranks_per_node" in axes or (fabric is not None and fabric.ranks_per_node is not None)
    ):
        return ""
    both = all(len(axes.get(axis, ())) > 1 or axes.get(axis) == ["auto"] for axis in ("world_size", name))
    return name if both else ""


def fits(ranks: int, nodes: int) -> bool:
    """Return whether the ranks divide evenly over the nodes. A single rank, as in a base case, always fits."""
    return ranks == 1 or ranks % nodes == 0


def misfits(experiment: Experiment, pairs: Iterable[Pair]) -> Iterable[Problem]:
    """Yield a problem if world sizes are crossed with node counts and some pairs (ranks, nodes) do not fit.

    A fabric of fewer ranks than nodes would become a smaller case, which nobody requested.
    """
    axis = crossed_axis(experiment)
    wrong = (
        [(ranks, nodes) for ranks, nodes in dict.fromkeys(pairs) if not fits(ranks, nodes)] if axis else []
    )
    if not wrong:
        return
    ranks, nodes = wrong[0]
    more = f" (nor do {counted(len(wrong) - 1, 'more pair')})" if len(wrong) > 1 else ""
    one_each = "remove it for one rank per node, or " if "." in axis else ""
    yield Problem(
        path="axes.world_size",
        message=f"is multiplied with axes.{_quoted(axis)}, and {ranks} ranks do not divide evenly over {nodes} nodes"
        f"{more}: {one_each}leave such pairs out with [[exclude]]",
    )


def crossed_words(experiment: Experiment, pairs: Collection[Pair]) -> str:
    """Describe the layouts in a sentence if world sizes are crossed with node counts."""
    axis = crossed_axis(experiment)
    nodes_of: dict[int, list[int]] = {}
    for ranks, nodes in dict.fromkeys(pairs):
        if ranks > 1:
            nodes_of.setdefault(ranks, []).append(nodes)
    if not axis or all(len(nodes) == 1 for nodes in nodes_of.values()):
        return ""
    layouts = "; ".join(f"{ranks} ranks on {_listed(nodes)}" for ranks, nodes in nodes_of.items())
    count = sum(map(len, nodes_of.values()))
    one_each = "; without axes.world_size each node has one rank" if "." in axis else ""
    return f"axes.world_size and axes.{_quoted(axis)} are multiplied, {count} layouts: {layouts}{one_each}"


def _quoted(axis: str) -> str:
    return f'"{axis}"' if "." in axis else axis


def _listed(counts: list[int]) -> str:
    *most, last = map(str, counts)
    return f"{', '.join(most)} and {last} nodes" if most else f"{last} node{'s' if last != '1' else ''}"
