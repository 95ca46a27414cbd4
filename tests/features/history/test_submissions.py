"""The directory of `ddpbench submit` in a history: one run, or skipped with the reason."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from ddpbench.cli import run
from ddpbench.features.history.analysis import read_sides
from ddpbench.records.submission_dir import SubmissionDir
from tests.analysis.test_changes import DDP, made
from tests.synthetic import write_run


@pytest.fixture
def submission(tmp_path: Path) -> Path:
    folder = tmp_path / "week-slurm"
    folder.mkdir()
    SubmissionDir(folder).file.write_text("{}")
    return folder


def measured(folder: Path) -> None:
    write_run(folder, 2, rounds=2, blocks=2, steps=3)


def test_in_a_history_it_is_one_run(submission: Path, tmp_path: Path) -> None:
    for name in ("nodes-1", "merged"):
        measured(submission / name)
    shutil.copytree(submission / "merged", submission / "nodes-2")  # its launches are in the merged run
    made(tmp_path / "other", {DDP: 40})
    assert [Path(side.name).name for side in read_sides([submission, tmp_path / "other"], as_given=True)] == [
        "merged",
        "other",
    ]


def test_in_a_folder_of_runs_it_is_one_run_or_is_skipped_with_the_reason(
    submission: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = submission.parent
    made(folder / "other", {DDP: 40})
    for name in ("nodes-1", "nodes-2"):
        measured(submission / name)
    (folder / "notes").mkdir()
    empty = folder / "empty-slurm"
    empty.mkdir()
    SubmissionDir(empty).file.write_text("{}")
    assert run(["history", str(folder), "--across"]) == 2  # a single run is not a history
    shown = capsys.readouterr().err
    assert f"skipped: {submission} is a submission whose runs are not merged yet. " in shown
    assert f"skipped: {empty} is a submission without measurements yet\n" in shown
    assert f"skipped {folder / 'notes'}, which holds no run: plan.json is missing\n" in shown
    measured(submission / "merged")
    names = [Path(side.name).name for side in read_sides([folder], as_given=True, across=True)]
    assert names == ["other", "merged"]
