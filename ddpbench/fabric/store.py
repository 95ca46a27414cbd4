"""A server of input data: a client sends a number n (8 bytes, big-endian), and receives n bytes."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import threading

COUNT = struct.Struct(">Q")
_CHUNK_BYTES = 1 << 20


def listening(port: int) -> socket.socket:
    """Return a socket that listens on this port, in the network namespace of this process."""
    listener = socket.create_server(("0.0.0.0", port), backlog=1024)
    listener.setblocking(True)
    return listener


def serve(listener: socket.socket) -> None:
    """Answer each connection in a separate thread, until the process ends.

    The bytes sent are zeros, which are never copied.
    """
    payload = os.memfd_create("ddpbench-store")
    os.ftruncate(payload, _CHUNK_BYTES)
    while True:
        connection, _ = listener.accept()
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        threading.Thread(target=_answer, args=(connection, payload), daemon=True).start()


def _answer(connection: socket.socket, payload: int) -> None:
    with contextlib.suppress(OSError), connection:
        while True:
            asked = connection.recv(COUNT.size, socket.MSG_WAITALL)
            if len(asked) < COUNT.size:
                return
            (left,) = COUNT.unpack(asked)
            while left:
                left -= os.sendfile(connection.fileno(), payload, 0, min(left, _CHUNK_BYTES))
