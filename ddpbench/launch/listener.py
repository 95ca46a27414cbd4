"""Events of a running sweep, which the command line shows."""

from __future__ import annotations

from ddpbench.launch.outlook import Outlook
from ddpbench.launch.plan import Plan
from ddpbench.naming import Namer
from ddpbench.records import LaunchOutcome, RunDir
from ddpbench.records.heartbeat import Pulse
from ddpbench.spec import PlannedCase


class Listener:
    """Base class of listeners, which does nothing on any event."""

    names = Namer(())
    """Names of the plan's cases, once the plan is made."""

    def planned(self, plan: Plan, run: RunDir, done: int, estimate_s: float) -> None:
        """Handle the finished plan. `done` launches are already done; the rest takes about `estimate_s` seconds."""
        self.names = plan.names

    def preparing(self, what: str) -> None:
        """Handle the start of work other than a launch, which `what` describes."""

    def looked_at(self, what: str) -> None:
        """Handle a sentence (`what`) about the trial of a user's workload, or about cases that a rank excluded."""

    def launch_started(self, entry: PlannedCase, what: str, done: int, total: int, left_s: float) -> None:
        """Handle the start of a launch, which is the proof or a measurement of a case.

        `what` is `proof` or, for example, `round 3`. `done` of `total` launches are done. `left_s` is the estimated
        time (s) for the remaining launches of the first `rounds_min` rounds.
        """

    def pulse(self, entry: PlannedCase, pulse: Pulse, samples_per_s: float | None) -> None:
        """Handle a heartbeat of the running launch, sent a few times per second, with its throughput if known."""

    def launch_ended(self, entry: PlannedCase, outcome: LaunchOutcome, samples_per_s: float | None) -> None:
        """Handle the end of a launch; `samples_per_s` is None unless the launch measured and was ok."""

    def round_ended(
        self,
        number: int,
        half_widths: dict[str, float | None],
        stop_reason: str,
        outlook: Outlook | None = None,
    ) -> None:
        """Handle the end of a round, with the half-widths of the cases' intervals by case id.

        `stop_reason` is empty if another round follows. `outlook` has the half-width expected at the sweep's end; it is
        None while an interval is unknown.
        """

    def note(self, text: str) -> None:
        """Handle information for the user that needs no action."""

    def warn(self, text: str) -> None:
        """Handle a warning, which is not a failure."""
