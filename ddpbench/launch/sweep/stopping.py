"""The rule that ends a sweep: when its time is spent, or when enough rounds are done and intervals are narrow."""

from __future__ import annotations

import time
from collections.abc import Callable

from ddpbench.launch.listener import Listener
from ddpbench.launch.outlook import outlook
from ddpbench.records import RunDir
from ddpbench.runtime.expected import Expected
from ddpbench.runtime.progress import Done
from ddpbench.spec import Budget


class StoppingRule:
    """Decides before each round whether to run it. `clock` returns seconds from any zero point."""

    def __init__(
        self,
        run: RunDir,
        done: Done,
        expected: Expected,
        budget: Budget,
        listener: Listener,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._run, self._done, self._expected = run, done, expected
        self._budget, self._listener, self._clock = budget, listener, clock
        self._begun = False

    def left_s(self, started: float) -> float:
        """Return how much of the time budget (s) is left to a sweep that started at clock time `started`."""
        return started + self._budget.total - self._clock()

    def reason(self, number: int, started: float) -> str:
        """Return why round `number` is not to be run in a sweep that started at clock time `started`; empty to run it.

        The reason is `budget` if it does not fit into the remaining time, unless it is a session's first round and one
        of the first `rounds_min`.
        """
        if number < self._budget.rounds_min:
            todo = self._done.left_of_round(number)
            if todo and self._begun and self._expected.round_s(todo) > self.left_s(started):
                return "budget"
            self._begun = self._begun or bool(todo)
            return ""
        worthwhile = self._done.worthwhile
        if not worthwhile:
            return "no case can be measured"
        todo = [entry for entry in worthwhile if not self._done.finished(entry, "measure", number)]
        if not todo:
            return ""
        from ddpbench.analysis import cases_without_target, so_far

        found = so_far(self._run)
        wide = cases_without_target(found.widths, self._budget.target_half_width)
        measurable = {entry.case.case_id for entry in worthwhile}
        is_open = not measurable.isdisjoint(wide) or found.apart(measurable, self._budget.rounds_min)
        reason = "" if is_open else "target reached"
        left_s = self.left_s(started)
        if not reason and self._expected.round_s(todo) > left_s:
            reason = "budget"
        round_s = self._expected.round_s(worthwhile)
        expected = outlook(found, measurable, self._budget, rounds=number, round_s=round_s, left_s=left_s)
        self._listener.round_ended(number - 1, found.widths, reason, expected)
        return reason
