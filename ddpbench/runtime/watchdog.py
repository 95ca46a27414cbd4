"""The facts that a watchdog sees of a launch's ranks, and when they are enough to end the ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ddpbench.records.heartbeat import PHASES, Pulse

POLL_S = 0.2
"""Time between two looks of a watchdog, seconds; each takes tens of microseconds on a core that ranks may be using."""
REAP_S = 10.0
"""Time to wait for ranks' ends after killing them, seconds."""
GRACE_S = 3.0
"""Time for the other ranks to end by themselves after one has failed, seconds."""
STACKS_S = 0.3
"""Time for ranks to write their stacks into their logs, seconds."""
_UNBORN = Pulse(0, "starting")


@dataclass(slots=True)
class Seen:
    """A watchdog's knowledge of a running launch. `now` is always its own monotonic clock, seconds."""

    ranks: int
    alive_at: float
    still_s: float = 0.0
    """Extra time without progress that these ranks may have: those of a launch that fails as planned."""
    start_s: float = 0.0
    """Extra time that their launcher may take until a rank shows life."""
    codes: dict[int, int] = field(default_factory=dict)
    cpu_s: float = 0.0
    pulses: dict[int, Pulse] = field(default_factory=dict)
    first_bad: int | None = None
    first_bad_at: float = 0.0
    early_at: float | None = None
    """Time when a rank was first seen to have left before its work was done, without an error."""
    ended_by_us: set[int] = field(default_factory=set)
    ended_at: float | None = None
    hang: str = ""
    hang_advice: str = ""
    """The end of the message on a hang, for another cause (`what`); empty if the cause is known."""
    hung_rank: int | None = None
    server_gone: str = ""

    @property
    def left(self) -> list[int]:
        """Return the ranks that have not ended."""
        return [rank for rank in range(self.ranks) if rank not in self.codes]

    def exited(self, rank: int, code: int, cpu_s: float, now: float) -> None:
        """Note that a rank has ended; a killed one's code is minus its signal's number. Report its last beat before."""
        self.codes[rank] = code
        self.cpu_s += cpu_s
        self.alive_at = now
        if rank in self.ended_by_us:
            return
        if code == 0:
            if self.early_at is None and self.pulse(rank).phase != "finishing":
                self.early_at = now
            return
        if self.first_bad is None:
            self.first_bad, self.first_bad_at = rank, now
        elif code < 0 <= self.codes[self.first_bad]:
            self.first_bad = rank  # the others failed because this one was killed, and were heard of first

    def beat(self, rank: int, pulse: Pulse, now: float) -> None:
        """Note a rank's current heartbeat; a change is a sign of life of the whole launch."""
        if self.pulses.get(rank) != pulse:
            self.pulses[rank] = pulse
            self.alive_at = now

    def pulse(self, rank: int) -> Pulse:
        """Return a rank's last known heartbeat."""
        return self.pulses.get(rank, _UNBORN)

    def must_end(self, now: float) -> bool:
        """Return whether a rank has failed and the others have had their time to end by themselves."""
        failed_at = self.early_at if self.first_bad is None else self.first_bad_at
        return failed_at is not None and now - failed_at > GRACE_S

    def hangs(self, now: float, timeout_s: float) -> bool:
        """Return whether no rank has shown life for this time; False once that has been explained."""
        unborn = all(pulse == _UNBORN for pulse in self.pulses.values())
        longer_s = self.still_s + (self.start_s if unborn else 0.0)
        return not self.hang and now - self.alive_at > timeout_s + longer_s

    def end(self, now: float) -> None:
        """Note that all ranks that are left are being ended."""
        self.ended_by_us.update(self.left)
        self.ended_at = self.ended_at or now

    def unheard(self, now: float) -> bool:
        """Return whether ranks were killed and have not been heard of: their codes stay unknown."""
        return self.ended_at is not None and now - self.ended_at > REAP_S

    def explain_hang(self, stopped: Sequence[int], timeout_s: float, setting: str) -> None:
        """Note which rank holds the others up. `setting` is what a user changes to wait longer."""
        if stopped:
            self.hung_rank = stopped[0]
            self.hang = (
                f"rank {stopped[0]} is stopped (by SIGSTOP or a debugger) {self.where(stopped[0])}; "
                f"ended after {timeout_s:g} s without progress. Use --retry-failed once nothing stops it"
            )
            return
        self.hung_rank = min(self.left, key=lambda rank: _progress(self.pulse(rank)))
        self.hang_advice = (
            f"ended after {timeout_s:g} s without progress. The ranks' stacks are in their logs; "
            f"raise {setting} if {{what}} takes that long"
        )
        self.hang = (
            f"rank {self.hung_rank} made no step {self.where(self.hung_rank)}; "
            + self.hang_advice.format(what="a step")
        )

    def where(self, rank: int) -> str:
        """Return how far a rank was."""
        pulse = self.pulse(rank)
        return f"in {pulse.phase} after {pulse.steps} steps"


def _progress(pulse: Pulse) -> tuple[int, int]:
    """Return how far a rank has come: phases follow each other in the order of their list."""
    return (PHASES.index(pulse.phase) if pulse.phase in PHASES else len(PHASES), pulse.steps)
