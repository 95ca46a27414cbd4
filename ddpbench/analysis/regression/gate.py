"""The gate of the pytest plugin, which fails a test that is slower than a baseline, measured earlier or interleaved."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ddpbench.analysis.read.launches import CaseRun, Launch
from ddpbench.analysis.regression.baselines import Baselines, find_side, side_of
from ddpbench.analysis.regression.changes import Change, changes_of
from ddpbench.analysis.regression.copies import check_no_copies
from ddpbench.analysis.regression.sides import Side, unlike
from ddpbench.analysis.regression.wording import interval_words, seen_words, value_words, why_failing
from ddpbench.analysis.statistics.stats import ALPHA
from ddpbench.errors import IdentityError, RequestError
from ddpbench.spec import grouping


@dataclass(frozen=True, kw_only=True, slots=True)
class Gated:
    """The gate's decision on a test. `judged` is true if the data suffice for a verdict of any kind."""

    name: str
    judged: bool
    fails: bool
    sentence: str
    within: bool = False
    """True if the test is shown to be slower by at most the limit.

    This requires that the entire interval is below the limit, over enough rounds.
    """

    @property
    def undecided(self) -> bool:
        """Return whether the test is shown neither to fail nor to be within the limit."""
        return not self.fails and not self.within


def read_baselines(texts: Sequence[str], baselines: Baselines) -> tuple[Side, ...]:
    """Read the sides to compare with: run directories, files of pytest-benchmark, or baselines saved by name.

    Raises:
        RequestError: a baseline does not exist, or is given twice, possibly as a copy.
        IdentityError: a baseline is damaged, has another schema, or was not written by ddpbench.
    """
    paths = [find_side(text, baselines).resolve() for text in texts]
    if len(set(paths)) < len(paths):
        raise RequestError(
            "--ddpbench-baseline: a baseline is given twice and would count as two sessions: give it once"
        )
    sides = tuple(side_of(text, baselines) for text in texts)
    check_no_copies(sides)
    return sides


def gated(
    test: str,
    now: Side,
    baselines: Sequence[Side],
    *,
    limit: float,
    drift: float | None = None,
    alpha: float = ALPHA,
) -> Gated:
    """Decide whether a test's launches are shown to be slower than earlier ones by more than `limit`, a fraction.

    The earlier launches are of this full test name, or else of the same specification. `now` has one case and is one
    session. The interval includes the `drift` between sessions.

    Raises:
        IdentityError: a baseline is of a different machine; the message names the differences.
    """
    for side in baselines:
        if differing := unlike(side, now):
            raise IdentityError(
                f"{side.name} was measured under different conditions: {'; '.join(differing)}"
            )
    (own,) = now.cases
    before = [
        _of_session(run, number)
        for number, side in enumerate(baselines)
        if (run := _same(test, own, side)) is not None
    ]
    if not before:
        return Gated(
            name=test, judged=False, fails=False, sentence=f"{test}: not comparable: no baseline has it"
        )
    alike = [run for run in before if grouping.alike(run.case) == grouping.alike(own.case)] or before[:1]
    launches = tuple(launch for run in alike for launch in run.launches)
    base = Side(
        name="the baseline",
        path=Path(),
        cases=(replace(alike[0], launches=launches),),
        machine=now.machine,
    )
    changes = changes_of(base, replace(now, name="this run"), drift=drift, alpha=alpha).changes
    return decided(
        test, changes[-1], limit
    )  # the last is this run's case, even if it differs from the baseline's


def decided(test: str, change: Change, limit: float) -> Gated:
    """Return the gate's decision on a test from its change. `limit` is a fraction."""
    fails = change.beyond(limit) or change.broken
    outcome = why_failing(change, limit) if fails else change.verdict
    numbers = ""
    if change.ratio is not None and change.ratio.low is not None:
        size, interval = value_words(change.ratio, limit), interval_words(change.ratio, limit)
        numbers = f"{size} ({interval}; {change.rounds} rounds)"
    if change.verdict == "cannot tell" and change.resolvable is not None:
        numbers += f"; {seen_words(change.resolvable)}"
    reason = change.reason or ("" if fails else change.why_not_within(limit))
    reason = "" if outcome == reason else reason
    if change.reason and not change.tail:
        numbers = ""
    return Gated(
        name=test,
        judged=change.judged,
        fails=fails,
        sentence=": ".join(filter(None, [test, outcome, reason, numbers])),
        within=not fails and change.within(limit) and change.shows_rare,
    )


def _same(test: str, own: CaseRun, side: Side) -> CaseRun | None:
    if test in side.tests:
        return side.cases[side.tests.index(test)]
    return next((run for run in side.cases if grouping.alike(run.case) == grouping.alike(own.case)), None)


def _of_session(run: CaseRun, number: int) -> CaseRun:
    """Add `number` to the names of the case's sessions, which makes them unique among baselines."""

    def numbered(launch: Launch) -> Launch:
        if launch.timing is None:
            return launch
        return replace(launch, timing=replace(launch.timing, session=f"{number}: {launch.timing.session}"))

    return replace(run, launches=tuple(map(numbered, run.launches)))
