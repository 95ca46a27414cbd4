"""The bytes that a rank's emulated link has carried, from the kernel's own counters."""

from __future__ import annotations

import os
from pathlib import Path

from ddpbench.spec import Case, Links
from ddpbench.worker.place import JobPlace


class LinkCounters:
    """The counters of one interface in the network namespace of this process.

    /proc/self/net always shows the process's current namespace, whereas /sys shows the one in which it was mounted.
    """

    def __init__(self, interface: str, node: int, table: Path = Path("/proc/self/net/dev")) -> None:
        self._interface, self.node, self._table = interface, node, table

    def read(self) -> tuple[int, int]:
        """Return the bytes sent and received since the interface was made.

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
    """Return the link whose counters this rank reads: its own, or the node's on the node's first rank; else None."""
    if not case.fabric or (place.local_rank and Links.parse(case.fabric).local_bandwidth is None):
        return None
    return LinkCounters(os.environ["GLOO_SOCKET_IFNAME"], int(os.environ["DDPBENCH_NODE"]))
