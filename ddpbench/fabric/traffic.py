"""Loads a fabric's links with TCP and counts what they carry. Part of the process that holds the fabric.

One process makes all connections, each end's socket in its own namespace, and sends and receives with a thread
each: the kernel's whole stack is passed, but no payload is copied, so that the links are what limits.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Sequence
from typing import Any

from ddpbench.errors import FabricError
from ddpbench.fabric.entering import CLONE_NEWNET, die_with_parent, setns
from ddpbench.fabric.making import Spaces, ends, inside
from ddpbench.fabric.wiring import Flow, Wiring

_CHUNK_BYTES = 4 << 20
_CONNECT_S = 10.0

Counts = dict[tuple[int, str], tuple[int, int, int]]
"""By space and interface: bytes on the wire, frames dropped, and when they were read (monotonic ns)."""


def shaped_spaces(wiring: Wiring) -> list[int]:
    """Where there are rates to be counted."""
    return [
        space
        for space in range(wiring.spaces)
        if any(cable.rate is not None for cable, _ in ends(wiring, space))
    ]


def read_counts(wiring: Wiring, spaces: Spaces) -> Counts:
    """What each shaped interface has sent and dropped since it was made, from its bucket's statistics."""
    found: Counts = {}
    for space in shaped_spaces(wiring):
        with inside(spaces, space) as netlink:
            names = {link["index"]: link.get("ifname") for link in netlink.get_links()}
            before = time.monotonic_ns()
            disciplines = list(netlink.get_qdiscs())
            after = time.monotonic_ns()
        for discipline in disciplines:
            if discipline.get("TCA_KIND") == "tbf":
                stats = discipline.get("TCA_STATS2")
                basic, queue = stats.get("TCA_STATS_BASIC"), stats.get("TCA_STATS_QUEUE")
                found[space, names[discipline["index"]]] = (
                    basic["bytes"],
                    queue["drops"],
                    (before + after) // 2,
                )
    return found


class Load:
    """Traffic over the given flows while the context lasts."""

    def __init__(self, flows: Sequence[Flow], spaces: Spaces) -> None:
        self._flows = flows
        self._spaces = spaces
        self._pid = 0

    def __enter__(self) -> Load:
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
        with os.fdopen(ready_read, "rb") as told:
            answer = told.read(1)
        if answer != b"1":
            self.__exit__()
            raise FabricError("the traffic that proves the links could not be started; see the log")
        return self

    def __exit__(self, *_: Any) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self._pid, 0)


def _run(flows: Sequence[Flow], spaces: Spaces, ready: int) -> None:
    """Connects every flow, says so, and sends until it is killed."""
    payload = os.memfd_create("ddpbench-payload")
    os.ftruncate(payload, _CHUNK_BYTES)
    scratch = mmap.mmap(-1, _CHUNK_BYTES)
    accepting: list[threading.Thread] = []
    receivers: list[socket.socket] = []

    def accept(listener: socket.socket) -> None:
        receivers.append(listener.accept()[0])

    senders: list[socket.socket] = []
    waiting: list[tuple[Flow, socket.socket]] = []
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
    for receiver in receivers:
        receiver.settimeout(None)
        threading.Thread(target=_drain, args=(receiver, scratch), daemon=True).start()
    for sender in senders:
        threading.Thread(target=_fill, args=(sender, payload), daemon=True).start()
    os.write(ready, b"1")
    os.close(ready)
    signal.pause()


def _fill(sender: socket.socket, payload: int) -> None:
    while True:
        os.sendfile(sender.fileno(), payload, 0, _CHUNK_BYTES)


def _drain(receiver: socket.socket, scratch: mmap.mmap) -> None:
    while receiver.recv_into(scratch, _CHUNK_BYTES, socket.MSG_TRUNC | socket.MSG_WAITALL):
        pass  # the kernel discards the bytes: MSG_TRUNC
