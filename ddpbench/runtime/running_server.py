"""Start a fork server with its guard process, exchange messages with the server, and end it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any, NoReturn

from ddpbench.causes import environments_part_of
from ddpbench.errors import LaunchError, ServerGoneError, UnreadableError
from ddpbench.guard import ENDING_S, descendants, is_stopped, kill_all, signal_name
from ddpbench.helper_process import child_environment
from ddpbench.machine.disturbance import oom_kills, out_of_memory
from ddpbench.machine.placement import applied
from ddpbench.records.files import open_to_append, read_end

START_TIMEOUT_S = 120.0
STOPPED_LOOKS = 10
"""Number of successive checks, a second apart, that must find a server stopped before it is ended.

Checks are counted, and not seconds, because this process may itself be stopped between two checks.
"""
_LOOK_S = 1.0
_TAIL_BYTES = 1 << 16
_HEARD_BYTES = 1 << 12
"""Number of bytes read at once. A larger buffer would use a different page of the heap for each message."""


class SpoiltError(LaunchError):
    """The server can no longer fork, because of a module that it has imported for a case."""


def start_server(
    env: Mapping[str, str], log: Path, page_fd: int, *, log_stays: bool, waiting: Callable[[], None]
) -> RunningServer:
    """Start a fork server, wait until it is ready, and return the connection to it.

    `page_fd` is the file descriptor of the shared memory for the ranks' heartbeats. The other arguments are as in
    `ServerProcess`.

    Raises:
        LaunchError: the server was not ready in time.
        ServerGoneError: the server ended before it was ready.
    """
    oom_before = oom_kills()
    output = open_to_append(log)
    ours, theirs = socket.socketpair()
    shared = theirs.fileno(), page_fd
    argv = [
        # -P makes Python import this package's worker, never a module of the working directory.
        *(sys.executable, "-P", "-m", "ddpbench.worker", "--serve"),
        *(*map(str, shared), str(os.getpid()), str(log.parent.absolute())),
    ]
    with output:
        # In a new session, so that Ctrl-C reaches only the controlling side, which ends ranks in order.
        process = subprocess.Popen(
            argv,
            env=applied(child_environment(), env),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            pass_fds=shared,
            start_new_session=True,
        )
    theirs.close()
    server = RunningServer(process, ours, log, log_stays=log_stays, waiting=waiting, oom_before=oom_before)
    try:
        server.await_ready()
    except BaseException:
        server.end()
        raise
    return server


class RunningServer:
    """The connection to a fork server and to its guard process, which forks and ends the server."""

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        connection: socket.socket,
        log: Path,
        *,
        log_stays: bool,
        waiting: Callable[[], None],
        oom_before: int,
    ) -> None:
        """`oom_before` is the value of `oom_kills()` before the server's start."""
        self._process, self._connection = process, connection
        self._log, self._log_stays, self._waiting = log, log_stays, waiting
        self._oom_before = oom_before
        self._received = b""
        self._pending: list[dict[str, Any]] = []
        self._born_pid = 0
        self._stopped = 0
        self._gone = ""
        """Why this process ended the server; empty if it did not."""
        self._looked_at = time.monotonic()
        self.has: set[tuple[str, str]] = set()
        """Pairs of strategy and workload whose modules the server has imported."""

    def await_ready(self) -> None:
        """Wait until the server reports that it is ready.

        Raises:
            LaunchError: the server is not ready in time.
            ServerGoneError: the server is gone.
        """
        deadline = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline:
            self._waiting()
            for event in self.hear(0.5):
                if event["event"] == "born":
                    self._born_pid = event["pid"]
                elif event["event"] == "ready":
                    return
        late = f"the fork server was not ready within {START_TIMEOUT_S:.0f} s"
        raise LaunchError(f"{late}; see {self._log}" if self._log_stays else f"{late}{self._tail}")

    @property
    def _tail(self) -> str:
        return tail_of(self._log, where=self._log_stays)

    @property
    def alive(self) -> bool:
        """Return whether the server can still take requests."""
        return self._process.poll() is None

    @property
    def pid(self) -> int:
        """Return the server's process id; the guard's process id until the guard has forked the server."""
        return self._born_pid or self._process.pid

    def hear(self, timeout_s: float) -> list[dict[str, Any]]:
        """Return the server's next events, waiting up to `timeout_s` for the first; an empty list if none came.

        Raises:
            ServerGoneError: the server is gone. A server that stayed stopped has been ended, with its ranks.
        """
        if self._pending:
            pending, self._pending = self._pending, []
            return pending
        if self._connection.fileno() < 0:  # another of its launches found that it is gone
            raise ServerGoneError(self._gone or "the fork server was ended")
        if not wait([self._connection], timeout_s):
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
        if code >= 0:
            return f"ended with exit code {code}"
        killed = f"was killed by {signal_name(-code)}"
        if code != -signal.SIGKILL:
            return killed
        if oom_kills() > self._oom_before:
            return f"{killed}: {out_of_memory()}"
        return f"{killed}, as the kernel does where memory runs out, and batch systems at their limits"

    def _look(self) -> None:
        """End a server that was stopped at `STOPPED_LOOKS` checks in a row, at most one per second.

        Raises:
            ServerGoneError: the server has been ended.
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
        """Return whether a signal has stopped the server. A stopped server starts no ranks and reports no ends."""
        return is_stopped(self.pid)  # the guard's id until it has forked the server

    def give_up_stopped(self) -> NoReturn:
        """End a stopped server and its ranks.

        Raises:
            ServerGoneError: always.
        """
        if self._gone:
            raise ServerGoneError(self._gone)
        pid = self.pid
        kill_all([pid])  # the guard notices this and ends the ranks
        self.end()
        why = "by SIGSTOP or a debugger, and did not continue: it was ended"
        self._gone = f"the fork server (process {pid}) was stopped, {why}"
        raise ServerGoneError(self._gone)

    def ask(self, awaited: str, **request: Any) -> dict[str, Any]:
        """Send a request to the server and return the answer, which is the next event with the name `awaited`.

        If waiting for the answer fails, the server is ended.

        Raises:
            LaunchError: the server refuses, because it cannot fork.
            ServerGoneError: the server is gone, or does not answer.
        """
        try:
            return self._answer(awaited, request)
        except LaunchError:
            raise
        except BaseException:  # otherwise the next request might get this one's answer
            self.end()
            raise

    def _answer(self, awaited: str, request: dict[str, Any]) -> dict[str, Any]:
        try:
            self._connection.sendall(json.dumps(request).encode() + b"\n")
        except OSError:
            raise ServerGoneError(f"the fork server is gone{self._tail}") from None
        deadline = time.monotonic() + START_TIMEOUT_S
        others: list[dict[str, Any]] = []
        while True:
            if time.monotonic() > deadline:
                self.end()
                self._gone = (
                    f"the fork server did not answer within {START_TIMEOUT_S:.0f} s and was ended{self._tail}"
                )
                raise ServerGoneError(self._gone)
            self._waiting()
            events = self.hear(_LOOK_S)
            answer = next((event for event in events if event["event"] in (awaited, "refused")), None)
            # Ranks may end meanwhile, those of this request too; `hear` returns their reports next.
            others += [event for event in events if event is not answer]
            if answer is None:
                continue
            self._pending = others
            if answer["event"] == awaited:
                return answer
            if answer["imported"]:
                raise SpoiltError(answer["reason"])
            raise LaunchError(answer["reason"])

    def end(self) -> None:
        """Make the guard end the server and all ranks, and wait for their end; after a time-out, kill all of them."""
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


def tail_of(path: Path, *, where: bool = True) -> str:
    """Return the end of a sentence, with the last line of the log at `path`, and the path itself if `where`."""
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
