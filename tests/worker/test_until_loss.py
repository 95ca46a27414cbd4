"""A sweep that trains down to a loss: the launch's phase, its place in the table, and what a resume repeats."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddpbench.analysis import load
from ddpbench.launch.listener import Listener
from ddpbench.launch.plan import Plan
from ddpbench.launch.sweep.preparation import SweepRequest, prepare
from ddpbench.launch.sweep.sweep import Sweep
from ddpbench.records import Block, LaunchDir, LossCurve, RunDir, StepRecord, read_launch
from ddpbench.records.plan import read_plan
from ddpbench.spec import PlannedCase, TargetLoss
from tests.processes import nothing_left_behind

__all__ = ["nothing_left_behind"]

pytestmark = [pytest.mark.multiprocess, pytest.mark.usefixtures("nothing_left_behind")]

FILE = Path(__file__).parent / "small_task.py"
EXPERIMENT = f"""
question = "Who gets there first?"
[base]
workload = "{FILE}:Sides"
global_batch = 12
scaling = "strong"
[axes]
strategy = ["single", "independent", "ddp"]
world_size = [1, 2]
[[exclude]]
strategy = "single"
world_size = 2
[[exclude]]
strategy = ["ddp", "independent"]
world_size = 1
[budget]
rounds_min = 1
rounds_max = 1
measured_s = "60 ms"
hang_timeout = "20 s"
until_loss = 0.5
until_steps = 400
until_s = "200 s"
"""


class Estimates(Listener):
    """Records the reported time left."""

    def __init__(self) -> None:
        self.first_s = 0.0
        self.left_s: list[float] = []
        self.launched: list[str] = []

    def planned(self, plan: Plan, run: RunDir, done: int, estimate_s: float) -> None:
        self.first_s = estimate_s

    def launch_started(self, entry: PlannedCase, what: str, done: int, total: int, left_s: float) -> None:
        self.left_s.append(left_s)
        self.launched.append(f"{entry.case.strategy} {what}")


def test_a_sweep_trains_to_a_loss_after_its_measured_steps_and_resumes(tmp_path: Path) -> None:
    path, out = tmp_path / "until.toml", tmp_path / "run"
    path.write_text(EXPERIMENT, encoding="utf-8")
    heard = Estimates()
    run = Sweep(prepare(SweepRequest(experiment=path, out=out)), heard).run().run
    assert heard.first_s > 3 * 200  # before any launch: as if each took all of its seconds
    assert heard.left_s[-1] < 200  # and then what launches took
    assert read_plan(run).budget.target_loss == TargetLoss(loss=0.5, steps=400, seconds=200.0)

    frame = load(run).set_index("strategy")
    assert set(frame["status"]) == {"ok"}
    trained = frame.loc[["single", "ddp"]]
    assert (trained["target_loss"] == 0.5).all()
    assert (trained["time_to_loss_s"] > 0).all()
    assert trained["steps_to_loss"].between(32, 399).all()
    assert trained["steps_to_loss"].nunique() == 1  # the same batches, and the same curve
    assert (trained["samples_to_loss"] == 12 * trained["steps_to_loss"]).all()
    assert frame.loc["ddp", "speedup_to_loss"] == pytest.approx(
        frame.loc["single", "time_to_loss_s"] / frame.loc["ddp", "time_to_loss_s"]
    )
    assert frame.loc["independent"][["target_loss", "time_to_loss_s"]].isna().all()

    for case_id in trained["case_id"]:
        records = read_launch(next(iter(run.launches(case_id))))
        assert not records.damage
        for rank in records.ranks:
            curve = rank.of(LossCurve)
            assert curve[0].start_ns > max(block.end_ns for block in rank.of(Block))
            assert curve[0].start_ns > max(step.end_ns for step in rank.of(StepRecord))

    launch = next(iter(run.launches(frame.loc["ddp", "case_id"])))
    before = losses_of(launch)
    launch.outcome.unlink()
    again = Estimates()
    resumed = Sweep(prepare(SweepRequest(experiment=out)), again).run()
    assert resumed.launches == 1
    assert again.launched == ["ddp round 1"]
    assert again.left_s[0] < 200  # as long as launches took before
    after = losses_of(launch)
    steps = min(len(before), len(after))  # how long a group is follows from the time that steps take
    assert before[:steps] == after[:steps]  # every launch begins with the same model and first batch
    assert load(run).set_index("strategy").loc["ddp", "steps_to_loss"] == trained.loc["ddp", "steps_to_loss"]


def losses_of(launch: LaunchDir) -> list[float]:
    """Return rank 0's losses."""
    return [loss for part in read_launch(launch).ranks[0].of(LossCurve) for loss in part.losses]
