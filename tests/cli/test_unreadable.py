"""Inputs that the user may not read: an invalid request in every command, without advice to make them writable."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.analysis.test_changes import DDP, made
from tests.open_folder import open_folder

LOCKED = {
    "a run in it": ("export", "--format", "csv", "locked/run"),
    "a folder of runs": ("history", "locked"),
    "a side": ("compare", "locked/run", "good"),
    "an experiment": ("sweep", "--dry-run", "locked/own.toml"),
    "a script": ("init", "locked/train.py"),
    "the script itself": ("init", "secret.py"),
    "a folder of a stranger's name": ("export", "--format", "csv", "apart/named"),
    "a folder of the run": ("export", "--format", "csv", "apart/closed"),
}
HERE = {
    "what is there": ("list",),
    "a shipped experiment": ("sweep", "quick", "--dry-run", "--out", "../new"),
    "a submission of a shipped one": ("submit", "quick", "--nodes", "1", "--dry-run", "--out", "../jobs"),
    "a new run": ("sweep", "quick", "--dry-run"),
    "an experiment of no such name": ("sweep", "qick", "--dry-run"),
    "a class": ("sweep", "quick", "--dry-run", "--out", "../new", "--set", "base.workload=train.py:X"),
    "a module": ("sweep", "quick", "--dry-run", "--out", "../new", "--set", "base.workload=train:X"),
    "a script": ("init", "train.py"),
    "a run": ("export", "--format", "csv", "run"),
    "a side": ("compare", "main", "run"),
    "baselines": ("baseline", "list"),
}
"""Commands in a working directory that the user may not enter; `..` is given as an absolute path."""
NAMED = "x\nddpbench: all 12 cases proved"
CODE = """
import contextlib, io, json, os, sys
from ddpbench.cli import run
if len(sys.argv) > 2:
    os.chdir(sys.argv[2])
def tried():
    ended = {}
    for name, words in json.loads(sys.argv[1]).items():
        printed = io.TextIOWrapper(io.BytesIO())
        with contextlib.redirect_stderr(io.StringIO()) as message, contextlib.redirect_stdout(printed):
            ended[name] = run(words), message.getvalue()
    return ended
tried()  # all modules are loaded then: the interpreter's own folder may be closed to the other user
os.setgroups([]); os.setgid(65534); os.setuid(65534)
print(json.dumps(tried()))
"""


@pytest.fixture(scope="module")
def ended() -> dict[str, tuple[int, str]]:
    """Return the exit code and messages of each command, and of a history with a locked folder in it."""
    with open_folder() as folder:
        for name in ("good", "other", "locked/run", "apart/closed", "apart/named"):
            made(folder / name, {DDP: 40 + len(name)})
        named = folder / "apart/named/cases" / NAMED
        named.mkdir()
        for path in (folder / "secret.py", folder / "locked/train.py", folder / "locked/own.toml"):
            path.write_text("", encoding="utf-8")
        for path in (folder / "secret.py", folder / "locked", folder / "apart/closed/cases", named):
            path.chmod(0o700)
        history = {"history": ("history", "--as-given", "--across", str(folder))}
        return _tried(LOCKED | history, folder)


@pytest.fixture(scope="module")
def ended_here() -> dict[str, tuple[int, str]]:
    """Return the exit code and messages of each command in a working directory that the user may not enter."""
    with open_folder() as folder:
        closed = folder / "closed"
        closed.mkdir(mode=0o700)
        commands = {
            name: tuple(word.replace("..", str(folder)) for word in words) for name, words in HERE.items()
        }
        return _tried(commands, folder, str(closed))


def _tried(commands: Mapping[str, tuple[str, ...]], folder: Path, *here: str) -> dict[str, tuple[int, str]]:
    done = subprocess.run(
        [sys.executable, "-c", CODE, json.dumps(commands), *here],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, tuple[int, str]] = json.loads(done.stdout)
    return found


pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="gives up root's rights")


@pytest.mark.parametrize("name", LOCKED)
def test_what_may_not_be_read_is_a_wrong_request(name: str, ended: dict[str, tuple[int, str]]) -> None:
    code, message = ended[name]
    assert code == 2, message
    assert "writable" not in message
    closed = {
        "the script itself": "you have no permission to read secret.py",
        "a folder of the run": "you have no permission to access apart/closed/cases",
        "a folder of a stranger's name": "you have no permission",
    }
    assert closed.get(name, "you have no permission to access locked") in message
    assert "have its owner allow it" in message
    assert len(message.splitlines()) == 1


@pytest.mark.parametrize("name", HERE)
def test_in_a_working_directory_that_may_not_be_entered(
    name: str, ended_here: dict[str, tuple[int, str]]
) -> None:
    """Relative paths are an invalid request; shipped experiments and absolute paths work."""
    code, message = ended_here[name]
    assert "writable" not in message
    if name in ("what is there", "a shipped experiment", "a submission of a shipped one"):
        assert code == 0, message
    else:
        assert code == 2, message
        assert "you have no permission to access" in message
        assert ("/closed: " in message) == (name != "a new run")
        assert ("with --out" in message) == (name == "a new run")
        assert len(message.splitlines()) == 1


def test_the_library_says_so_too() -> None:
    functions = ("load", "load_steps", "load_transfers", "write_report")
    code = f"""
import os, sys, ddpbench
from ddpbench.errors import DdpbenchError
def tried(folder):
    for name in {functions!r}:
        try:
            getattr(ddpbench, name)(folder)
        except DdpbenchError as error:
            yield str(error)
list(tried("nowhere"))  # all modules are loaded then
os.setgroups([]); os.setgid(65534); os.setuid(65534)
print(*tried("locked/run"), sep="\\n")
"""
    with open_folder() as folder:
        made(folder / "locked/run", {DDP: 40})
        (folder / "locked").chmod(0o700)
        done = subprocess.run(
            [sys.executable, "-c", code],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    said = done.stdout.splitlines()
    assert len(said) == len(functions)
    assert all("you have no permission to access locked" in one for one in said), said


def test_a_history_skips_what_it_may_not_read(ended: dict[str, tuple[int, str]]) -> None:
    code, message = ended["history"]
    assert code == 0, message
    assert "locked cannot be read: Permission denied; you have no permission to access " in message
    assert message.startswith("skipped")
