"""The leader's watchdog for one launch, which reads all slots' ranks' states, and ends the ranks if necessary."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from ddpbench.machine.disturbance import Totals, worst_of
from ddpbench.records import Noise
from ddpbench.records.heartbeat import Pulse
from ddpbench.runtime.watchdog import Seen
from ddpbench.worker.slot.hearing import Hearing
from ddpbench.worker.slot.roster import Seat
from ddpbench.worker.slot.slot import Slot

_HANG_SETTING = "budget.hang_timeout"


class Watch:
    """The watchdog for all slots of one launch. Call `look` until `over`."""

    def __init__(self, slot: Slot, job: int, members: Sequence[Seat], *, hang_timeout_s: float) -> None:
        now = time.monotonic()
        self._slot, self._job, self._members = slot, job, members
        self._hang_timeout_s = hang_timeout_s
        self._hearing = Hearing(members)
        self._ordered = False
        self.seen = Seen(ranks=len(members), alive_at=now)
        self.states: list[dict[str, Any]] = [{} for _ in members]
        self.over = False

    def look(self) -> None:
        """Read all ranks' states. End the launch if a rank has failed or if no rank makes progress.

        Raises:
            LaunchError: a slot is lost.
        """
        now, seen = time.monotonic(), self.seen
        keys = [f"state/{one.rank}" for one in self._members]
        for rank, state in enumerate(self._slot.meeting.get(*keys)):
            if rank not in seen.codes:
                self._hearing.note(rank, state, has_rank=state["job"] == self._job)
            if state["job"] != self._job:
                continue
            self.states[rank] = state
            seen.beat(rank, Pulse(state["steps"], state["phase"]), now)
            if rank in seen.codes:
                continue
            if state.get("gone"):
                seen.server_gone = seen.server_gone or f"on {self._members[rank].host} {state['gone']}"
                seen.ended_by_us.add(rank)
                seen.exited(rank, -9, state["cpu_s"], now)
            elif state.get("code") is not None:
                seen.exited(rank, state["code"], state["cpu_s"], now)
        if seen.left:
            if seen.must_end(now) or seen.server_gone:
                self._end(stacks=False)
            elif seen.hangs(now, self._hang_timeout_s):
                self._explain_hang()
                self._end(stacks=not seen.server_gone)
        self.over = not seen.left or seen.unheard(now)

    def _explain_hang(self) -> None:
        """Record whether the launch hangs in a rank, or in a stopped fork server that cannot report an end."""
        seen = self.seen
        stopped = [rank for rank in seen.left if self.states[rank].get("server_stopped")]
        if stopped:
            where = self._members[stopped[0]]
            seen.server_gone = (
                f"the fork server of {where} was stopped (by SIGSTOP or a debugger) and was ended"
            )
            return
        stopped = [rank for rank in seen.left if self.states[rank].get("stopped")]
        seen.explain_hang(stopped, self._hang_timeout_s, _HANG_SETTING)

    def _end(self, *, stacks: bool) -> None:
        self.seen.end(time.monotonic())
        if not self._ordered:
            self._slot.meeting.put("order", {"end": self._job, "stacks": stacks})
            self._ordered = True


def noise_of(members: Sequence[Seat], states: Sequence[dict[str, Any]], *, shared_machine: bool) -> Noise:
    """Return how much other processes used the cores of the ranks, on the host where that use was highest."""
    own_s: dict[str, float] = {}
    totals: dict[str, Totals] = {}
    for one, state in zip(members, states, strict=True):
        own_s[one.host] = own_s.get(one.host, 0.0) + float(state.get("cpu_s") or 0.0)
        if found := state.get("totals"):
            totals[one.host] = Totals(**found)
    return worst_of([seen.noise(own_s[host], shared_machine=shared_machine) for host, seen in totals.items()])
