"""Say before a sweep which differences between cases its rounds resolve, or warn that they are too few for any."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ddpbench.runtime.estimate import about, is_unknown
from ddpbench.units import format_at_most, format_seconds, format_two_digits

if TYPE_CHECKING:
    from ddpbench.launch.plan import Plan

_NOISY = 0.1
"""Assumed standard deviation, within a round, of the ratio of two cases on a noisy machine."""


def resolution_words(plan: Plan, *, shared: bool = False) -> str:
    """Return, in words, the smallest difference that the planned rounds resolve, or a warning if they are too few.

    The rounds are those that fit into `budget.total`, at most `rounds_max`. Empty for a single case. `shared` is as in
    `Plan.estimate_s`.
    """
    from ddpbench.analysis.statistics.judgement import MARGIN, MARGIN_WORDS
    from ddpbench.analysis.statistics.resolution import deviation_resolved, resolved_in_one_sweep
    from ddpbench.analysis.statistics.stats import MIN_ROUNDS

    if len(plan.runnable) < 2:
        return ""
    budget, rounds = plan.budget, _rounds_within(plan, shared=shared)
    few = f"warning: under {MIN_ROUNDS} rounds are too few to tell cases apart"
    if budget.rounds_max < MIN_ROUNDS:
        return f"{few}: give budget.rounds_max = {MIN_ROUNDS} or more"
    deviation, noisy = deviation_resolved(MARGIN, rounds), resolved_in_one_sweep(_NOISY, rounds)
    if deviation is None or noisy is None:
        needed_s = plan.estimate_s(MIN_ROUNDS, shared=shared)
        return (
            f"{few}, and {MIN_ROUNDS} take {about(budget)} {format_seconds(round(needed_s))}: raise budget.total, "
            "lower budget.measured_s, or leave out cases"
        )
    return (
        f"{rounds} rounds resolve a difference of {MARGIN_WORDS} between two cases if the standard deviation of their "
        f"ratio within a round is at most {format_two_digits(100 * deviation)} %; if it is {100 * _NOISY:g} %, they "
        f"resolve {format_at_most(noisy)} (ddpbench noise measures it)"
    )


def _rounds_within(plan: Plan, *, shared: bool) -> int:
    """Return the rounds that fit into `budget.total`, all of them if times are unknown."""
    budget = plan.budget
    if any(
        is_unknown(entry.case, plan.tried.get(entry.case.workload_with_options)) for entry in plan.runnable
    ):
        return budget.rounds_max
    for rounds in range(budget.rounds_max, 0, -1):
        if plan.estimate_s(rounds, shared=shared) <= budget.total:
            return rounds
    return 0
