"""A submission's directory from another user: what is refused, and that nothing in it leads elsewhere."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ddpbench.cli import run
from ddpbench.errors import IdentityError, RequestError
from ddpbench.launch.slurm import control
from ddpbench.launch.slurm.submission import open_submission
from ddpbench.records.submission_dir import SubmissionDir
from tests.synthetic import write_run


def stored(**slurm: object) -> dict[str, Any]:
    size = {"nodes": 1, "ranks_per_node": 1, "run": "nodes-1", "estimated_s": 1.0}
    asked = {"experiment": "/e.toml", "overrides": [], "sizes": [1], "ranks_per_node": 1}
    return {
        "schema_version": 1,
        "asked": asked,
        "slurm": {"time_s": None, "options": [], "setup": [], "port": None, "local": "/scratch"} | slurm,
        "sizes": [size | {"jobs": [{"job_id": "7", "nodes": "n1"}]}],
    }


@pytest.fixture
def made(tmp_path: Path) -> Path:
    """A submission of one size whose run has two launches, and Slurm commands that only note their use."""
    folder = tmp_path / "submission"
    write_run(folder / "nodes-1", 1, rounds=2, blocks=2, steps=3)
    write(folder, stored(local=""))
    return folder


def write(folder: Path, data: object) -> None:
    folder.mkdir(exist_ok=True)
    SubmissionDir(folder).file.write_text(data if isinstance(data, str) else json.dumps(data))


def _instead(path: Path, make: Callable[[Path], object]) -> None:
    path.rename(path.with_name("aside"))
    make(path)


def _outcome(folder: Path) -> Path:
    return min(folder.glob("nodes-1/cases/*/launch-*/outcome.json"))


def _linked_run(folder: Path) -> None:
    (folder / "nodes-1").rename(folder.parent / "elsewhere")
    (folder / "nodes-1").symlink_to(folder.parent / "elsewhere")


LEADING: dict[str, Callable[[Path], object]] = {
    "a run is a link": _linked_run,
    "a run is a pipe": lambda folder: _instead(folder / "nodes-1", os.mkfifo),
    "a second run is a link": lambda folder: (folder / "nodes-2").symlink_to("/tmp"),
    "the merged run is a link": lambda folder: (folder / "merged").symlink_to("/tmp"),
    "what is merged next is a link": lambda folder: (folder / ".merged-new").symlink_to("/tmp"),
    "what was merged before is a link": lambda folder: (folder / ".merged-old").symlink_to("/tmp"),
    "the lock is a link": lambda folder: (folder / ".lock").symlink_to(folder.parent / "made"),
    "the file is a link": lambda folder: _instead(
        SubmissionDir(folder).file, lambda path: path.symlink_to(folder / "aside")
    ),
    "the file is a pipe": lambda folder: _instead(SubmissionDir(folder).file, os.mkfifo),
    "the script is a link": lambda folder: (folder / "nodes-1/job.sbatch").symlink_to(folder.parent / "made"),
    "the output is a pipe": lambda folder: os.mkfifo(folder / "nodes-1/slurm-7.out"),
    "the plan is a pipe": lambda folder: _instead(folder / "nodes-1/plan.json", os.mkfifo),
    "a launch is a link": lambda folder: _instead(
        _outcome(folder).parent, lambda path: path.symlink_to("/tmp")
    ),
    "an outcome is a pipe": lambda folder: _instead(_outcome(folder), os.mkfifo),
    "an outcome is a link": lambda folder: _instead(
        _outcome(folder), lambda path: path.symlink_to("/dev/zero")
    ),
}


@pytest.mark.parametrize("way", LEADING)
def test_a_directory_that_leads_elsewhere_or_blocks_is_refused_before_anything_is_submitted(
    way: str, made: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[str] = []
    monkeypatch.setattr(control, "check_here", lambda: None)
    monkeypatch.setattr(control, "would_run", lambda script: asked.append("test") or "")
    monkeypatch.setattr(control, "submit", lambda script: asked.append("submit") or "8")
    LEADING[way](made)
    before = {path: path.lstat().st_mtime_ns for path in made.parent.rglob("*") if path.name != ".lock"}
    assert run(["submit", str(made), "--retry-failed"]) == 2
    message = capsys.readouterr().err
    assert any(words in message for words in (" is a link", " is a pipe")), message
    after = {path: path.lstat().st_mtime_ns for path in before}
    changed = {path for path in before if after[path] != before[path]}
    assert not asked
    assert not (made.parent / "made").exists()
    assert {path for path in changed if made not in (path, *path.parents)} == set()


def _sizes(**size: object) -> dict[str, Any]:
    data = stored()
    data["sizes"][0] |= size
    return data


def _job(**job: object) -> dict[str, Any]:
    return _sizes(jobs=[{"job_id": "7", "launches": 0, "sessions": 0, "nodes": "n1", "fetched": False} | job])


DAMAGED: dict[str, tuple[object, str]] = {
    "the parent": (_sizes(run=".."), "must be 'nodes-1'"),
    "itself": (_sizes(run="."), "must be 'nodes-1'"),
    "nothing": (_sizes(run=""), "must be 'nodes-1'"),
    "another folder": (_sizes(run="/etc"), "must be 'nodes-1'"),
    "a command of the shell": (_sizes(run="$(id)"), "must be 'nodes-1'"),
    "no nodes": (_sizes(nodes=0, run="nodes-0"), "nodes"),
    "many nodes": (_sizes(nodes=10**9, run=f"nodes-{10**9}"), "nodes"),
    "a size twice": (stored() | {"sizes": stored()["sizes"] * 2}, "not ascending"),
    "no size": (stored() | {"sizes": []}, "sizes"),
    "a negative estimate": (_sizes(estimated_s=-1.0), "estimated_s"),
    "a job with digits of others": (_job(job_id="\u0661"), "job_id"),
    "a job that leads out": (_job(job_id="../7"), "job_id"),
    "a job with a second line": (_job(job_id="7\n"), "job_id"),
    "nodes that are a file": (_job(nodes="/etc/passwd"), "nodes"),
    "a negative count": (_job(launches=-1), "launches"),
    "an option of one part": (stored(options=[["qos"]]), "options"),
    "an option of three parts": (stored(options=[["qos", "a", "b"]]), "options"),
    "an option with a second line": (
        stored(options=[["qos", "a\n#SBATCH --wrap=id"]]),
        "which a job's script cannot hold",
    ),
    "an option's name with a second line": (stored(options=[["qos\nid", None]]), "not an option"),
    "an output elsewhere": (
        stored(options=[["output", "/home/me/.bashrc"]]),
        "--sbatch output is not accepted",
    ),
    "a file to read here": (
        stored(options=[["export-file", "/home/me/.ssh/id_ed25519"]]),
        "--sbatch export-file is not accepted",
    ),
    "a setup of two lines": (stored(setup=["a\nb"]), "--setup"),
    "a folder that is a command": (stored(local="/$(id)"), "--local"),
    "a key that leads out": (stored(key="../" * 10 + "ab"), "key"),
    "a time of ages": (stored(time_s=1e300), "--time"),
    "no object": ("[]", "an object was expected"),
    "no JSON": ("{", "Expecting"),
    "nested deeply": ("[" * 100_000, "nested"),
    "an infinite number": (json.dumps(stored()).replace("1.0", "1e400"), "1e400"),
    "a lone surrogate": (json.dumps(stored()).replace("/e.toml", "\\udc80"), "cannot be shown"),
    "an experiment that is a list": (stored() | {"asked": {"experiment": []}}, "experiment"),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_a_file_that_nobody_wrote_is_refused_in_a_sentence(name: str, tmp_path: Path) -> None:
    data, words = DAMAGED[name]
    (tmp_path / "nodes-1").mkdir()
    write(tmp_path, data)
    with pytest.raises(IdentityError, match=r"submission\.json is damaged") as caught:
        open_submission(tmp_path)
    assert words in str(caught.value)


def test_a_sound_file_is_taken(tmp_path: Path) -> None:
    write(tmp_path, stored(key="0a" * 16))
    found = open_submission(tmp_path)
    assert (found.key, found.sizes[0].run.path) == ("0a" * 16, tmp_path / "nodes-1")


def test_a_folder_without_a_submission_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=r"there is no submission\.json"):
        open_submission(tmp_path)


def test_a_submissions_key_is_drawn_once_and_kept(tmp_path: Path) -> None:
    write(tmp_path, stored())  # of an older version
    one, other = open_submission(tmp_path), open_submission(tmp_path)
    assert one.key != other.key
    assert len(one.key) == 32
    one.save()
    assert open_submission(tmp_path).key == one.key
