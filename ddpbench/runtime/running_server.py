"""A running fork server, behind its guard: its process, the messages to and from it, and its end."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
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
"""Looks in a row, a second apart, that find a server stopped before it is given up.

Looks are counted and not seconds: a job that is stopped as a whole may have this process stopped between two of them.
"""
_LOOK_S = 1.0
_TAIL_BYTES = 1 << 16
_HEARD_BYTES = 1 << 12
"""Bytes read at once. With a larger buffer, each message would touch another page of the heap."""


class SpoiltError(LaunchError):
    """A server cannot fork any more since it has imported what a case needs."""


def start_server(
    env: Mapping[str, str], log: Path, page_fd: int, *, log_stays: bool, waiting: Callable[[], None]
) -> RunningServer:
    """Return a server that is ready. `page_fd` is the ranks' page; the rest is as in `ServerProcess`.

    Raises:
        LaunchError: it was not ready in time.
        ServerGoneError: it ended before.
    """
    oom_before = oom_kills()
    output = open_to_append(log)
    ours, theirs = socket.socketpair()
    shared = theirs.fileno(), page_fd
    argv = [
        # -P and the path below: this package's worker, never a module of the working directory.
        *(sys.executable, "-P", "-m", "ddpbench.worker", "--serve"),
        *(*map(str, shared), str(os.getpid()), str(log.parent.absolute())),
    ]
    with output:
        # In a new session: Ctrl-C reaches only the controlling side, which ends ranks in order.
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
    """A fork server's process and the connection to it; until it is forked, the process is that of its guard."""

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
        """Take `oom_before`, how often the kernel had ended a process for memory before this one was started."""
        self._process, self._connection = process, connection
        self._log, self._log_stays, self._waiting = log, log_stays, waiting
        self._oom_before = oom_before
        self._received = b""
        self._pending: list[dict[str, Any]] = []
        self._born_pid = 0
        self._stopped = 0
        self._looked_at = time.monotonic()
        self.has: set[tuple[str, str]] = set()
        """The needs, as strategy and workload, that it has imported."""

    def await_ready(self) -> None:
        """Wait until it reports that it is ready.

        Raises:
            LaunchError: it does not in time.
            ServerGoneError: it is gone.
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
        """Return the last line of a server that ended, and its log if that stays, to append to a message."""
        return tail_of(self._log, where=self._log_stays)

    @property
    def alive(self) -> bool:
        """Return whether the server can still be asked for ranks."""
        return self._process.poll() is None

    @property
    def pid(self) -> int:
        """Return the server's process id; until it is born, that of its guard."""
        return self._born_pid or self._process.pid

    def hear(self, timeout_s: float) -> list[dict[str, Any]]:
        """Return what the server reports within this time, as soon as it reports something.

        Raises:
            ServerGoneError: it is gone, or stopped for good: then it and its ranks have been ended.
        """
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
        """Return how the server ended; its log says nothing if the kernel killed it."""
        if code >= 0:
            return f"ended with exit code {code}"
        killed = f"was killed by {signal_name(-code)}"
        if code != -signal.SIGKILL:
            return killed
        if oom_kills() > self._oom_before:
            return f"{killed}: {out_of_memory()}"
        return f"{killed}, as the kernel does where memory runs out, and batch systems at their limits"

    def _look(self) -> None:
        """Give up a server that is found stopped again and again: it hears nothing, and nobody else reports it.

        Raises:
            ServerGoneError: it is given up.
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
        """Return whether the server is stopped: its ranks run, but none is started and no end of one is reported."""
        return is_stopped(self.pid)  # until it is born, only its guard exists

    def give_up_stopped(self) -> NoReturn:
        """End a server that is stopped, and its ranks.

        Raises:
            ServerGoneError: always.
        """
        pid = self.pid
        kill_all([pid])  # its guard notices this, and does the rest
        self.end()
        raise ServerGoneError(
            f"the fork server (process {pid}) was stopped, by SIGSTOP or a debugger, and did not continue: it was ended"
        )

    def ask(self, awaited: str, **request: Any) -> dict[str, Any]:
        """Return the server's answer: the event that is `awaited`. A server that doesn't answer is not used any more.

        Raises:
            LaunchError: it refuses, because it cannot fork.
            ServerGoneError: it is gone, or does not answer.
        """
        try:
            return self._answer(awaited, request)
        except LaunchError:
            raise
        except BaseException:  # the next request would get this one's answer
            self.end()
            raise

    def _answer(self, awaited: str, request: dict[str, Any]) -> dict[str, Any]:
        try:
            self._connection.sendall(json.dumps(request).encode() + b"\n")
        except OSError:
            raise ServerGoneError(f"the fork server is gone{self._tail}") from None
        deadline = time.monotonic() + START_TIMEOUT_S
        while True:
            if time.monotonic() > deadline:
                self.end()
                raise ServerGoneError(
                    f"the fork server did not answer within {START_TIMEOUT_S:.0f} s and was ended{self._tail}"
                )
            self._waiting()
            events = self.hear(_LOOK_S)
            for number, event in enumerate(events):
                if event["event"] == awaited:
                    # A rank that failed at once may have ended already: `hear` returns that next.
                    self._pending = events[number + 1 :]
                    return event
                if event["event"] == "refused":
                    if event["imported"]:
                        raise SpoiltError(event["reason"])
                    raise LaunchError(event["reason"])

    def end(self) -> None:
        """Make the guard end all beneath it, and wait for its end; if it cannot, do so in its place."""
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
    """Return the last line of a log, to end a sentence, and where to read the rest unless the log is removed."""
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
