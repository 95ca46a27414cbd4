"""A slot's rank in one launch: the slot has it forked, watches it, ends it if ordered to, and reports on it."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

from ddpbench.errors import OutputError, ServerGoneError, UnreadableError
from ddpbench.guard import is_stopped
from ddpbench.machine.disturbance import NoiseWatch, oom_kills
from ddpbench.machine.placement import early_env
from ddpbench.records import LaunchRequest
from ddpbench.records.files import MOST_RECORDS, read_bytes, read_end
from ddpbench.records.heartbeat import Pulse
from ddpbench.records.job_key import SECRET_VARIABLE
from ddpbench.removal import remove_tree
from ddpbench.runtime.watchdog import STACKS_S
from ddpbench.worker.slot.roster import Seat, members_of, stands
from ddpbench.worker.slot.slot import BEAT_S, Slot, processes_of

_LOG_TAIL_BYTES = 1 << 16
"""Number of bytes from the end of a rank's log that are sent to a leader with a separate run directory."""


class OwnRank:
    """This slot's rank in one launch, from its fork to its final report."""

    def __init__(
        self, slot: Slot, number: int, request: LaunchRequest, members: Sequence[Seat], rank: int
    ) -> None:
        self._slot, self._number, self._request, self._rank = slot, number, request, rank
        self._directory = slot.run.launch(request.case.case_id, request.purpose, request.round)
        own = members[rank]
        placed = stands(request.case, members)
        there = [n for n, one in enumerate(members) if one.host == own.host]
        self._speaks_for_host = there[0] == rank
        watched = [core for n in there for core in (*placed[n].cores, *placed[n].loader_cores)]
        self._code: int | None = None
        self._cpu_s = 0.0
        self._gone = ""
        self._told: dict[str, Any] = {}
        self._oom_before = oom_kills()
        self._directory.path.mkdir(parents=True, exist_ok=True)
        if slot.place.rank in slot.unshared:  # an unfinished attempt left them there
            for stale in (self._directory.records(rank), self._directory.log(rank)):
                stale.unlink(missing_ok=True)
        self._server = slot.server(early_env(request.case))
        watch = partial(
            NoiseWatch,
            sorted(set(watched)) if self._speaks_for_host else (),
            lambda: self._server.pids,
            shared_machine=slot.shared_machine,
            helpers=False,  # the server reports them with the rank's end
        )
        self._noise = watch()
        per_node = sum(1 for one in members if one.node == own.node)
        env = {
            **early_env(request.case),
            "RANK": str(rank),
            "WORLD_SIZE": str(len(members)),
            # If a launcher gives each slot its own GPU, the slot sees only that GPU.
            "LOCAL_RANK": str(0 if request.case.device == "cuda" and own.gpus == 1 else own.local_rank),
            "LOCAL_WORLD_SIZE": str(per_node),
            "TORCHELASTIC_RESTART_COUNT": "0",  # the launcher counts restarts of the slot, not of its rank
            "DDPBENCH_STORE": f"{slot.place.prefix}/launch/{number}",
            "DDPBENCH_HOST": own.host,
            SECRET_VARIABLE: slot.meeting.seals.secret(str(number)),
            **placed[rank].env,
        }
        try:
            if self._server.launch([env], self._directory, request):
                self._noise = watch()
        except ServerGoneError as error:
            self._gone = str(error)
        self._tell()

    @classmethod
    def of(cls, slot: Slot, number: int, request: LaunchRequest) -> OwnRank | None:
        """Start this slot's rank of a launch and return it, or None if the launch doesn't use this slot."""
        members = members_of(request.case, processes_of(request.case), slot.seats)
        assert members is not None  # `check_places` has ensured it
        ranks = [rank for rank, one in enumerate(members) if one.rank == slot.place.rank]
        return cls(slot, number, request, members, ranks[0]) if ranks else None

    @property
    def ended(self) -> bool:
        """True if the rank has ended."""
        return self._code is not None or bool(self._gone)

    def poll(self, timeout_s: float) -> None:
        """Wait up to `timeout_s` for the rank's end, carry out the leader's order, and report the rank's state.

        Raises:
            StoppedError: another slot had to stop.
            LaunchError: the launcher has ended.
        """
        if self.ended:
            self._slot.idle(timeout_s)
            return
        self._slot.lives()
        try:
            for event in self._server.events(timeout_s):
                if event["event"] == "exited":
                    self._code, self._cpu_s = int(event["code"]), float(event["cpu_s"])
        except ServerGoneError as error:
            self._server.signal_ranks(signal.SIGKILL)
            self._gone = str(error)
        self._noise.tick(computing=self._pulse.phase == "timed steps")
        self._slot.check_stop()
        (order,) = self._slot.meeting.get("order")
        if order["end"] == self._number and not self.ended:
            self._end(stacks=order["stacks"])
        self._tell()

    @property
    def _pulse(self) -> Pulse:
        return self._server.pulse(0)

    def _end(self, *, stacks: bool) -> None:
        """Kill the rank; with `stacks`, it first logs its stack traces, which show why it hangs."""
        if stacks and not any(is_stopped(pid) for pid in self._server.pids):
            self._server.signal_ranks(signal.SIGUSR1)
            time.sleep(STACKS_S)
        self._server.signal_ranks(signal.SIGKILL)
        if is_stopped(self._server.pid):  # a stopped server never reports the rank's end
            os.kill(self._server.pid, signal.SIGKILL)

    def _tell(self) -> None:
        pulse = self._pulse
        state: dict[str, Any] = {
            "job": self._number,
            "steps": pulse.steps,
            "phase": pulse.phase,
            "stopped": any(is_stopped(pid) for pid in self._server.pids),
            "server_stopped": is_stopped(self._server.pid),
        }
        if self.ended:
            self._server.forget()
            case, run_id = self._request.case, self._request.run_id
            if case.checkpoint:  # remove what a killed rank could not, on any node
                with contextlib.suppress(OutputError):  # others can write there meanwhile
                    folder = self._directory.checkpoints(case.checkpoint_dir, run_id)
                    remove_tree(folder, private=True)
            state |= {
                "code": self._code,
                "gone": self._gone,
                "cpu_s": round(self._cpu_s, 6),
                "oom": oom_kills() > self._oom_before,
                "totals": asdict(self._noise.totals()) if self._speaks_for_host else None,
                "files": self._send_files() if self._slot.place.rank in self._slot.unshared else None,
            }
        elif state["phase"] == self._told.get("phase") and time.monotonic() - self._slot.told_at < BEAT_S:
            return  # a report on the number of steps alone can wait
        self._told = state
        self._slot.tell(**state)

    def _send_files(self) -> dict[str, int]:
        directory, key = self._directory, f"file/{self._number}/{self._rank}"
        parts: dict[str, int] = {}
        for name, path in (
            ("records", directory.records(self._rank)),
            ("log", directory.log(self._rank)),
        ):
            data = b""
            with contextlib.suppress(FileNotFoundError, UnreadableError):
                data = (
                    read_bytes(path, MOST_RECORDS) if name == "records" else read_end(path, _LOG_TAIL_BYTES)
                )
            parts[name] = self._slot.meeting.send(f"{key}/{name}", data)
        return parts
