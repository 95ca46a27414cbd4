"""Events of a sweep while it works; the command line shows it, a program may ignore it."""

from __future__ import annotations

from ddpbench.launch.plan import Plan
from ddpbench.naming import Namer
from ddpbench.records import LaunchOutcome, RunDir
from ddpbench.records.heartbeat import Pulse
from ddpbench.spec import PlannedCase


class Listener:
    """Hears everything and does nothing; derive from it."""

    names = Namer(())
    """Names of the plan's cases, once it is made."""

    def planned(self, plan: Plan, run: RunDir, done: int, estimate_s: float) -> None:
        """The plan is made. `done` launches are there from before; the rest takes about `estimate_s`."""
        self.names = plan.names

    def preparing(self, what: str) -> None:
        """Something is under way that is not a launch."""

    def looked_at(self, what: str) -> None:
        """A user's own workload was tried and works: a line on it."""

    def launch_started(self, entry: PlannedCase, what: str, done: int, total: int, left_s: float) -> None:
        """A launch begins: `what` is `proof` or `round 3`; `done` of `total` launches are done.

        `left_s` is how long the rest of the promised rounds will take, from the launches so far.
        """

    def pulse(self, entry: PlannedCase, pulse: Pulse, samples_per_s: float | None) -> None:
        """A sign of life of the launch under way, a few times a second."""

    def launch_ended(self, entry: PlannedCase, outcome: LaunchOutcome, samples_per_s: float | None) -> None:
        """A launch has ended; its throughput if it was a measuring one that went well."""

    def round_ended(self, number: int, half_widths: dict[str, float | None], stop_reason: str) -> None:
        """A round is complete; `stop_reason` is empty when another follows."""

    def note(self, text: str) -> None:
        """A message that the user may want to know, without any concern."""

    def warn(self, text: str) -> None:
        """Something the user should know that is not a failure."""
