"""A/A test: measure a machine's noise with one case run twice, and derive the smallest detectable difference."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from ddpbench.analysis.read.cases import read_cases
from ddpbench.analysis.read.launches import CaseRun
from ddpbench.analysis.read.walls import begin_wall_s, server_start_s
from ddpbench.analysis.statistics.correlation import correlation_of
from ddpbench.analysis.statistics.interval import Interval
from ddpbench.analysis.statistics.resolution import (
    InTurn,
    deviation_interval,
    drift_of,
    resolved_by_two_runs,
    resolved_in_one_sweep,
    rounds_in,
    rounds_to_resolve,
)
from ddpbench.analysis.statistics.stats import ALPHA, COPIES, POWER, compare, deviation, pairs, samples_rate
from ddpbench.analysis.statistics.timings import Timing, TimingKey
from ddpbench.errors import RecordError
from ddpbench.naming import Namer
from ddpbench.records import RunDir
from ddpbench.records.plan import read_plan
from ddpbench.spec.settings import MIN_ROUNDS, MOST_INTERLEAVED_ROUNDS, MOST_ROUNDS
from ddpbench.units import format_about, format_at_most, format_seconds, format_two_digits

TIMES_S = (60.0, 180.0, 480.0, 1800.0)
"""Default measuring times (seconds) for which the smallest change that they resolve is reported."""
CHANGES = (0.10, 0.05, 0.03, 0.02, 0.01)
"""Default changes (fractions) for which the measuring time that resolves them is reported."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ResolvedIn:
    """The smallest change, as a fraction, that each way of comparing resolves within `seconds` of measuring.

    None if too few rounds fit. `two_runs` has half of the time for each session, and includes the drift between them.
    """

    seconds: float
    in_turn: float | None
    one_sweep: float | None
    two_runs: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class TimeFor:
    """Measuring time, in seconds, that each way of comparing needs to resolve `change`, a fraction.

    The ways are two interleaved sides, two cases in one sweep, and two separate runs. A time is None if no measuring
    time is long enough.
    """

    change: float
    in_turn_s: float | None
    one_sweep_s: float | None
    two_runs_s: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class NoiseResult:
    """Result of an A/A test. Changes are fractions of the step time.

    `difference` is the step time of A divided by that of its replicate, minus 1, with its 95 % interval over rounds.
    The interval should include 0. `deviation_pairs` is the standard deviation of the log ratio within a round, for
    normal log ratios. `deviation_launches` is the standard deviation of a launch's log step time across rounds.

    `round_s` is the wall time of a round with both launches in one sweep. `round_in_turn_s` is that of two interleaved
    sides, which have separate fork servers. `begin_s` is the time before a sweep's first round. `within` has the
    smallest resolvable change for each time, and `resolve` the necessary time for each change (95 % confidence, 80 %
    power).
    """

    case: str
    rounds: int
    samples_per_s: float
    difference: Interval
    deviation_pairs: Interval
    deviation_launches: float
    round_s: float
    round_in_turn_s: float
    begin_s: float
    within: tuple[ResolvedIn, ...]
    resolve: tuple[TimeFor, ...]
    disturbed: str

    def describe(self) -> str:
        """Return the result as a few lines for a terminal."""
        gap, (low, high) = 100 * self.difference.value, (100 * end for end in _ends(self.difference))
        sure = (
            "includes 0, as it should" if low <= 0 <= high else "excludes 0: pairs do not cancel this noise"
        )
        spread, drift = 100 * self.deviation_pairs.value, 100 * self.deviation_launches
        lines = [
            f"{self.case}: {self.samples_per_s:,.1f} samples/s, {self.rounds} rounds of two launches",
            f"two equal cases differ by {gap:+.2f} % [{low:+.2f}, {high:+.2f}] (95 %; {sure})",
            f"standard deviation: {spread:.2f} % of the ratio within a round, {drift:.2f} % of launches over rounds",
            f"a round of both takes {self.round_s:.1f} s in a sweep, {self.round_in_turn_s:.1f} s interleaved",
        ]
        if self.disturbed:
            lines.append(f"disturbed launches: {self.disturbed}")
        return "\n".join([*lines, "", *self._tables(), *self._limits()])

    def _tables(self) -> list[str]:
        lines = []
        if self.within:
            lines += [_row("smallest change resolved within a time", _WAYS)]
            for one in self.within:
                cells = [_change(value) for value in (one.in_turn, one.one_sweep, one.two_runs)]
                lines.append(_row(format_seconds(one.seconds), cells))
        if self.resolve:
            lines += [_row("time that resolves a change", _WAYS)]
            for wanted in self.resolve:
                times = (wanted.in_turn_s, wanted.one_sweep_s, wanted.two_runs_s)
                cells = ["-" if value is None else format_about(value) for value in times]
                lines.append(_row(f"{100 * wanted.change:g} %", cells))
        return lines

    def to_json(self) -> dict[str, Any]:
        """Return the result as plain values. An interval `x` becomes the keys `x`, `x_low` and `x_high`."""
        found: dict[str, Any] = {}
        for name, value in asdict(self).items():
            if name in ("difference", "deviation_pairs"):
                found |= {name: value["value"], f"{name}_low": value["low"], f"{name}_high": value["high"]}
            else:
                found[name] = value
        return found

    def _limits(self) -> list[str]:
        pairs, (low, high) = self.deviation_pairs.value, _ends(self.deviation_pairs)
        drift = format_two_digits(100 * drift_of(self.deviation_launches))
        shortest, longest = ((end / pairs) ** 2 if pairs else 1 for end in (low, high))
        level = f"{100 * (1 - ALPHA):g} % confidence, {100 * POWER:g} % power"
        most = f"{MOST_INTERLEAVED_ROUNDS} at most interleaved, {MOST_ROUNDS:,} in a sweep"
        none = f"- where under {MIN_ROUNDS} rounds fit, or none resolve it ({most})"
        deviation = f"{format_two_digits(100 * low)} and {format_two_digits(100 * high)} %"
        times = f"times may be {shortest:.1f} to {longest:.1f} times these; more --rounds tell it better"
        return [
            f"at {level}; {none}",
            "interleaved: ddpbench compare --interleave, which may end after any round; --total is the time, at most:",
            "  it interleaves blocks of steps, and where a machine's speed varies these full launches differ by more",
            "one sweep: of two cases, as many rounds as fit; more cases tell better how rounds are correlated",
            f"two runs: ddpbench compare BASE NEW, half of the time each, {drift} % of drift between them",
            f"{self.rounds} rounds show a deviation between {deviation}: {times}",
        ]


def _ends(interval: Interval) -> tuple[float, float]:
    assert interval.low is not None
    assert interval.high is not None
    return interval.low, interval.high


_WAYS = ("interleaved", "one sweep", "two runs")


def _row(name: str, cells: Sequence[str]) -> str:
    return f"{name:>38}{''.join(f'{cell:>13}' for cell in cells)}"


def _change(value: float | None) -> str:
    return "-" if value is None else format_at_most(value)


def noise_of(
    run: RunDir, *, within_s: Sequence[float] = TIMES_S, changes: Sequence[float] = CHANGES
) -> NoiseResult:
    """Compute the noise that a run with a case and its replicate shows.

    Args:
        run: the run directory.
        within_s: measuring times, seconds, for which the smallest resolvable change is computed.
        changes: changes, as fractions, for which the necessary measuring time is computed.

    Raises:
        IdentityError: `run` is not a run directory, or has another schema.
        RecordError: no two cases differ only in `replicate`; or the two cases share too few rounds; or their
            launches do not differ at all.
    """
    cases = read_cases(run, read_plan(run))
    first, second = _twins(cases, run)
    comparison = compare(first.timings, second.timings)
    both = pairs(first.timings, second.timings)
    if comparison is None or comparison.standard_error is None or not comparison.paired:
        reason = next((case.error for case in (first, second) if case.error), "")
        hint = f": {reason}" if reason else "; run more rounds"
        raise RecordError(
            f"{run.path}: both launches are complete in {len(both)} of the 2 rounds needed{hint}"
        )
    ratio = comparison.time_ratio()
    low, high = _ends(ratio)
    spread, shared = _spread(both), {mine.pair for mine, _ in both}
    if not spread:
        raise RecordError(f"{run.path}: {COPIES}")
    launches_s, server_s = _launches_s((first, second), shared), server_start_s(cases, shared)
    flags = [f"{name} {count}" for name, count in _flag_counts(first, second).items()]
    plan = _Plan(
        pairs=spread,
        launches=_over_rounds((first, second)),
        round_s=launches_s + server_s,
        round_in_turn_s=launches_s + 2 * server_s,
        begin_s=begin_wall_s(run, cases),
        correlation=max(0.0, correlation_of([case.timings for case in cases]).estimate),
    )
    return NoiseResult(
        case=Namer([first.case]).full(first.case),
        rounds=len(both),
        samples_per_s=samples_rate([*first.timings, *second.timings]).value,
        difference=Interval(ratio.value - 1, low - 1, high - 1),
        deviation_pairs=deviation_interval(spread, len(both)),
        deviation_launches=plan.launches,
        round_s=plan.round_s,
        round_in_turn_s=plan.round_in_turn_s,
        begin_s=plan.begin_s,
        within=tuple(plan.within(seconds) for seconds in within_s),
        resolve=tuple(plan.time_for(change) for change in changes),
        disturbed=", ".join(flags),
    )


def _over_rounds(twins: Sequence[CaseRun]) -> float:
    """Return the root mean square, over the twins, of the log step time's standard deviation across rounds."""
    deviations = [deviation([math.log(one.step_s) for one in case.timings]) for case in twins]
    return math.sqrt(sum(value**2 for value in deviations) / len(deviations))


def _spread(both: Sequence[tuple[Timing, Timing]]) -> float:
    return deviation([math.log(mine.compared_s / other.compared_s) for mine, other in both])


def _launches_s(twins: Sequence[CaseRun], shared: Collection[TimingKey]) -> float:
    walls = [
        launch.wall_s
        for case in twins
        for launch in case.good
        if launch.timing is not None and launch.timing.pair in shared
    ]
    return 2 * math.fsum(walls) / len(walls)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Plan:
    """A machine's noise and durations, from which the changes that it can resolve are computed."""

    pairs: float
    launches: float
    round_s: float
    round_in_turn_s: float
    begin_s: float
    correlation: float
    """Lag-1 correlation of rounds, at least 0."""

    def within(self, seconds: float) -> ResolvedIn:
        return ResolvedIn(
            seconds=seconds,
            in_turn=self._in_turn().resolved_in(seconds),
            one_sweep=self._in_one_sweep(_rounds_of_a_sweep(seconds - self.begin_s, self.round_s)),
            two_runs=self._by_two_runs(_rounds_of_a_sweep(seconds - 2 * self.begin_s, self.round_in_turn_s)),
        )

    def time_for(self, change: float) -> TimeFor:
        sweep, runs = (
            rounds if rounds is not None and rounds <= MOST_ROUNDS else None
            for rounds in (rounds_to_resolve(change, way) for way in (self._in_one_sweep, self._by_two_runs))
        )
        return TimeFor(
            change=change,
            in_turn_s=self._in_turn().time_for(change),
            one_sweep_s=None if sweep is None else self.begin_s + sweep * self.round_s,
            two_runs_s=None if runs is None else 2 * self.begin_s + runs * self.round_in_turn_s,
        )

    def _in_turn(self) -> InTurn:
        return InTurn(
            deviation=self.pairs,
            round_s=self.round_in_turn_s,
            begin_s=2 * self.begin_s,
            correlation=self.correlation,
        )

    def _in_one_sweep(self, rounds: int) -> float | None:
        return resolved_in_one_sweep(self.pairs, rounds, self.correlation)

    def _by_two_runs(self, rounds: int) -> float | None:
        return resolved_by_two_runs(self.launches, rounds)


def _rounds_of_a_sweep(seconds: float, round_s: float) -> int:
    return min(rounds_in(seconds, round_s), MOST_ROUNDS)


def _twins(cases: list[CaseRun], run: RunDir) -> tuple[CaseRun, CaseRun]:
    by_case = {case.case: case for case in cases}
    for case in cases:
        twin = by_case.get(replace(case.case, replicate=case.case.replicate + 1))
        if twin is not None:
            return case, twin
    raise RecordError(f"{run.path} has no A/A test, because no two of its cases differ only in replicate")


def _flag_counts(*cases: CaseRun) -> dict[str, int]:
    counts: dict[str, int] = {}
    for case in cases:
        for launch in case.good:
            for flag in launch.flags:
                counts[flag] = counts.get(flag, 0) + 1
    return counts
