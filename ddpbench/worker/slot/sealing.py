"""Authentication of values in the store, to prove that a slot of this job wrote them. This module needs no torch.

A sealed value is a header, then the value. The header has the authentication key's id, a counter of the writer's
values, and an HMAC:

    1 <key's id> <counter> <HMAC-SHA256 of scope, store key, counter and value> <value>

Each job derives its own key from the common key and random numbers of all slots. A value is refused if it was written
in a different job or for a different store key. A value is also refused if it is older than the last value that was
read under this store key.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets

from ddpbench.errors import LaunchError, RequestError

MAX_BYTES = 8 << 20
"""Largest size of a value in the store, in bytes."""
_HEAD = re.compile(rb"1 ([0-9a-f]{16}) ([0-9a-f]{16}) ([0-9a-f]{64}) ")
_HEAD_BYTES = 101


class StrangerError(LaunchError):
    """A value in the store was not written by a slot of this job."""


class OtherKeyError(RequestError):
    """Another slot has a different key, or no key. `value` is what that slot wrote, and may be forged."""

    def __init__(self, reason: str, value: bytes = b"") -> None:
        super().__init__(reason)
        self.value = value


class Seals:
    """Adds and checks the authentication of values. `scope` distinguishes jobs that have the same key."""

    def __init__(self, key: bytes, scope: str) -> None:
        self._key, self._scope = key, scope
        self._id = _mac(key, b"id")[:16]
        self._job_key: bytes | None = None
        self.private = False
        """True if only this user can read the key here."""
        self._written = 0
        self._last: dict[str, int] = {}

    @property
    def strong(self) -> bool:
        """True if there is a key. Without a key, anybody can write values that are accepted."""
        return bool(self._key)

    def begin_job(self, agreed: bytes) -> None:
        """Make all later values valid only in this job. `agreed` contains a random number of each slot."""
        self._job_key = _mac(self._key, b"job" + hashlib.sha256(agreed).digest())

    def secret(self, launch: str) -> str:
        """Return a secret for a launch of this job, the same in all slots; empty if other users may know the key."""
        assert self._job_key is not None  # ranks start after the slots have agreed
        return _mac(self._job_key, b"launch " + launch.encode()).decode() if self.private else ""

    def seal(self, name: str, value: bytes, *, any_job: bool = False) -> bytes:
        """Return `value` with its authentication header, for the store key `name`.

        Set `any_job` if slots that have not called `begin_job` yet must be able to read the value.
        """
        self._written += 1
        counter = b"%016x" % self._written
        mac = self._authenticate(name, counter, value, any_job=any_job)
        return b"1 %s %s %s %s" % (self._id, counter, mac, value)

    def open(self, name: str, sealed: bytes, *, any_job: bool = False) -> bytes:
        """Check and return the value that was sealed for the store key `name`.

        Raises:
            OtherKeyError: the value was sealed with a different key.
            StrangerError: no slot of this job has written the value, or the value is older than the last one read.
        """
        head = _HEAD.match(sealed[:_HEAD_BYTES]) if len(sealed) <= _HEAD_BYTES + MAX_BYTES else None
        if head is None:
            raise StrangerError(self._refused(name))
        key_id, counter, mac = head.groups()
        if key_id != self._id:
            if any_job:
                raise OtherKeyError(
                    f"{name} was written with another key, or none: copy job.key of the run directory to every "
                    "node, or set the same DDPBENCH_KEY on all of them",
                    sealed[_HEAD_BYTES:],
                )
            raise StrangerError(self._refused(name))
        value = sealed[_HEAD_BYTES:]
        if not hmac.compare_digest(mac, self._authenticate(name, counter, value, any_job=any_job)):
            raise StrangerError(self._refused(name))
        if not any_job:
            number = int(counter, 16)
            if number < self._last.get(name, 0):
                raise StrangerError(f"{self._refused(name)}: it is an older value that was written back")
            self._last[name] = number
        return value

    def _authenticate(self, name: str, counter: bytes, value: bytes, *, any_job: bool) -> bytes:
        key = self._key if any_job or self._job_key is None else self._job_key
        header = b"\0".join([self._scope.encode(), name.encode(), counter])
        return _mac(key, header + b"\0" + hashlib.sha256(value).digest())

    @staticmethod
    def _refused(name: str) -> str:
        return (
            f"{name} in the store was not written by a slot of this job: somebody else reaches its port, or a node "
            "has another ddpbench; see docs/security.md"
        )


def fresh() -> str:
    """Return a new random number of 16 bytes as hexadecimal digits."""
    return secrets.token_hex(16)


def _mac(key: bytes, message: bytes) -> bytes:
    return hmac.new(key, message, hashlib.sha256).hexdigest().encode()
