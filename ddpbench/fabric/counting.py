"""Read how many bytes a fabric's links have carried, from the statistics of their token buckets.

A reading takes milliseconds even while traffic uses all cores: connections to the kernel are opened before, and the
kernel's messages unpacked here.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import time
from collections.abc import Iterator
from dataclasses import dataclass
from types import TracebackType

from ddpbench.errors import FabricError
from ddpbench.fabric.entering import CLONE_NEWNET, setns
from ddpbench.fabric.making import Spaces, ends, inside
from ddpbench.fabric.wiring import Wiring

_RTM_GETQDISC = 38
_NLM_F_REQUEST, _NLM_F_DUMP = 0x1, 0x300
_NLMSG_ERROR, _NLMSG_DONE = 2, 3
_TCA_KIND, _TCA_STATS2 = 1, 7
_TCA_STATS_BASIC, _TCA_STATS_QUEUE = 1, 3
_HEADER = struct.Struct("=IHHII")
_TCMSG = struct.Struct("=B3xiIII")
_DUMP = _HEADER.pack(
    _HEADER.size + _TCMSG.size, _RTM_GETQDISC, _NLM_F_REQUEST | _NLM_F_DUMP, 0, 0
) + _TCMSG.pack(socket.AF_UNSPEC, 0, 0, 0, 0)

LinkCounts = dict[tuple[int, str], tuple[int, int, int]]
"""Counts by (space, interface): bytes on the wire, frames dropped, and the time of the reading (monotonic ns)."""


@dataclass(frozen=True, slots=True)
class _Opened:
    connection: socket.socket
    names: dict[int, str]


class Counters:
    """Reads the counters of a fabric's rate-limited interfaces; as a context manager, closes its connections."""

    def __init__(self, wiring: Wiring, spaces: Spaces) -> None:
        self._opened: dict[int, _Opened] = {}
        for space in range(wiring.spaces):
            shaped = {port.name for cable, port in ends(wiring, space) if cable.rate is not None}
            if shaped:
                with inside(spaces, space) as netlink:
                    names = {link["index"]: link.get("ifname") for link in netlink.get_links()}
                setns(spaces.net[space], CLONE_NEWNET)
                connection = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE)
                names = {index: name for index, name in names.items() if name in shaped}
                self._opened[space] = _Opened(connection, names)

    def read(self) -> LinkCounts:
        """Return each interface's number of sent bytes and of dropped frames, counted since the interface was made."""
        found: LinkCounts = {}
        for space, opened in self._opened.items():
            before = time.monotonic_ns()
            messages = _dump(opened.connection)
            at = (before + time.monotonic_ns()) // 2
            for index, kind, sent, dropped in _disciplines(messages):
                if kind == b"tbf" and index in opened.names:
                    found[space, opened.names[index]] = (sent, dropped, at)
        return found

    def __enter__(self) -> Counters:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        for opened in self._opened.values():
            opened.connection.close()


def _dump(connection: socket.socket) -> list[bytes]:
    """Return the kernel's messages on all queueing disciplines of the namespace.

    Raises:
        FabricError: the kernel refuses.
    """
    connection.send(_DUMP)
    found: list[bytes] = []
    while True:
        data = connection.recv(1 << 16)
        start = 0
        while start < len(data):
            length, kind, *_ = _HEADER.unpack_from(data, start)
            if kind == _NLMSG_DONE:
                return found
            if kind == _NLMSG_ERROR:
                raise FabricError("the kernel refused to report how much its links transferred")
            found.append(data[start + _HEADER.size : start + length])
            start += (length + 3) & ~3


def _disciplines(messages: list[bytes]) -> Iterator[tuple[int, bytes, int, int]]:
    """Yield interface index, kind, sent bytes and dropped frames of each queueing discipline."""
    for message in messages:
        _, index, *_ = _TCMSG.unpack_from(message)
        attributes = dict(_attributes(message[_TCMSG.size :]))
        with contextlib.suppress(KeyError):
            stats = dict(_attributes(attributes[_TCA_STATS2]))
            (sent,) = struct.unpack_from("=Q", stats[_TCA_STATS_BASIC])
            _, _, dropped = struct.unpack_from("=III", stats[_TCA_STATS_QUEUE])
            yield index, attributes[_TCA_KIND].rstrip(b"\0"), sent, dropped


def _attributes(data: bytes) -> Iterator[tuple[int, bytes]]:
    start = 0
    while start + 4 <= len(data):
        length, kind = struct.unpack_from("=HH", data, start)
        yield kind & 0x3FFF, data[start + 4 : start + length]
        start += (length + 3) & ~3
