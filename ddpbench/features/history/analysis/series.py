"""Find the runs between which each case's step time changed, and the level before and after each change.

A run is one value: the mean log time per sample over its launches, with the drift between sessions. Runs are assumed to
drift independently; if neighbours resemble each other, a change needs more evidence. A drift that builds up over many
runs counts as a change.
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
from ddpbench.text_safety import command

ABSENT = "not"


@dataclass(frozen=True, kw_only=True, slots=True)
class SeriesPoint:
    """The result of a case in one run (number `run`): a step time in seconds, or the `reason` why there is none.

    Unlike in a report, the step time is the geometric mean over launches. Therefore a level is a geometric mean of
    runs, and the ratio of two levels is the ratio that is tested.
    """

    run: int
    status: str = "ok"
    """A status such as `failed` if the point has no numbers; `ABSENT` if the run does not plan the case."""
    step: Interval | None = None
    launches: int = 0
    log: float = 0.0
    """Mean over launches of the logarithm of the time per sample, which is what runs are compared by."""
    reason: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class SeriesLevel:
    """Consecutive runs of a case without a change between them.

    `step_s` is the geometric mean of the runs' step times, in seconds.
    """

    first: int
    last: int
    runs: int
    step_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class ChangePoint:
    """A change of a case's step time between the runs with the numbers `before` and `after`.

    `ratio` is the level after the change divided by the level before, with its 95 % interval over runs.
    """

    before: int
    after: int
    ratio: Interval

    @property
    def slower(self) -> bool:
        """True if steps take longer after the change."""
        return self.ratio.value > 1

    @property
    def size(self) -> float:
        """The absolute value of the log ratio."""
        return abs(math.log(self.ratio.value))


@dataclass(frozen=True, kw_only=True, slots=True)
class CaseHistory:
    """The results of a case over runs: one for each run, from the first to the last run that has the case."""

    label: str
    key: str
    """The case's name in data files."""
    case: Case
    points: tuple[SeriesPoint, ...]
    levels: tuple[SeriesLevel, ...]
    changes: tuple[ChangePoint, ...]
    enough: bool
    """True if the case was measured in enough runs for a change to be shown."""

    @property
    def measured(self) -> list[SeriesPoint]:
        """The points that have a step time."""
        return [point for point in self.points if point.step is not None]

    @property
    def gaps(self) -> list[SeriesPoint]:
        """The points without a step time."""
        return [point for point in self.points if point.step is None]

    @property
    def largest(self) -> ChangePoint | None:
        """The largest slowdown, or else the largest speed-up; None if nothing changed."""
        return max(self.changes, key=lambda one: (one.slower, one.size), default=None)


@dataclass(frozen=True, kw_only=True, slots=True)
class History:
    """The histories of all cases.

    The probability that a change is reported for any of the unchanged cases is at most `alpha`.
    """

    sides: tuple[Side, ...]
    cases: tuple[CaseHistory, ...]
    fewest: int
    """Number of runs that a case needs for a change to be shown; depends on the number of cases."""
    alone: int
    """Number of cases that are left out because only one run has them."""
    unlike: tuple[str, ...]
    """Differences in machine, torch and the like from one run to the next."""

    @property
    def changed(self) -> list[CaseHistory]:
        """The cases with a change, largest change first. Cases with a slowdown come before all other cases."""
        changes = [(one.largest, one) for one in self.cases if one.largest is not None]
        changes.sort(key=lambda each: (each[0].slower, each[0].size), reverse=True)
        return [one for _, one in changes]


def history_of(sides: Sequence[Side], *, only: str = "", alpha: float = ALPHA) -> History:
    """Return each case's levels and changes over these runs.

    Args:
        sides: the runs, in order.
        only: keep cases whose label contains this text, ignoring upper and lower case.
        alpha: the largest probability that a change is reported in any case if no case changed.

    Raises:
        RequestError: no case is in two of the runs, or no label contains `only`.
    """
    every = _over_runs(sides)
    names = Namer(first.case for first, _ in every)
    shared = [one for one in every if sum(run is not None for run in one[1]) > 1]
    if not shared:
        raise RequestError(
            f"no two of these {len(sides)} runs have a case in common: cases are matched by their settings"
        )
    called = {first.case: (names.full(first.case), names.key(first.case)) for first, _ in shared}
    kept = [one for one in shared if any(only.lower() in name.lower() for name in called[one[0].case])]
    if not kept:
        known = sorted(name for name, _ in called.values())
        near = meant(only, {*known, *" ".join(known).split()})
        raise RequestError(f"{command('--case', only)}: no such case; {near}known: {', '.join(known)}")
    pointed = [(first, _points(runs, sides)) for first, runs in kept]
    counts = [sum(point.step is not None for point in points) for _, points in pointed]
    level = level_each(counts, alpha)
    fewest = fewest_values(level)
    if max(counts) < fewest:  # no case has enough runs: report how many all cases need, not only the longest
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
    found: list[tuple[CaseRun, list[CaseRun | None]]] = []
    for number, side in enumerate(sides):
        pairs = matched([first for first, _ in found], side.cases)
        for (_, runs), (_, mine) in zip(found, pairs, strict=False):
            runs.append(mine)
        found += [
            (mine, [None] * number + [mine]) for known, mine in pairs if known is None and mine is not None
        ]
    return found


def _points(runs: Sequence[CaseRun | None], sides: Sequence[Side]) -> tuple[SeriesPoint, ...]:
    """Return the points from the first to the last run that planned the case."""
    planned = [number for number, run in enumerate(runs) if run is not None]
    return tuple(
        _point(number, runs[number], sides[number].name) for number in range(planned[0], planned[-1] + 1)
    )


def _point(number: int, run: CaseRun | None, name: str) -> SeriesPoint:
    if run is None:
        return SeriesPoint(run=number, status=ABSENT, reason=f"not in {name}")
    reason = unusable(run, name)
    if reason:
        return SeriesPoint(run=number, status=run.status, reason=reason)
    return SeriesPoint(
        run=number,
        step=geometric_mean(run.timings),
        launches=len(run.timings),
        log=_mean([math.log(timing.sample_s) for timing in run.timings]),
    )


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def _case(
    called: tuple[str, str], case: Case, points: tuple[SeriesPoint, ...], level: float, fewest: int
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


def _level(part: Sequence[SeriesPoint]) -> SeriesLevel:
    logs = [math.log(point.step.value) for point in part if point.step is not None]
    return SeriesLevel(first=part[0].run, last=part[-1].run, runs=len(part), step_s=math.exp(_mean(logs)))


def _change(before: Sequence[SeriesPoint], after: Sequence[SeriesPoint], shift: Comparison) -> ChangePoint:
    return ChangePoint(before=before[-1].run, after=after[0].run, ratio=shift.time_ratio())
