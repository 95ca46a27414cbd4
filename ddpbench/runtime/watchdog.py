"""Record what a watchdog observes of a launch's ranks, and decide when to end the ranks."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import dataclass, field

from ddpbench.records.heartbeat import PHASES, Pulse

POLL_S = 0.2
"""Time between two checks by a watchdog (s). A check takes tens of microseconds of a core that ranks may be using."""
REAP_S = 10.0
"""Time to wait for reports of ranks' ends after killing the ranks (s)."""
GRACE_S = 3.0
"""Time that the other ranks have to end by themselves after one has failed (s)."""
STACKS_S = 0.3
"""Time that ranks have to write their stacks into their logs (s)."""
_UNBORN = Pulse(0, "starting")


@dataclass(slots=True)
class Seen:
    """A watchdog's knowledge of a running launch. `now` is always the watchdog's monotonic clock (s)."""

    ranks: int
    alive_at: float
    still_s: float = 0.0
    """Extra time that ranks may make no progress, in a launch with a planned failure (s)."""
    start_s: float = 0.0
    """Extra time allowed until a rank's first sign of life, because some launchers start slowly (s)."""
    codes: dict[int, int] = field(default_factory=dict)
    cpu_s: float = 0.0
    pulses: dict[int, Pulse] = field(default_factory=dict)
    first_bad: int | None = None
    first_bad_at: float = 0.0
    early_at: float | None = None
    """Time at which the watchdog first saw that a rank had exited with code 0 before finishing its work."""
    ended_by_us: set[int] = field(default_factory=set)
    ended_at: float | None = None
    hang: str = ""
    hang_end: str = ""
    """Words on how a hang was ended, for a message on it."""
    hang_advice: str = ""
    """Template for the end of the message on a hang, with a field `what` for what may take long. Empty if the cause is
    known.
    """
    hung_rank: int | None = None
    server_gone: str = ""

    @property
    def left(self) -> list[int]:
        """Return the ranks that have not ended."""
        return [rank for rank in range(self.ranks) if rank not in self.codes]

    def exited(self, rank: int, code: int, cpu_s: float, now: float) -> None:
        """Record that a rank has ended; `code` is minus the signal's number if a signal killed it.

        Call `beat` with the rank's last heartbeat before calling this.
        """
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
            self.first_bad = rank  # the others failed because this one was killed, but were reported first

    @property
    def killed(self) -> int | None:
        """Return the rank that failed first if SIGKILL ended it, and not the watchdog; otherwise None."""
        rank = self.first_bad
        return rank if rank is not None and self.codes[rank] == -signal.SIGKILL else None

    def beat(self, rank: int, pulse: Pulse, now: float) -> None:
        """Record a rank's current heartbeat; a changed heartbeat is a sign of life of the launch."""
        if self.pulses.get(rank) != pulse:
            self.pulses[rank] = pulse
            self.alive_at = now

    def pulse(self, rank: int) -> Pulse:
        """Return a rank's last known heartbeat."""
        return self.pulses.get(rank, _UNBORN)

    def must_end(self, now: float) -> bool:
        """Return whether the watchdog must end the ranks: one failed or left early, and the others had time to end."""
        failed_at = self.early_at if self.first_bad is None else self.first_bad_at
        return failed_at is not None and now - failed_at > GRACE_S

    def hangs(self, now: float, timeout_s: float) -> bool:
        """Return whether no rank has made progress for longer than the time-out plus the launch's extra times (s)."""
        unborn = all(pulse == _UNBORN for pulse in self.pulses.values())
        longer_s = self.still_s + (self.start_s if unborn else 0.0)
        return not self.hang and now - self.alive_at > timeout_s + longer_s

    def end(self, now: float) -> None:
        """Record that the watchdog is ending all remaining ranks."""
        self.ended_by_us.update(self.left)
        self.ended_at = self.ended_at or now

    def unheard(self, now: float) -> bool:
        """Return whether to stop waiting for reports that killed ranks have ended; their exit codes stay unknown."""
        return self.ended_at is not None and now - self.ended_at > REAP_S

    def explain_hang(self, stopped: Sequence[int], timeout_s: float, setting: str) -> None:
        """Record which rank delays the others, in a message too.

        `stopped` lists ranks that a signal has stopped. `setting` is the one that allows a longer wait.
        """
        if stopped:
            self.hung_rank = stopped[0]
            self.hang = (
                f"rank {stopped[0]} is stopped (by SIGSTOP or a debugger) {self.where(stopped[0])}; "
                f"ended after {timeout_s:g} s without progress. Use --retry-failed once nothing stops it"
            )
            return
        self.hung_rank = min(self.left, key=lambda rank: _progress(self.pulse(rank)))
        self.hang_end = f"ended after {timeout_s:g} s without progress. The ranks' stacks are in their logs"
        self.hang_advice = f"{self.hang_end}; raise {setting} if {{what}} takes that long"
        self.hang = (
            f"rank {self.hung_rank} made no step {self.where(self.hung_rank)}; "
            + self.hang_advice.format(what="a step")
        )

    def where(self, rank: int) -> str:
        """Describe a rank's progress in words: its phase and its number of steps."""
        pulse = self.pulse(rank)
        return f"in {pulse.phase} after {pulse.steps} steps"


def _progress(pulse: Pulse) -> tuple[int, int]:
    return (PHASES.index(pulse.phase) if pulse.phase in PHASES else len(PHASES), pulse.steps)
