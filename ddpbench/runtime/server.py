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
from ddpbench.workloads import is_import_path

ASKED = "DDPBENCH_ASKED_NS"
"""Environment variable with the time at which a rank's launch was requested, by `perf_counter_ns` (ns)."""
_spoiling: set[tuple[str, str]] = set()
"""Pairs of strategy and workload (empty for users' own) whose imports make a server unable to fork.

The pairs depend on the installed packages. Ranks of a known pair import their modules themselves. Proofs run first and
find the pairs, so that all rounds start in the same way.
"""


class _Page:
    """Shared memory in which ranks count their steps; ranks inherit its file descriptor."""

    def __init__(self) -> None:
        self.fd = os.memfd_create("ddpbench-heartbeat", os.MFD_CLOEXEC)
        os.ftruncate(self.fd, PAGE_BYTES)
        self._page = mmap.mmap(self.fd, PAGE_BYTES)
        self._words = memoryview(self._page).cast("Q")

    def clear(self) -> None:
        self._page[:] = bytes(PAGE_BYTES)

    def pulse(self, rank: int) -> Pulse:
        return read_pulse(self._words, rank)

    def close(self) -> None:
        if not self._page.closed:
            self._words.release()
            self._page.close()
            os.close(self.fd)


class ServerProcess(AbstractContextManager["ServerProcess"]):
    """A fork server and the ranks that it forks. As a context manager, it ends all these processes on exit."""

    reports_helper_times = True

    def __init__(
        self,
        env: Mapping[str, str],
        log: Path,
        *,
        log_stays: bool = True,
        waiting: Callable[[], None] = lambda: None,
    ) -> None:
        """Start the server and wait until it is ready.

        `waiting` is called about every second while the server starts, prepares ranks or examines something. Pass
        `log_stays=False` if the log's folder will be removed, so that errors do not refer to the log.
        """
        self._waiting = waiting
        self.pids: tuple[int, ...] = ()
        started = time.monotonic()
        self._page = _Page()
        self._start = partial(start_server, env, log, self._page.fd, log_stays=log_stays, waiting=waiting)
        try:
            self._running = self._start()
        except BaseException:
            self._page.close()
            raise
        self.start_s = time.monotonic() - started

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
        """Return whether the server is stopped by a signal, so that it starts no ranks and reports no ends."""
        return self._running.is_stopped

    def give_up_stopped(self) -> NoReturn:
        """End a stopped server and its ranks.

        Raises:
            ServerGoneError: always.
        """
        self._running.give_up_stopped()

    def events(self, timeout_s: float) -> list[dict[str, Any]]:
        """Return the server's next events, waiting up to `timeout_s` for the first; an empty list if none came.

        Ends of an earlier launch's ranks are left out. The reason is that a killed rank may sleep in the kernel, where
        no signal reaches it, and may end only during a later launch, which uses the same rank numbers.

        Raises:
            ServerGoneError: the server is gone. A server that stayed stopped has been ended, with its ranks.
        """
        heard = self._running.hear(timeout_s)
        return [event for event in heard if event["event"] != "exited" or event["pid"] in self.pids]

    def _ask(self, awaited: str, **request: Any) -> dict[str, Any]:
        """Return the server's answer to a request, and store the process ids of ranks forked for it in `pids`."""
        answer = self._running.ask(awaited, **request)
        self.pids = tuple(answer.get("pids", ()))
        return answer

    def launch(
        self,
        envs: Sequence[Mapping[str, str]],
        directory: LaunchDir,
        request: LaunchRequest | None = None,
    ) -> bool:
        """Fork one rank per environment; `events` later reports their ends, by rank number from 0.

        If `request` is None, the ranks read the request in `directory`. Return whether the server first had to import
        modules or be replaced, because that time does not count as the launch's.
        """
        self._page.clear()  # otherwise an earlier launch's counts would be taken for this one's
        case = (request or LaunchRequest.read(directory.request)).case
        ranks = [{"env": dict(env)} for env in envs]
        imported = self._prepared(case)
        if imported:
            for rank in ranks:
                if ASKED in rank["env"]:
                    rank["env"][ASKED] = str(time.perf_counter_ns())
        given = None if request is None else request.to_json()
        self._ask(
            "started", do="launch", directory=str(directory.path.absolute()), ranks=ranks, request=given
        )
        return imported

    def _prepared(self, case: Case) -> bool:
        """Make the server import the modules that a case's ranks need. Return whether it imported any or was replaced.

        If the imports make the server unable to fork, it is replaced, and the ranks import the modules themselves.
        """
        strategy, workload = ("" if is_import_path(name) else name for name in (case.strategy, case.workload))
        needs = strategy, workload
        if needs in _spoiling or needs in self._running.has:
            return False
        try:
            imported = self._ask("imported", do="import", case=case.to_json())
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
        self._ask(
            "started",
            do="probe",
            path=str(path.absolute()),
            case=case,
            profile=profile,
            workload=workload,
            order=order,
            largest=None if largest is None else largest.to_json(),
        )
        deadline = time.monotonic() + timeout_s
        in_time = True
        while True:
            self._waiting()
            for event in self.events(0.5):
                if event["event"] == "exited":
                    self.pids = ()
                    return int(event["code"]) if in_time else None
            if in_time and time.monotonic() > deadline:
                in_time = False
                self.signal_ranks(signal.SIGKILL)

    def pulse(self, rank: int) -> Pulse:
        """Return a rank's heartbeat."""
        return self._page.pulse(rank)

    def signal_ranks(self, number: signal.Signals, pids: tuple[int, ...] | None = None) -> None:
        """Send a signal to all ranks, or to the processes in `pids`; SIGKILL also reaches their loader workers."""
        send = os.killpg if number == signal.SIGKILL else os.kill
        for pid in self.pids if pids is None else pids:
            with contextlib.suppress(ProcessLookupError):
                send(pid, number)

    def forget(self) -> None:
        """Forget the ranks' process ids, because all ranks have ended."""
        self.pids = ()

    def close(self) -> None:
        """End the ranks and the server, and wait until they have ended."""
        self._running.end()
        self._page.close()

    def __exit__(self, *_: object) -> None:
        self.close()
