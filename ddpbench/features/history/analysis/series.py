"""Each case's step time over runs: the levels that it had, and between which runs it changed.

A run is one value, the mean over its launches of the log time per sample: what a machine drifts from one session to the
next is the spread of these values, and no launch counts as a replicate. The runs' drifts are taken to be independent;
where neighbours are seen to be alike more is asked of a change. A drift that builds up over many runs is a change.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from ddpbench.analysis.read.launches import CaseRun
from ddpbench.analysis.regression import Side
from ddpbench.analysis.regression.changes import matched, unusable
from ddpbench.analysis.statistics.changepoints import (
    change_points,
    fewest_values,
    level_each,
    shifts,
)
from ddpbench.analysis.statistics.interval import Interval
from ddpbench.analysis.statistics.stats import ALPHA, Comparison, geometric_mean
from ddpbench.errors import RequestError, meant
from ddpbench.features.history.analysis.reading import differences
from ddpbench.naming import Namer
from ddpbench.spec import Case
from ddpbench.texts import command

ABSENT = "not"


@dataclass(frozen=True, kw_only=True, slots=True)
class Point:
    """A case in one run, which is the `run`-th of the history. Without a `step`, seconds, a `reason` says why.

    Its step time is the geometric mean of its launches, unlike that of a report, so that levels are means of runs, and
    the ratio of two levels is the ratio that is compared.
    """

    run: int
    status: str = "ok"
    """`failed` and the like where it has no numbers; `ABSENT` where the run does not plan it."""
    step: Interval | None = None
    launches: int = 0
    log: float = 0.0
    """Mean over launches of the logarithm of the time per sample: what is compared."""
    reason: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Level:
    """A stretch of a case's runs without a change: from one run to another, and their geometric mean, seconds."""

    first: int
    last: int
    runs: int
    step_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class ChangePoint:
    """A change of level: after the run `before`, and not later than in the run `after`.

    `ratio` is the level after it over the one before, with its 95 % interval over runs.
    """

    before: int
    after: int
    ratio: Interval

    @property
    def slower(self) -> bool:
        """Whether steps take longer after it."""
        return self.ratio.value > 1

    @property
    def size(self) -> float:
        """How far it is from none, a logarithm."""
        return abs(math.log(self.ratio.value))


@dataclass(frozen=True, kw_only=True, slots=True)
class CaseHistory:
    """A case over runs: a point for each from the first that has it to the last."""

    label: str
    key: str
    """Its name in data."""
    case: Case
    points: tuple[Point, ...]
    levels: tuple[Level, ...]
    changes: tuple[ChangePoint, ...]
    enough: bool
    """Whether it has as many runs as a change needs to be shown."""

    @property
    def measured(self) -> list[Point]:
        """The runs that have numbers of it."""
        return [point for point in self.points if point.step is not None]

    @property
    def gaps(self) -> list[Point]:
        """The runs between these that have none."""
        return [point for point in self.points if point.step is None]

    @property
    def largest(self) -> ChangePoint | None:
        """The largest change, one that made it slower before all others; None where there is none."""
        return max(self.changes, key=lambda one: (one.slower, one.size), default=None)


@dataclass(frozen=True, kw_only=True, slots=True)
class History:
    """A history whole. With probability `1 - alpha` at least no change is told of a case that has none."""

    sides: tuple[Side, ...]
    cases: tuple[CaseHistory, ...]
    fewest: int
    """Runs that a case needs for a change to be shown in it, with as many cases as these."""
    alone: int
    """Cases that one run alone has, which are left out."""
    unlike: tuple[str, ...]
    """In what machines, torch and the like change from one run to the next."""

    @property
    def changed(self) -> list[CaseHistory]:
        """The cases in which a change is shown, the largest first, and what became slower before what became faster."""
        found = [(one.largest, one) for one in self.cases if one.largest is not None]
        found.sort(key=lambda each: (each[0].slower, each[0].size), reverse=True)
        return [one for _, one in found]


def history_of(sides: Sequence[Side], *, only: str = "", alpha: float = ALPHA) -> History:
    """Return what may be said of each case over these runs, which are in order.

    Args:
        sides: the runs.
        only: cases whose label has this text in it, in capitals or not.
        alpha: the chance that a change is told of any case, where none has one; at most.

    Raises:
        RequestError: no case is in two of the runs, or none is called so.
    """
    every = _over_runs(sides)
    names = Namer(first.case for first, _ in every)
    shared = [one for one in every if sum(run is not None for run in one[1]) > 1]
    if not shared:
        raise RequestError(
            f"no two of these {len(sides)} runs have a case in common: cases are matched by what they specify"
        )
    called = {first.case: (names.full(first.case), names.key(first.case)) for first, _ in shared}
    kept = [one for one in shared if any(only.lower() in name.lower() for name in called[one[0].case])]
    if not kept:
        known = sorted(name for name, _ in called.values())
        near = meant(only, {*known, *" ".join(known).split()})
        raise RequestError(
            f"{command('--case', only)}: no case is called so; {near}known: {', '.join(known)}"
        )
    pointed = [(first, _points(runs, sides)) for first, runs in kept]
    counts = [sum(point.step is not None for point in points) for _, points in pointed]
    level = level_each(counts, alpha)
    fewest = fewest_values(level)
    if max(counts) < fewest:  # none is long enough yet: what all of them need, and not what the longest would
        fewest = fewest_values(alpha / len(counts))
    cases = tuple(_case(called[first.case], first.case, points, level, fewest) for first, points in pointed)
    return History(
        sides=tuple(sides),
        cases=cases,
        fewest=fewest,
        alone=0 if only else len(every) - len(shared),
        unlike=tuple(differences(sides)),
    )


def _over_runs(sides: Sequence[Side]) -> list[tuple[CaseRun, list[CaseRun | None]]]:
    """Return each case as the first run that has it, and as each run has it; matched as two runs are."""
    found: list[tuple[CaseRun, list[CaseRun | None]]] = []
    for number, side in enumerate(sides):
        pairs = matched([first for first, _ in found], side.cases)
        for (_, runs), (_, mine) in zip(found, pairs, strict=False):
            runs.append(mine)
        found += [
            (mine, [None] * number + [mine]) for known, mine in pairs if known is None and mine is not None
        ]
    return found


def _points(runs: Sequence[CaseRun | None], sides: Sequence[Side]) -> tuple[Point, ...]:
    """Return a case's points from the first run that plans it to the last."""
    planned = [number for number, run in enumerate(runs) if run is not None]
    return tuple(
        _point(number, runs[number], sides[number].name) for number in range(planned[0], planned[-1] + 1)
    )


def _point(number: int, run: CaseRun | None, name: str) -> Point:
    if run is None:
        return Point(run=number, status=ABSENT, reason=f"not in {name}")
    reason = unusable(run, name)
    if reason:
        return Point(run=number, status=run.status, reason=reason)
    return Point(
        run=number,
        step=geometric_mean(run.timings),
        launches=len(run.timings),
        log=_mean([math.log(timing.sample_s) for timing in run.timings]),
    )


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def _case(
    called: tuple[str, str], case: Case, points: tuple[Point, ...], level: float, fewest: int
) -> CaseHistory:
    measured = [point for point in points if point.step is not None]
    enough = len(measured) >= fewest
    logs = [point.log for point in measured]
    cuts = change_points(logs, level) if enough else ()
    parts = [measured[begin:end] for begin, end in pairwise((0, *cuts, len(measured)))]
    return CaseHistory(
        label=called[0],
        key=called[1],
        case=case,
        points=points,
        levels=tuple(_level(part) for part in parts if part),
        changes=tuple(
            _change(before, after, shift)
            for (before, after), shift in zip(pairwise(parts), shifts(logs, cuts), strict=True)
        ),
        enough=enough,
    )


def _level(part: Sequence[Point]) -> Level:
    logs = [math.log(point.step.value) for point in part if point.step is not None]
    return Level(first=part[0].run, last=part[-1].run, runs=len(part), step_s=math.exp(_mean(logs)))


def _change(before: Sequence[Point], after: Sequence[Point], shift: Comparison) -> ChangePoint:
    return ChangePoint(before=before[-1].run, after=after[0].run, ratio=shift.time_ratio())
