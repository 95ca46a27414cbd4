"""The plugin's gate against other code, interleaved with a test's own: commits, folders, interpreters."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.failures.conftest import ROOT, worker_processes
from tests.failures.test_interleave import TRAIN, git
from tests.processes import python_path

pytestmark = pytest.mark.multiprocess

SUITE = """
def test_step(ddp_benchmark):
    ddp_benchmark(workload="train.py:Measured", strategy="single", world_size=1, local_batch=8)
"""


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """Make a suite whose step became slower by half with its last, uncommitted change; `empty` has no workload."""
    folder = tmp_path / "project"
    (folder / "tests").mkdir(parents=True)
    (folder / "pytest.ini").write_text("[pytest]\n")
    git(folder, "init", "-q", "-b", "main")
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", "empty")
    git(folder, "tag", "empty")
    (folder / "tests" / "train.py").write_text(TRAIN.format(sleep=0.004))
    (folder / "tests" / "test_steps.py").write_text(SUITE)
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", "fast")
    git(folder, "tag", "fast")
    (folder / "tests" / "train.py").write_text(TRAIN.format(sleep=0.006))
    return folder


def gate(folder: Path, *words: str, code: int) -> str:
    """Return what pytest prints of the suite with a gate of 3 %; check that it exits with this code."""
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:xdist"),
            *("--ddpbench-gate=3%", "--ddpbench-measured=0.05", *words),
        ],
        cwd=folder,
        env={name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
        | {"PYTHONPATH": python_path(ROOT)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == code, done.stdout + done.stderr
    assert not worker_processes()
    return done.stdout + done.stderr


@pytest.mark.thorough
def test_a_change_that_is_slower_than_its_commit_fails_its_test(repository: Path) -> None:
    saved = repository.parent / "now.json"
    said = gate(repository, "--ddpbench-baseline=ref=fast", f"--benchmark-json={saved}", code=1)
    assert f"base (ref=fast) against new (path={repository}), interleaved" in said
    assert "test_steps.py::test_step: slower by more than 3 %: +" in said
    assert "rounds)" in said
    assert f"new: {repository} has uncommitted changes or new files, which are measured too" in said
    (one,) = json.loads(saved.read_text())["benchmarks"]
    assert one["stats"]["rounds"] >= 5
    assert one["stats"]["median"] == pytest.approx(
        one["extra_info"]["step_time_s"]
    )  # the new side's launches
    assert one["stats"]["min"] > 0.006
    changed = git(repository, "status", "--porcelain").splitlines()
    assert [line for line in changed if "__pycache__" not in line] == ["M tests/train.py"]


@pytest.mark.thorough
def test_a_faster_checkout_of_the_same_case_passes_from_a_folder_below(repository: Path) -> None:
    """The workload is the checkout's own, from any folder of the repository in which pytest is started."""
    checkout = repository.parent / "checkout"
    git(repository, "worktree", "add", "-q", str(checkout), "fast")
    (checkout / "tests" / "train.py").write_text(TRAIN.format(sleep=0.03))
    said = gate(repository / "tests", f"--ddpbench-baseline={checkout}", code=0)
    assert "test_step: faster: " in said
    assert f"base: {checkout} has uncommitted changes or new files, which are measured too" in said


SAYS_TURNS = """
import ddpbench.launch.interleave.compare as told
from ddpbench.errors import LaunchError

def stop(asked, listener):
    raise LaunchError(f"in turn: {asked.turns}")

told.interleave = stop
"""


@pytest.mark.parametrize("words", [(), ("--ddpbench-turns=launches",)])
def test_the_gate_takes_turns_in_what_it_is_told(repository: Path, words: tuple[str, ...]) -> None:
    (repository / "tests" / "conftest.py").write_text(SAYS_TURNS)
    said = gate(repository, "--ddpbench-baseline=ref=fast", *words, code=1)
    assert f"in turn: {'launches' if words else 'blocks'}" in said


WORKS_ELSEWHERE = """
import os
from pathlib import Path
import pytest
import ddpbench.launch.interleave.compare as told
from ddpbench.errors import LaunchError

def pytest_configure(config):
    os.chdir("/")

@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    yield
    assert Path.cwd() == tmp_path

def stop(asked, listener):
    raise LaunchError(f"{asked.base.words} in {Path.cwd()} against {asked.new.path}")

told.interleave = stop
"""


def test_tests_that_work_in_another_folder_are_compared_with_their_own_commits(repository: Path) -> None:
    (repository / "tests" / "conftest.py").write_text(WORKS_ELSEWHERE)
    said = gate(repository, "--ddpbench-baseline=ref=fast", code=1)
    assert f"base (ref=fast) in {repository} against {repository}\n" in said, said


@pytest.mark.thorough
def test_another_interpreter_is_a_side_and_time_ends_it(repository: Path) -> None:
    words = (f"--ddpbench-baseline=python={sys.executable}", "--ddpbench-total=1 s", "--ddpbench-rounds=6")
    said = gate(repository, *words, code=1)
    assert f"base (python={sys.executable}) against new, interleaved" in said
    assert "test_step: cannot tell: too few rounds: 1 of 5 at least" in said
    assert "only 1 of the 6 rounds that were planned: there was no time for more" in said
    assert "no test could be judged, so the gate was not passed" in said
    assert "1 undecided in" in said
    assert "passed in" not in said


@pytest.mark.thorough
def test_what_the_base_cannot_run_is_measured_and_said(repository: Path) -> None:
    """For example a new test, or a commit that lacks what it needs; a gate of nothing else does not pass."""
    said = gate(repository, "--ddpbench-baseline=ref=empty", "--ddpbench-rounds=3", code=1)
    assert "test_step: not comparable: base (ref=empty): " in said
    assert "there is no file" in said
    assert "1 undecided in" in said
    assert "passed in" not in said
    assert "no test could be judged" in said


def test_what_is_no_other_side_is_refused_before_anything_is_measured(repository: Path) -> None:
    said = gate(repository, "--ddpbench-baseline=ref=nope", code=4)
    assert "--ddpbench-baseline ref=nope: " in said
    assert "has no such commit" in said
