"""The fixture in somebody's own test suite: run by pytest in a process of its own, on real ranks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ddpbench.analysis.regression.gate import Gated, gated
from ddpbench.errors import IdentityError, RequestError

pytestmark = pytest.mark.multiprocess
ROOT = Path(__file__).parents[1]
TRAIN = """
import time, torch
from torch import nn

class Measured:
    def model(self):
        return nn.Linear(8, 2)

    def dataset(self):
        generator = torch.Generator().manual_seed(0)
        return torch.utils.data.TensorDataset(
            torch.randn(256, 8, generator=generator), torch.randint(0, 2, (256,), generator=generator)
        )

    def loss(self, model, batch):
        time.sleep(0.002)
        return nn.functional.cross_entropy(model(batch[0]), batch[1])

    def optimizer(self, parameters):
        return torch.optim.SGD(parameters, lr=0.1)
"""
SUITE = """
import pytest

@pytest.mark.parametrize("world_size", [1, 2])
def test_step(ddp_benchmark, world_size):
    row = ddp_benchmark(workload="train.py:Measured", strategy="ddp", world_size=world_size, local_batch=4)
    assert row["world_size"] == world_size
    assert row["step_time_s"] > 0.002

def test_typo(ddp_benchmark):
    ddp_benchmark(workload="train.py:Measured", strategy="ddq")
"""


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "train.py").write_text(TRAIN)
    (tmp_path / "tests" / "test_steps.py").write_text(SUITE)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    return tmp_path


def run_pytest(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *words],
        cwd=folder,
        env={name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
        | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def test_a_suite_saves_compares_and_gates(suite: Path) -> None:
    saved = suite / "base.json"
    first = run_pytest(suite, f"--benchmark-json={saved}", "--ddpbench-measured=0.05")
    assert "2 passed, 1 error" in first.stdout or "1 failed, 2 passed" in first.stdout, first.stdout
    assert "did you mean 'ddp'?" in first.stdout
    data = {one["name"]: one for one in json.loads(saved.read_text())["benchmarks"]}
    assert set(data) == {"test_step[1]", "test_step[2]"}
    for one in data.values():
        assert one["stats"]["rounds"] == 5
        assert one["stats"]["mean"] == pytest.approx(one["extra_info"]["step_time_s"])
        assert one["stats"]["data"] == pytest.approx(one["extra_info"]["steps_s"])
        assert one["extra_info"]["identity"]["torch"]
    gate = (
        "--ddpbench-gate=3%",
        f"--ddpbench-baseline={saved}",
        "--ddpbench-measured=0.05",
        "-k",
        "test_step and 1",
    )
    again = run_pytest(suite, *gate)
    assert again.returncode == 0, again.stdout
    assert "ddpbench gate" in again.stdout
    assert "test_step[1]: " in again.stdout
    # Ten times as long: seen on a loaded machine, too.
    (suite / "tests" / "train.py").write_text(TRAIN.replace("0.002", "0.020"))
    slow = run_pytest(suite, *gate)
    assert slow.returncode == 1, slow.stdout
    assert "slower by more than 3 %" in slow.stdout


def test_disabled_it_only_sees_that_it_works(suite: Path) -> None:
    done = run_pytest(suite, "--benchmark-disable", "-k", "test_step and 1")
    assert done.returncode == 0, done.stdout
    assert "1 passed" in done.stdout


def test_two_at_once_wait_for_each_other(suite: Path) -> None:
    """pytest-benchmark disables itself beside xdist; what still runs does not measure the other, and that is said."""
    done = run_pytest(suite, "-n", "2", "-k", "test_step and not typo")
    assert done.returncode == 0, done.stdout
    assert "2 passed" in done.stdout
    assert "2 tests ran once and measured nothing" in done.stdout


def test_a_gate_that_could_not_fail_is_refused(suite: Path) -> None:
    saved = suite / "base.json"
    saved.write_text(json.dumps({"benchmarks": []}))
    for words, sentence in (
        (("--ddpbench-gate=3%",), "needs --ddpbench-baseline FILE"),
        (("--ddpbench-gate=3%", "--ddpbench-baseline=none.json"), "there is no such file"),
        (("--ddpbench-gate=much", f"--ddpbench-baseline={saved}"), "give a share such as 3%"),
        (("--ddpbench-gate=3%", f"--ddpbench-baseline={saved}", "-n", "2"), "beside pytest-xdist"),
        (("--ddpbench-gate=3%", f"--ddpbench-baseline={saved}", "--benchmark-disable"), "leave one out"),
        (("--ddpbench-gate=3%", *[f"--ddpbench-baseline={saved}"] * 2), "given twice"),
    ):
        done = run_pytest(suite, *words)
        assert done.returncode == 4, (words, done.stdout)
        assert sentence in done.stdout + done.stderr, (words, done.stdout, done.stderr)
    gate = ("--ddpbench-gate=3%", f"--ddpbench-baseline={saved}", "--ddpbench-measured=0.05")
    nothing = run_pytest(suite, *gate, "-k", "test_step and 1")
    assert nothing.returncode == 1, nothing.stdout
    assert "1 passed" in nothing.stdout
    assert "nothing could be judged: the gate has not been passed" in nothing.stdout


def test_a_tests_own_group_leaves_the_measured_time(suite: Path) -> None:
    own = SUITE.replace(
        "@pytest.mark.parametrize", "@pytest.mark.benchmark(min_rounds=7)\n@pytest.mark.parametrize"
    )
    (suite / "tests" / "test_steps.py").write_text(own)
    saved = suite / "base.json"
    done = run_pytest(suite, f"--benchmark-json={saved}", "--ddpbench-measured=0.05", "-k", "test_step and 1")
    assert done.returncode == 0, done.stdout
    (one,) = json.loads(saved.read_text())["benchmarks"]
    assert one["stats"]["mean"] == pytest.approx(one["extra_info"]["step_time_s"])
    assert one["options"]["min_rounds"] == 7


def test_what_a_gate_refuses(tmp_path: Path) -> None:
    steps, here = [0.1, 0.101, 0.102, 0.1, 0.099], {"torch": "2"}
    path = tmp_path / "base.json"

    def judged(test: str, steps_s: list[float], *paths: Path, **row: object) -> Gated:
        return gated(test, steps_s, row=row, identity=here, baselines=paths or [path], limit=0.03)

    with pytest.raises(RequestError, match="there is no such file"):
        judged("t", steps)
    path.write_text("{}")
    with pytest.raises(IdentityError, match="has no benchmarks"):
        judged("t", steps)
    path.write_text("not json")
    with pytest.raises(IdentityError, match="is no file of pytest-benchmark"):
        judged("t", steps)

    def saved(steps_s: object, torch: str = "2", **row: object) -> None:
        extra = {"steps_s": steps_s, "identity": {"torch": torch, "workload_digest": "other"}, **row}
        path.write_text(
            json.dumps({"benchmarks": [{"name": "t", "fullname": "a.py::t", "extra_info": extra}]})
        )

    saved(steps, torch="3")
    with pytest.raises(IdentityError, match="torch: '3' there, '2' here"):
        judged("a.py::t", steps)
    for wrong in ([0.1, "x"], [0.1, -1.0], "none", [float("nan")] * 5):
        saved(wrong)
        with pytest.raises(IdentityError, match="are no times"):
            judged("a.py::t", steps)
    saved(steps, local_batch=4)
    other = judged("a.py::t", steps, local_batch=8)
    assert (other.ratio, other.fails) == (None, False)
    assert "local_batch 4 there, 8 here" in other.sentence
    saved(steps)
    assert "no baseline has it" in judged("b.py::t", steps).sentence  # another file's test of that name
    assert "cannot tell" in judged("a.py::t", [1.05 * step for step in steps]).sentence
    worse = judged("a.py::t", [1.3 * step for step in steps])
    assert worse.fails
    assert "+30" in worse.sentence
    few = judged("a.py::t", [1.3 * step for step in steps[:3]])
    assert (few.ratio, few.fails) == (None, False)
