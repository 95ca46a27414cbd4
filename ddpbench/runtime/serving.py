"""The choice of a starter for a launch's ranks, and the protocol that both starters have."""

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
    """A launch's ranks as the watching code sees them: forked by a server, or started by another launcher."""

    reports_helper_times: bool
    """True if the end of a rank reports the processor time of its loader workers."""

    @property
    def start_s(self) -> float:
        """Return the seconds that it took to start the starter."""

    @property
    def pid(self) -> int:
        """Return the process id of the starter."""

    @property
    def pids(self) -> tuple[int, ...]:
        """Return the ranks' process ids, by rank."""

    @property
    def is_stopped(self) -> bool:
        """Return whether the starter is stopped, so that ranks cannot be heard."""

    def give_up_stopped(self) -> None:
        """End a starter that is stopped.

        Raises:
            ServerGoneError: always.
        """

    def launch(self, envs: Sequence[Mapping[str, str]], directory: LaunchDir) -> bool:
        """Start a rank for each environment; return whether work came before that is not part of the launch."""

    def events(self, timeout_s: float) -> list[dict[str, Any]]:
        """Return what has happened to ranks, waiting up to `timeout_s` for something."""

    def pulse(self, rank: int) -> Pulse:
        """Return how far a rank has come."""

    def signal_ranks(self, number: signal.Signals, pids: tuple[int, ...] | None = None) -> None:
        """Send a signal to ranks, or to those of these process ids."""

    def forget(self) -> None:
        """Hold no process for a rank any more: all have ended."""


@contextmanager
def ranks_for(case: Case, log: Path, forked: Callable[[], ServerProcess]) -> Iterator[Ranks]:
    """Yield the starter of a case's ranks: a fork server, which `forked` returns, or the case's launcher."""
    if case.launcher == "local":
        yield forked()
        return
    with LaunchedRanks(case, log) as ranks:
        yield ranks
