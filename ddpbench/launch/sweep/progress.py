"""Track and report the progress of a sweep: which launches are done, and how long the rest will take."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from ddpbench.launch.listener import Listener
from ddpbench.launch.plan import Plan
from ddpbench.launch.sweep.preparation import Prepared
from ddpbench.launch.sweep.stopping import StoppingRule
from ddpbench.records import LaunchOutcome, RunDir
from ddpbench.records.rundir import Purpose
from ddpbench.runtime.expected import Expected
from ddpbench.runtime.progress import Done, left_out_words, to_prove
from ddpbench.runtime.room import Room
from ddpbench.spec import PlannedCase
from ddpbench.text_safety import command


@dataclass(slots=True)
class SweepResult:
    """The result of a sweep's session: why it stopped, its times in seconds, its number of launches, and warnings."""

    run: RunDir
    stop_reason: str = ""
    wall_s: float = 0.0
    measured_s: float = 0.0
    launches: int = 0
    warnings: list[str] = field(default_factory=list)

    @property
    def measured_share(self) -> float | None:
        """Fraction of this session's wall time spent in warm-up and measured steps; None before the end."""
        return self.measured_s / self.wall_s if self.wall_s else None


class Progress:
    """Keeps track of the finished launches of a plan, the expected time of the rest, and the budget left for them."""

    def __init__(
        self, prepared: Prepared, listener: Listener, clock: Callable[[], float], *, shared: bool
    ) -> None:
        """`shared` says that other sweeps may run at the same time. `clock` returns seconds from any zero point."""
        self._run, self._resumes = prepared.run, prepared.resumes
        self._listener, self._clock, self._shared = listener, clock, shared
        self._budget = prepared.experiment.budget
        self._room = Room(self._budget, self.warn, listener.note)
        self.result = SweepResult(prepared.run)
        self.started = 0.0
        """Time by the clock at which the budget began to be spent."""
        self.go_by(prepared.plan)

    def go_by(self, plan: Plan) -> None:
        """Use this plan from now on, with none of its launches done."""
        self.plan = plan
        self.done = Done(self._run, plan)
        self.expected = Expected(plan, self.done, shared=self._shared, tried=plan.tried)
        self.rule = StoppingRule(
            self._run, self.done, self.expected, self._budget, self._listener, clock=self._clock
        )

    @property
    def left_s(self) -> float:
        """The remaining budget, seconds."""
        return self.rule.left_s(self.started)

    def read_outcomes(self) -> None:
        """If the run is resumed, read which launches earlier sessions finished, and how long they took."""
        if self._resumes:
            self.expected.note_finished(self.done.read())

    def finished_for(self) -> str:
        """Return why a resumed run has nothing left to measure; empty if something is left or the run is new."""
        self.read_outcomes()
        if not self._resumes or self.done.unproved:
            return ""
        self.started = self._clock()
        for number in range(self._budget.rounds_max):
            if reason := self.rule.reason(number, self.started):
                return "" if reason == "budget" else reason
            if self.done.left_of_round(number):
                return ""
        return "rounds_max"

    def note(
        self, entry: PlannedCase, purpose: Purpose, number: int, outcome: LaunchOutcome, took_s: float
    ) -> None:
        """Record the end of a launch, with its outcome and how long it took, seconds."""
        if purpose == "measure":
            self.expected.note(entry.case, outcome, took_s)
        self.done.endings[entry.case.case_id, purpose, number] = outcome.status
        self.result.launches += 1
        self.result.measured_s += outcome.measured_s

    def tell_plan(self) -> None:
        """Report the plan and the estimated time left. Warn if the budget has no room for `rounds_min` rounds."""
        estimate = self.plan.left_s(self.done, shared=self._shared)
        self._listener.planned(self.plan, self._run, len(self.done.endings), estimate)
        self._tell_room("as estimated", self._budget.total, 0)

    def tell_room(self, when: str, number: int) -> None:
        """Report how many of the planned rounds fit into the remaining budget, if this number has changed.

        The report begins with `when`, such as `after round 3`. Round `number` is next.
        """
        self._tell_room(when, self.left_s, number)

    def _tell_room(self, when: str, left_s: float, number: int) -> None:
        self._room.tell(when, left_s, number, self.done, self.expected)

    def tell_launch(self, entry: PlannedCase, purpose: Purpose, number: int) -> None:
        """Report that a launch begins, how many are done and planned, and how long the rest will take."""
        what = "proof" if purpose == "proof" else f"round {number + 1}"
        done = len(self.done.endings)
        todo = self.done.rounds_todo(max(self._budget.rounds_min, number + 1))
        total = done + len(to_prove(self.done.unproved)) + todo
        self._listener.launch_started(entry, what, done, total, self.expected.left_s(number))

    def tell_left_out(self) -> None:
        """Warn about launches of the first `rounds_min` rounds that were left out because the budget is spent."""
        if self.result.stop_reason != "budget":
            return
        left = left_out_words(self.plan.names, self.done, self._budget)
        if left:
            self.warn(f"{left}; to run them: {command('ddpbench', 'sweep', self._run.path)}")

    def warn(self, text: str) -> None:
        """Warn, and keep the warning in the sweep's result."""
        self.result.warnings.append(text)
        self._listener.warn(text)
