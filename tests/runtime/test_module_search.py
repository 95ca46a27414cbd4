"""Modules in the working directory, which may be /tmp: ddpbench's processes do not import them, own workloads may."""

from __future__ import annotations

import importlib.util
import os
import pickle
import site
import socket
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest

import ddpbench
from ddpbench import helper_process, user_files
from ddpbench.records import RunDir
from ddpbench.runtime import running_server
from ddpbench.runtime.launched import LaunchedRanks
from ddpbench.runtime.server import ServerProcess
from ddpbench.user_files import load_class
from ddpbench.worker.training.loader_server import SHARED
from ddpbench.workloads import load_workload
from tests.synthetic import case_of


class _StartedError(Exception):
    """Raised instead of starting a process."""


def found_first(env: dict[str, str], folder: Path) -> str:
    """Return the file that a process of this environment imports as `queue`, started without -P as by torchrun."""
    code = "import queue; print(queue.__file__)"
    (folder / "look.py").write_text(code, encoding="utf-8")
    line = [sys.executable, "-m", "look"] if "PYTHONSAFEPATH" not in env else [sys.executable, "-c", code]
    return subprocess.run(line, cwd=folder, env=env, capture_output=True, text=True, check=True).stdout


def test_ranks_and_servers_look_for_no_module_in_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file `queue.py` there would be run by every rank: another user's, if all can write there."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "queue.py").write_text("", encoding="utf-8")
    seen: list[dict[str, str]] = []

    def popen(*_: Any, env: dict[str, str], **__: Any) -> None:
        seen.append(env)
        raise _StartedError

    monkeypatch.setattr(running_server.subprocess, "Popen", popen)
    sockets = socket.socketpair()
    monkeypatch.setattr(running_server.socket, "socketpair", lambda *_: sockets)
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
    """A module named as for `python -m` comes before Python's own, as there; one named by its file comes last."""
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
    """A file next to a workload, with the name of a module that it imports, may be another user's: /tmp/colorsys.py."""
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


MISSING = "no_such_optional_part"
"""Module that a library looks for, as torch does for triton, and that is not installed."""
PLANTED = "import sys\nsys.planted = __name__\n"
LIBRARY = f"""
import importlib.util
from importlib.metadata import entry_points
for point in entry_points(group="torch.backends"):
    point.load()
def look():
    if importlib.util.find_spec({MISSING!r}):
        import {MISSING}
look()
"""
USES = "import a_library\n{more}class Own:\n    look = staticmethod(a_library.look)\n"


@pytest.fixture
def shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Make a working directory in which everybody can write, with files for libraries and for entry points."""
    folder = tmp_path / "shared"
    folder.mkdir()
    (folder / f"{MISSING}.py").write_text(PLANTED, encoding="utf-8")
    (folder / "in_shared.py").write_text("import next_to_it\n", encoding="utf-8")
    (folder / "next_to_it.py").touch()
    metadata = folder / "planted-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: planted\nVersion: 1.0\n", encoding="utf-8"
    )
    (metadata / "entry_points.txt").write_text(f"[torch.backends]\nplanted = {MISSING}\n", encoding="utf-8")
    installed = tmp_path / "installed"
    installed.mkdir()
    (installed / "a_library.py").write_text(LIBRARY, encoding="utf-8")
    (tmp_path / "own").mkdir()
    folder.chmod(0o1777)
    monkeypatch.chdir(folder)
    here = ("", str(Path.cwd()))
    monkeypatch.setattr(sys, "path", [*(path for path in sys.path if path not in here), str(installed)])
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    monkeypatch.setattr(sys, "planted", "", raising=False)
    before = {*sys.modules}
    yield folder
    for name in {*sys.modules} - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("name", ["own/of_own.py:Own", "shared/of_own.py:Own", "of_own:Own"])
def test_no_library_finds_what_is_planted_where_everybody_can_write(
    shared: Path, name: str, first: bool
) -> None:
    """Neither during the import of a user's file nor later, by name or as an entry point; the user's own imports do."""
    place = shared if "/" not in name else shared.parent / name.partition("/")[0]
    (place / "of_own.py").write_text(USES.format(more="import in_shared\n"), encoding="utf-8")
    named = name if "/" not in name else f"{shared.parent / name}"
    found: Any = load_class(named, lambda *_: True, first=first)
    found.look()
    assert not entry_points(group="torch.backends").names & {"planted"}
    assert importlib.util.find_spec(MISSING) is None
    assert sys.planted == ""  # type: ignore[attr-defined]
    assert str(shared) not in sys.path
    assert sys.modules["in_shared"].__file__ == str(shared / "in_shared.py")


def test_another_users_directory_is_searched_for_ones_own_imports_alone(
    shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared.chmod(0o755)
    own = shared.parent / "own" / "of_own.py"
    own.write_text(USES.format(more=""), encoding="utf-8")
    monkeypatch.setattr(user_files.os, "geteuid", lambda: shared.stat().st_uid + 1)
    monkeypatch.setattr(user_files, "_ROOT", -1)
    load_class(f"{own}:Own", lambda *_: True, first=True)
    assert sys.planted == ""  # type: ignore[attr-defined]


def test_processes_that_load_data_find_a_file_where_everybody_can_write(shared: Path) -> None:
    """They unpickle its dataset, by the module's name."""
    (shared / "of_own.py").write_text("import in_shared\nclass Own:\n    pass\n", encoding="utf-8")
    found = load_class(f"{shared / 'of_own.py'}:Own", lambda *_: True, first=True)
    code = (
        "import os, sys, pickle, importlib.util\n"
        "import ddpbench.worker.training.loader_server\n"
        f"pickle.loads({pickle.dumps(found)!r})\n"
        f"assert importlib.util.find_spec({MISSING!r}) is None\n"
    )
    env = os.environ | {
        SHARED: user_files.shared_folders(),
        "PYTHONPATH": str(Path(ddpbench.__file__).parents[1]),
    }
    subprocess.run([sys.executable, "-P", "-c", code], env=env, check=True)


def test_children_are_told_of_a_folder_that_a_program_has_added_to_its_search(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Notebooks keep packages in such folders, which no other process searches."""
    folder = tmp_path.resolve() / "site-packages"
    (folder / "ddpbench").mkdir(parents=True)
    (folder / "ddpbench" / "__init__.py").touch()
    monkeypatch.setattr(helper_process, "__file__", str(folder / "ddpbench" / "helper_process.py"))
    monkeypatch.setenv("PYTHONPATH", "elsewhere")
    helper_process._is_found_in.cache_clear()
    assert helper_process.child_environment()["PYTHONPATH"] == f"{folder}{os.pathsep}elsewhere"
    monkeypatch.setenv("PYTHONPATH", str(folder))
    helper_process._is_found_in.cache_clear()
    assert helper_process.child_environment()["PYTHONPATH"] == str(folder)
    for name in (
        "a:b",
        "a:b/site-packages",
    ):  # PYTHONPATH cannot name it, and b would be sought in the working directory
        monkeypatch.setattr(helper_process, "__file__", f"{folder}/{name}/ddpbench/helper_process.py")
        assert helper_process.child_environment()["PYTHONPATH"] == str(folder)
    installed = Path(site.getsitepackages()[0]).resolve() / "ddpbench" / "helper_process.py"
    monkeypatch.setattr(helper_process, "__file__", str(installed))
    monkeypatch.setattr(helper_process.subprocess, "run", None)
    assert helper_process.child_environment()["PYTHONPATH"] == str(folder)
