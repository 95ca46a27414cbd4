"""Bisection finds a planted slow commit of sixteen: ten searches on a real rank, in repositories made for them."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.benchmarks.conftest import ROOT, Say
from tests.processes import python_path
from tests.repositories import EXPERIMENT, begin_repository, commit_training

pytestmark = pytest.mark.multiprocess
SEARCHES, COMMITS = 10, 16
STEP_S = 0.026
"""Approximate time of a step that sleeps for 25 ms, with its computation."""
SLEEP_S, PLANTED = 0.025, 0.08
LONGER = EXPERIMENT.replace("100 ms", "300 ms")


def searched(
    folder: Path, sleeps_s: list[float], experiment: str, total: str
) -> tuple[str, list[str], float]:
    """Search; return the result, the commits after the good one, and how long it took, seconds."""
    begin_repository(folder, sleep=SLEEP_S, experiment=experiment)
    commits = [
        commit_training(folder, f"number {number}", sleep=sleep, remark=number)
        for number, sleep in enumerate(sleeps_s)
    ]
    began = time.monotonic()
    done = subprocess.run(
        [
            *(sys.executable, "-m", "ddpbench", "bisect", "bench/step.toml", "fast", "main"),
            *("--out", str(folder.parent / "out"), "--total", total, "--json"),
        ],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": python_path(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    output = done.stdout if done.returncode in (0, 1) and done.stdout else done.stderr
    return output, commits, time.monotonic() - began


@pytest.mark.thorough
def test_a_slow_commit_of_sixteen_is_named(full: bool, say: Say, tmp_path: Path) -> None:
    """Bound: at least 9 of 10, for a step that takes 8 % longer from a random commit on; otherwise one search.

    Its training runs on one rank: `test_planted` measures how much noise of more ranks a search tolerates.

    tests/failures/test_interleave.py has a search of four.
    """
    if not full:
        output, commits, _ = searched(tmp_path / "project", [3 * SLEEP_S], EXPERIMENT, "1 min")
        assert json.loads(output)["commits"] == commits
        return
    dice, right = random.Random(16), 0
    for number in range(SEARCHES):
        guilty = dice.randrange(COMMITS)
        sleeps = [SLEEP_S + (PLANTED * STEP_S if index >= guilty else 0.0) for index in range(COMMITS)]
        output, commits, seconds = searched(tmp_path / str(number) / "project", sleeps, LONGER, "5 min")
        named = json.loads(output)["commits"] if output.startswith("{") else []
        right += named == [commits[guilty]]
        places = [commits.index(one) for one in named]
        say(f"commit {guilty} of {COMMITS}: named {places or output.strip()}, {seconds:.0f} s")
    say(f"a step that takes {PLANTED:.0%} longer from a commit on: named in {right} of {SEARCHES} searches")
    assert right >= 9
