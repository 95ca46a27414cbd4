"""Match the cases of two runs by their settings, and judge each case's change.

Between sessions a machine drifts by more than launches vary, so the intervals of two directories include a session's
variance (`apart`). Of interleaved sides, rounds are pairs, drift cancels, and intervals hold however often they are
checked; the typical round is reported. The mean of all rounds must agree with the verdict, and "nothing has changed"
needs enough rounds (`statistics/tails.py`).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from ddpbench.analysis.read.launches import CaseRun
from ddpbench.analysis.read.overlap import PARTS
from ddpbench.analysis.read.walls import begin_wall_s, launches_wall_s, round_wall_s, session_walls_s
from ddpbench.analysis.regression.apart import across, drifts_of, within
from ddpbench.analysis.regression.labels import pair_labels
from ddpbench.analysis.regression.near import why_alone
from ddpbench.analysis.regression.sides import Side
from ddpbench.analysis.statistics.correlation import (
    IN_TURN_FROM,
    Correlation,
    estimated,
    neighbours,
    widening_in_turn,
)
from ddpbench.analysis.statistics.interval import Interval
from ddpbench.analysis.statistics.judgement import CANNOT_TELL, MARGIN, judged
from ddpbench.analysis.statistics.resolution import (
    WANTED,
    InTurn,
    Variance,
    added,
    power_of_each,
    resolved_in_turn,
    smallest_seen,
)
from ddpbench.analysis.statistics.sequential import anytime_interval, far_off, typical_deviation
from ddpbench.analysis.statistics.stats import (
    ALPHA,
    COPIES,
    FEWEST,
    MIN_ROUNDS,
    geometric_mean,
    median_difference,
    t_quantile,
)
from ddpbench.analysis.statistics.tails import (
    ROUNDS_TO_SEE,
    agrees,
    mean_and_further,
    too_few_words,
    unseen_words,
)
from ddpbench.analysis.statistics.timings import Timing
from ddpbench.records import RunDir
from ddpbench.spec import Case
from ddpbench.spec.matching import match

ChangeVerdict = Literal["faster", "slower", "equivalent", "cannot tell", "not comparable"]


@dataclass(frozen=True, kw_only=True, slots=True)
class PartChange:
    """A part of a step on both sides, with its change.

    The sides' times are medians over launches, in seconds. `difference` is new minus base, with an interval. If the
    sides were interleaved, it is the difference in the typical round. Otherwise it is the difference of the medians.
    """

    name: str
    base_s: float
    new_s: float
    difference: Interval

    @property
    def resolved(self) -> bool:
        """Return whether the difference's interval excludes 0."""
        low, high = self.difference.low, self.difference.high
        return low is not None and high is not None and (low > 0 or high < 0)


@dataclass(frozen=True, kw_only=True, slots=True)
class Change:
    """A case on both sides, and the verdict on its change.

    `ratio` is the new time per sample divided by the base's, with the interval that decided the verdict: of the typical
    round if the sides were interleaved, otherwise of geometric means, like `new_step` and `base_step`. `rounds` is the
    number of interleaved rounds, or of launches of the side with fewer. `reason` says why a case is not comparable, or
    what its verdict is based on.
    """

    label: str
    case: Case
    """The base's case; the new side's if the base lacks it."""
    new_case: Case | None = None
    """The new side's case, which may differ in settings that the sides were given; None if that side lacks it."""
    verdict: ChangeVerdict
    reason: str = ""
    failures: int = 0
    """Number of failed launches of the new run; 0 if a launch of the base also failed."""
    ratio: Interval | None = None
    base_step: Interval | None = None
    new_step: Interval | None = None
    """Seconds per step of the new side; `base_step` is that of the base.

    Both are geometric means of the compared launches. All new times are scaled to the samples of a base step.
    """
    mean: float | None = None
    """Geometric mean of all rounds' ratios; None unless interleaved."""
    mean_most: float | None = None
    """Geometric mean of all rounds and a few hypothetical ones as slow as the slowest (`tails.mean_and_further`)."""
    tail: bool = False
    """True if a verdict is withheld because of possible slow rounds; `reason` says why.

    Either the mean does not agree with the typical round, or rounds or launches are too few to include rare slow ones.
    """
    scale: float = 1.0
    """Samples of a base step divided by those of a new one, by which the new times were multiplied."""
    rounds: int = 0
    bound: float | None = None
    """Largest difference, as a fraction, that the interval does not rule out."""
    resolvable: float | None = None
    """Smallest change, as a fraction, that these launches would have shown with probability `POWER`."""
    drifts: tuple[float, float] | None = None
    """Drift of base and new that the interval includes, as standard deviations of the logarithm of step time."""
    in_turn: InTurn | None = None
    """Parameters of the time that an interleaved comparison takes to resolve a change of this case."""
    parts: tuple[PartChange, ...] = ()
    base_launches: tuple[float, ...] = ()
    new_launches: tuple[float, ...] = ()
    """Step times of the new side's launches, seconds; `base_launches` are those of the base."""

    @property
    def judged(self) -> bool:
        """Return whether the case's data suffice for a verdict of any kind."""
        return self.verdict != "not comparable" and (not self.reason or self.tail)

    @property
    def broken(self) -> bool:
        """Return whether the new run has failed launches or no numbers for this case, unlike the base."""
        return (self.base_step is not None and self.new_step is None) or self.failures > 0

    @property
    def where(self) -> PartChange | None:
        """Return the part of a step that explains most of the change; None if no part's difference is resolved."""
        if self.verdict not in ("faster", "slower"):
            return None
        sign = 1 if self.verdict == "slower" else -1
        able = [part for part in self.parts if part.resolved and part.difference.value * sign > 0]
        return max(able, key=lambda part: abs(part.difference.value), default=None)

    def beyond(self, limit: float) -> bool:
        """Return whether the case is shown to be slower by more than `limit`, a fraction.

        The verdict must be "slower", and the entire interval of the ratio must be above the limit.
        """
        return (
            self.verdict == "slower"
            and self.ratio is not None
            and self.ratio.low is not None
            and self.ratio.low > 1 + limit
        )

    def within(self, limit: float) -> bool:
        """Return whether the case is shown to be slower by at most `limit`, a fraction.

        The entire interval of the ratio and `mean_most` must be within the limit.
        """
        ratio = self.ratio
        if ratio is None or ratio.high is None:
            return False
        return ratio.high <= 1 + limit and (self.mean_most is None or self.mean_most <= 1 + limit)

    @property
    def shows_rare(self) -> bool:
        """Return whether interleaved rounds, or launches of two runs, suffice to include a rare slow-down.

        For two runs, any number of launches suffices if the case is shown to be faster.
        """
        return self.rounds >= ROUNDS_TO_SEE or (self.mean_most is None and self.verdict == "faster")

    def why_not_within(self, limit: float) -> str:
        """Return the reason why a case is not shown to be within `limit` although its interval is; otherwise empty.

        The reason is that rounds or launches are too few to include rare slow ones.
        """
        if self.shows_rare or not self.within(limit):
            return ""
        return unseen_words(self.rounds, "launches" if self.mean_most is None else "rounds")


@dataclass(frozen=True, kw_only=True, slots=True)
class Changes:
    """A comparison of two sides: the change of each case, and how the sides were measured."""

    base: Side
    new: Side
    paired: bool
    """True if the sides were interleaved."""
    drift: float | None
    """Given drift between sessions; None means `DRIFT`, or the drift that launches show if that is larger."""
    changes: tuple[Change, ...]
    unlike: tuple[str, ...]
    wanted: float = WANTED
    """Change, as a fraction, that the comparison should resolve; a gate's limit if there is one."""
    foreign: tuple[float, ...] = ()
    """Share of the cores' time used by other programs in each interleaved round for which it was measured."""
    turns: Literal["blocks", "launches"] = "blocks"
    """Unit in which sides alternate if `paired`: blocks of steps (at least for some cases), or only launches."""

    @property
    def undecided(self) -> list[Change]:
        """Return the changes of the cases without a verdict."""
        return [change for change in self.changes if change.verdict == "cannot tell"]

    @property
    def unresolved(self) -> list[Change]:
        """Return the changes of the cases without a verdict that more rounds could decide."""
        return [change for change in self.undecided if not change.tail]

    @property
    def resolvable(self) -> float | None:
        """Return the smallest change that would have been resolved in all `unresolved` cases, as a fraction.

        None if unknown.
        """
        known = [change.resolvable for change in self.unresolved]
        return max((one for one in known if one is not None), default=None) if None not in known else None

    @property
    def wanted_s(self) -> float | None:
        """Return the seconds that an interleaved comparison takes to resolve `wanted` in all `unresolved` cases.

        All of them together have the probability `POWER`. None if a case takes more rounds than allowed, or its scatter
        is unknown.
        """
        power = power_of_each(len(self.unresolved))
        times = [
            None if change.in_turn is None else change.in_turn.time_for(self.wanted, power)
            for change in self.unresolved
        ]
        return max((one for one in times if one is not None), default=None) if None not in times else None

    def counts(self) -> dict[ChangeVerdict, int]:
        """Return the number of cases with each verdict."""
        found: dict[ChangeVerdict, int] = {}
        for change in self.changes:
            found[change.verdict] = found.get(change.verdict, 0) + 1
        return found


def matched(
    base: Sequence[CaseRun], new: Sequence[CaseRun], but: Collection[str] = ()
) -> list[tuple[CaseRun | None, CaseRun | None]]:
    """Return pairs of a base and a new case with equal specifications, in the base's order.

    Cases of one side only follow, paired with None. `but` are fields in which the sides are meant to differ. Base cases
    of speed-ups, which a run has added, are matched with equal cases first, and then with each other.
    """
    partners = {a: b for a, b in _pairs(base, new) if _is_added(base[a]) or _is_added(new[b])} if but else {}
    mine, others = (
        [index for index, run in enumerate(side) if index not in taken and not (but and _is_added(run))]
        for side, taken in ((base, partners.keys()), (new, partners.values()))
    )
    found = _pairs([base[index] for index in mine], [new[index] for index in others], but)
    partners |= {mine[a]: others[b] for a, b in found}
    if but:
        mine, others = (
            [index for index, run in enumerate(side) if index not in taken and _is_added(run)]
            for side, taken in ((base, partners.keys()), (new, partners.values()))
        )
        found = _pairs([base[index] for index in mine], [new[index] for index in others], but)
        partners |= {mine[a]: others[b] for a, b in found}
    lone = sorted(set(range(len(new))) - set(partners.values()))
    return [
        *((run, new[partners[index]] if index in partners else None) for index, run in enumerate(base)),
        *((None, new[index]) for index in lone),
    ]


def _pairs(
    base: Sequence[CaseRun], new: Sequence[CaseRun], but: Collection[str] = ()
) -> list[tuple[int, int]]:
    return match([run.case for run in base], [run.case for run in new], but).pairs


def _case_of(run: CaseRun | None) -> Case | None:
    return None if run is None else run.case


def _is_added(run: CaseRun) -> bool:
    return run.planned.added_as_baseline


def changes_of(
    base: Side,
    new: Side,
    *,
    paired: bool = False,
    drift: float | None = None,
    margin: float = MARGIN,
    alpha: float = ALPHA,
    differing: Collection[str] = (),
    unlike: Sequence[str] = (),
) -> Changes:
    """Compare two sides case by case, and return the verdicts.

    With confidence `1 - alpha`, all verdicts of a comparison are right at once, and so are all its intervals
    (Bonferroni). Holm's larger levels are for tests of no difference, whereas these intervals also decide what is
    equivalent.

    Args:
        base: the side that is compared with.
        new: the side that may have changed.
        paired: whether the sides were interleaved, so that rounds with the same number are pairs.
        drift: standard deviation of the logarithm of step time between sessions. By default `DRIFT`, or more if
            launches show more.
        margin: fraction within which cases are called equivalent.
        alpha: one minus the confidence of all verdicts together.
        differing: fields of a case in which the sides are meant to differ.
        unlike: differences of the machines, passed through to the result.
    """
    found: list[Change] = []
    asked: dict[int, tuple[CaseRun, CaseRun]] = {}
    together = matched(base.cases, new.cases, differing)
    labels = pair_labels([(_case_of(a), _case_of(b)) for a, b in together])
    left = [pair for pair in together if None in pair]
    for (a, b), label in zip(together, labels, strict=True):
        reason = _reason(a, b, base, new, left, but=differing)
        if not reason and a is not None and b is not None:
            asked[len(found)] = a, b
        found.append(_unjudged(a, b, label, reason))
    judge = _in_turn if paired else _apart
    walls = [round_wall_s(side.cases) for side in (base, new)]
    begin_s = _begin_s(base, new, paired=paired)
    for index, outcome in judge(asked, drift, margin, alpha).items():
        found[index] = replace(
            _decided(found[index], outcome, _compared_steps(*asked[index], paired=paired)),
            in_turn=None
            if outcome.deviation is None or not all(walls)  # saved files do not record a round's time
            else InTurn(
                deviation=outcome.deviation,
                round_s=sum(walls),
                begin_s=begin_s,
                alpha=alpha / len(asked),
                correlation=outcome.correlation,
            ),
            parts=_parts(*asked[index], paired=paired, drift=drift, alpha=alpha / len(asked)),
        )
    return Changes(base=base, new=new, paired=paired, drift=drift, changes=tuple(found), unlike=tuple(unlike))


def _decided(change: Change, outcome: _Outcome, steps: tuple[Interval, Interval]) -> Change:
    return replace(
        change,
        verdict=outcome.verdict,
        reason=outcome.reason,
        ratio=outcome.ratio,
        rounds=outcome.rounds,
        bound=outcome.bound,
        resolvable=outcome.resolvable,
        drifts=outcome.drifts,
        mean=outcome.mean,
        mean_most=outcome.mean_most,
        tail=outcome.tail,
        base_step=steps[0],
        new_step=steps[1].scaled(change.scale),
    )


def _unjudged(a: CaseRun | None, b: CaseRun | None, label: str, reason: str) -> Change:
    known = a or b
    assert known is not None
    scale = a.case.global_batch / b.case.global_batch if a is not None and b is not None else 1.0
    return Change(
        label=label,
        case=known.case,
        new_case=_case_of(b),
        verdict="not comparable",
        reason=reason,
        failures=_failures(b) if b is not None and a is not None and not _failures(a) else 0,
        base_step=geometric_mean(a.timings) if a is not None and a.timings else None,
        new_step=geometric_mean(b.timings).scaled(scale) if b is not None and b.timings else None,
        base_launches=tuple(one.step_s for one in a.timings) if a is not None else (),
        new_launches=tuple(scale * one.step_s for one in b.timings) if b is not None else (),
        scale=scale,
    )


def _compared_steps(a: CaseRun, b: CaseRun, *, paired: bool) -> tuple[Interval, Interval]:
    """Return both sides' step times over the compared launches: only common rounds if `paired`."""
    pairs = interleaved_rounds(a.timings, b.timings) if paired else []
    base, new = zip(*pairs, strict=True) if pairs else (a.timings, b.timings)
    return geometric_mean(base), geometric_mean(new)


def _begin_s(base: Side, new: Side, *, paired: bool) -> float:
    if not paired:
        return sum(begin_wall_s(RunDir(side.path), side.cases) for side in (base, new))
    longest = max((wall for side in (base, new) for wall in session_walls_s(RunDir(side.path))), default=0.0)
    return max(0.0, longest - sum(launches_wall_s(side.cases) for side in (base, new)))


def _failures(run: CaseRun) -> int:
    return sum(launch.status != "ok" for launch in run.launches)


def _reason(
    a: CaseRun | None,
    b: CaseRun | None,
    base: Side,
    new: Side,
    left: Sequence[tuple[CaseRun | None, CaseRun | None]],
    *,
    but: Collection[str],
) -> str:
    if a is None or b is None:
        own, side = (a, base) if a is not None else (b, new)
        assert own is not None
        others = [
            one.case for pair in left if (pair[0] is None) == (a is not None) and (one := pair[0] or pair[1])
        ]
        return why_alone(own.case, others, side.name, but)
    return unusable(a, base.name) or unusable(b, new.name)


def unusable(run: CaseRun, name: str) -> str:
    """Return the reason why a case has no numbers to compare; empty if it has numbers.

    `name` is the run's name in sentences.
    """
    if run.planned.skip_reason is not None:
        return f"skipped in {name}: {run.planned.skip_reason}"
    if run.status in ("diverged", "skipped") or not run.timings:
        return f"{run.status} in {name}{f': {run.error}' if run.error else ''}"
    return ""


@dataclass(frozen=True, slots=True)
class _Outcome:
    verdict: ChangeVerdict
    reason: str
    ratio: Interval
    rounds: int
    bound: float | None = None
    resolvable: float | None = None
    deviation: float | None = None
    """Standard deviation of the log ratio within an interleaved round."""
    correlation: float = 0.0
    """Estimated lag-1 correlation of interleaved rounds (`correlation_in_turn`), at least 0."""
    drifts: tuple[float, float] | None = None
    mean: float | None = None
    mean_most: float | None = None
    tail: bool = False


def _outcome(rounds: int, ratio: Interval, margin: float, fewest: int) -> _Outcome:
    if rounds < fewest:
        return _Outcome("cannot tell", f"too few rounds: {rounds} of {fewest} at least", ratio, rounds)
    if ratio.low is None or ratio.high is None:
        return _Outcome("cannot tell", "too few rounds", ratio, rounds)
    if ratio.low == ratio.high:
        return _Outcome("cannot tell", COPIES, ratio, rounds)
    found = judged(ratio, rounds, margin=margin, resolution=0.0)  # comparisons can add rounds
    verdict: ChangeVerdict = (
        found.verdict if found.verdict in ("faster", "slower", "equivalent") else CANNOT_TELL
    )
    return _Outcome(verdict, "", ratio, rounds, found.bound)


def interleaved_rounds(base: Sequence[Timing], new: Sequence[Timing]) -> list[tuple[Timing, Timing]]:
    """Return pairs of a base and a new launch, for the rounds that both sides have.

    Rounds that a later session has added to a side were not interleaved, and are left out.
    """
    mine, other = _of_first_session(base), _of_first_session(new)
    return [(mine[number], other[number]) for number in other if number in mine]


def correlation_in_turn(cases: Sequence[Mapping[int, float]]) -> Correlation:
    """Return the lag-1 correlation of interleaved rounds, from the rounds of all cases; 0 if there are too few rounds.

    Args:
        cases: for each case, the logarithm of new divided by base time per sample, by round.
    """
    numbers = sorted({number for one in cases for number in one})
    rounds = [(number, "") for number in numbers]
    able = [one for one in cases if len(one) >= FEWEST]
    if len(rounds) < IN_TURN_FROM or not able or not neighbours(rounds):
        return Correlation()
    logs = np.array([[one.get(number, math.nan) for number in numbers] for one in able])
    return estimated(logs, rounds, ratios=True)


def wider_in_turn(cases: Sequence[Mapping[int, float]]) -> float:
    """Return the factor by which the correlation of interleaved rounds widens intervals.

    `cases` are as in `correlation_in_turn`.
    """
    return widening_in_turn(
        len({number for one in cases for number in one}), correlation_in_turn(cases).reckoned
    )


def _outcome_in_turn(logs: Sequence[float], margin: float, alpha: float, wider: float) -> _Outcome:
    outcome = _outcome(
        len(logs), anytime_interval(logs, alpha, wider=wider).exponential(), margin, MIN_ROUNDS
    )
    if not logs:
        return outcome
    mean = math.fsum(logs) / len(logs)
    outcome = replace(outcome, mean=math.exp(mean), mean_most=math.exp(mean_and_further(logs)[1]))
    if outcome.verdict not in ("equivalent", "faster", "slower"):
        return outcome
    if not agrees(outcome.verdict, logs, margin):
        return replace(
            outcome, verdict="cannot tell", tail=True, reason=_tail_words(logs, mean, outcome, margin)
        )
    return _shown_by_enough(outcome, "rounds")


def _shown_by_enough(outcome: _Outcome, noun: Literal["rounds", "launches"]) -> _Outcome:
    """Replace "equivalent" by "cannot tell" if so few launches could miss a rare slow one."""
    if outcome.verdict != "equivalent" or not (reason := too_few_words(outcome.rounds, noun)):
        return outcome
    return replace(outcome, verdict="cannot tell", tail=True, reason=reason)


def _tail_words(logs: Sequence[float], mean: float, outcome: _Outcome, margin: float) -> str:
    slower = math.exp(mean) > outcome.ratio.value
    below, above = far_off(logs, math.log1p(margin))
    count, side = (above, "slower") if slower else (below, "faster")
    typical = "alike" if outcome.verdict == "equivalent" else outcome.verdict
    most = f"{count} of {len(logs)} are far {side}" if count else f"the mean of all is {side}"
    return f"typical rounds are {typical}, but {most}"


def _of_first_session(timings: Sequence[Timing]) -> dict[int, Timing]:
    first = min(timings, key=lambda timing: timing.round, default=None)
    return {
        timing.round: timing for timing in timings if first is not None and timing.session == first.session
    }


def _logs_in_turn(a: CaseRun, b: CaseRun) -> dict[int, float]:
    return {
        base.round: math.log(new.sample_s / base.sample_s)
        for base, new in interleaved_rounds(a.timings, b.timings)
    }


def _in_turn(
    asked: dict[int, tuple[CaseRun, CaseRun]], _drift: float | None, margin: float, alpha: float
) -> dict[int, _Outcome]:
    found: dict[int, _Outcome] = {}
    level = alpha / len(asked) if asked else alpha
    every = {index: _logs_in_turn(*pair) for index, pair in asked.items()}
    wider = wider_in_turn(list(every.values()))
    correlation = max(0.0, correlation_in_turn(list(every.values())).estimate)
    for index, by_round in every.items():
        logs = list(by_round.values())
        spread = _known(typical_deviation(logs)) if len(logs) >= FEWEST else None
        outcome = _outcome_in_turn(logs, margin, level, wider)
        found[index] = replace(
            outcome,
            deviation=spread,
            correlation=correlation,
            resolvable=None
            if spread is None or outcome.tail
            else resolved_in_turn(spread, len(logs), level, correlation=correlation),
        )
    return found


def _apart(
    asked: dict[int, tuple[CaseRun, CaseRun]], drift: float | None, margin: float, alpha: float
) -> dict[int, _Outcome]:
    compared = {index: across(a.timings, b.timings, drift) for index, (a, b) in asked.items()}
    enough = {
        index
        for index, one in compared.items()
        if one.rounds >= MIN_ROUNDS and one.standard_error is not None
    }
    level = alpha / max(1, len(enough))
    found: dict[int, _Outcome] = {}
    for index, one in compared.items():
        error = one.standard_error if index in enough else None
        outcome = _outcome(one.rounds, one.time_ratio(level), margin, MIN_ROUNDS)
        if not any(within(run.timings).scatter.value for run in asked[index]) and not outcome.reason:
            outcome = _Outcome("cannot tell", COPIES, outcome.ratio, outcome.rounds)
        outcome = _shown_by_enough(outcome, "launches")
        found[index] = replace(
            outcome,
            resolvable=None if not error or outcome.tail else smallest_seen(error, one.df, level),
            deviation=_deviation_in_turn(*(run.timings for run in asked[index])),
            drifts=_drifts(*(run.timings for run in asked[index]), drift=drift),
        )
    return found


def _drifts(a: Sequence[Timing], b: Sequence[Timing], *, drift: float | None) -> tuple[float, float]:
    base, new = (math.sqrt(one.variance.value) for one in drifts_of(within(a), within(b), drift))
    return base, new


def _deviation_in_turn(a: Sequence[Timing], b: Sequence[Timing]) -> float | None:
    """Estimate the log ratio's deviation within a round, if sides of separate sessions were interleaved.

    It may be too high: interleaving would cancel common effects. None under `FEWEST` launches of a side.
    """
    if min(len(a), len(b)) < FEWEST:
        return None
    return _known(math.sqrt(sum(within(timings).scatter.value for timings in (a, b))))


def _known(spread: float) -> float | None:
    return spread or None


def _parts(
    a: CaseRun, b: CaseRun, *, paired: bool, drift: float | None, alpha: float
) -> tuple[PartChange, ...]:
    """Return the change of each part, per samples of a base step, corrected for the number of parts.

    A part is assumed to drift with the machine by the same fraction as the entire step.
    """
    if a.parts is None or b.parts is None:
        return ()
    scale = a.case.global_batch / b.case.global_batch
    before, after = a.parts.by_round, b.parts.by_round
    names = [name for name in PARTS if any(one.get(name) for one in (*before.values(), *after.values()))]
    if not before or not after:
        return ()
    sides = within(a.timings), within(b.timings)
    drifts = [
        Variance(known.variance.value * one.shares, known.variance.df)
        for known, one in zip(drifts_of(*sides, drift), sides, strict=True)
    ]
    in_turn = [base.round for base, _ in interleaved_rounds(a.timings, b.timings)]
    wider = wider_in_turn([_logs_in_turn(a, b)]) if paired else 1.0
    found: list[PartChange] = []
    for name in names:
        mine = {number: one[name] for number, one in before.items()}
        other = {number: scale * one[name] for number, one in after.items()}
        medians = [statistics.median(one.values()) for one in (mine, other)]
        level = alpha / len(names)
        if paired:
            difference = anytime_interval(
                [other[number] - mine[number] for number in in_turn if number in mine and number in other],
                level,
                wider=wider,
            )
        else:
            more = _more(medians, level, drifts)
            difference = median_difference([*mine.values()], [*other.values()], level, more=more)
        found.append(PartChange(name=name, base_s=medians[0], new_s=medians[1], difference=difference))
    return tuple(found)


def _more(medians: Sequence[float], alpha: float, drifts: Sequence[Variance]) -> float:
    """Return the half-width of a difference by drift alone; `drifts` are the variances of the sides' log means."""
    total = added(
        [Variance(one.value * middle**2, one.df) for one, middle in zip(drifts, medians, strict=True)]
    )
    return t_quantile(1 - alpha / 2, total.df) * math.sqrt(total.value)
