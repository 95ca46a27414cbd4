"""The measurements between two nodes over one connection: latency, data rates, and the offset of the clocks."""

from __future__ import annotations

import socket
import statistics
import struct
import time
from dataclasses import asdict, dataclass
from typing import Annotated, Any

from pydantic import AfterValidator, Field

from ddpbench.text_safety import on_one_line

PINGS = 100
STREAM_S = 0.5
"""Seconds of sending in each direction."""
WARM_S = 0.1
"""Seconds at the start that are not counted, because a connection starts slowly."""
PATIENCE_S = 10.0
MEASURED_S = 40.0
"""Time limit for all measurements of a pair, seconds. Normally they take one or two seconds."""
MOST_NODES = 1 << 20
_BLOCK = bytes(1 << 18)
_PING = struct.Struct("!qq")


Words = Annotated[str, Field(max_length=1000), AfterValidator(on_one_line)]
"""Text from a different node, which is not trusted."""
_Number = Annotated[int, Field(ge=0, lt=MOST_NODES)]
_Amount = Annotated[float, Field(ge=0, lt=1e18)]


@dataclass(frozen=True, kw_only=True, slots=True)
class NodePair:
    """Measurements between two nodes. `a` and `b` are their numbers in the list of nodes, the lower number first.

    The rates `a_to_b` and `b_to_a` are in bit/s, and times in seconds. `latency_s` is the latency of one direction.
    `clock_s` says how far b's clock is ahead of a's, with an error of up to `clock_error_s`. `problem` says why numbers
    are missing.
    """

    a: _Number
    b: _Number
    latency_s: _Amount = 0.0
    a_to_b: _Amount = 0.0
    b_to_a: _Amount = 0.0
    clock_s: Annotated[float, Field(gt=-1e18, lt=1e18)] = 0.0
    clock_error_s: _Amount = 0.0
    problem: Words = ""

    @property
    def slower(self) -> float:
        """The rate of the slower direction (bit/s), which limits any exchange in both directions."""
        return min(self.a_to_b, self.b_to_a)

    def to_json(self) -> dict[str, Any]:
        """Return the pair as a JSON object."""
        return asdict(self)


def serve(connection: socket.socket) -> None:
    """Answer the peer, which runs `measure` at the other end of the connection.

    Raises:
        OSError: the connection broke.
    """
    connection.settimeout(PATIENCE_S)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    deadline = time.monotonic() + MEASURED_S
    for _ in range(PINGS):
        _received(connection, _PING.size, deadline)
        connection.sendall(_PING.pack(time.time_ns(), 0))
    _take_stream(connection, deadline)
    _send_stream(connection, deadline)


def measure(connection: socket.socket, a: int, b: int) -> NodePair:
    """Measure the connection from this node, `a`, to node `b`, which runs `serve`.

    Raises:
        OSError: the connection broke.
    """
    connection.settimeout(PATIENCE_S)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    deadline = time.monotonic() + MEASURED_S
    trips: list[tuple[float, float]] = []
    for _ in range(PINGS):
        sent, started = time.time_ns(), time.perf_counter_ns()
        connection.sendall(_PING.pack(sent, 0))
        theirs, _ = _PING.unpack(_received(connection, _PING.size, deadline))
        trip_ns = time.perf_counter_ns() - started
        trips.append((trip_ns / 1e9, (theirs - sent - trip_ns / 2) / 1e9))
    shortest, offset = min(trips)
    a_to_b = _send_stream(connection, deadline)
    b_to_a = _take_stream(connection, deadline)
    return NodePair(
        a=a,
        b=b,
        latency_s=statistics.median(trip for trip, _ in trips) / 2,
        a_to_b=a_to_b,
        b_to_a=b_to_a,
        clock_s=offset,
        clock_error_s=shortest / 2,
    )


def _check_time(deadline: float) -> None:
    if time.monotonic() > deadline:  # the other side is slow, on purpose or not
        raise TimeoutError("timed out")


def _received(connection: socket.socket, count: int, deadline: float) -> bytes:
    data = b""
    while len(data) < count:
        _check_time(deadline)
        part = connection.recv(count - len(data))
        if not part:
            raise ConnectionResetError("the other node hung up")
        data += part
    return data


def _send_stream(connection: socket.socket, deadline: float) -> float:
    """Send data for `STREAM_S` seconds; return the rate at which the peer received it, bit/s."""
    end = time.perf_counter() + STREAM_S
    while time.perf_counter() < end:
        connection.sendall(b"\x01" + _BLOCK)
    connection.sendall(bytes(1 + len(_BLOCK)))
    (rate, _) = _PING.unpack(_received(connection, _PING.size, deadline))
    return float(min(max(rate, 0), 10**15))


def _take_stream(connection: socket.socket, deadline: float) -> float:
    """Receive until the peer has sent everything; report the rate to the peer and return it, bit/s."""
    start = counted_from = time.perf_counter()
    counted = 0
    buffer = bytearray(1 + len(_BLOCK))
    view = memoryview(buffer)
    more = True
    while more:
        have = 0
        while have < len(buffer):
            _check_time(deadline)
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
    # If everything came within `WARM_S`, count only the last block, over the entire time.
    rate = 8 * counted / passed if counted else 8 * len(buffer) / (time.perf_counter() - start)
    connection.sendall(_PING.pack(round(rate), 0))
    return rate
