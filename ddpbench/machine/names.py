"""Ask the kernel which process holds the name of an abstract Unix socket, which no process can hide."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import socket
import struct
from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from pathlib import Path

_DIAG, _BY_FAMILY, _REQUEST_DUMP, _DONE, _ERROR = 4, 20, 0x301, 3, 2
_SHOW_NAME_AND_USER = 0x1 | 0x40
_NAME, _USER = 0, 7
_UNCONNECTED = 1 << 10 | 1 << 7
"""States of sockets that listen or are only bound, as a bit mask. Other states are left out, because accepted sockets
have the listener's name too.
"""
_CONNECTED = 1 << 1
"""The state of connected sockets, as a bit mask; they keep the names that they were bound to."""
_MOST_BYTES = 1 << 17
_LISTED = re.compile(r"^\S+: \S+ \S+ \S+ 0001 01 +(\d+) @(.+)$", re.MULTILINE)
"""Pattern of a line of /proc/net/unix for a stream socket without a peer; its groups are the inode and the name."""
_PROC = Path("/proc")


@dataclass(frozen=True, slots=True)
class NameHolder:
    """The holder of a socket's name: its user id and process id (None if unknown), and whether its socket listens."""

    user: int | None
    process: int | None
    listens: bool = True

    @property
    def may_be_own(self) -> bool:
        """Return whether the holder may be a sweep of this user.

        If the user is unknown, a listening socket counts, because sweeps listen.
        """
        return self.listens if self.user is None else self.user == os.geteuid()


@dataclass(frozen=True, slots=True)
class _Socket:
    inode: int
    user: int | None


def holders(
    prefix: str | tuple[str, ...], but: AbstractSet[str] = frozenset(), *, states: int = _UNCONNECTED
) -> dict[str, NameHolder]:
    """Return the holders of all stream socket names that begin with `prefix`, by name; names in `but` are left out.

    A name of an abstract socket begins with NUL. `states` is a bit mask of the sockets' states.
    """
    try:
        sockets = dict(_asked(states))
    except (OSError, struct.error):  # the kernel or a sandbox does not allow this query
        sockets = _listed()
    found = {name: each for name, each in sockets.items() if name.startswith(prefix) and name not in but}
    processes = _processes({each.inode for each in found.values()}) if found else {}
    return {name: _holder(name, each, processes.get(each.inode)) for name, each in found.items()}


def holder(name: str) -> NameHolder:
    """Return the holder of a name that is known to be taken."""
    return holders(name).get(name) or holders(name, states=_CONNECTED).get(name) or _peer(name)


def _holder(name: str, found: _Socket, process: tuple[int, int] | None) -> NameHolder:
    if found.user is not None and process is not None:
        return NameHolder(user=found.user, process=process[0])
    peer = _peer(name)  # only root sees what another user's processes hold
    if found.user is not None:
        return NameHolder(user=found.user, process=peer.process if peer.user == found.user else None)
    if (
        process is None or peer.user is not None or not peer.listens
    ):  # a name with a line break can make the file list sockets that don't exist
        return peer
    return NameHolder(user=process[1], process=process[0])


def _peer(name: str) -> NameHolder:
    """Return a name's holder. User and process are None if the socket does not listen or its queue is full."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as other:
        other.setblocking(False)
        try:
            other.connect(name)
            process, user, _ = struct.unpack(
                "3i", other.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
            )
        except OSError as error:
            return NameHolder(user=None, process=None, listens=error.errno != errno.ECONNREFUSED)
    return NameHolder(user=user, process=process or None)


def _asked(states: int) -> Iterator[tuple[str, _Socket]]:
    """Yield name and socket of each stream socket in one of `states`.

    Raises:
        OSError: the kernel gives no answer.
        struct.error: the answer cannot be parsed.
    """
    request = struct.pack("=BBHIIIII", socket.AF_UNIX, 0, 0, states, 0, _SHOW_NAME_AND_USER, 0, 0)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _DIAG) as kernel:
        kernel.settimeout(1)
        kernel.send(struct.pack("=IHHII", 16 + len(request), _BY_FAMILY, _REQUEST_DUMP, 1, 0) + request)
        while True:
            answer = kernel.recv(_MOST_BYTES)
            place = 0
            while place < len(answer):
                size, kind = struct.unpack_from("=IH", answer, place)
                if kind == _DONE:
                    return
                if kind == _ERROR or size < 16:
                    raise OSError("no answer")
                _, of_kind, _, _, inode = struct.unpack_from("=BBBBI", answer, place + 16)
                attributes = dict(_attributes(answer[place + 32 : place + size]))
                name = attributes.get(_NAME, b"").decode("utf-8", "surrogateescape")
                if of_kind == socket.SOCK_STREAM:
                    user = struct.unpack("=I", attributes[_USER])[0] if _USER in attributes else None
                    yield name, _Socket(inode, user)
                place += (size + 3) & ~3


def _attributes(data: bytes) -> Iterator[tuple[int, bytes]]:
    place = 0
    while place + 4 <= len(data):
        size, kind = struct.unpack_from("=HH", data, place)
        if size < 4:
            return
        yield kind, data[place + 4 : place + size]
        place += (size + 3) & ~3


def _listed() -> dict[str, _Socket]:
    """Return the sockets in /proc/net/unix by name. Users are unknown, but every kernel has this file."""
    return {f"\0{name}": _Socket(int(inode), None) for inode, name in _LISTED.findall(listed_text())}


def listed_text() -> str:
    """Return the text of /proc/net/unix, which lists all Unix sockets; empty if it cannot be read."""
    try:
        return (_PROC / "net/unix").read_text("utf-8", "surrogateescape")
    except OSError:
        return ""


def _processes(inodes: AbstractSet[int]) -> dict[int, tuple[int, int]]:
    """Return the process that opened each socket, and the process's user, where this user may see them."""
    wanted = {f"socket:[{inode}]": inode for inode in inodes}
    opened_by: dict[int, dict[int, tuple[int, int]]] = {}
    for folder in _PROC.glob("[0-9]*"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            for file in os.listdir(folder / "fd"):  # noqa: PTH208 - half of a glob's time
                with contextlib.suppress(OSError):
                    if (inode := wanted.get(os.readlink(folder / "fd" / file))) is not None:  # noqa: PTH115
                        parent = (folder / "stat").read_text("utf-8", "replace").rpartition(")")[2].split()[1]
                        opened_by.setdefault(inode, {})[int(folder.name)] = (
                            int(parent),
                            folder.stat().st_uid,
                        )
    return {inode: _first(of) for inode, of in opened_by.items()}


def _first(opened: Mapping[int, tuple[int, int]]) -> tuple[int, int]:
    """Return the process whose parent is not among these, and its user.

    `opened` maps each process to its parent and its user.
    """
    process = min(opened, key=lambda one: (opened[one][0] in opened, one))
    return process, opened[process][1]
