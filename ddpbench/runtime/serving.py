"""Choose whether a fork server or another launcher starts a launch's ranks; both have the interface `Ranks`."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from ddpbench.records import LaunchDir
from ddpbench.records.heartbeat import Pulse
from ddpbench.runtime.launched import LaunchedRanks
from ddpbench.runtime.server import ServerProcess
from ddpbench.spec import Case


class Ranks(Protocol):
    """Interface to a launch's ranks and to the process that starts them, a fork server or another launcher."""

    reports_helper_times: bool
    """True if a rank's `exited` event includes the CPU time of its loader workers."""

    @property
    def start_s(self) -> float:
        """Return the time that starting the fork server took (s); 0 for another launcher."""

    @property
    def pid(self) -> int:
        """Return the process id of the fork server or launcher."""

    @property
    def pids(self) -> tuple[int, ...]:
        """Return the ranks' process ids, by rank number."""

    @property
    def is_stopped(self) -> bool:
        """Return whether a signal has stopped the fork server or launcher, which then cannot report ranks' ends."""

    def give_up_stopped(self) -> None:
        """End a stopped fork server or launcher.

        Raises:
            ServerGoneError: always.
        """

    def launch(self, envs: Sequence[Mapping[str, str]], directory: LaunchDir) -> bool:
        """Start one rank per environment. Return whether preparations took time that does not count as the launch's."""

    def events(self, timeout_s: float) -> list[dict[str, Any]]:
        """Return the ranks' next events, waiting up to `timeout_s` for the first."""

    def pulse(self, rank: int) -> Pulse:
        """Return a rank's heartbeat, which has its phase and its number of steps."""

    def signal_ranks(self, number: signal.Signals, pids: tuple[int, ...] | None = None) -> None:
        """Send a signal to all ranks, or to the processes in `pids`."""

    def forget(self) -> None:
        """Forget the ranks' process ids, because all ranks have ended."""


@contextmanager
def ranks_for(case: Case, log: Path, forked: Callable[[], ServerProcess]) -> Iterator[Ranks]:
    """Yield the object that starts a case's ranks: the fork server that `forked` returns, or the case's launcher."""
    if case.launcher == "local":
        yield forked()
        return
    with LaunchedRanks(case, log) as ranks:
        yield ranks
