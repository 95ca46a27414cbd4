"""Control a fork server: start it, have it fork ranks, receive their ends, and end it."""

from __future__ import annotations

import contextlib
import mmap
import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from ddpbench.records import LaunchDir, LaunchRequest
from ddpbench.records.heartbeat import PAGE_BYTES, Pulse, read_pulse
from ddpbench.runtime.running_server import SpoiltError, start_server
from ddpbench.spec import Case
from ddpbench.spec.limits import MAX_RANKS
from ddpbench.workloads import is_import_path

ASKED = "DDPBENCH_ASKED_NS"
"""Environment variable with the time at which a rank's launch was requested, by `perf_counter_ns` (ns)."""
_spoiling: set[tuple[str, str]] = set()
"""Pairs of strategy and workload (empty for users' own) whose imports make a server unable to fork.

The pairs depend on the installed packages. Ranks of a known pair import their modules themselves. Proofs run first and
find the pairs, so that all rounds start in the same way.
"""


MOST_LANES = 16
"""Most launches that a fork server runs at once."""


class _Pages:
    """Shared memory in which ranks count steps, one page per lane; ranks inherit its descriptor."""

    def __init__(self) -> None:
        self.fd = os.memfd_create("ddpbench-heartbeat", os.MFD_CLOEXEC)
        os.ftruncate(self.fd, MOST_LANES * PAGE_BYTES)
        self._memory = mmap.mmap(self.fd, MOST_LANES * PAGE_BYTES)
        self._words = memoryview(self._memory).cast("Q")

    def clear(self, lane: int) -> None:
        self._memory[lane * PAGE_BYTES : (lane + 1) * PAGE_BYTES] = bytes(PAGE_BYTES)

    def pulse(self, lane: int, rank: int) -> Pulse:
        return read_pulse(self._words, lane * MAX_RANKS + rank)

    def close(self) -> None:
        if not self._memory.closed:
            self._words.release()
            self._memory.close()
            os.close(self.fd)


class ServerLane:
    """A launch of a fork server, which can run several at once: its ranks, and the page of their heartbeats."""

    reports_helper_times = True

    def __init__(self, server: ServerProcess, number: int) -> None:
        self._server, self._number = server, number
        self.pids: tuple[int, ...] = ()
        self._events: list[dict[str, Any]] = []

    @property
    def start_s(self) -> float:
        """Return the time that starting the fork server took (s)."""
        return self._server.took_s

    @property
    def pid(self) -> int:
        """Return the server's process id."""
        return self._server.pid

    @property
    def is_stopped(self) -> bool:
        """Return whether a signal has stopped the server. A stopped server starts no ranks and reports no ends."""
        return self._server.is_stopped

    def give_up_stopped(self) -> NoReturn:
        """End a stopped server and the ranks of all lanes.

        Raises:
            ServerGoneError: always.
        """
        self._server.give_up_stopped()

    def launch(
        self, envs: Sequence[Mapping[str, str]], directory: LaunchDir, request: LaunchRequest | None = None
    ) -> bool:
        """Fork one rank per environment; `events` later reports their ends, by rank number from 0.

        If `request` is None, the ranks read the request in `directory`. Return whether the server first had to import
        modules or be replaced. The time for this is not part of the launch's time.
        """
        self._events.clear()
        self.pids = ()
        self.pids, prepared = self._server.launch_in(self._number, envs, directory, request)
        return prepared

    def note(self, event: dict[str, Any]) -> None:
        """Keep an event for `events` if it is the end of a rank of this lane."""
        if event["event"] == "exited" and event["pid"] in self.pids:
            self._events.append(event)

    def events(self, timeout_s: float) -> list[dict[str, Any]]:
        """Return the ends of this lane's ranks, after waiting up to `timeout_s` for an event of any lane.

        Ends of an earlier launch's ranks are left out: a killed rank may sleep in the kernel, and end only during a
        later launch that uses the same rank numbers.

        Raises:
            ServerGoneError: the server is gone. A server that stayed stopped has been ended, with its ranks.
        """
        if not self._events:
            self._server.hear_for_lanes(timeout_s)
        events, self._events = self._events, []
        return events

    def pulse(self, rank: int) -> Pulse:
        """Return a rank's heartbeat."""
        return self._server.pulse_in(self._number, rank)

    def signal_ranks(self, number: signal.Signals, pids: tuple[int, ...] | None = None) -> None:
        """Send a signal to all ranks, or to the processes in `pids`; SIGKILL also reaches their loader workers."""
        send = os.killpg if number == signal.SIGKILL else os.kill
        for pid in self.pids if pids is None else pids:
            with contextlib.suppress(ProcessLookupError):
                send(pid, number)

    def forget(self) -> None:
        """Forget the ranks, because all of them have ended."""
        self.pids = ()
        self._events.clear()


class ServerProcess(ServerLane, AbstractContextManager["ServerProcess"]):
    """A fork server, which itself is lane 0. As a context manager, it ends the server and all its ranks on exit."""

    def __init__(
        self,
        env: Mapping[str, str],
        log: Path,
        *,
        log_stays: bool = True,
        waiting: Callable[[], None] = lambda: None,
    ) -> None:
        """Start the server and wait until it is ready.

        `waiting` is called about every second of a wait. Pass `log_stays=False` if the log's folder will be removed, so
        that errors do not refer to it.
        """
        super().__init__(self, 0)
        self._waiting = waiting
        self._lanes: list[ServerLane] = [self]
        started = time.monotonic()
        self._pages = _Pages()
        self._start = partial(start_server, env, log, self._pages.fd, log_stays=log_stays, waiting=waiting)
        try:
            self._running = self._start()
        except BaseException:
            self._pages.close()
            raise
        self.took_s = time.monotonic() - started

    @property
    def alive(self) -> bool:
        """Return whether the server can still take requests."""
        return self._running.alive

    @property
    def pid(self) -> int:
        """Return the server's process id."""
        return self._running.pid

    @property
    def is_stopped(self) -> bool:
        """Return whether a signal has stopped the server. A stopped server starts no ranks and reports no ends."""
        return self._running.is_stopped

    def give_up_stopped(self) -> NoReturn:
        """End a stopped server and its ranks.

        Raises:
            ServerGoneError: always.
        """
        self._running.give_up_stopped()

    def lane(self, number: int) -> ServerLane:
        """Return the lane with this number, below `MOST_LANES`; this object itself controls lane 0."""
        while len(self._lanes) <= number:
            self._lanes.append(ServerLane(self, len(self._lanes)))
        return self._lanes[number]

    def hear_for_lanes(self, timeout_s: float) -> None:
        """Wait up to `timeout_s` for the server's next events, and give each to the lane whose rank it is about.

        Raises:
            ServerGoneError: the server is gone. A server that stayed stopped has been ended, with its ranks.
        """
        for event in self._running.hear(timeout_s):
            for lane in self._lanes:
                lane.note(event)

    def launch_in(
        self,
        lane: int,
        envs: Sequence[Mapping[str, str]],
        directory: LaunchDir,
        request: LaunchRequest | None,
    ) -> tuple[tuple[int, ...], bool]:
        """Like `ServerLane.launch`, for this lane. Return the ranks' process ids, and what `launch` returns."""
        self._pages.clear(lane)  # otherwise an earlier launch's counts would be taken for this one's
        case = (request or LaunchRequest.read(directory.request)).case
        ranks = [{"env": dict(env)} for env in envs]
        imported = self.prepare(case)
        if imported:
            for rank in ranks:
                if ASKED in rank["env"]:
                    rank["env"][ASKED] = str(time.perf_counter_ns())
        answer = self._running.ask(
            "started",
            do="launch",
            directory=str(directory.path.absolute()),
            ranks=ranks,
            request=None if request is None else request.to_json(),
            lane=lane,
        )
        return tuple(answer["pids"]), imported

    def prepare(self, case: Case) -> bool:
        """Make the server import what a case's ranks need; return whether it imported any or was replaced.

        A server that could no longer fork is replaced, which ends the ranks of all lanes. Call this for all cases
        before launching them at once.
        """
        strategy, workload = ("" if is_import_path(name) else name for name in (case.strategy, case.workload))
        needs = strategy, workload
        if needs in _spoiling or needs in self._running.has:
            return False
        try:
            imported = self._running.ask("imported", do="import", case=case.to_json())
        except SpoiltError:
            _spoiling.add(needs)
            self._running.end()
            self._running = self._start()
            return True
        self._running.has.add(needs)
        return bool(imported["new"])

    def probe(
        self,
        path: Path,
        case: dict[str, Any] | None,
        timeout_s: float,
        profile: dict[str, Any] | None = None,
        workload: str | None = None,
        *,
        order: bool = False,
        largest: Case | None = None,
    ) -> int | None:
        """Have a rank examine something and write its findings to `path`; return the rank's exit code.

        Return None if the rank was killed after `timeout_s`. The other arguments say what to examine; see the functions
        in `ddpbench.runtime.probes`.
        """
        answer = self._running.ask(
            "started",
            do="probe",
            path=str(path.absolute()),
            case=case,
            profile=profile,
            workload=workload,
            order=order,
            largest=None if largest is None else largest.to_json(),
        )
        self.pids = tuple(answer["pids"])
        deadline = time.monotonic() + timeout_s
        in_time = True
        while True:
            self._waiting()
            for event in self.events(0.5):
                self.forget()
                return int(event["code"]) if in_time else None
            if in_time and time.monotonic() > deadline:
                in_time = False
                self.signal_ranks(signal.SIGKILL)

    def pulse_in(self, lane: int, rank: int) -> Pulse:
        """Return the heartbeat of a lane's rank."""
        return self._pages.pulse(lane, rank)

    def close(self) -> None:
        """End the ranks and the server, and wait until they have ended."""
        self._running.end()
        self._pages.close()

    def __exit__(self, *_: object) -> None:
        self.close()
