"""Without --out, commands write below `reports` here, but not where another user could change what will be run."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from ddpbench.analysis.regression.baselines import STORAGE, Baselines, find_side
from ddpbench.cli import run as command
from ddpbench.cli.submit import _make
from ddpbench.errors import OutputError
from ddpbench.launch.interleave.compare import _made
from ddpbench.records.rundir import RunDir, default_path
from tests.repositories import git

NOBODY = 65534

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="gives a folder to another user")


@pytest.fixture
def shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory in which every user can write."""
    monkeypatch.chdir(tmp_path)
    tmp_path.chmod(0o1777)
    return tmp_path


def _planted(folder: Path) -> Path:
    folder.mkdir()
    folder.chmod(0o777)
    os.chown(folder, NOBODY, NOBODY)
    return folder


@pytest.mark.parametrize(
    "words",
    [
        "sweep quick",
        "sweep quick --dry-run",
        "plan quick --nodes 127.0.0.1",
        "submit quick --nodes 1 --dry-run",
        "compare quick --interleave --base ref=HEAD~1 --new ref=HEAD",
        "bisect quick HEAD~1 HEAD",
    ],
)
def test_nothing_is_written_below_a_planted_folder(
    shared: Path, capsys: pytest.CaptureFixture[str], words: str
) -> None:
    """Its owner could replace the run, and with it the code that ranks and jobs run."""
    git(shared, "init", "-q")
    for name in ("one", "two"):  # for commands that compare commits
        git(shared, "commit", "-q", "--allow-empty", "-m", name)
    folder = _planted(shared / "reports")
    assert command(words.split()) == 2
    assert "reports is another user's, in a folder that everybody can write" in capsys.readouterr().err
    assert not [*folder.iterdir()]


def test_ones_own_folder_is_used_and_so_is_one_that_only_the_directorys_owner_can_have_made(
    shared: Path,
) -> None:
    assert default_path("run") == Path("reports/run")
    _planted(shared / "reports")
    with pytest.raises(OutputError, match="another user's"):
        default_path("run")
    shared.chmod(0o755)
    assert default_path("run") == Path("reports/run")
    os.chown(shared / "reports", 0, 0)
    shared.chmod(0o1777)
    assert default_path("run") == Path("reports/run")


@pytest.mark.parametrize(
    "make", [lambda path: RunDir(path).create(), lambda path: RunDir(path / "nodes-1").create(), _make, _made]
)
def test_nothing_is_written_below_a_folder_that_is_planted_while_a_command_plans(
    shared: Path, make: Callable[[Path], object]
) -> None:
    path = default_path("late")
    folder = _planted(shared / "reports")
    with pytest.raises(OutputError, match="another user's"):
        make(path)
    assert not [each for each in folder.rglob("*") if each.name != "late"]
    make(Path("reports/named"))  # as its user wants
    assert (folder / "named").is_dir()


def test_baselines_in_a_planted_folder_are_not_believed(shared: Path) -> None:
    _planted(shared / STORAGE)
    with pytest.raises(OutputError, match="another user's"):
        Baselines().find("main")
    with pytest.raises(OutputError, match="another user's"):
        Baselines().save("main", b"{}")


def test_a_planted_path_is_not_taken_for_the_baseline_of_its_name(shared: Path) -> None:
    _planted(shared / "main")
    assert find_side("main") == Path("main")  # nothing else has this name
    saved = Baselines().save("main", b"{}")
    assert find_side("main") == saved
    os.chown(shared / "main", 0, 0)
    assert find_side("main") == Path("main")
