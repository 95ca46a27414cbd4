"""When a sweep ends: after the promised rounds, once intervals are narrow or another round takes too long."""

from __future__ import annotations

import time

from ddpbench.launch.listener import Listener
from ddpbench.launch.sweep.done import Done
from ddpbench.launch.sweep.expected import Expected
from ddpbench.records import RunDir
from ddpbench.spec import Budget


class StoppingRule:
    """Decides before each round whether it is run."""

    def __init__(
        self, run: RunDir, done: Done, expected: Expected, budget: Budget, listener: Listener
    ) -> None:
        self._run, self._done, self._expected = run, done, expected
        self._budget, self._listener = budget, listener

    def reason(self, number: int, started: float) -> str:
        """Return why the round `number` of a sweep that began at `started` is not to be run, or nothing."""
        if number < self._budget.rounds_min:
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
        if not reason and time.monotonic() - started + self._expected.round_s(todo) > self._budget.total:
            reason = "budget"
        self._listener.round_ended(number - 1, found.widths, reason)
        return reason
