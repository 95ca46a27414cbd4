"""Fork servers that the sweeps of several tests share, as those of one session of the pytest plugin do.

Starting one imports torch, a second of a core: more than all that most tests have a sweep do. A server serves another
sweep only if that would start an equal one, and only if the last sweep left it unchanged: no process runs under it, and
nothing was imported for a case. Tests of the servers themselves use `own_servers`.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from ddpbench.guard import descendants
from ddpbench.records import LaunchDir, LaunchRequest
from ddpbench.runtime.server import ServerProcess

STARTED_IN = (
    "ddpbench.launch.devices",
    "ddpbench.launch.own_batches",
    "ddpbench.launch.own_class.trial",
    "ddpbench.launch.profiling",
    "ddpbench.launch.sweep.servers",
)
"""The modules that start fork servers."""
MOST = 2
"""The largest number kept idle: each holds a few hundred MB."""
_LIMITS = (resource.RLIMIT_AS, resource.RLIMIT_DATA, resource.RLIMIT_NOFILE, resource.RLIMIT_FSIZE)
_idle: dict[str, LentServer] = {}
"""Idle servers by the environment in which each was started, the longest unused first."""
_folders: list[tempfile.TemporaryDirectory[str]] = []


class LentServer(ServerProcess):
    """A fork server that is kept for the next sweep that would start an equal one, unless it was changed."""

    def __init__(self, key: str, env: Mapping[str, str], log: Path, waiting: Callable[[], None]) -> None:
        self._key, self._log, self._changed = key, log, False
        super().__init__(env, log, log_stays=False, waiting=waiting)

    def lend(self, waiting: Callable[[], None]) -> None:
        """Make it equal to one that was started just now."""
        self._waiting = waiting
        os.truncate(self._log, 0)

    @property
    def processes(self) -> set[int]:
        """Return the ids of its guard and its own."""
        return {self._running._process.pid, self._running.pid}

    def launch(
        self, envs: Sequence[Mapping[str, str]], directory: LaunchDir, request: LaunchRequest | None = None
    ) -> bool:
        imported = super().launch(envs, directory, request)
        self._changed |= imported
        return imported

    def close(self) -> None:
        """End it only if it can serve no other sweep."""
        unchanged = sys.exc_info()[0] is None and not self._changed and self.alive and not self.is_stopped
        if unchanged and set(descendants(self._running._process.pid)) == {self.pid}:
            self.forget()
            _keep(self)
        else:
            super().close()

    def end(self) -> None:
        """End it."""
        super().close()


def _keep(server: LentServer) -> None:
    if (before := _idle.pop(server._key, None)) is not None:
        before.end()
    _idle[server._key] = server
    while len(_idle) > MOST:
        _idle.pop(next(iter(_idle))).end()


def idle_processes() -> set[int]:
    """Return the ids of the processes that wait for the next sweep."""
    return {pid for server in _idle.values() for pid in server.processes}


def start_or_lend(
    env: Mapping[str, str], log: Path, *, log_stays: bool = True, waiting: Callable[[], None] = lambda: None
) -> ServerProcess:
    """Replace `ServerProcess` where sweeps start one."""
    if (
        threading.current_thread() is not threading.main_thread()
    ):  # a server ends with the thread that started it
        return ServerProcess(env, log, log_stays=log_stays, waiting=waiting)
    now = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    limits = [resource.getrlimit(limit) for limit in _LIMITS]
    there = [dict(env), now, str(Path.cwd()), sorted(os.sched_getaffinity(0)), limits, sys.executable]
    key = json.dumps(there, sort_keys=True)
    server = _idle.pop(key, None)
    if server is not None and server.alive:
        server.lend(waiting)
        return server
    folder = tempfile.TemporaryDirectory(prefix="ddpbench-lent-")
    _folders.append(folder)
    return LentServer(key, env, Path(folder.name) / "server.log", waiting)


def _end_all() -> None:
    while _idle:
        _idle.popitem()[1].end()
    while _folders:
        _folders.pop().cleanup()


@contextmanager
def lent_servers() -> Iterator[None]:
    """Make sweeps in this process share servers."""
    with pytest.MonkeyPatch.context() as patch:
        for module in STARTED_IN:
            patch.setattr(f"{module}.ServerProcess", start_or_lend)
        try:
            yield
        finally:
            _end_all()
