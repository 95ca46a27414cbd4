"""The worked examples of a user's workload: they run, and a plain script needs few changed lines."""

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
SCRIPTS = ["train", "cnn", "gpt", "gan"]
MOST_CHANGED_LINES = 15


def script(name: str, when: str) -> Path:
    return EXAMPLES / f"own_script/{name}_{when}.py"


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_script_was_not_written_for_this_tool(name: str) -> None:
    assert "ddpbench" not in script(name, "before").read_text(encoding="utf-8")
    assert "ddpbench" not in script(name, "after").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", SCRIPTS)
def test_few_lines_are_changed_and_those_are_added(name: str) -> None:
    before, after = (
        script(name, when).read_text(encoding="utf-8").splitlines() for when in ("before", "after")
    )
    changes = [line for line in difflib.ndiff(before, after) if line[0] in "+-"]
    assert 0 < len(changes) <= MOST_CHANGED_LINES
    assert all(line.startswith("+") for line in changes)


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_script_still_runs_by_itself(name: str) -> None:
    result = subprocess.run(
        [sys.executable, script(name, "after"), "--epochs", "1"],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert result.stdout.startswith("epoch 0: loss ")
    assert 0 < float(result.stdout.split()[3].rstrip(",")) < 9


@pytest.mark.multiprocess
@pytest.mark.thorough
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


@pytest.mark.thorough
@pytest.mark.multiprocess
def test_clipping_schedules_autocast_and_two_optimizers_are_proved_and_measured(tmp_path: Path) -> None:
    names = [f"{script(name, 'after')}:Measured" for name in SCRIPTS[1:]]
    path = tmp_path / "own.toml"
    path.write_text(
        f"""
question = "Do users' loops run?"
[base]
local_batch = 8
world_size = 2
strategy = "ddp"
[axes]
workload = {names}
[budget]
rounds_min = 1
rounds_max = 1
measured_s = "50 ms"
""",
        encoding="utf-8",
    )
    frame = ddpbench.load(ddpbench.sweep(path, out=tmp_path / "run"))
    assert set(frame["workload"]) == set(names)
    assert set(frame["status"]) == {"ok"}, frame["error"].tolist()
    assert (frame["optimizer_time_s"] > 0).all()
    assert (frame["backward_time_s"] > 0).all()
