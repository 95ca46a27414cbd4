"""The other end of a fork server: starts it, asks it for ranks, hears of their ends, ends it."""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn

from ddpbench.causes import environments_part_of
from ddpbench.errors import LaunchError, ServerGoneError, UnreadableError
from ddpbench.guard import ENDING_S, descendants, is_stopped, kill_all, signal_name
from ddpbench.helper_process import child_environment
from ddpbench.machine.disturbance import oom_kills, out_of_memory
from ddpbench.machine.placement import applied
from ddpbench.records import LaunchDir, LaunchRequest
from ddpbench.records.files import open_to_append, read_end
from ddpbench.records.heartbeat import PAGE_BYTES, Pulse, read_pulse
from ddpbench.spec import Case
from ddpbench.workloads import is_import_path

START_TIMEOUT_S = 120.0
ASKED = "DDPBENCH_ASKED_NS"
"""When a rank's launch was asked for, told in its environment."""
STOPPED_LOOKS = 10
"""So often in a row, a second apart, a server is found stopped before it is given up.

Looks are counted and not seconds: whoever stops a whole job may stop this process between two of them.
"""
_LOOK_S = 1.0
_TAIL_BYTES = 1 << 16
_HEARD_BYTES = 1 << 12
"""Heard at once. With room for more in a buffer, each message would leave another page of the heap touched."""


_spoiling: set[tuple[str, str]] = set()
"""Strategies, with a workload of the table or none, for which a server with what they need could not fork any more.

That is so by what is installed here. Their ranks import for themselves from then on: those of all rounds, where a proof
comes before them.
"""


class _SpoiltError(LaunchError):
    """A server cannot fork since it has imported what a case needs."""


class ServerProcess:
    """A running fork server, behind its guard. Use it as a context; leaving it leaves no process behind."""

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
        self._log_stays = log_stays
        self._env = env
        self._log = log
        started = time.monotonic()
        self._page_fd = os.memfd_create("ddpbench-heartbeat", os.MFD_CLOEXEC)
        os.ftruncate(self._page_fd, PAGE_BYTES)
        self._page = mmap.mmap(self._page_fd, PAGE_BYTES)
        self._words = memoryview(self._page).cast("Q")
        try:
            self._start()
        except BaseException:
            self._leave_page()
            raise
        self.start_s = time.monotonic() - started

    def _start(self) -> None:
        """Starts the server, or another one in place of one that was ended, and waits until it is ready."""
        self._oom_before = oom_kills()
        output = open_to_append(self._log)
        ours, theirs = socket.socketpair()
        shared = theirs.fileno(), self._page_fd
        self._connection = ours
        self._received = b""
        self._pending: list[dict[str, Any]] = []
        self.pids: tuple[int, ...] = ()
        self._has: set[tuple[str, str]] = set()
        self._pid = 0
        self._stopped = 0
        self._looked_at = time.monotonic()
        argv = [
            # -P and the path below: this package's own worker, whatever the working directory holds.
            *(sys.executable, "-P", "-m", "ddpbench.worker", "--serve"),
            *(*map(str, shared), str(os.getpid()), str(self._log.parent.absolute())),
        ]
        with output:
            # A session of its own: Ctrl-C reaches the controlling side alone, which ends ranks in order.
            self._process = subprocess.Popen(
                argv,
                env=applied(child_environment(), self._env),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                pass_fds=shared,
                start_new_session=True,
            )
        theirs.close()
        try:
            self._await_ready()
        except BaseException:
            self._end()
            raise

    def _await_ready(self) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline:
            self._waiting()
            for event in self.events(0.5):
                if event["event"] == "born":
                    self._pid = event["pid"]
                elif event["event"] == "ready":
                    return
        late = f"the fork server was not ready within {START_TIMEOUT_S:.0f} s"
        raise LaunchError(f"{late}; see {self._log}" if self._log_stays else f"{late}{self._tail}")

    @property
    def _tail(self) -> str:
        """The last words of a server that ended, and its log if that stays, to append to a message."""
        return tail_of(self._log, where=self._log_stays)

    @property
    def alive(self) -> bool:
        """Whether the server can still be asked for ranks."""
        return self._process.poll() is None

    @property
    def pid(self) -> int:
        """The server's process id; until it is born, that of its guard."""
        return self._pid or self._process.pid

    def events(self, timeout_s: float) -> list[dict[str, Any]]:
        """Return what the server says within this time, as soon as it says something.

        A rank that was killed and given up (it slept where no signal reaches it) may end during a later launch,
        whose ranks have its numbers: of its end nothing is said.

        Raises:
            ServerGoneError: it is gone, or stopped for good: then it and its ranks have been ended.
        """
        heard = self._hear(timeout_s)
        return [event for event in heard if event["event"] != "exited" or event["pid"] in self.pids]

    def _hear(self, timeout_s: float) -> list[dict[str, Any]]:
        if self._pending:
            pending, self._pending = self._pending, []
            return pending
        readable, _, _ = select.select([self._connection], [], [], timeout_s)
        if not readable:
            self._look()
            return []
        self._stopped = 0
        try:
            data = self._connection.recv(_HEARD_BYTES)
        except ConnectionResetError:
            data = b""
        if not data:
            code = self._process.wait(timeout=5)
            gone = ServerGoneError(f"the fork server {self._ended(code)}{self._tail}")
            gone.killed = code < 0
            raise gone
        self._received += data
        *lines, self._received = self._received.split(b"\n")
        return [json.loads(line) for line in lines]

    def _ended(self, code: int) -> str:
        """Return how the server ended; its log says nothing where the kernel killed it."""
        if code >= 0:
            return f"ended with exit code {code}"
        killed = f"was killed by {signal_name(-code)}"
        if code != -signal.SIGKILL:
            return killed
        if oom_kills() > self._oom_before:
            return f"{killed}: {out_of_memory()}"
        return f"{killed}, as the kernel does where memory runs out, and batch systems at their limits"

    def _look(self) -> None:
        """Gives a server up that is found stopped again and again: it hears nothing, and nobody else will say so.

        Raises:
            ServerGoneError: this is such a one.
        """
        now = time.monotonic()
        if now - self._looked_at < _LOOK_S:
            return
        self._looked_at = now
        self._stopped = self._stopped + 1 if self.is_stopped else 0
        if self._stopped >= STOPPED_LOOKS:
            self.give_up_stopped()

    @property
    def is_stopped(self) -> bool:
        """Whether the server is stopped: ranks go on, but none is started and no end of one is heard of."""
        return is_stopped(self.pid)  # until it is born, its guard is all there is

    def give_up_stopped(self) -> NoReturn:
        """Ends a server that is stopped, and its ranks.

        Raises:
            ServerGoneError: always.
        """
        pid = self.pid
        kill_all([pid])  # its guard hears of this, and does the rest
        self._end()
        raise ServerGoneError(
            f"the fork server (process {pid}) was stopped, by SIGSTOP or a debugger, and did not go on: it was ended"
        )

    def _ask(self, awaited: str, **request: Any) -> dict[str, Any]:
        """Return what the server answers: the event that is `awaited`. Without an answer it serves nobody any more.

        Raises:
            LaunchError: it refuses, because it cannot fork.
            ServerGoneError: it is gone, or does not answer.
        """
        try:
            return self._answer(awaited, request)
        except LaunchError:
            raise
        except BaseException:  # the answer would be taken for the next one's
            self._end()
            raise

    def _answer(self, awaited: str, request: dict[str, Any]) -> dict[str, Any]:
        try:
            self._connection.sendall(json.dumps(request).encode() + b"\n")
        except OSError:
            raise ServerGoneError(f"the fork server is gone{self._tail}") from None
        deadline = time.monotonic() + START_TIMEOUT_S
        while True:
            if time.monotonic() > deadline:
                self._end()
                raise ServerGoneError(
                    f"the fork server did not answer within {START_TIMEOUT_S:.0f} s and was ended{self._tail}"
                )
            self._waiting()
            events = self._hear(_LOOK_S)
            for number, event in enumerate(events):
                if event["event"] == awaited:
                    self.pids = tuple(event.get("pids", ()))
                    # A rank that failed at once may have ended already: that is for the next to hear.
                    self._pending = events[number + 1 :]
                    return event
                if event["event"] == "refused":
                    if event["imported"]:
                        raise _SpoiltError(event["reason"])
                    raise LaunchError(event["reason"])

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
        self._page[:] = bytes(PAGE_BYTES)  # or an earlier launch's counts would pass for this one's
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
        if needs in _spoiling or needs in self._has:
            return False
        try:
            imported = self._ask("imported", do="import", case=case.to_json())
        except _SpoiltError:
            _spoiling.add(needs)
            self._end()
            self._start()
            return True
        self._has.add(needs)
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
        return read_pulse(self._words, rank)

    def signal_ranks(self, number: signal.Signals, pids: tuple[int, ...] | None = None) -> None:
        """Sends a signal to ranks; SIGKILL to their loader workers, too (each rank leads its process group)."""
        send = os.killpg if number == signal.SIGKILL else os.kill
        for pid in self.pids if pids is None else pids:
            with contextlib.suppress(ProcessLookupError):
                send(pid, number)

    def forget(self) -> None:
        """Hold no process for a rank any more: all have ended."""
        self.pids = ()

    def _end(self) -> None:
        """Has the guard end all beneath it, and waits for its end; where it cannot, does so in its place."""
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)  # a fork of this process may hold a copy
        self._connection.close()
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGCONT)
        try:
            self._process.wait(timeout=ENDING_S + 2)
        except subprocess.TimeoutExpired:
            kill_all([*descendants(self._process.pid), self._process.pid])
            self._process.wait()

    def close(self) -> None:
        """Ends ranks and server, and waits for them."""
        self._end()
        self._leave_page()

    def _leave_page(self) -> None:
        if not self._page.closed:
            self._words.release()
            self._page.close()
            os.close(self._page_fd)

    def __enter__(self) -> ServerProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def tail_of(path: Path, *, where: bool = True) -> str:
    """Return the last line of a log, to end a sentence, and where to read the rest unless the log goes."""
    try:
        text = read_end(path, _TAIL_BYTES).decode(errors="replace")
    except (OSError, UnreadableError):
        text = ""
    lines = [line for line in text.splitlines() if line]
    trace = text.rpartition("Traceback (most recent call last):\n")
    last = lines[-1].strip() if lines else ""
    last += environments_part_of(last, trace[2] if trace[1] else "")
    if not where:
        return f"; its last words: {last}" if lines else ""
    return f" (its last words: {last}; see {path})" if lines else f" (nothing in {path})"
