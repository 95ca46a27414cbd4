"""Load a fabric's links with TCP traffic, from a child of the process that holds the fabric.

Each socket is in the namespace of its end, with one thread. Data pass the kernel's full network stack, but no payload
is copied, so that the links are the limit.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Sequence
from typing import Any

from ddpbench.errors import FabricError
from ddpbench.fabric.entering import CLONE_NEWNET, setns
from ddpbench.fabric.making import Spaces
from ddpbench.fabric.wiring import TcpFlow
from ddpbench.guard import die_with_parent

_CHUNK_BYTES = 4 << 20
_CONNECT_S = 10.0

_WAKE_BYTES = 16 << 10
"""Number of bytes after which a receiver is woken, because a wake-up per frame would cost more than the frame."""


class TrafficLoad:
    """A context manager that sends traffic over the given flows while it is entered."""

    def __init__(self, flows: Sequence[TcpFlow], spaces: Spaces) -> None:
        self._flows = flows
        self._spaces = spaces
        self._pid = 0

    def __enter__(self) -> TrafficLoad:
        ready_read, ready_write = os.pipe()
        parent = os.getpid()
        self._pid = os.fork()
        if self._pid == 0:
            try:
                die_with_parent(parent)
                os.close(ready_read)
                _run(self._flows, self._spaces, ready_write)
            except Exception:
                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(1)
        os.close(ready_write)
        with os.fdopen(ready_read, "rb") as pipe:
            answer = pipe.read(1)
        if answer != b"1":
            self.__exit__()
            raise FabricError("could not start the traffic that tests the emulated links; see the log")
        return self

    def __exit__(self, *_: Any) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self._pid, 0)


def _run(flows: Sequence[TcpFlow], spaces: Spaces, ready: int) -> None:
    """Connect every flow, write a byte to the descriptor `ready`, and send until killed.

    Raises:
        FabricError: not all connections were accepted in time.
    """
    payload = os.memfd_create("ddpbench-payload")
    os.ftruncate(payload, _CHUNK_BYTES)
    scratch = mmap.mmap(-1, _CHUNK_BYTES)
    accepting: list[threading.Thread] = []
    receivers: list[socket.socket] = []

    def accept(listener: socket.socket) -> None:
        with contextlib.suppress(OSError):  # no connection came, which is reported below
            receivers.append(listener.accept()[0])

    senders: list[socket.socket] = []
    waiting: list[tuple[TcpFlow, socket.socket]] = []
    for flow in flows:
        setns(spaces.net[flow.target], CLONE_NEWNET)
        listener = socket.create_server((flow.address, 0))
        listener.settimeout(_CONNECT_S)
        accepting.append(threading.Thread(target=accept, args=(listener,), daemon=True))
        waiting.append((flow, listener))
    for thread in accepting:
        thread.start()
    for flow, listener in waiting:
        setns(spaces.net[flow.source], CLONE_NEWNET)
        sender = socket.create_connection(listener.getsockname(), timeout=_CONNECT_S)
        sender.settimeout(None)
        senders.append(sender)
    for thread in accepting:
        thread.join()
    if len(receivers) != len(flows):
        raise FabricError(
            f"the test of the emulated links made only {len(receivers)} of {len(flows)} connections in {_CONNECT_S:g} s"
        )
    # No thread sends before all are ready: on a machine overloaded by traffic, threads would start slowly.
    started = threading.Event()
    for receiver in receivers:
        receiver.settimeout(None)
        receiver.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, _WAKE_BYTES)
        threading.Thread(target=_drain, args=(receiver, scratch), daemon=True).start()
    for sender in senders:
        threading.Thread(target=_fill, args=(sender, payload, started), daemon=True).start()
    os.write(ready, b"1")
    os.close(ready)
    started.set()
    signal.pause()


def _fill(sender: socket.socket, payload: int, started: threading.Event) -> None:
    started.wait()
    while True:
        os.sendfile(sender.fileno(), payload, 0, _CHUNK_BYTES)


def _drain(receiver: socket.socket, scratch: mmap.mmap) -> None:
    while receiver.recv_into(scratch, _CHUNK_BYTES, socket.MSG_TRUNC | socket.MSG_WAITALL):
        pass  # the kernel discards the bytes: MSG_TRUNC
