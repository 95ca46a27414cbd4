"""Claims cores and GPUs for one sweep, so that two sweeps at once do not measure each other."""

from __future__ import annotations

import contextlib
import os
import pwd
import socket
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ddpbench.errors import MachineError

CLAIMS = "DDPBENCH_CLAIMS"
"""A variable of the environment: `own` respects only the claims of this user's processes."""


@contextlib.contextmanager
def claimed(cores: Sequence[int] = (), gpus: Sequence[str] = ()) -> Iterator[None]:
    """Holds them while the context lasts, and however the process ends: the kernel lets go. GPUs go by their UUIDs.

    A claim is the name of an abstract Unix socket: no file is left behind, and all users of the host see it. Any user
    can take such a name, for no sweep at all. With DDPBENCH_CLAIMS=own what another user holds, or a process that does
    not say whose it is, is passed over; for this a second name has the user's id in it.

    Raises:
        MachineError: another sweep holds one of them; its process is named.
    """
    own_alone = os.environ.get(CLAIMS, "") == "own"
    held: list[socket.socket] = []
    try:
        for what in (*(f"core {core}" for core in cores), *(f"GPU {gpu}" for gpu in gpus if gpu)):
            for name in (_name(what), f"{_name(what)}-of-{os.getuid()}"):
                claim = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
                held.append(claim)
                try:
                    claim.bind(name)
                except OSError:
                    holder = _holder(name)
                    if own_alone and (holder is None or holder.user != os.getuid()):
                        continue
                    raise MachineError(_explain(what, holder)) from None
                claim.listen(1)
        yield
    finally:
        for claim in held:
            claim.close()


def _name(what: str) -> str:
    return f"\0ddpbench-{what.lower().replace(' ', '-')}"


@dataclass(frozen=True, slots=True)
class _Holder:
    """The process that listens at a claim's name, and its user's id."""

    process: int
    user: int


def _holder(name: str) -> _Holder | None:
    """Return who holds a name; None where nobody listens there."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as other:
        other.settimeout(1)
        other.connect(name)
        process, user, _ = struct.unpack(
            "3i", other.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        )
        return _Holder(process=process, user=user)
    return None


def _explain(what: str, holder: _Holder | None) -> str:
    elsewhere = "cores with taskset" if what.startswith("core") else "GPUs with CUDA_VISIBLE_DEVICES"
    own = holder is not None and holder.user == os.getuid()
    found = f" (process {holder.process}{'' if own else f' of {_called(holder.user)}'})" if holder else ""
    pass_over = "" if own else f", set {CLAIMS}=own if it measures nothing"
    return (
        f"another sweep{found} is measuring on {what} of this machine: the two would measure each other. "
        f"Wait for it, give this one other {elsewhere}{pass_over}, or set DDPBENCH_SHARED_MACHINE=1 to continue "
        "with every number flagged"
    )


def _called(user: int) -> str:
    try:
        return f"user {pwd.getpwuid(user).pw_name}"
    except KeyError:
        return f"user {user}"
