"""The directory of `ddpbench submit` in place of a run directory: it means the run that covers all of it."""

from __future__ import annotations

from pathlib import Path

import pytest

import ddpbench
from ddpbench.cli import run
from ddpbench.errors import IdentityError, RequestError
from ddpbench.records.submission_dir import SubmissionDir, run_at
from tests.synthetic import write_run


@pytest.fixture
def submission(tmp_path: Path) -> Path:
    folder = tmp_path / "week-slurm"
    folder.mkdir()
    SubmissionDir(folder).file.write_text("{}")
    return folder


def measured(folder: Path) -> None:
    write_run(folder, 2, rounds=2, blocks=2, steps=3)


def test_the_merged_run_is_meant_once_it_is_there(submission: Path) -> None:
    for name in ("nodes-1", "nodes-2", "merged"):
        measured(submission / name)
    assert run_at(submission).path == submission / "merged"
    assert run_at(submission / "nodes-2").path == submission / "nodes-2"


def test_a_submission_of_one_size_means_its_run(submission: Path) -> None:
    measured(submission / "nodes-4")
    (submission / "nodes-8").mkdir()  # planned, and not measured
    assert run_at(submission).path == submission / "nodes-4"


def test_what_cannot_be_shown_as_one_run_is_said(submission: Path) -> None:
    with pytest.raises(RequestError, match="without measurements yet"):
        run_at(submission)
    for name in ("nodes-1", "nodes-2"):
        measured(submission / name)
    with pytest.raises(
        RequestError, match=f"merge them with ddpbench submit {submission}, .*/nodes-1$"
    ) as caught:
        run_at(submission)
    assert not isinstance(caught.value, IdentityError)


def test_a_link_in_it_is_not_followed(submission: Path, tmp_path: Path) -> None:
    measured(tmp_path / "elsewhere")
    (submission / "merged").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(IdentityError, match="merged is a link"):
        run_at(submission)


def test_any_other_directory_is_a_run_or_is_refused_as_before(tmp_path: Path) -> None:
    assert run_at(tmp_path).path == tmp_path
    with pytest.raises(IdentityError, match=r"is not a run directory: plan\.json is missing"):
        ddpbench.load(tmp_path)


def test_commands_that_read_a_run_take_the_directory(
    submission: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    measured(submission / "nodes-1")
    before = set(submission.iterdir())
    assert run(["export", str(submission), "--format", "csv"]) == 0
    assert len(ddpbench.load(submission)) == 2
    capsys.readouterr()
    assert run(["compare", str(submission), str(submission / "nodes-1")]) == 2
    assert f"{submission / 'nodes-1'} has the same launches as" in capsys.readouterr().err
    other = tmp_path / "other"
    measured(other)
    assert run(["merge", str(submission), str(other), "--out", str(tmp_path / "both")]) == 2
    assert f"{submission / 'nodes-1'} and {other} hold the same run" in capsys.readouterr().err
    assert set(submission.iterdir()) == before, "its runs alone are written to"
    capsys.readouterr()
    assert run(["sweep", str(submission)]) == 2
    assert (
        f"is a submission of several jobs: to follow them, run ddpbench submit {submission}\n"
        in capsys.readouterr().err
    )
