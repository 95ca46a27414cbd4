"""Another user's run directory is only read: its owner could redirect what commands would write there."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import ddpbench
from ddpbench import planted
from ddpbench.analysis.table import frame
from ddpbench.cli import run as command
from ddpbench.errors import IdentityError, OutputError
from ddpbench.records import RunDir, pack
from ddpbench.worker.place import SlotPlace
from ddpbench.worker.slot.own_card import own_card
from tests.open_folder import open_folder
from tests.synthetic import write_run

NOBODY = 65534
CASES = 2

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="gives a folder to another user")


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    return write_run(tmp_path / "theirs/run", CASES, rounds=5, blocks=2, steps=3)


def give(folder: Path, user: int = NOBODY) -> None:
    for path in (folder, *folder.rglob("*")):
        os.chown(path, user, user)


def names(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


WRITING = [
    "report {run}",
    "pack {run}",
    "allocation {run}",
    "sweep {run}",
    "sweep {run} --dry-run",
    "sweep quick --out {run}",
]


@pytest.mark.parametrize("words", WRITING)
def test_what_would_write_in_it_refuses_and_says_what_to_do(
    run: RunDir, capsys: pytest.CaptureFixture[str], words: str
) -> None:
    give(run.path.parent)
    before = names(run.path)
    assert command(words.format(run=run.path).split()) == 2
    assert names(run.path) == before
    message = capsys.readouterr().err
    assert f"{run.path} belongs to nobody, and is only read: copy it, and give the copy: cp -r" in message
    assert "Traceback" not in message


@pytest.mark.parametrize("words", ["report {run}", "pack {run}", "allocation {run}"])
def test_roots_is_only_read_by_others(capsys: pytest.CaptureFixture[str], words: str) -> None:
    with open_folder() as folder:
        ours, roots = (
            write_run(folder / name, CASES, rounds=5, blocks=2, steps=3) for name in ("ours", "roots")
        )
        give(ours.path)
        command(words.format(run=ours.path).split())  # all modules are loaded then
        capsys.readouterr()
        before = names(roots.path)
        os.seteuid(NOBODY)
        try:
            code = command(words.format(run=roots.path).split())
        finally:
            os.seteuid(0)
        assert code == 2
        assert names(roots.path) == before
    message = capsys.readouterr().err
    assert f"{roots.path} belongs to root, and is only read: copy it, and give the copy: cp -r" in message


def test_it_can_be_read_and_a_copy_is_ones_own(
    run: RunDir, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    give(run.path.parent)
    assert len(ddpbench.load(run.path)) == CASES
    assert command(["export", str(run.path), "--format", "csv"]) == 0
    with pytest.raises(OutputError, match="belongs to nobody"):
        ddpbench.load(run.path, write=True)
    assert command(["report", str(run.path)]) == 2
    line = capsys.readouterr().err.strip().rpartition("cp -r ")[2].split()
    shutil.copytree(line[0], tmp_path / line[1])
    assert command(["report", str(tmp_path / line[1])]) == 0


def test_its_archive_is_not_unpacked_there(
    run: RunDir, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pack(run)
    shutil.rmtree(run.cases)
    give(run.path.parent)
    mine = str(write_run(tmp_path / "mine", CASES, rounds=5, blocks=2, steps=3, seed=1).path)
    for words in (["export", str(run.path), "--format", "csv"], ["compare", mine, str(run.path)]):
        assert command(words) == 2
        assert "belongs to nobody, and is only read" in capsys.readouterr().err
    assert not run.cases.exists()


def test_an_empty_folder_of_theirs_is_none_to_write_a_run_in(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "theirs"
    folder.mkdir()
    give(folder)
    for words in (
        "sweep quick",
        "plan quick --nodes a",
        "compare quick --interleave --base set=base.local_batch=4 --new set=base.local_batch=8",
    ):
        assert command([*words.split(), "--out", str(folder)]) == 2
        assert f"{folder} belongs to nobody: choose another --out" in capsys.readouterr().err
    assert not names(folder)


def test_a_slot_measures_in_none(run: RunDir) -> None:
    give(run.path)
    place = SlotPlace(
        rank=0, slots=1, local_rank=0, node="", master_addr="", master_port=0, agent_store=False, prefix=""
    )
    assert "belongs to nobody" in own_card(run, place, lambda _: pytest.fail("it starts nothing")).problem


def swapped(run: RunDir, aim: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put a link to `aim` in the run's place once its table is written."""
    write: Callable[..., Any] = frame.write_csv

    def write_and_swap(*given: Any) -> Path:
        found: Path = write(*given)
        run.path.rename(run.path.with_name("away"))
        run.path.symlink_to(aim)
        return found

    monkeypatch.setattr("ddpbench.analysis.write_csv", write_and_swap)


def test_who_can_rename_a_run_of_ones_own_leads_its_report_nowhere_else(
    run: RunDir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.chown(run.path.parent, NOBODY, NOBODY)  # owner of the folder above; root owns the run
    victim = tmp_path / "victim"
    (victim / "figures").mkdir(parents=True)
    for name in ("report.html", "figures/scaling.png", "cases.csv"):
        (victim / name).write_text("mine", encoding="utf-8")
    swapped(run, victim, monkeypatch)
    assert command(["report", str(run.path)]) == 0
    assert names(victim) == {"report.html", "figures", "figures/scaling.png", "cases.csv"}
    assert (victim / "report.html").read_text(encoding="utf-8") == "mine"
    assert (run.path.with_name("away") / "report.html").is_file()


def test_a_link_of_theirs_to_what_is_no_run_is_not_written_through(run: RunDir, tmp_path: Path) -> None:
    """A user who can exchange the link could make it point to a run when it is read."""
    victim = tmp_path / "victim"
    victim.mkdir()
    with pytest.raises(IdentityError, match="is not a run directory"), RunDir(victim).held():
        pass


def test_a_resume_below_anybodys_folder_is_refused(run: RunDir, capsys: pytest.CaptureFixture[str]) -> None:
    """A user who can write there could exchange the experiment and with it the code that ranks run."""
    folder = run.path.parent
    os.chown(folder, NOBODY, NOBODY)
    folder.chmod(0o777)
    assert command(["sweep", str(run.path), "--dry-run"]) == 2
    assert f"{folder} is another user's, and everybody can rename what is in it" in capsys.readouterr().err
    folder.chmod(0o1777)
    command(["sweep", str(run.path), "--dry-run"])
    assert "another user's" not in capsys.readouterr().err


def test_messages_name_the_directory_as_it_was_given(run: RunDir, capsys: pytest.CaptureFixture[str]) -> None:
    (run.path / ".lock").mkdir()
    (run.path / "cases.csv").unlink(missing_ok=True)
    with pytest.raises(OutputError) as message, run.held() as itself:
        raise OutputError(f"{itself.table} is a pipe")
    assert str(message.value) == f"{run.table} is a pipe"


@pytest.mark.parametrize("unnamed", [True, False])
def test_where_a_disk_shows_other_owners_a_new_file_tells_who_one_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unnamed: bool
) -> None:
    """Such as in a container, or on a server that maps users."""
    monkeypatch.setattr(tempfile, "_O_TMPFILE_WORKS", unnamed)
    os.chown(tmp_path, NOBODY, NOBODY)
    folder = os.open(tmp_path, os.O_PATH)
    try:
        assert planted.other_owner(folder) == "nobody"
        assert planted.shown_as(folder) == 0
        assert not names(tmp_path)
        monkeypatch.setattr(planted, "shown_as", lambda _: NOBODY)
        assert planted.other_owner(folder) == ""
    finally:
        os.close(folder)
