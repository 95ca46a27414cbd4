"""Stop the processes of sides that wait, so that they use no processor time.

A waiting rank is not idle: gloo's threads wake up 100 times a second for each process group, which took 0.3 % of a core
per rank with two groups, and other threads of a user's model may spin. So the ranks of a waiting side are stopped by
SIGSTOP, and continue before they get the turn. A stopped process can still be killed, and ranks are killed when their
parent ends, so none is left behind. Processes are signalled by file descriptors (pidfd), never by ids, which may be
reused. Where the kernel has no such descriptors, waiting processes are left running.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import struct
import sys

_CREDENTIALS = struct.Struct("3i")
"""The kernel's `struct ucred`: process, user and group id."""


class Suspension:
    """Stops and continues the processes that joined a side. Only `is_stopped` is safe in other threads."""

    def __init__(self, *, stops: bool = True) -> None:
        """With `stops=False`, never stop a process."""
        self._stops = stops
        self._joined: dict[socket.socket, tuple[str, int]] = {}
        """Each joined process's connection, with its side and the descriptor of the process."""
        self._stopped: set[str] = set()

    def join(self, side: str, connection: socket.socket) -> None:
        """Add the process at the other end of a Unix socket to a side; stop it if the side is stopped."""
        self.forget(connection)
        descriptor = _descriptor_of(connection) if self._stops else None
        if descriptor is None:
            return
        self._joined[connection] = side, descriptor
        if side in self._stopped:
            _signal(descriptor, signal.SIGSTOP)

    def forget(self, connection: socket.socket) -> None:
        """Remove the process of a connection that is closed. It is not signalled."""
        if connection in self._joined:
            os.close(self._joined.pop(connection)[1])

    def stop(self, side: str) -> None:
        """Stop a side's processes, unless they are stopped."""
        if self._stops and side not in self._stopped:
            self._stopped.add(side)
            self._signal_all(side, signal.SIGSTOP)

    def go_on(self, side: str) -> None:
        """Let a side's processes continue, if they are stopped."""
        if side in self._stopped:
            self._stopped.remove(side)
            self._signal_all(side, signal.SIGCONT)

    def is_stopped(self, side: str) -> bool:
        """Return whether a side is stopped."""
        return side in self._stopped

    def close(self) -> None:
        """Let all processes continue, and forget them."""
        for side in tuple(self._stopped):
            self.go_on(side)
        for connection in tuple(self._joined):
            self.forget(connection)

    def _signal_all(self, side: str, number: signal.Signals) -> None:
        for its, descriptor in self._joined.values():
            if its == side:
                _signal(descriptor, number)


def _descriptor_of(connection: socket.socket) -> int | None:
    """Return a pidfd of the process at the other end, if this process may signal it by a pidfd; else None."""
    if sys.platform != "linux":
        return None
    with contextlib.suppress(OSError, AttributeError):  # some builds of Python lack these functions
        found = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        pid, _, _ = _CREDENTIALS.unpack(found)
        if pid > 0 and pid != os.getpid():  # 0: a process of another pid namespace
            descriptor = os.pidfd_open(pid)
            if _signal(descriptor, 0):
                return descriptor
            os.close(descriptor)
    return None


def _signal(descriptor: int, number: int) -> bool:
    """Send a signal; return whether it was sent. A process that has ended gets none."""
    if sys.platform != "linux":
        return False
    try:
        signal.pidfd_send_signal(descriptor, number)
    except (OSError, AttributeError):
        return False
    return True
