"""Claims cores and GPUs for one sweep, so that two sweeps at once do not measure each other."""

from __future__ import annotations

import contextlib
import socket
import struct
from collections.abc import Iterator, Sequence

from ddpbench.errors import MachineError


@contextlib.contextmanager
def claimed(cores: Sequence[int] = (), gpus: Sequence[str] = ()) -> Iterator[None]:
    """Holds them while the context lasts, and however the process ends: the kernel lets go. GPUs go by their UUIDs.

    A claim is an abstract Unix socket's name: no file is left behind, and all users of the host see it.

    Raises:
        MachineError: another sweep holds one of them; its process is named.
    """
    held: list[socket.socket] = []
    try:
        for what in (*(f"core {core}" for core in cores), *(f"GPU {gpu}" for gpu in gpus if gpu)):
            claim = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            held.append(claim)
            try:
                claim.bind(_name(what))
            except OSError:
                raise MachineError(_explain(what)) from None
            claim.listen(1)
        yield
    finally:
        for claim in held:
            claim.close()


def _name(what: str) -> str:
    return f"\0ddpbench-{what.lower().replace(' ', '-')}"


def _explain(what: str) -> str:
    holder = ""
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as other:
        other.settimeout(1)
        other.connect(_name(what))
        credentials = other.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        holder = f" (process {struct.unpack('3i', credentials)[0]})"
    elsewhere = "cores with taskset" if what.startswith("core") else "GPUs with CUDA_VISIBLE_DEVICES"
    return (
        f"another sweep{holder} is measuring on {what} of this machine: the two would measure each other. "
        f"Wait for it, give this one other {elsewhere}, or set DDPBENCH_SHARED_MACHINE=1 to go on "
        "with every number flagged"
    )
