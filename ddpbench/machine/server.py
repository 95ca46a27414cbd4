"""The other end of a fork server: starts it, asks it for ranks, hears of their ends, ends it."""

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

from ddpbench.machine.running_server import SpoiltError, start_server
from ddpbench.records import LaunchDir, LaunchRequest
from ddpbench.records.heartbeat import PAGE_BYTES, Pulse, read_pulse
from ddpbench.spec import Case
from ddpbench.workloads import is_import_path

ASKED = "DDPBENCH_ASKED_NS"
"""When a rank's launch was asked for, told in its environment."""
_spoiling: set[tuple[str, str]] = set()
"""Strategies, with a workload of the table or none, for which a server with what they need could not fork any more.

That is so by what is installed here. Their ranks import for themselves from then on: those of all rounds, where a proof
comes before them.
"""


class _Page:
    """The page on which ranks count their steps, which they inherit by its descriptor."""

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

    tells_of_helpers = True

    def __init__(
        self,
        env: Mapping[str, str],
        log: Path,
        *,
        log_stays: bool = True,
        waiting: Callable[[], None] = lambda: None,
    ) -> None:
        """`waiting` is called every second or so while it starts, is asked for ranks, or tries something.

        A log that does not stay is named in no error: it is in a folder that its owner removes.
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
        """The server's process id."""
        return self._running.pid

    @property
    def is_stopped(self) -> bool:
        """Return whether the server is stopped: its ranks run, but none is started and no end of one is reported."""
        return self._running.is_stopped

    def give_up_stopped(self) -> NoReturn:
        """Ends a server that is stopped, and its ranks.

        Raises:
            ServerGoneError: always.
        """
        self._running.give_up_stopped()

    def events(self, timeout_s: float) -> list[dict[str, Any]]:
        """Return what the server says within this time, as soon as it says something.

        A rank that was killed and given up (it slept where no signal reaches it) may end during a later launch,
        whose ranks have its numbers: of its end nothing is said.

        Raises:
            ServerGoneError: it is gone, or stopped for good: then it and its ranks have been ended.
        """
        heard = self._running.hear(timeout_s)
        return [event for event in heard if event["event"] != "exited" or event["pid"] in self.pids]

    def _ask(self, awaited: str, **request: Any) -> dict[str, Any]:
        """Return what the server answers, and note whom it forked for that."""
        answer = self._running.ask(awaited, **request)
        self.pids = tuple(answer.get("pids", ()))
        return answer

    def launch(
        self,
        envs: Sequence[Mapping[str, str]],
        directory: LaunchDir,
        request: LaunchRequest | None = None,
    ) -> bool:
        """Forks a rank for each environment; `events` tells of their ends, counting them from 0.

        Without a `request` the ranks read the one in the directory. Returns whether the server had to import something
        for them first, or to be replaced: what came before is no part of their launch.
        """
        self._page.clear()  # or an earlier launch's counts would pass for this one's
        case = (request or LaunchRequest.read(directory.request)).case
        ranks = [{"env": dict(env)} for env in envs]
        anew = self._prepared(case)
        if anew:
            for rank in ranks:
                if ASKED in rank["env"]:
                    rank["env"][ASKED] = str(time.perf_counter_ns())
        given = None if request is None else request.to_json()
        self._ask(
            "started", do="launch", directory=str(directory.path.absolute()), ranks=ranks, request=given
        )
        return anew

    def _prepared(self, case: Case) -> bool:
        """Have a server import what a case's ranks need, unless that would spoil it; return whether it was any work."""
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
        """Has a rank write `path`; returns its exit code, or None where it had to be killed when time was up."""
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
        """Sends a signal to ranks; SIGKILL to their loader workers, too (each rank leads its process group)."""
        send = os.killpg if number == signal.SIGKILL else os.kill
        for pid in self.pids if pids is None else pids:
            with contextlib.suppress(ProcessLookupError):
                send(pid, number)

    def forget(self) -> None:
        """Hold no process for a rank any more: all have ended."""
        self.pids = ()

    def close(self) -> None:
        """Ends ranks and server, and waits for them."""
        self._running.end()
        self._page.close()

    def __exit__(self, *_: object) -> None:
        self.close()
