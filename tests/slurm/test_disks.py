"""Runs on the nodes' own disks: what a job accepts there from other users, and what is fetched."""

from __future__ import annotations

import io
import os
import subprocess
import tarfile
from pathlib import Path

import pytest

from ddpbench.launch.external import JobShape
from ddpbench.launch.slurm import disks
from ddpbench.launch.slurm.disks import RefusedFolderError, archive, fetch, place
from ddpbench.launch.slurm.request import Request
from ddpbench.launch.slurm.script import Slots, job_script

KEY = "0123456789abcdef" * 2
STRANGER = 12_345
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to make what belongs to another user")


class Node:
    """A node whose scratch disk every user can write to, like /tmp; its run holds one file."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.disk = folder / "disk"
        self.disk.mkdir()
        self.disk.chmod(0o1777)
        self.local = str(self.disk)
        self.here = folder / "here/nodes-1"
        self.here.mkdir(parents=True)
        (self.here / "plan.json").write_text("mine")
        self.bin = folder / "bin"
        self.bin.mkdir()
        for name, text in (
            ("srun", 'while [ "$1" != bash ]; do shift; done\nexec "$@"'),
            ("scontrol", "echo n1"),
            ("worker", 'cat "${@: -1}/plan.json"'),
        ):
            (self.bin / name).write_text(f"#!/bin/bash\n{text}\n")
            (self.bin / name).chmod(0o755)
        monkeypatch.setenv("PATH", f"{self.bin}:/usr/bin:/bin")
        monkeypatch.setenv("SLURMD_NODENAME", "n1")
        self.script = folder / "job.sbatch"

    @property
    def place(self) -> Path:
        return Path(self.local) / f"ddpbench-{KEY}-nodes-1"

    def job(self) -> str:
        """Return what a job that is started here printed into its folder; empty if it printed nothing."""
        request = Request(sizes=(1,), ranks_per_node=1, local=self.local)
        text = job_script(
            self.here,
            "n-1",
            JobShape(1, 1),
            request,
            cpus=None,
            time_s=60,
            slots=Slots(
                python=str(self.bin / "worker"),
                again="again",
                local=place(self.local, KEY, 1),
            ),
        )
        self.script.write_text(text + archive(self.here))
        done = subprocess.run(
            ["bash", self.script], env=os.environ | {"SLURM_JOB_ID": "7"}, timeout=60, check=False
        )
        self.code = done.returncode
        output = self.place / "slurm-7.out"
        return output.read_text() if output.is_file() else ""

    def fetched(self) -> None:
        """Fetch the records of an ended job."""
        request = Request(sizes=(1,), ranks_per_node=1, local=self.local)
        fetch(self.here, place(self.local, KEY, 1), "n1", 1, request, job_id=None)


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    for folder in (tmp_path, *tmp_path.parents):
        if folder.stat().st_mode & 0o1002 == 0o002:
            pytest.skip(f"{folder} is a folder in which anybody can exchange another's")
    return Node(tmp_path, monkeypatch)


def test_a_job_makes_a_folder_that_is_its_owners_alone_and_the_next_one_finds_it(node: Node) -> None:
    assert node.job() == "mine"
    assert node.place.stat().st_mode & 0o7777 == 0o700
    (node.place / "cases").mkdir()
    assert node.job() == "minemine"
    assert (node.place / "cases").is_dir()


def test_a_folder_in_a_shared_group_has_the_groups_bit_and_is_the_owners_alone(node: Node) -> None:
    node.disk.chmod(0o3777)
    assert node.job() == "mine"
    assert node.place.stat().st_mode & 0o777 == 0o700


def _foreign(node: Node) -> None:
    node.place.mkdir(mode=0o700)
    (node.place / "plan.json").write_text("theirs")
    os.utime(node.place / "plan.json", (2**32, 2**32))  # newer: tar would keep it
    os.chown(node.place, STRANGER, STRANGER)


def _open(node: Node) -> None:
    node.place.mkdir()
    node.place.chmod(0o777)
    (node.place / "plan.json").write_text("theirs")
    os.utime(node.place / "plan.json", (2**32, 2**32))


def _link(node: Node) -> None:
    there = node.disk.parent / "there"
    there.mkdir(mode=0o700)
    (there / "plan.json").write_text("theirs")
    node.place.symlink_to(there)


def _exchangeable(node: Node) -> None:
    node.disk.chmod(0o777)


def _parent_of_another(node: Node) -> None:
    node.local = f"{node.disk}/me"
    Path(node.local).mkdir()
    os.chown(node.local, STRANGER, STRANGER)


def _parent_is_a_strangers_link(node: Node) -> None:
    (node.disk.parent / "there").mkdir()
    node.local = f"{node.disk}/me"
    Path(node.local).symlink_to(node.disk.parent / "there")
    os.chown(node.local, STRANGER, STRANGER, follow_symlinks=False)


def _file(node: Node) -> None:
    node.place.write_text("")


def _relative(node: Node) -> None:
    node.local = "$DDPBENCH_TEST_RELATIVE"


REFUSED = [
    pytest.param(_foreign, "belongs to another user", marks=needs_root),
    (_open, "has mode 777, not 700"),
    (_link, "is not a folder"),
    (_file, "is not a folder"),
    (_exchangeable, "where others can put another in its place"),
    pytest.param(_parent_of_another, "of another user", marks=needs_root),
    pytest.param(_parent_is_a_strangers_link, "of another user", marks=needs_root),
    (_relative, "is not an absolute path"),
]


@pytest.mark.parametrize(("plant", "why"), REFUSED, ids=lambda value: getattr(value, "__name__", ""))
def test_a_folder_that_somebody_else_had_a_hand_in_is_refused(
    node: Node, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, plant: object, why: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DDPBENCH_TEST_RELATIVE", "here")
    plant(node)  # type: ignore[operator]
    before = {path: path.lstat().st_mtime_ns for path in node.disk.parent.rglob("*.json")}
    assert node.job() == ""
    assert node.code == 1
    assert {path: path.lstat().st_mtime_ns for path in node.disk.parent.rglob("*.json")} == before
    with pytest.raises(RefusedFolderError, match=why):
        node.fetched()
    assert (node.here / "plan.json").read_text() == "mine"


def test_nothing_is_appended_through_a_link(node: Node, tmp_path: Path) -> None:
    node.job()
    target = tmp_path / "target"
    target.write_text("as it was")
    (node.place / "slurm-7.out").unlink()
    (node.place / "slurm-7.out").symlink_to(target)
    node.job()
    assert node.code == 1
    assert target.read_text() == "as it was"


def test_records_are_fetched_and_a_missing_folder_is_said(node: Node) -> None:
    with pytest.raises(RefusedFolderError, match=r"is not a folder \(on n1\)"):
        node.fetched()
    node.job()
    launch = node.place / "cases/a/launch-00"
    launch.mkdir(parents=True)
    (launch / "outcome.json").write_text("{}")
    node.fetched()
    assert (node.here / "cases/a/launch-00/outcome.json").read_text() == "{}"
    assert (node.here / "slurm-7.out").read_text() == "mine"


def test_of_what_comes_from_a_node_only_files_and_folders_are_taken(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / "plan.json").write_text("mine")
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as file:
        for name, kind in (("link", tarfile.SYMTYPE), ("hard", tarfile.LNKTYPE), ("pipe", tarfile.FIFOTYPE)):
            entry = tarfile.TarInfo(name)
            entry.type, entry.linkname = kind, "plan.json"
            file.addfile(entry)
        entry = tarfile.TarInfo("cases/a.json")
        entry.size = 2
        file.addfile(entry, io.BytesIO(b"{}"))
    disks._unpack(run, packed.getvalue())
    assert sorted(path.name for path in run.rglob("*")) == ["a.json", "cases", "plan.json"]
