"""Environment variables of an experiment in real ranks: set before a rank imports anything, under every launcher."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

import ddpbench
from ddpbench.records import RankStart, RunDir, read_launch
from tests.failures.conftest import run_cli
from tests.failures.launchers import agents, await_all, plan, start

pytestmark = pytest.mark.multiprocess

SCRIPT = '''
import os
from pathlib import Path
import torch
from torch import nn

at_start = dict(
    line.split("=", 1) for line in Path("/proc/self/environ").read_text().split("\\0") if "=" in line
)
assert os.environ.get("TEST_WIDTH") == at_start.get("TEST_WIDTH")
WIDTH = int(at_start.get("TEST_WIDTH", 3))


class Measured:
    """A model as wide as the variable said when the process started."""

    batch = 4

    def model(self):
        return nn.Linear(2, WIDTH, bias=False)

    def dataset(self):
        return torch.utils.data.TensorDataset(torch.randn(256, 2))

    def loss(self, model, batch):
        return model(batch[0]).square().mean()
'''
TEXT = """
[base]
strategy = "ddp"
world_size = 2
workload = "{script}:Measured"
[axes]
"env.TEST_WIDTH" = ["5", ""]
[budget]
rounds_min = 1
rounds_max = 1
measured_s = "60 ms"
"""


@pytest.fixture
def experiment(tmp_path: Path) -> Path:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT, encoding="utf-8")
    path = tmp_path / "widths.toml"
    path.write_text(TEXT.format(script=script), encoding="utf-8")
    return path


def parameters(run: Path) -> dict[tuple[str, str], int]:
    frame = ddpbench.load(run)
    assert set(frame["status"]) == {"ok"}, frame[["case_id", "status", "error"]].to_string()
    return {(row.strategy, row.env_json): row.parameters for row in frame.itertuples()}


EXPECTED = {
    (strategy, f'{{"TEST_WIDTH": "{value}"}}'): 2 * width
    for strategy in ("ddp", "single")
    for value, width in (("5", 5), ("", 3))
}
"""The shell's own value, 9, reaches no rank."""


def test_a_sweeps_ranks_have_the_variables_from_their_start(experiment: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    done = run_cli("sweep", experiment, "--out", run, TEST_WIDTH="9")
    assert done.returncode == 0, done.stderr
    assert parameters(run) == EXPECTED
    page = (run / "report.html").read_text(encoding="utf-8")
    assert "TEST_WIDTH=5" in page


@pytest.mark.thorough
def test_torchruns_ranks_have_them_too(
    experiment: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TEST_WIDTH", "9")
    run = plan(experiment, tmp_path / "run", nodes=1, ranks=2)
    ended = await_all(agents([run], ranks=2))
    assert [one.code for one in ended] == [0], ended
    assert parameters(run) == EXPECTED


@pytest.mark.thorough
def test_a_rank_that_another_launcher_started_has_them_too(experiment: Path, tmp_path: Path) -> None:
    run = plan(experiment, tmp_path / "run", nodes=1, ranks=2)
    cases = json.loads((run / "plan.json").read_text(encoding="utf-8"))["cases"]
    for case in cases:
        if case["strategy"] != "single":
            continue
        place = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "TEST_WIDTH": "9"}
        started = [sys.executable, "-m", "ddpbench.worker", run, case["case_id"], "0"]
        (ended,) = await_all([start(started, place)])
        assert ended.code == 0, ended.stderr
        (rank,) = read_launch(RunDir(run).launch(case["case_id"], "measure", 0)).ranks
        record = rank.last(RankStart)
        assert record is not None
        assert record.parameters == EXPECTED["single", case["env_json"]]
