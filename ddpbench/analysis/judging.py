"""Judge pairs of cases, so that a report has exactly one judgement for each pair.

A pair that a claim names is judged by the claims (`findings/claims.py`), any other by its family.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ddpbench.analysis.read.launches import CaseRun
from ddpbench.analysis.statistics.interval import Interval
from ddpbench.analysis.statistics.judgement import Judgement
from ddpbench.analysis.statistics.stats import ALPHA, MIN_ROUNDS, compare, judge, judge_all


def judge_pairs(pairs: Mapping[str, tuple[CaseRun, CaseRun]]) -> dict[str, Judgement]:
    """Judge, for each pair, how the first case compares with the second, and return the judgements by the pairs' names.

    A pair that a claim names has the claim's judgement. All others are judged as one family. A pair is left out if one
    of its cases has no launch.
    """
    claimed = {name: found for name, (a, b) in pairs.items() if (found := a.claimed.get(b.case_id))}
    others = {
        name: compared
        for name, (a, b) in pairs.items()
        if name not in claimed and (compared := compare(a.timings, b.timings)) is not None
    }
    judged = judge_all(others)
    every = {**judged, **claimed}
    return {name: every[name] for name in pairs if name in every}


def judge_pair(a: CaseRun, b: CaseRun, alpha: float = ALPHA) -> Judgement | None:
    """Return the judgement of A compared with B; None if either has no launch.

    If a claim names the pair, return the claim's judgement. Otherwise the pair is judged at level `alpha`.
    """
    if (claimed := a.claimed.get(b.case_id)) is not None:
        return claimed
    compared = compare(a.timings, b.timings)
    return judge(compared, alpha=alpha) if compared is not None else None


def speedup_over(run: CaseRun, base: CaseRun) -> tuple[Interval, int] | None:
    """Return a case's samples/s divided by its base case's, and the number of rounds with both.

    The interval is the claim's if a claim names the pair, and otherwise the 95 % interval of this pair alone. None if
    the two cases share no round.
    """
    claimed = run.claimed.get(base.case_id)
    if claimed is not None and claimed.rounds:
        return claimed.ratio.reciprocal(), claimed.rounds
    found = compare(run.timings, base.timings)
    if found is None or not found.paired or not found.rounds:
        return None
    return found.rate_ratio(), found.rounds


def rate_ratio(a: CaseRun, b: CaseRun, alpha: float = ALPHA) -> Interval | None:
    """Return A's samples/s divided by B's, with the interval of `judge_pair`.

    None if A and B share fewer than `MIN_ROUNDS` rounds of one session.
    """
    found = judge_pair(a, b, alpha)
    if found is None or found.rounds < MIN_ROUNDS or found.ratio.low is None or found.ratio.high is None:
        return None
    return Interval(value=1 / found.ratio.value, low=1 / found.ratio.high, high=1 / found.ratio.low)


def joint_rate_ratio(a: CaseRun, b: CaseRun, count: int) -> Interval | None:
    """Return A's samples/s divided by B's, corrected for `count` comparisons (Bonferroni).

    The interval of a claim on the pair is used if it is corrected for as many. None for too few common rounds.
    """
    claimed = a.claimed.get(b.case_id)
    own = replace(a, claimed={}) if claimed is not None and claimed.comparisons < count else a
    return rate_ratio(own, b, ALPHA / count)
