"""A machine's own noise: one case against itself, and the smallest change that can be told from it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from ddpbench.analysis.read.cases import read_cases
from ddpbench.analysis.read.launches import CaseRun
from ddpbench.analysis.statistics.stats import (
    ALPHA,
    POWER,
    compare,
    deviation,
    pairs,
    samples_rate,
    smallest_resolvable,
)
from ddpbench.errors import RecordError
from ddpbench.records import RunDir
from ddpbench.records.plan import read_plan

BUDGETS_MIN = (1, 5, 10, 30)
"""Minutes for which the smallest resolvable change is told."""


@dataclass(frozen=True, kw_only=True, slots=True)
class NoiseResult:
    """A against A. Changes are fractions of the step time.

    `difference` is A's step time over its twin's minus 1, with its 95 % interval over rounds: it should
    include 0. `deviation_pairs` is the standard deviation of the log ratio within a round and
    `deviation_launches` that of a launch's log step time over rounds: pairs gain what drift cancels.
    `round_s` is a round's wall time for the two launches. `resolvable` is the smallest change told apart at
    95 % confidence and 80 % power, by minutes of measuring; None where two rounds do not fit.
    """

    case: str
    rounds: int
    samples_per_s: float
    difference: float
    difference_low: float
    difference_high: float
    deviation_pairs: float
    deviation_launches: float
    round_s: float
    resolvable: Mapping[str, float | None]
    disturbed: str

    def describe(self) -> str:
        """Return a few lines for a terminal."""
        gap, low, high = (100 * x for x in (self.difference, self.difference_low, self.difference_high))
        sure = (
            "includes 0, as it should" if low <= 0 <= high else "excludes 0: pairs do not cancel this noise"
        )
        spread, drift = 100 * self.deviation_pairs, 100 * self.deviation_launches
        level = f"{100 * (1 - ALPHA):g} % confidence, {100 * POWER:g} % power"
        lines = [
            f"{self.case}: {self.samples_per_s:,.1f} samples/s, {self.rounds} rounds of two launches",
            f"two equal cases differ by {gap:+.2f} % [{low:+.2f}, {high:+.2f}] (95 %; {sure})",
            f"standard deviation: {spread:.2f} % of the ratio within a round, {drift:.2f} % of launches over rounds",
            f"a round of both takes {self.round_s:.1f} s; the smallest change resolved ({level}):",
        ]
        for minutes, change in self.resolvable.items():
            told = f"{100 * change:.2f} %" if change is not None else "none: two rounds do not fit"
            lines.append(f"  in {minutes:>2} min: {told}")
        if self.disturbed:
            lines.append(f"disturbed launches: {self.disturbed}")
        return "\n".join(lines)


def noise_of(run: RunDir) -> NoiseResult:
    """Return the noise of a run that has a case and its replicate.

    Raises:
        IdentityError: it is not a run directory, or one of another schema.
        RecordError: it has no two cases that differ in nothing but `replicate`, or too few rounds of them.
    """
    cases = read_cases(run, read_plan(run))
    first, second = _twins(cases, run)
    comparison = compare(first.timings, second.timings)
    both = pairs(first.timings, second.timings)
    if comparison is None or comparison.standard_error is None or not comparison.paired:
        reason = next((case.error for case in (first, second) if case.error), "")
        told = f": {reason}" if reason else "; run more rounds"
        raise RecordError(f"{run.path}: both launches of {len(both)} of 2 rounds needed are there{told}")
    ratio = comparison.time_ratio()
    assert ratio.low is not None
    assert ratio.high is not None
    spread = deviation([math.log(mine.step_s / other.step_s) for mine, other in both])
    shared = {mine.pair for mine, _ in both}
    walls = [
        launch.wall_s + launch.server_s
        for case in (first, second)
        for launch in case.good
        if launch.timing is not None and launch.timing.pair in shared
    ]
    round_s = 2 * math.fsum(walls) / len(walls)
    flags = [f"{name} {count}" for name, count in _flag_counts(first, second).items()]
    launches = [deviation([math.log(t.step_s) for t in case.timings]) for case in (first, second)]
    return NoiseResult(
        case=first.case.label,
        rounds=len(both),
        samples_per_s=samples_rate([*first.timings, *second.timings]).value,
        difference=ratio.value - 1,
        difference_low=ratio.low - 1,
        difference_high=ratio.high - 1,
        deviation_pairs=spread,
        deviation_launches=math.sqrt(sum(value**2 for value in launches) / 2),
        round_s=round_s,
        resolvable={
            str(minutes): smallest_resolvable(spread, int(60 * minutes / round_s)) if round_s > 0 else None
            for minutes in BUDGETS_MIN
        },
        disturbed=", ".join(flags),
    )


def _twins(cases: list[CaseRun], run: RunDir) -> tuple[CaseRun, CaseRun]:
    by_case = {case.case: case for case in cases}
    for case in cases:
        twin = by_case.get(replace(case.case, replicate=case.case.replicate + 1))
        if twin is not None:
            return case, twin
    raise RecordError(f"{run.path} has no two cases that differ in nothing but replicate")


def _flag_counts(*cases: CaseRun) -> dict[str, int]:
    counts: dict[str, int] = {}
    for case in cases:
        for launch in case.good:
            for flag in launch.flags:
                counts[flag] = counts.get(flag, 0) + 1
    return counts
