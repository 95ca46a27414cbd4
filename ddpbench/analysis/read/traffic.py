"""Traffic over emulated links per step, and its comparison with the bytes that the algorithm should send.

A link belongs to a node, or to a rank of a node with separate links (`spec.links.local_rate`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from ddpbench.records import Traffic

FEWEST, MOST = 0.99, 1.08
"""Smallest and largest ratio of counted bytes to the formula's bytes that is plausible.

Headers, acknowledgements and barriers explain a ratio in this range.
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class LinkTraffic:
    """Bytes per step over the link that sent most, and over the link that received most, as means over `steps`."""

    sent: float
    received: float
    steps: int
    by_rank: Mapping[int, tuple[float, float]] = field(default_factory=dict)
    """Bytes per step that each link sent and received, by the rank that read them; for single launches only."""


def link_traffic(ranks: Mapping[int, Iterable[Traffic]]) -> LinkTraffic | None:
    """Return a launch's traffic in its timed blocks, from the links' counters; None if no rank read a counter."""
    sent: defaultdict[int, int] = defaultdict(int)
    received: defaultdict[int, int] = defaultdict(int)
    steps: defaultdict[int, int] = defaultdict(int)
    for rank, records in ranks.items():
        for record in records:
            if record.phase == "timed":
                sent[rank] += record.sent_bytes
                received[rank] += record.received_bytes
                steps[rank] += record.steps
    known = [rank for rank, count in steps.items() if count]
    if not known:
        return None
    return LinkTraffic(
        sent=max(sent[rank] / steps[rank] for rank in known),
        received=max(received[rank] / steps[rank] for rank in known),
        steps=min(steps[rank] for rank in known),
        by_rank={rank: (sent[rank] / steps[rank], received[rank] / steps[rank]) for rank in known},
    )


def mean_traffic(launches: Iterable[LinkTraffic]) -> LinkTraffic | None:
    """Return the mean traffic per step of several launches; None if they have no steps."""
    found = list(launches)
    steps = sum(one.steps for one in found)
    if not steps:
        return None
    return LinkTraffic(
        sent=sum(one.sent * one.steps for one in found) / steps,
        received=sum(one.received * one.steps for one in found) / steps,
        steps=steps,
    )
