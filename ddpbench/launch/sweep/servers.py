"""The fork servers of a sweep, whose start-up time is charged to one round each."""

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
    """A context manager for fork servers. There is one server per environment, started on first use."""

    def __init__(self, log: Path, *, log_stays: bool = True) -> None:
        """`log_stays` is False if errors must not name `log`, whose folder will be removed."""
        self._log, self._log_stays = log, log_stays
        self._stack = ExitStack()
        self._running: dict[str, ServerProcess] = {}
        self._first_round: dict[Ranks, int] = {}

    def of(self, env: Mapping[str, str]) -> ServerProcess:
        """Return the server with this environment, after starting it if it is not running."""
        key = json.dumps(dict(env), sort_keys=True)
        if key not in self._running or not self._running[key].alive:
            self._running[key] = self._stack.enter_context(self._started(env))
        return self._running[key]

    def _started(self, env: Mapping[str, str]) -> ServerProcess:
        try:
            return ServerProcess(env, self._log, log_stays=self._log_stays)
        except ServerGoneError as error:
            if not error.killed:
                raise
        return ServerProcess(env, self._log, log_stays=self._log_stays)

    def charged_s(self, server: Ranks, number: int) -> float:
        """Return the start-up time (s) charged to round `number`. It is 0 after the server's first round."""
        if not server.start_s:  # a different launcher, which serves one launch
            return 0.0
        return server.start_s if self._first_round.setdefault(server, number) == number else 0.0

    def end(self) -> None:
        """End the running servers; a later request starts new ones."""
        self._running.clear()
        self._first_round.clear()
        self._stack.close()

    def end_round(self, *, serve_on: bool) -> None:
        """End the running servers unless `serve_on`, and free the memory that launches used.

        Collecting garbage keeps a long sweep's memory from growing by reference cycles and the interpreter's free
        lists.
        """
        if not serve_on:
            self.end()
        gc.collect()

    def __exit__(self, *_: object) -> None:
        self.end()


class LastingServers(Servers):
    """Fork servers that several sweeps share. Each round has its own set of servers, as in a single sweep.

    Use it as a context around the sweeps, and call `rewind` before each. A different environment or working directory
    gets separate sets, because a server keeps those it was started with.
    """

    def __init__(self, log: Path, *, log_stays: bool = True) -> None:
        super().__init__(log, log_stays=log_stays)
        self._round = 0
        self._given = ""
        self._sets: dict[tuple[str, int], dict[str, ServerProcess]] = {}

    def rewind(self) -> None:
        """Return to the first round's set of servers, for this process's environment and working directory."""
        now = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
        self._given = json.dumps([str(Path.cwd()), now], sort_keys=True)
        self._go_to(0)

    def end_round(self, *, serve_on: bool) -> None:
        """Move on to the next round's set of servers; with `serve_on`, keep the present set."""
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
    """Return how many launches of a round (`todo`) share the fork server, and so the environment, of `entry`."""
    env = early_env(entry.case)
    return sum(other.case.launcher == "local" and early_env(other.case) == env for other in todo)
