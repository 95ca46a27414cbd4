"""Say before a sweep which differences between cases its rounds resolve, or warn that they are too few for any."""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

from ddpbench.runtime.estimate import about, is_unknown
from ddpbench.spec.settings import MOST_ROUNDS
from ddpbench.units import counted, format_about, format_at_most, format_seconds, format_two_digits

if TYPE_CHECKING:
    from ddpbench.launch.plan import Plan
    from ddpbench.launch.sweep.earlier import EarlierRounds

_NOISY = 0.1
"""Assumed standard deviation, within a round, of the ratio of two cases on a noisy machine."""


def resolution_words(plan: Plan, *, shared: bool = False, earlier: EarlierRounds | None = None) -> str:
    """Return, in words, what the planned rounds resolve, or a warning if they are too few.

    It is the expected width of the widest interval if `earlier` has rounds of these cases, and otherwise the smallest
    difference that they resolve. The rounds are those that fit into `budget.total`, at most `rounds_max`. Empty for a
    single case. `shared` is as in `Plan.estimate_s`.
    """
    from ddpbench.analysis.statistics.judgement import MARGIN, MARGIN_WORDS
    from ddpbench.analysis.statistics.resolution import deviation_resolved, resolved_in_one_sweep
    from ddpbench.analysis.statistics.stats import MIN_ROUNDS

    if len(plan.runnable) < 2:
        return ""
    budget, rounds = plan.budget, rounds_within(plan, shared=shared)
    few = f"warning: under {MIN_ROUNDS} rounds are too few to tell cases apart"
    if budget.rounds_max < MIN_ROUNDS:
        return f"{few}: give budget.rounds_max = {MIN_ROUNDS} or more"
    done = earlier.found.made if earlier is not None and earlier.resumed else 0
    every = min(done + rounds, budget.rounds_max)
    deviation, noisy = deviation_resolved(MARGIN, every), resolved_in_one_sweep(_NOISY, every)
    if deviation is None or noisy is None:
        needed_s = plan.estimate_s(MIN_ROUNDS, shared=shared)
        return (
            f"{few}, and {MIN_ROUNDS} take {about(budget)} {format_seconds(round(needed_s))}: raise budget.total, "
            "lower budget.measured_s, or leave out cases"
        )
    if earlier is not None and (words := _forecast_words(plan, earlier, rounds, shared=shared)):
        return words
    return (
        f"{every} rounds resolve a difference of {MARGIN_WORDS} between two cases if the standard deviation of their "
        f"ratio within a round is at most {format_two_digits(100 * deviation)} %; if it is {100 * _NOISY:g} %, they "
        f"resolve {format_at_most(noisy)} (ddpbench noise measures it)"
    )


def _forecast_words(plan: Plan, earlier: EarlierRounds, fitting: int, *, shared: bool) -> str:
    """Describe the widest interval after the planned rounds, if they scatter like the earlier ones.

    `fitting` is the number of rounds that fit into the time. Empty if some interval has too few of them.
    """
    found, ids, budget = earlier.found, earlier.case_ids, plan.budget
    done = found.made if earlier.resumed else 0

    timed = _is_timed(plan)

    def words(rounds: int) -> str:
        time = f", {format_about(plan.estimate_s(rounds - done, shared=shared))}" if timed else ""
        return f"{counted(rounds, 'round')}{time}"

    source = f"from {earlier.run.path}, {counted(found.made, 'round')}"
    rounds = min(done + fitting, budget.rounds_max)
    needed = found.rounds_to(budget.target_half_width, ids, max(done, budget.rounds_min), MOST_ROUNDS)
    takes = f"over {MOST_ROUNDS:,} rounds" if needed is None else f"about {words(needed)}"
    target = f"±{100 * budget.target_half_width:g} % takes {takes}"
    if needed is not None and needed <= rounds:
        return f"{target} ({source})"
    width = found.widest_at(rounds, ids)
    if width is None:
        return ""
    return f"after {words(rounds)}: widest interval about ±{format_at_most(width)} ({source}); {target}"


def rounds_within(plan: Plan, *, shared: bool) -> int:
    """Return the rounds that fit into `budget.total`, at most `rounds_max`, and all of them if times are unknown."""
    budget = plan.budget
    if not _is_timed(plan):
        return budget.rounds_max

    def too_many(rounds: int) -> bool:
        return plan.estimate_s(rounds, shared=shared) > budget.total

    return bisect_left(range(1, budget.rounds_max + 1), True, key=too_many)


def _is_timed(plan: Plan) -> bool:
    """Return whether the times of all cases can be estimated."""
    return not any(
        is_unknown(entry.case, plan.tried.get(entry.case.workload_with_options)) for entry in plan.runnable
    )
