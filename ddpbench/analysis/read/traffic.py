"""What nodes' emulated links carried in a step, and whether that is what the algorithm should move."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from ddpbench.records import Traffic

FEWEST, MOST = 0.99, 1.08
"""Bytes counted over bytes by the formula that headers, acknowledgements and barriers explain."""


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeTraffic:
    """Bytes a step of the node that sent most, and of the one that received most; totals over steps."""

    sent: float
    received: float
    steps: int
    by_node: Mapping[int, tuple[float, float]] = field(default_factory=dict)
    """What each node sent and received a step; of one launch alone."""


def node_traffic(records: Iterable[Traffic]) -> NodeTraffic | None:
    """Return a launch's traffic in its timed blocks, from every node's records; None where there are none."""
    sent: defaultdict[int, int] = defaultdict(int)
    received: defaultdict[int, int] = defaultdict(int)
    steps: defaultdict[int, int] = defaultdict(int)
    for record in records:
        if record.phase == "timed":
            sent[record.node] += record.sent_bytes
            received[record.node] += record.received_bytes
            steps[record.node] += record.steps
    known = [node for node, count in steps.items() if count]
    if not known:
        return None
    return NodeTraffic(
        sent=max(sent[node] / steps[node] for node in known),
        received=max(received[node] / steps[node] for node in known),
        steps=min(steps[node] for node in known),
        by_node={node: (sent[node] / steps[node], received[node] / steps[node]) for node in known},
    )


def mean_traffic(launches: Iterable[NodeTraffic]) -> NodeTraffic | None:
    """Launches together: totals over steps."""
    found = list(launches)
    steps = sum(one.steps for one in found)
    if not steps:
        return None
    return NodeTraffic(
        sent=sum(one.sent * one.steps for one in found) / steps,
        received=sum(one.received * one.steps for one in found) / steps,
        steps=steps,
    )
