"""What a rank's emulated link has carried, from the kernel's own counters."""

from __future__ import annotations

from pathlib import Path


class LinkCounters:
    """The counters of one interface of the network namespace that this process is in.

    /proc/self/net follows the process into its namespace, where /sys shows the one it was mounted in.
    """

    def __init__(self, interface: str, table: Path = Path("/proc/self/net/dev")) -> None:
        self._interface, self._table = interface, table

    def read(self) -> tuple[int, int]:
        """Bytes sent and received since the interface was made.

        Raises:
            LookupError: there is no such interface.
        """
        for line in self._table.read_text(encoding="ascii").splitlines():
            name, colon, counters = line.partition(":")
            if colon and name.strip() == self._interface:
                fields = counters.split()
                return int(fields[8]), int(fields[0])
        raise LookupError(f"this rank's network has no interface {self._interface}")
