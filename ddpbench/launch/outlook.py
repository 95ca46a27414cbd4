"""Forecast, after a round of a sweep, its widest interval when its time or its rounds are spent."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ddpbench.spec import Budget
from ddpbench.spec.settings import MOST_ROUNDS

if TYPE_CHECKING:
    from ddpbench.analysis import SoFar


@dataclass(frozen=True, kw_only=True, slots=True)
class Outlook:
    """The expected end of a sweep: its widest interval, and the time to its target, if rounds scatter as before.

    Times are seconds from the start of the session.
    """

    at_end: float
    """Expected half-width when the time or the rounds of the budget are spent."""
    end_rounds: int
    """Number of rounds in all by then."""
    total_s: float
    """The budget's time."""
    ends_by_time: bool
    """True if `budget.total` ends the sweep, false if `rounds_max` does."""
    target: float
    target_s: float | None
    """Expected time at which the target is reached; None if that takes more than `MOST_ROUNDS` rounds."""
    reaches_target: bool
    """True if the target is reached within the budget."""


def outlook(
    found: SoFar, case_ids: Collection[str], budget: Budget, *, rounds: int, round_s: float, left_s: float
) -> Outlook | None:
    """Return the outlook of a sweep on these cases after `rounds` rounds.

    None while an interval is unknown, or if the target is reached.

    Args:
        found: the intervals so far.
        case_ids: the cases that are still launched.
        budget: the sweep's budget.
        rounds: number of rounds so far.
        round_s: expected time of a round (s).
        left_s: time left of the session's `budget.total` (s).
    """
    fitting = max(0, int(left_s / round_s)) if round_s > 0 else MOST_ROUNDS
    allowed = max(0, budget.rounds_max - rounds)
    end_rounds = found.made + min(fitting, allowed)
    at_end = found.widest_at(end_rounds, case_ids)
    if at_end is None:
        return None
    target = budget.target_half_width
    needed = found.rounds_to(target, case_ids, found.made, MOST_ROUNDS)
    if needed == found.made:
        return None
    return Outlook(
        at_end=at_end,
        end_rounds=end_rounds,
        total_s=budget.total,
        ends_by_time=fitting < allowed,
        target=target,
        target_s=None if needed is None else budget.total - left_s + (needed - found.made) * round_s,
        reaches_target=needed is not None and needed <= end_rounds,
    )
