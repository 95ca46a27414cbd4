"""Fork servers that the sweeps of several tests share: reused only where a new one would be equal."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ddpbench.runtime.server import ServerProcess
from tests import lasting


class Running:
    """A server whose guard has this process's id."""

    def __init__(self) -> None:
        self.pid, self.alive, self.is_stopped = 7, True, False
        self._process = SimpleNamespace(pid=os.getpid())


@pytest.fixture
def ended(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[ServerProcess]]:
    """Return the list of ended servers; none is a process, and each has one process under its guard: itself."""
    found: list[ServerProcess] = []

    def start(self: Any, env: object, log: Path, **_: object) -> None:
        self._running, self.pids, self._events = Running(), (), []
        log.write_text("", encoding="utf-8")

    def close(self: Any) -> None:
        found.append(self)

    monkeypatch.setattr(ServerProcess, "__init__", start)
    monkeypatch.setattr(ServerProcess, "close", close)
    monkeypatch.setattr(ServerProcess, "launch", lambda self, envs, directory, request=None: request)
    monkeypatch.setattr(lasting, "descendants", lambda _: [7])
    monkeypatch.setattr(lasting, "_idle", {})
    yield found
    lasting._idle.clear()


def started(folder: Path, **env: str) -> Any:
    return lasting.start_or_lend(env, folder / "server.log")


def test_who_would_start_an_equal_one_is_lent_it(tmp_path: Path, ended: list[ServerProcess]) -> None:
    with started(tmp_path, A="1") as first:
        assert started(tmp_path, A="1") is not first, "each of two at once has its own"
        first._log.write_text("its last words", encoding="utf-8")
        assert not lasting.idle_processes()
    assert lasting.idle_processes() == {7, os.getpid()}
    assert started(tmp_path, A="1") is first
    assert first._log.read_text(encoding="utf-8") == ""
    assert not lasting.idle_processes()
    assert not ended


@pytest.mark.parametrize("other", ["variable", "own variable", "folder", "core", "open files"])
def test_another_environment_has_a_server_of_its_own(
    tmp_path: Path, ended: list[ServerProcess], monkeypatch: pytest.MonkeyPatch, other: str
) -> None:
    with started(tmp_path, A="1") as first:
        pass
    if other == "variable":
        monkeypatch.setenv("DDPBENCH_TEST_LASTING", "1")
    elif other == "folder":
        monkeypatch.chdir(tmp_path)
    elif other == "core":
        monkeypatch.setattr("os.sched_getaffinity", lambda _: {1001})
    elif other == "open files":
        monkeypatch.setattr("resource.getrlimit", lambda _: (1, 1))
    assert started(tmp_path, A="2" if other == "own variable" else "1") is not first


@pytest.mark.parametrize("what", ["raises", "imports", "is gone", "is stopped", "has a rank"])
def test_one_that_is_not_as_it_was_is_ended(
    tmp_path: Path, ended: list[ServerProcess], monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    def use() -> Any:
        with started(tmp_path) as server:
            server.launch([], None, what == "imports")
            if what == "is gone":
                server._running.alive = False
            elif what == "is stopped":
                server._running.is_stopped = True
            elif what == "has a rank":
                monkeypatch.setattr(lasting, "descendants", lambda _: [7, 8])
            elif what == "raises":
                raise KeyboardInterrupt
        return server

    if what == "raises":
        with pytest.raises(KeyboardInterrupt):
            use()
    else:
        assert use() in ended
    assert len(ended) == 1
    assert not lasting._idle


def test_few_are_kept(tmp_path: Path, ended: list[ServerProcess]) -> None:
    made = []
    for number in range(lasting.MOST + 1):
        with started(tmp_path, A=str(number)) as server:
            made.append(server)
    assert ended == made[:1]
    assert [*lasting._idle.values()] == made[1:]
