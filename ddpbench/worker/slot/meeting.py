"""The store through which slots exchange messages, served by torchrun or slot 0.

Keys have a prefix of this job and attempt. Values are JSON objects, authenticated (`sealing`) and checked with a schema
(`messages`). No call blocks longer than its timeout, so that a slot can check its rank and its launcher between calls.
"""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import json
import os
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from torch._C._distributed_c10d import PrefixStore, Store, TCPStore
from torch.distributed import DistNetworkError, DistStoreError

from ddpbench.errors import LaunchError, RequestError
from ddpbench.host_names import resolve
from ddpbench.text_safety import shortened
from ddpbench.worker.place import SlotPlace
from ddpbench.worker.slot.messages import read_message
from ddpbench.worker.slot.sealing import Seals

JOIN_S = 300.0
MOST_JOIN_S = 86_400
"""Largest allowed wait of slots for each other at the start, in seconds.

Imports from a slow file system take minutes.
"""
_TRY_S = 5.0
_LEAST_TRY_S = 0.5
CHUNK_BYTES = 1 << 20  # the store takes no value above 8 MiB
_BACKLOG = 2048
_LONGEST_WHY = 4096
_BEFORE_THE_JOB = ("card/", "verdict", "stop")
"""Prefixes of keys that slots may write before they have agreed on which slots take part."""


class MeetingGoneError(LaunchError):
    """The store cannot be reached, or its server has ended."""


def join_within_s(environment: Mapping[str, str] = os.environ) -> float:
    """Return the time that slots wait for each other (seconds), which is DDPBENCH_JOIN_TIMEOUT or else `JOIN_S`.

    Raises:
        RequestError: the variable is not a whole number of seconds, or is more than a day.
    """
    text = environment.get("DDPBENCH_JOIN_TIMEOUT", "")
    if not text:
        return JOIN_S
    if not text.isdecimal() or not 1 <= int(text[:9]) <= MOST_JOIN_S:
        raise RequestError(
            f"DDPBENCH_JOIN_TIMEOUT={shortened(text)}: give whole seconds, from 1 to {MOST_JOIN_S:,} (a day)"
        )
    return float(int(text[:9]))


class Meeting:
    """A slot's connection to the store."""

    def __init__(
        self, place: SlotPlace, launcher_lives: Callable[[], None], key: bytes, *, join_s: float = JOIN_S
    ) -> None:
        """Connect to the store, or serve it.

        `launcher_lives` is called from time to time, and raises if this process's launcher has ended. All slots of the
        job have the same `key`. With an empty key, anybody can forge messages.

        Raises:
            MeetingGoneError: the store cannot be reached or served.
        """
        self.place = place
        self.join_s = join_s
        self.serves = place.rank == 0 and not place.agent_store
        self.seals = Seals(key, place.prefix)
        self._store: Store = PrefixStore(
            place.prefix, _opened_store(place, launcher_lives, join_s, serves=self.serves)
        )

    @contextmanager
    def _reached(self) -> Iterator[None]:
        try:
            yield
        except (DistNetworkError, DistStoreError) as error:
            raise MeetingGoneError(
                f"the store at {self.place.master_addr}:{self.place.master_port} no longer answers, "
                "because the node or process that served it has ended; run the same commands again to "
                f"resume ({_first_line(error)})"
            ) from None

    def put(self, key: str, value: dict[str, Any]) -> None:
        """Set `key` in the store to `value`, authenticated."""
        with self._reached():
            self._store.set(key, self._sealed(key, value))  # type: ignore[arg-type]  # bytes are taken as they are

    def put_first(self, key: str, value: dict[str, Any]) -> None:
        """Set `key` to `value` unless another slot has set it already. Do nothing if the store cannot be reached."""
        with contextlib.suppress(MeetingGoneError), self._reached():
            self._store.compare_set(key, "", self._sealed(key, value))  # type: ignore[arg-type]

    def _sealed(self, key: str, value: dict[str, Any]) -> bytes:
        content = json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "replace")
        return self.seals.seal(key, content, any_job=key.startswith(_BEFORE_THE_JOB))

    def _opened(self, key: str, sealed: bytes) -> bytes:
        return self.seals.open(key, sealed, any_job=key.startswith(_BEFORE_THE_JOB))

    def begin_job(self, cards: Sequence[dict[str, Any]]) -> None:
        """Make all later messages valid only among these slots and in this job. `cards` are all slots' reports."""
        self.seals.begin_job(json.dumps([[card["rank"], card["fresh"]] for card in cards]).encode())

    def stop(self, why: str, code: int) -> None:
        """Tell all slots to stop, and why. Do nothing if another slot has already told them to stop."""
        self.put_first("stop", {"why": why[:_LONGEST_WHY], "code": code})

    def leave(self, timeout_s: float) -> None:
        """Announce that this slot leaves, and if it serves the store, wait up to `timeout_s` for the others."""
        with contextlib.suppress(MeetingGoneError):
            self.put(f"bye/{self.place.rank}", {})
        if not self.serves:
            return
        deadline = time.monotonic() + timeout_s
        byes = [f"bye/{rank}" for rank in range(self.place.slots)]
        with contextlib.suppress(MeetingGoneError):
            while not self.has(*byes) and time.monotonic() < deadline:
                time.sleep(0.02)

    def has(self, *keys: str) -> bool:
        """Return whether all these keys are set."""
        with self._reached():
            return self._store.check(list(keys))

    def get(self, *keys: str) -> list[dict[str, Any]]:
        """Return the values of these keys, which must be set.

        Raises:
            StrangerError: one of the values was not written by a slot of this job.
            OtherKeyError: one of the values was written by a slot with a different authentication key.
        """
        with self._reached():
            values = self._store.multi_get(list(keys))
        return [read_message(key, self._opened(key, value)) for key, value in zip(keys, values, strict=True)]

    def take(self, key: str, timeout_s: float) -> dict[str, Any] | None:
        """Wait for a key and return its value, or None if that takes longer than `timeout_s`."""
        start = time.monotonic()
        try:
            self._store.wait([key], timedelta(seconds=timeout_s))
        except (DistNetworkError, DistStoreError):
            with self._reached():  # is the store gone, or the key late?
                if not self._store.check([key]):
                    time.sleep(max(0.0, min(0.1, timeout_s - (time.monotonic() - start))))
                    return None
        return self.get(key)[0]

    def send(self, key: str, data: bytes) -> int:
        """Store long data under several keys that begin with `key`. Return the number of parts."""
        parts = [data[at : at + CHUNK_BYTES] for at in range(0, len(data), CHUNK_BYTES)]
        with self._reached():
            for number, part in enumerate(parts):
                name = f"{key}/{number}"
                self._store.set(name, self.seals.seal(name, part))  # type: ignore[arg-type]
        return len(parts)

    def receive(self, key: str, parts: int) -> bytes:
        """Return the data that `send` stored in `parts` parts, and remove them from the store.

        Raises:
            StrangerError: no slot of this job has written one of the parts.
        """
        keys = [f"{key}/{number}" for number in range(parts)]
        if not keys:
            return b""
        with self._reached():
            data = b"".join(self.seals.open(each, self._store.get(each)) for each in keys)
            for each in keys:
                self._store.delete_key(each)
        return data

    def missing(self, keys: Sequence[str]) -> list[str]:
        """Return the keys in `keys` that are not set."""
        with self._reached():
            return (
                [] if self._store.check(list(keys)) else [key for key in keys if not self._store.check([key])]
            )


def _opened_store(
    place: SlotPlace, launcher_lives: Callable[[], None], join_s: float, *, serves: bool
) -> TCPStore:
    """Serve the store, or connect within `join_s` in short attempts that check the launcher between them.

    Raises:
        MeetingGoneError: the store cannot be reached or served.
    """
    deadline = time.monotonic() + join_s
    while True:
        launcher_lives()
        try_s = _TRY_S if serves else min(_TRY_S, max(deadline - time.monotonic(), _LEAST_TRY_S))
        try:
            listener = _listener(place) if serves else None
            store = TCPStore(
                place.master_addr,
                place.master_port,
                is_master=serves,
                timeout=timedelta(seconds=try_s),
                wait_for_workers=False,
                master_listen_fd=None if listener is None else listener.detach(),
            )
            store.set_timeout(timedelta(seconds=join_s))
            return store
        except (RuntimeError, OSError) as error:
            if not serves and time.monotonic() < deadline:
                continue
            what = "cannot be served here" if serves else f"was not reached within {join_s:.0f} s"
            raise MeetingGoneError(
                f"slot {place.rank}: MASTER_ADDR:MASTER_PORT {place.master_addr}:{place.master_port} {what}: "
                f"is the port free and open, and the address the first node's? ({_first_line(error)})"
            ) from None


def _listener(place: SlotPlace) -> socket.socket | None:
    """Return a socket on MASTER_ADDR's interface, or None to let torch listen on all interfaces.

    None is for an address that other hosts cannot use, such as a loopback from /etc/hosts.
    """
    try:
        found = resolve(place.master_addr, place.master_port)
    except OSError:
        return None
    for family, address in found:
        told_so = place.master_addr == "localhost" or place.master_addr == address[0]
        if ipaddress.ip_address(str(address[0]).partition("%")[0]).is_loopback and not told_so:
            return None
        try:
            return socket.create_server(address, family=family, backlog=_BACKLOG)
        except OSError as error:
            if error.errno != errno.EADDRNOTAVAIL:
                raise
    return None


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]
