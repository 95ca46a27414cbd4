"""The number of bytes that a rank's emulated link has carried, from the kernel's counters."""

from __future__ import annotations

import os
from pathlib import Path

from ddpbench.spec import Case, Links
from ddpbench.worker.place import JobPlace


class LinkCounters:
    """Byte counters of one network interface in this process's network namespace.

    The counters are read from /proc/self/net, because /sys shows the interfaces of the namespace in which /sys was
    mounted.
    """

    def __init__(self, interface: str, node: int, table: Path = Path("/proc/self/net/dev")) -> None:
        self._interface, self.node, self._table = interface, node, table

    def read(self) -> tuple[int, int]:
        """Return the number of bytes sent and of bytes received since the interface was created.

        Raises:
            LookupError: the interface does not exist.
        """
        for line in self._table.read_text(encoding="ascii").splitlines():
            name, colon, counters = line.partition(":")
            if colon and name.strip() == self._interface:
                fields = counters.split()
                return int(fields[8]), int(fields[0])
        raise LookupError(f"this rank's network has no interface {self._interface}")


def link_of(case: Case, place: JobPlace) -> LinkCounters | None:
    """Return the emulated link whose counters this rank reads, or None.

    A rank reads its own link or, on links per node, the first rank of each node reads the node's.
    """
    if not case.fabric or (place.local_rank and Links.parse(case.fabric).local_bandwidth is None):
        return None
    return LinkCounters(os.environ["GLOO_SOCKET_IFNAME"], int(os.environ["DDPBENCH_NODE"]))
