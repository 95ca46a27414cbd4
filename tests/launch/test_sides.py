"""Sides of a comparison: what is said of the code that was measured."""

from __future__ import annotations

from pathlib import Path

from ddpbench.launch.interleave.sides import SideSpec, _commit_of
from tests.repositories import begin_repository, git


def test_what_python_keeps_beside_a_module_is_no_change(tmp_path: Path) -> None:
    folder = tmp_path / "project"
    begin_repository(folder, sleep=0.0)
    spec = SideSpec(name="new", path=str(folder))
    commit = git(folder, "rev-parse", "--short=12", "HEAD")
    (folder / "bench" / "__pycache__").mkdir()
    (folder / "bench" / "__pycache__" / "train.cpython-311.pyc").touch()
    assert _commit_of(spec, folder / "bench", tmp_path) == commit
    (folder / "other.py").touch()
    assert _commit_of(spec, folder / "bench", tmp_path) == f"{commit}+"


def test_what_a_comparison_writes_is_no_change(tmp_path: Path) -> None:
    folder = tmp_path / "project"
    begin_repository(folder, sleep=0.0)
    spec = SideSpec(name="new", path=str(folder))
    commit = git(folder, "rev-parse", "--short=12", "HEAD")
    out = folder / "reports" / "compare-1"
    out.mkdir(parents=True)
    (out / "comparison.json").touch()
    assert _commit_of(spec, folder, out) == commit
    (folder / "reports" / "mine.py").touch()
    assert _commit_of(spec, folder, out) == f"{commit}+"
