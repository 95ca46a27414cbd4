"""The controlling side of a fork server: starts it, asks it for ranks, hears of their ends, ends it."""

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
"""The environment variable with the moment when a rank's launch was asked for."""
_spoiling: set[tuple[str, str]] = set()
"""Strategies, with a listed workload or none, whose needs a server cannot import and still fork.

This depends on the packages installed here. Their ranks import for themselves from then on: those of all rounds, if a
proof comes before them.
"""


class _Page:
    """The page on which ranks count their steps; they inherit it by its descriptor."""

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
    """A fork server and the ranks it forks. Use it as a context; leaving it leaves no process behind."""

    reports_helper_times = True

    def __init__(
        self,
        env: Mapping[str, str],
        log: Path,
        *,
        log_stays: bool = True,
        waiting: Callable[[], None] = lambda: None,
    ) -> None:
        """Take `waiting`, which is called about every second while it starts, is asked for ranks, or tries something.

        No error names a log that does not stay: it is in a folder that its owner removes.
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
        """Return whether the server can still be asked for ranks."""
        return self._running.alive

    @property
    def pid(self) -> int:
        """Return the server's process id."""
        return self._running.pid

    @property
    def is_stopped(self) -> bool:
        """Return whether the server process is stopped: running ranks continue, but it starts none and reports no
        end.
        """
        return self._running.is_stopped

    def give_up_stopped(self) -> NoReturn:
        """End a server that is stopped, and its ranks.

        Raises:
            ServerGoneError: always.
        """
        self._running.give_up_stopped()

    def events(self, timeout_s: float) -> list[dict[str, Any]]:
        """Return what the server reports within this time, as soon as it reports something.

        A rank that was killed and given up (it slept where no signal reaches it) may end during a later launch, whose
        ranks have its numbers: its end is not reported.

        Raises:
            ServerGoneError: it is gone, or stopped for good: then it and its ranks have been ended.
        """
        heard = self._running.hear(timeout_s)
        return [event for event in heard if event["event"] != "exited" or event["pid"] in self.pids]

    def _ask(self, awaited: str, **request: Any) -> dict[str, Any]:
        """Return the server's answer, and note which process it forked for it."""
        answer = self._running.ask(awaited, **request)
        self.pids = tuple(answer.get("pids", ()))
        return answer

    def launch(
        self,
        envs: Sequence[Mapping[str, str]],
        directory: LaunchDir,
        request: LaunchRequest | None = None,
    ) -> bool:
        """Fork a rank for each environment; `events` reports their ends, counting them from 0.

        Without a `request` the ranks read the one in the directory. Return whether the server had to import something
        for them first, or to be replaced: that time is not part of their launch.
        """
        self._page.clear()  # otherwise an earlier launch's counts would pass for this one's
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
        """Make a server import what a case's ranks need, unless it could not fork then; return whether it imported."""
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
        """Have a rank write `path`; return its exit code, or None if it had to be killed after `timeout_s`."""
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
        """Send a signal to ranks; SIGKILL to their loader workers, too (each rank leads its process group)."""
        send = os.killpg if number == signal.SIGKILL else os.kill
        for pid in self.pids if pids is None else pids:
            with contextlib.suppress(ProcessLookupError):
                send(pid, number)

    def forget(self) -> None:
        """Hold no process for a rank any more: all have ended."""
        self.pids = ()

    def close(self) -> None:
        """End ranks and server, and wait for them."""
        self._running.end()
        self._page.close()

    def __exit__(self, *_: object) -> None:
        self.close()
