"""Checkpoints of one process: they are complete, their records are right, and nothing stays behind."""

from __future__ import annotations

import errno
import os
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch import nn

from ddpbench.features.recovery.rank.recovering import FailurePlan, Marks, _plan_the_failure
from ddpbench.launch import watch
from ddpbench.measure.blocks import AloneControl
from ddpbench.measure.clock import HostClock
from ddpbench.records import LaunchDir, LaunchRequest, RunDir
from ddpbench.worker.rank.checkpoints import REPETITIONS, CheckpointError, Saver
from tests.synthetic import case_of


class Seen:
    """Looks at each checkpoint while it is there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.sizes: dict[str, int] = {}
        self.plain: dict[str, Any] = {}

    def __call__(self) -> None:
        (path,) = self.folder.iterdir()
        files = list(path.iterdir()) if path.is_dir() else [path]
        self.sizes[path.name] = sum(file.stat().st_size for file in files)
        if path.is_file():
            self.plain = torch.load(path, weights_only=True)


def saver_of(folder: Path, on_checkpoint: Any) -> Saver:
    model = nn.Sequential(nn.Linear(64, 128), nn.BatchNorm1d(128), nn.Linear(128, 4))
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(8, 64)).sum().backward()
    optimizer.step()
    return Saver(
        model=model,
        optimizer=optimizer,
        folder=folder,
        rank=0,
        processes=1,
        clock=HostClock(),
        control=AloneControl(),
        on_checkpoint=on_checkpoint,
    )


def test_a_checkpoint_is_whole_and_is_gone_afterwards(tmp_path: Path) -> None:
    folder = tmp_path / "snapshots"
    folder.mkdir(mode=0o700)
    (folder / "left-by-a-killed-launch").touch()
    seen = Seen(folder)
    saver = saver_of(folder, seen)
    records = list(saver.run())
    assert [(r.method, r.index) for r in records] == [(m, i) for m in ("plain", "dcp") for i in range(3)]
    assert REPETITIONS == 3
    assert {f"{r.method}-{r.index}": r.bytes for r in records} == seen.sizes
    for record in records:
        assert record.write_ns is not None
        assert 0 < record.write_ns <= record.end_ns - record.start_ns
    expected = saver.model.state_dict()
    assert all(torch.equal(value, expected[name]) for name, value in seen.plain["model"].items())
    moments = seen.plain["optimizer"]["state"][0]["exp_avg"]
    assert torch.equal(moments, saver.optimizer.state_dict()["state"][0]["exp_avg"])
    # 64 x 128 + 128 + 4 x 128 + 128 x 4 + 4 parameters and twice that of moments, float32
    assert records[0].bytes > 3 * 4 * (64 * 128 + 128 + 2 * 128 + 128 * 4 + 4)
    assert not folder.exists()


@pytest.mark.parametrize("at", [1, 4])  # a plain one, and one by DCP
def test_a_full_disk_is_told_in_a_sentence_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    folder = tmp_path / "snapshots"
    done: list[None] = []
    fsync = os.fsync

    def full(file: int) -> None:
        if len(done) == at:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        fsync(file)

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(CheckpointError, match="No space left on device; free some space") as caught:
        list(saver_of(folder, lambda: done.append(None)).run())
    assert str(tmp_path) in str(caught.value)
    assert "checkpoint_dir" in str(caught.value)
    assert not folder.exists()


def test_a_missing_directory_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="No such file or directory") as caught:
        list(saver_of(tmp_path / "missing/checkpoints", lambda: None).run())
    assert str(tmp_path / "missing") in str(caught.value)


def test_two_launches_never_share_a_folder_in_a_directory_of_the_users() -> None:
    one, two = (LaunchDir(Path(f"/r/{run}/cases/ddp-w2/launch-00")) for run in ("a", "b"))
    assert one.checkpoints("", "0a") == Path("/r/a/cases/ddp-w2/launch-00/snapshots")
    assert one.checkpoints("/big", "0a") == Path("/big/ddpbench-0a-a-ddp-w2-launch-00")
    assert one.checkpoints("/big", "0a") != two.checkpoints("/big", "0a")
    again = LaunchDir(Path("/home/other/a/cases/ddp-w2/launch-00"))  # another user's run of the same name
    assert one.checkpoints("/big", "0a") != again.checkpoints("/big", "0b")
    assert one.checkpoints("/big", "") == Path(
        "/big/ddpbench-a-ddp-w2-launch-00"
    )  # a run of an older version


@pytest.mark.parametrize("run_id", ["../..", "a/b", "a\n", "a\0", "." * 3, "a" * 65])
def test_a_runs_id_never_leads_a_folder_elsewhere(run_id: str) -> None:
    with pytest.raises(ValueError, match="is not the id of a run"):
        LaunchDir(Path("/r/a/cases/ddp-w2/launch-00")).checkpoints("/big", run_id)


def planted(folder: Path, owner: int) -> Path:
    """Make this user's file in its folder, within a folder of `owner` with the name of a checkpoints' folder."""
    thesis = folder / "results" / "thesis.txt"
    thesis.parent.mkdir(parents=True)
    thesis.write_text("mine", encoding="utf-8")
    os.chown(folder, owner, owner)
    folder.chmod(0o777)
    return thesis


OTHERS = [
    pytest.param(
        65534, marks=pytest.mark.skipif(os.geteuid() != 0, reason="only root can give folders away")
    ),
    pytest.param(-1, id="mine-which-others-may-write"),
]
"""Owners of a planted folder. One of this user's in which others may write can have been moved there."""


@pytest.mark.parametrize("owner", OTHERS)
def test_a_folder_that_is_there_already_is_neither_written_to_nor_removed(tmp_path: Path, owner: int) -> None:
    folder = tmp_path / "snapshots"
    thesis = planted(folder, owner)
    with pytest.raises(CheckpointError, match="File exists: snapshots exists, but this run did not make it"):
        list(saver_of(folder, lambda: None).run())
    with pytest.raises(CheckpointError, match="File exists"):
        next(replace(saver_of(folder, lambda: None), rank=1).run())
    with pytest.raises(FileExistsError):
        Marks(folder).write(FailurePlan(fails=1, joins=None, ends=2))
    assert [path.name for path in folder.rglob("*")] == ["results", "thesis.txt"]
    assert thesis.read_text(encoding="utf-8") == "mine"


@pytest.mark.parametrize("owner", OTHERS)
def test_nobody_goes_on_from_the_snapshots_of_another_user(tmp_path: Path, owner: int) -> None:
    marks = Marks(tmp_path / "snapshots")
    marks.write(FailurePlan(fails=1, joins=None, ends=2))
    assert marks.planned
    assert marks.read().ends == 2
    marks.folder.chmod(0o777)
    os.chown(marks.folder, owner, owner)
    assert not marks.planned
    with pytest.raises(CheckpointError, match="File exists: snapshots exists, but this run did not make it"):
        marks.read()


@pytest.mark.parametrize("owner", OTHERS)
def test_a_failure_is_planned_in_no_planted_folder(tmp_path: Path, owner: int) -> None:
    thesis = planted(tmp_path / "snapshots", owner)
    training = cast(Any, SimpleNamespace(place=SimpleNamespace(rank=0)))
    marks, plan = Marks(tmp_path / "snapshots"), FailurePlan(fails=1, joins=None, ends=2)
    with pytest.raises(CheckpointError, match="File exists: snapshots exists, but this run did not make it"):
        _plan_the_failure(training, AloneControl(), marks, plan)
    assert thesis.read_text(encoding="utf-8") == "mine"
    shutil.rmtree(marks.folder)
    marks.folder.mkdir(mode=0o700)
    (marks.folder / "left-by-a-killed-launch").touch()
    _plan_the_failure(training, AloneControl(), marks, plan)
    assert [path.name for path in marks.folder.iterdir()] == ["plan.json"]


@pytest.mark.parametrize("owner", OTHERS)
def test_what_has_the_name_after_a_launch_is_left_unless_it_is_ones_own(
    tmp_path: Path, owner: int, capfd: pytest.CaptureFixture[str]
) -> None:
    """The controlling side removes there what killed ranks could not."""
    shared = tmp_path / "scratch"
    shared.mkdir()
    shared.chmod(0o1777)
    case = replace(case_of("single", 1), checkpoint=True, checkpoint_dir=str(shared))
    request = LaunchRequest(case=case, purpose="measure", round=0, measured_s=1.0, run_id="0a")
    launch = RunDir(tmp_path / "run").launch(case.case_id, "measure", 0)
    folder = launch.checkpoints(str(shared), "0a")
    thesis = planted(folder, owner)
    watch._remove_checkpoints(request, launch)
    assert thesis.read_text(encoding="utf-8") == "mine"
    assert f"{folder} was not removed, because another user may have put it there" in capfd.readouterr().err
    shutil.rmtree(folder)
    folder.mkdir(mode=0o700)
    (folder / "plain-0").touch()
    watch._remove_checkpoints(request, launch)
    assert list(shared.iterdir()) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give folders to other users")
@pytest.mark.parametrize("what", ["folder", "writable", "link"])
def test_a_node_whose_folder_another_user_has_made_writes_nothing_there(tmp_path: Path, what: str) -> None:
    """Rank 0 has made its node's folder; DCP writes on every node."""
    folder, aim = tmp_path / "snapshots", tmp_path / "aim"
    aim.mkdir()
    os.chown(aim, 65534, 65534)
    if what == "link":
        folder.symlink_to(aim)
    else:
        folder.mkdir()
        folder.chmod(0o777)
        os.chown(folder, *((65534, 65534) if what == "folder" else (-1, -1)))
    saver = replace(saver_of(folder, lambda: None), rank=1)
    with pytest.raises(CheckpointError, match="File exists"):
        next(saver.run())
    assert list(aim.iterdir()) == []


def test_a_node_with_a_disk_of_its_own_makes_the_folder_there(tmp_path: Path) -> None:
    folder = tmp_path / "snapshots"
    saver = replace(saver_of(folder, lambda: None), rank=1)
    saver._join()
    assert folder.stat().st_mode & 0o777 == 0o700
    saver._join()  # rank 0 may have made it, or another rank of this node
    assert list(folder.iterdir()) == []


def test_the_folder_is_its_owners_alone(tmp_path: Path) -> None:
    folder, seen = tmp_path / "snapshots", list[int]()
    list(saver_of(folder, lambda: seen.append(folder.stat().st_mode & 0o777)).run())
    assert set(seen) == {0o700}
    Marks(folder).write(FailurePlan(fails=1, joins=None, ends=2))
    assert folder.stat().st_mode & 0o777 == 0o700
