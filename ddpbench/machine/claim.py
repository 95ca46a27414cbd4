"""Claims cores for one sweep, so that two sweeps at once do not measure each other."""

from __future__ import annotations

import contextlib
import socket
import struct
from collections.abc import Iterator, Sequence

from ddpbench.errors import MachineError


@contextlib.contextmanager
def claimed(cores: Sequence[int]) -> Iterator[None]:
    """Holds the cores while the context lasts, and however the process ends: the kernel lets go.

    A claim is an abstract Unix socket's name: no file is left behind, and all users of the host see it.

    Raises:
        MachineError: another sweep holds one of them; its process is named.
    """
    held: list[socket.socket] = []
    try:
        for core in cores:
            claim = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            held.append(claim)
            try:
                claim.bind(_name(core))
            except OSError:
                raise MachineError(_explain(core)) from None
            claim.listen(1)
        yield
    finally:
        for claim in held:
            claim.close()


def _name(core: int) -> str:
    return f"\0ddpbench-core-{core}"


def _explain(core: int) -> str:
    holder = ""
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as other:
        other.settimeout(1)
        other.connect(_name(core))
        credentials = other.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        holder = f" (process {struct.unpack('3i', credentials)[0]})"
    return (
        f"another sweep{holder} is measuring on core {core} of this machine: the two would measure each other. "
        "Wait for it, give this one other cores with taskset, or set DDPBENCH_SHARED_MACHINE=1 to go on "
        "with every number flagged"
    )
