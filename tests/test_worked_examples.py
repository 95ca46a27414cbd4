"""The worked examples of one's own workload: they run, and a plain script needs few changed lines."""

from __future__ import annotations

import difflib
import os
import subprocess
import sys
from pathlib import Path

import pytest

import ddpbench

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "experiments"
BEFORE, AFTER = (EXAMPLES / f"own_script/train_{name}.py" for name in ("before", "after"))
MOST_CHANGED_LINES = 15


def test_the_script_was_not_written_for_this_tool() -> None:
    assert "ddpbench" not in BEFORE.read_text(encoding="utf-8")
    assert "ddpbench" not in AFTER.read_text(encoding="utf-8")


def test_few_lines_are_changed_and_those_are_added() -> None:
    before, after = (path.read_text(encoding="utf-8").splitlines() for path in (BEFORE, AFTER))
    changes = [line for line in difflib.ndiff(before, after) if line[0] in "+-"]
    assert 0 < len(changes) <= MOST_CHANGED_LINES
    assert all(line.startswith("+") for line in changes)


@pytest.mark.parametrize("script", [BEFORE, AFTER])
def test_the_script_still_runs_by_itself_and_learns_the_same(script: Path) -> None:
    result = subprocess.run(
        [sys.executable, script, "--epochs", "1", "--batch-size", "1024"],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert result.stdout.startswith("epoch 0: loss ")
    assert 0 < float(result.stdout.split()[3].rstrip(",")) < 9


@pytest.mark.multiprocess
@pytest.mark.parametrize("example", ["own_workload", "own_script"])
def test_the_example_is_proved_and_measured(
    example: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    fast = ["budget.rounds_min=1", "budget.rounds_max=1", "budget.measured_s=0.05", "axes.world_size=[1,2]"]
    frame = ddpbench.load(ddpbench.sweep(example, out=tmp_path / "run", overrides=fast))
    assert sorted(frame["strategy"]) == ["data_parallel", "ddp", "ddp", "master", "single"]
    assert set(frame["status"]) == {"ok"}
    expected = {"own_script": 800_257, "own_workload": 555_009}
    assert set(frame["parameters"]) == {expected[example]}
    assert (frame["flops_per_sample"] > 1e6).all()
