"""What two nodes try with each other over one connection: how long a message takes, how much a second carries."""

from __future__ import annotations

import socket
import statistics
import struct
import time
from dataclasses import asdict, dataclass
from typing import Any

PINGS = 100
STREAM_S = 0.5
"""In each direction."""
WARM_S = 0.1
"""Of it does not count: a connection begins slowly."""
PATIENCE_S = 10.0
_BLOCK = bytes(1 << 18)
_PING = struct.Struct("!qq")


@dataclass(frozen=True, kw_only=True, slots=True)
class Pair:
    """What was found of two nodes, numbered as in the list of nodes, `a` below `b`.

    Rates are bit/s, times seconds. `clock_s` is how far b's clock is ahead of a's, known to within `clock_error_s`.
    `problem` says why there is no number.
    """

    a: int
    b: int
    latency_s: float = 0.0
    a_to_b: float = 0.0
    b_to_a: float = 0.0
    clock_s: float = 0.0
    clock_error_s: float = 0.0
    problem: str = ""

    @property
    def slower(self) -> float:
        """The slower direction's rate, which all that both send has to wait for."""
        return min(self.a_to_b, self.b_to_a)

    def to_json(self) -> dict[str, Any]:
        """Return it as a JSON object."""
        return asdict(self)


def serve(connection: socket.socket) -> None:
    """Is the side that `measure` talks to, until it has all its numbers.

    Raises:
        OSError: the connection broke.
    """
    connection.settimeout(PATIENCE_S)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for _ in range(PINGS):
        _received(connection, _PING.size)
        connection.sendall(_PING.pack(time.time_ns(), 0))
    _take_stream(connection)
    _send_stream(connection)


def measure(connection: socket.socket, a: int, b: int) -> Pair:
    """Return what `a`, this side, finds of its connection to `b`.

    Raises:
        OSError: the connection broke.
    """
    connection.settimeout(PATIENCE_S)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    trips: list[tuple[float, float]] = []
    for _ in range(PINGS):
        sent, started = time.time_ns(), time.perf_counter_ns()
        connection.sendall(_PING.pack(sent, 0))
        theirs, _ = _PING.unpack(_received(connection, _PING.size))
        trip_ns = time.perf_counter_ns() - started
        trips.append((trip_ns / 1e9, (theirs - sent - trip_ns / 2) / 1e9))
    shortest, offset = min(trips)
    a_to_b = _send_stream(connection)
    b_to_a = _take_stream(connection)
    return Pair(
        a=a,
        b=b,
        latency_s=statistics.median(trip for trip, _ in trips) / 2,
        a_to_b=a_to_b,
        b_to_a=b_to_a,
        clock_s=offset,
        clock_error_s=shortest / 2,
    )


def _received(connection: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        part = connection.recv(count - len(data))
        if not part:
            raise ConnectionResetError("the other node hung up")
        data += part
    return data


def _send_stream(connection: socket.socket) -> float:
    """Sends for `STREAM_S`; returns the rate that the other side says it received, bit/s."""
    deadline = time.perf_counter() + STREAM_S
    while time.perf_counter() < deadline:
        connection.sendall(b"\x01" + _BLOCK)
    connection.sendall(bytes(1 + len(_BLOCK)))
    (rate, _) = _PING.unpack(_received(connection, _PING.size))
    return float(rate)


def _take_stream(connection: socket.socket) -> float:
    """Receive until the other side has sent all; returns the rate, bit/s, and tells it."""
    start = counted_from = time.perf_counter()
    counted = 0
    buffer = bytearray(1 + len(_BLOCK))
    view = memoryview(buffer)
    more = True
    while more:
        have = 0
        while have < len(buffer):
            count = connection.recv_into(view[have:])
            if not count:
                raise ConnectionResetError("the other node hung up")
            have += count
        more = bool(buffer[0])
        if time.perf_counter() - start < WARM_S:
            counted, counted_from = 0, time.perf_counter()
        else:
            counted += len(buffer)
    passed = max(time.perf_counter() - counted_from, 1e-9)
    # A link so slow that nothing came after the first tenth of a second: all of it counts.
    rate = 8 * counted / passed if counted else 8 * len(buffer) / (time.perf_counter() - start)
    connection.sendall(_PING.pack(round(rate), 0))
    return rate
