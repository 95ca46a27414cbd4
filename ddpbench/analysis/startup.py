"""Start-up time of a launch, which lasts from the request until the end of the last rank's first step."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, fields

from ddpbench.analysis.statistics.interval import Interval
from ddpbench.analysis.statistics.stats import median_launch
from ddpbench.records import Met, RankStart, Warmup


@dataclass(frozen=True, kw_only=True, slots=True)
class StartUp:
    """Start-up time of one launch, in seconds, divided into consecutive parts.

    The times are those of the rank whose first step ended last.
    """

    process_s: float
    """From the request until the rank's process starts working."""
    imports_s: float
    """For importing torch and all other modules. A forked rank inherits the imports from its fork server."""
    model_s: float
    """For loading data and model."""
    meeting_s: float
    """For connecting the ranks and making process groups."""
    first_step_s: float
    """For making the replica (DDP, sharding) and the first step."""

    @property
    def total_s(self) -> float:
        """Return the sum of all parts, in seconds."""
        return math.fsum(getattr(self, part.name) for part in fields(self))


@dataclass(frozen=True, kw_only=True, slots=True)
class TypicalStart:
    """Start-up time of a case's launches, in seconds: the median of the total, and the median of each part."""

    total: Interval
    parts: StartUp


PARTS = tuple(part.name for part in fields(StartUp))


def start_up_of(ranks: Sequence[tuple[RankStart | None, Met | None, Warmup | None]]) -> StartUp | None:
    """Return a launch's start-up time; None if not recorded, or if ranks are on several hosts, whose clocks differ."""
    found: list[tuple[int, StartUp]] = []
    hosts: set[str] = set()
    for start, met, warmup in ranks:
        if start is None or met is None or warmup is None:
            return None
        if start.asked_ns is None or start.entered_ns is None or warmup.first_ns is None:
            return None
        hosts.add(start.host)
        moments = [
            start.asked_ns,
            start.entered_ns,
            start.started_ns,
            met.start_ns,
            met.end_ns,
            warmup.first_ns,
        ]
        spans = [(after - before) / 1e9 for before, after in itertools.pairwise(moments)]
        if min(spans) < 0:  # another host's clock, or records that do not belong together
            return None
        found.append((warmup.first_ns, StartUp(**dict(zip(PARTS, spans, strict=True)))))
    if not found or len(hosts) > 1:
        return None
    return max(found, key=lambda one: one[0])[1]


def typical_start(starts: Sequence[StartUp]) -> TypicalStart | None:
    """Return the median of the launches' start-up times with its 95 % interval, and the median of each part.

    None if there are no launches.
    """
    if not starts:
        return None
    parts = {part: statistics.median(getattr(start, part) for start in starts) for part in PARTS}
    return TypicalStart(total=median_launch([start.total_s for start in starts]), parts=StartUp(**parts))
