"""The fork servers of a sweep, and the round that each server's start-up is charged to."""

from __future__ import annotations

import gc
import json
import os
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path

from ddpbench.errors import ServerGoneError
from ddpbench.machine.placement import early_env
from ddpbench.runtime.server import ServerProcess
from ddpbench.runtime.serving import Ranks
from ddpbench.spec import PlannedCase


class Servers(AbstractContextManager["Servers"]):
    """Fork servers by environment, each started on first use and ended with the context or before."""

    def __init__(self, log: Path, *, log_stays: bool = True) -> None:
        """`log_stays` says that errors may name the log; False if the log's folder is going to be removed."""
        self._log, self._log_stays = log, log_stays
        self._stack = ExitStack()
        self._running: dict[str, ServerProcess] = {}
        self._first_round: dict[Ranks, int] = {}

    def of(self, env: Mapping[str, str]) -> ServerProcess:
        """Return the environment's server; start one if none runs."""
        key = json.dumps(dict(env), sort_keys=True)
        if key not in self._running or not self._running[key].alive:
            self._running[key] = self._stack.enter_context(self._started(env))
        return self._running[key]

    def _started(self, env: Mapping[str, str]) -> ServerProcess:
        """Start a server; retry once if it is killed during start-up."""
        try:
            return ServerProcess(env, self._log, log_stays=self._log_stays)
        except ServerGoneError as error:
            if not error.killed:
                raise
        return ServerProcess(env, self._log, log_stays=self._log_stays)

    def charged_s(self, server: Ranks, number: int) -> float:
        """Return how much of a server's start-up is charged to round `number`, s: all if it is the server's first."""
        if not server.start_s:  # a different launcher, which serves one launch
            return 0.0
        return server.start_s if self._first_round.setdefault(server, number) == number else 0.0

    def end(self) -> None:
        """End the running servers; a later request starts new ones."""
        self._running.clear()
        self._first_round.clear()
        self._stack.close()

    def end_round(self, *, serve_on: bool) -> None:
        """End the running servers unless `serve_on`, and free the memory that launches took.

        Collecting garbage keeps a long sweep from growing: reference cycles and the interpreter's lists of free
        objects would stay for hundreds of rounds, and block other memory from reuse.
        """
        if not serve_on:
            self.end()
        gc.collect()

    def __exit__(self, *_: object) -> None:
        self.end()


class LastingServers(Servers):
    """Fork servers shared by several sweeps, with a set for each round, so that rounds still have separate servers.

    Use it as a context around the sweeps, and call `rewind` before each. A server keeps the environment and working
    directory of its start, so that sweeps with different ones get separate sets.
    """

    def __init__(self, log: Path, *, log_stays: bool = True) -> None:
        super().__init__(log, log_stays=log_stays)
        self._round = 0
        self._given = ""
        self._sets: dict[tuple[str, int], dict[str, ServerProcess]] = {}

    def rewind(self) -> None:
        """Go back to the first round's set, for this process's present environment and working directory."""
        now = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
        self._given = json.dumps([str(Path.cwd()), now], sort_keys=True)
        self._go_to(0)

    def end_round(self, *, serve_on: bool) -> None:
        """Move to the next round's set; with `serve_on` stay with the present one."""
        if not serve_on:
            self._go_to(self._round + 1)
        gc.collect()

    def _go_to(self, number: int) -> None:
        self._round = number
        self._running = self._sets.setdefault((self._given, number), {})

    def end(self) -> None:
        """End all servers."""
        self._sets.clear()
        super().end()


def launches_of_one_server(entry: PlannedCase, todo: Sequence[PlannedCase]) -> int:
    """Return how many of a round's launches share this one's fork server, because they have the same environment."""
    env = early_env(entry.case)
    return sum(other.case.launcher == "local" and early_env(other.case) == env for other in todo)
