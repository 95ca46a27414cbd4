"""Modules in the working directory, which may be /tmp: ddpbench's processes do not import them, own workloads may."""

from __future__ import annotations

import socket
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

import pytest

from ddpbench.machine import server
from ddpbench.machine.launched import LaunchedRanks
from ddpbench.machine.server import ServerProcess
from ddpbench.records import RunDir
from ddpbench.workloads import load_workload
from tests.synthetic import case_of


class _StartedError(Exception):
    """Instead of a process."""


def found_first(env: dict[str, str], folder: Path) -> str:
    """The file that a process of this environment imports as `queue`, as torchrun starts ranks: without -P."""
    code = "import queue; print(queue.__file__)"
    (folder / "look.py").write_text(code, encoding="utf-8")
    line = [sys.executable, "-m", "look"] if "PYTHONSAFEPATH" not in env else [sys.executable, "-c", code]
    return subprocess.run(line, cwd=folder, env=env, capture_output=True, text=True, check=True).stdout


def test_ranks_and_servers_look_for_no_module_in_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file `queue.py` there would be run by every rank: another user's, where all can write."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "queue.py").write_text("", encoding="utf-8")
    seen: list[dict[str, str]] = []

    def popen(*_: Any, env: dict[str, str], **__: Any) -> None:
        seen.append(env)
        raise _StartedError

    monkeypatch.setattr(server.subprocess, "Popen", popen)
    sockets = socket.socketpair()
    monkeypatch.setattr(server.socket, "socketpair", lambda *_: sockets)
    with pytest.raises(_StartedError), sockets[0], sockets[1]:
        ServerProcess({}, tmp_path / "server.log")
    case = case_of("ddp", 2, launcher="torchrun")
    directory = RunDir(tmp_path / "run").launch(case.case_id, "measure", 0)
    directory.path.mkdir(parents=True)
    with LaunchedRanks(case, tmp_path / "log") as ranks, pytest.raises(_StartedError):
        ranks.launch([{}, {}], directory)
    monkeypatch.undo()
    server_env, ranks_env = seen
    assert ranks_env["PYTHONSAFEPATH"] == "1"
    for env in (server_env | {"PYTHONSAFEPATH": "1"}, ranks_env):  # the server is started with -P
        assert str(tmp_path) not in found_first(env, tmp_path)


@pytest.mark.parametrize(("name", "wins"), [("package.own_place:Own", True), ("own_place.py:Own", False)])
def test_own_workloads_find_modules_of_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, wins: bool
) -> None:
    """A module named as `python -m` names it comes before Python's own, as there; one named by its file after all."""
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    source = "class Own:\n    model = dataset = loss = None\n"
    (tmp_path / "package").mkdir()
    for place in (tmp_path / "package", folder):
        (place / "own_place.py").write_text(source, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path not in ("", str(Path.cwd()))])
    with pytest.raises(ImportError, match="lacks model"):
        load_workload(str(folder / name) if name.endswith(".py:Own") else name)
    here = sys.path.index(str(tmp_path))
    assert (here < sys.path.index(sysconfig.get_path("stdlib"))) == wins
    for module in ("package", "package.own_place", "own_place"):
        sys.modules.pop(module, None)


@pytest.mark.parametrize(
    ("mode", "whose"), [(0o755, "next to it"), (0o777, "Python's"), (0o1777, "Python's")]
)
@pytest.mark.parametrize("name", ["own_search.py:Own", "package.own_search:Own"])
def test_where_everybody_can_write_modules_of_python_come_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: int, whose: str, name: str
) -> None:
    """A file next to a workload, called as a module that it imports, may be another user's: /tmp/colorsys.py."""
    place = tmp_path if ".py" in name else tmp_path / "package"
    place.mkdir(exist_ok=True)
    source = "import colorsys\nclass Own:\n    whose = colorsys.__file__\n"
    (place / "own_search.py").write_text(source, encoding="utf-8")
    (tmp_path / "colorsys.py").touch()
    tmp_path.chmod(mode)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path not in ("", str(Path.cwd()))])
    modules = ("colorsys", "own_search", "package", "package.own_search")
    for module in modules:
        monkeypatch.delitem(sys.modules, module, raising=False)
    try:
        with pytest.raises(ImportError, match="lacks model"):
            load_workload(name)
        found = sys.modules["own_search" if place == tmp_path else "package.own_search"].Own.whose
        assert ("next to it" if found == str(tmp_path / "colorsys.py") else "Python's") == whose
    finally:
        for module in modules:
            sys.modules.pop(module, None)
