"""Tell the user whether the time budget allows all planned rounds, and again whenever that changes."""

from __future__ import annotations

from collections.abc import Callable

from ddpbench.runtime.estimate import about
from ddpbench.runtime.expected import Expected
from ddpbench.runtime.progress import Done
from ddpbench.spec import Budget
from ddpbench.spec.settings import MIN_ROUNDS
from ddpbench.units import counted, format_seconds


class Room:
    """Tells the user how many of the planned rounds fit into the time budget; at first, all are assumed to fit."""

    def __init__(self, budget: Budget, warn: Callable[[str], None], note: Callable[[str], None]) -> None:
        self._budget, self._warn, self._note = budget, warn, note
        self._told_rounds = budget.rounds_min

    def tell(self, when: str, left_s: float, number: int, done: Done, expected: Expected) -> None:
        """Warn the user if the number of planned rounds that fit into the budget has changed since the last call.

        If all fit now, it is a note. `left_s` is the time left, round `number` is next, and the message begins with
        `when`.
        """
        budget = self._budget
        if number >= budget.rounds_min or not done.rounds_todo(budget.rounds_min):
            return
        rounds = expected.rounds_within(left_s, number)
        if rounds == self._told_rounds:
            return
        self._told_rounds = rounds
        needed_s = budget.total - left_s + expected.whole_s(budget.rounds_min, number)
        need = f"{when}, {counted(budget.rounds_min, 'round')} take {about(budget)} {format_seconds(round(needed_s))}"
        total = f"budget.total, {format_seconds(budget.total)},"
        if rounds == budget.rounds_min:
            self._note(f"{need}: {total} has room for them")
            return
        lower = "measured_s" if budget.target_loss is None else "until_s or measured_s"
        few = f", and under {MIN_ROUNDS} give no interval" if rounds < MIN_ROUNDS <= budget.rounds_min else ""
        self._warn(
            f"{need}: {total} has room for {rounds} of them{few}; raise it, lower budget.{lower}, or leave out cases"
        )
