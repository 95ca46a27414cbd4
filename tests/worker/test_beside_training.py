"""A launch's work in addition to its timed steps, on real ranks: evaluation, checkpoints, data in memory, workers."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pandas as pd
import pytest

from ddpbench.analysis import load, summarize
from ddpbench.launch.listener import Listener
from ddpbench.launch.sweep.preparation import SweepRequest, prepare
from ddpbench.launch.sweep.sweep import Sweep
from ddpbench.records import Block, Checkpoint, LaunchDir, RankStart, RunDir, StepRecord, Warmup, read_launch
from ddpbench.records.plan import read_plan
from tests.frames import framed
from tests.processes import nothing_left_behind

__all__ = ["nothing_left_behind"]

pytestmark = [pytest.mark.multiprocess, pytest.mark.usefixtures("nothing_left_behind")]

FILE = Path(__file__).parent / "slow_data.py"


def sweep(folder: Path, workload: str, rest: str, *, rounds: int = 1) -> RunDir:
    text = f"""
question = "What happens around training?"
[base]
{f'workload = "{FILE}:{workload}"' if workload else ""}
local_batch = 4
{rest}
[budget]
rounds_min = {rounds}
rounds_max = {rounds}
measured_s = "60 ms"
hang_timeout = "20 s"
"""
    path = folder / "beside.toml"
    path.write_text(text, encoding="utf-8")
    return Sweep(prepare(SweepRequest(experiment=path, out=folder / "run")), Listener()).run().run


def launches(run: RunDir) -> dict[str, LaunchDir]:
    """Return the first measuring launch of each case, by strategy."""
    folders = [next(iter(run.launches(path.name))) for path in sorted((run.path / "cases").iterdir())]
    return {directory.path.parent.name.partition("-")[0]: directory for directory in folders}


BOTH = 'evaluation = true\ncheckpoint = true\n[axes]\nstrategy = ["single", "ddp"]\nworld_size = [1, 2]\n'
NO_SINGLE_AT_2 = (
    '[[exclude]]\nstrategy = "single"\nworld_size = 2\n[[exclude]]\nstrategy = "ddp"\nworld_size = 1\n'
)


def test_evaluation_and_checkpoints_follow_the_training_of_one_rank_and_of_two(tmp_path: Path) -> None:
    run = sweep(tmp_path, "Small", BOTH + NO_SINGLE_AT_2)
    frame = load(run).set_index("strategy")
    assert list(frame["status"]) == ["ok", "ok"]
    for name in ("evaluation_samples_per_s", "snapshot_plain_s", "snapshot_dcp_s", "snapshot_bytes"):
        assert (frame[name] > 0).all(), name
    assert frame.loc["ddp", "params_equal"]
    for strategy, processes in (("single", 1), ("ddp", 2)):
        directory = launches(run)[strategy]
        assert not directory.checkpoints("", "").exists()
        records = read_launch(directory)
        assert len(records.ranks) == processes
        trained = max(step.end_ns for rank in records.ranks for step in rank.of(StepRecord))
        for rank in records.ranks:
            evaluated = [block for block in rank.of(Block) if block.phase == "evaluation"]
            saved = rank.of(Checkpoint)
            assert len(evaluated) >= 2
            assert all(block.steps >= 10 and block.start_ns > trained for block in evaluated)
            assert [checkpoint.method for checkpoint in saved] == ["plain"] * 3 + ["dcp"] * 3
            assert saved[0].start_ns > evaluated[-1].end_ns
            assert all(
                (checkpoint.bytes > 0) == (checkpoint.method == "dcp" or rank.rank == 0)
                for checkpoint in saved
            )
            assert all(
                (checkpoint.write_ns is None) == (checkpoint.method == "plain" and rank.rank > 0)
                for checkpoint in saved
            )
        # State that all ranks hold is written once: together they write as much as one rank alone.
        case_id = directory.path.parent.name
        (cost,) = (one for one in summarize(run).checkpoints if (one.case_id, one.method) == (case_id, "dcp"))
        assert cost.writers == processes
    sizes = framed(summarize(run).checkpoints).query("method == 'dcp'")["bytes"]
    assert max(sizes) < 1.5 * min(sizes)


def test_what_is_not_asked_for_is_not_done(tmp_path: Path) -> None:
    run = sweep(tmp_path, "Small", "strategy = 'single'\n")
    (rank,) = read_launch(launches(run)["single"]).ranks
    assert not rank.of(Checkpoint)
    assert {block.phase for block in rank.of(Block)} == {"warmup", "timed", "instrumented"}
    assert load(run)["evaluation_samples_per_s"].isna().all()


@pytest.mark.alone
def test_slow_data_is_called_input_bound_and_quick_data_is_not(tmp_path: Path) -> None:
    workloads = f"workload = ['{FILE}:SlowData', '{FILE}:QuickData']"
    rest = f"strategy = 'single'\n[axes]\n{workloads}\ndata = ['memory', 'loader']\n"
    summary = summarize(sweep(tmp_path, "", rest, rounds=5))
    inputs = (
        framed(summary.inputs).merge(summary.cases[["case_id", "workload"]]).set_index(["workload", "data"])
    )
    slow, quick = f"{FILE}:SlowData", f"{FILE}:QuickData"
    assert inputs.loc[(slow, "loader"), "verdict"] == "input-bound"
    assert inputs.loc[(slow, "loader"), "waited_s"] > 0.008  # four samples of 2 ms
    assert inputs.loc[(slow, "memory"), "waited_s"] < 0.002
    (input_bound,) = [finding for finding in summary.conclusions.findings if "is input-bound" in finding.line]
    assert input_bound.evidence == "inputs"
    assert "SlowData" in input_bound.line
    assert "is input-bound without loader workers" in input_bound.line
    assert inputs.loc[(quick, "loader"), "verdict"] != "input-bound"


@pytest.mark.thorough
def test_loader_workers_start_within_the_warm_up_and_end_with_the_rank(tmp_path: Path) -> None:
    run = sweep(tmp_path, "SlowData", "strategy = 'ddp'\nworld_size = 2\nloader_workers = 2\n")
    assert set(load(run)["status"]) == {"ok"}
    records = read_launch(launches(run)["ddp"])
    plan, outcome = read_plan(run), records.outcome
    assert outcome is not None
    assert outcome.run_id == plan.run_id != ""
    for rank in records.ranks:
        warmup = rank.last(Warmup)
        assert warmup is not None
        assert all(block.start_ns > warmup.end_ns for block in rank.of(Block))
        start = rank.last(RankStart)
        assert start is not None
        assert set(start.loader_cores).isdisjoint(start.cores)
        assert (start.case_id, start.round) == (outcome.case_id, outcome.round)
        assert (start.ranks, start.run_id) == (2, plan.run_id)


@pytest.mark.thorough
def test_a_rank_killed_while_it_saves_leaves_no_files(tmp_path: Path) -> None:
    run = sweep(tmp_path, "KilledWhileSaving", "strategy = 'single'\ncheckpoint = true\n")
    outcome = read_launch(launches(run)["single"]).outcome
    assert outcome is not None
    assert (outcome.status, outcome.phase) == ("failed", "checkpoints")
    assert "killed by SIGKILL in checkpoints" in outcome.error
    assert not launches(run)["single"].checkpoints("", "").exists()


@pytest.mark.thorough
@pytest.mark.root
def test_a_full_disk_fails_the_case_with_a_sentence_and_leaves_nothing(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root to mount a tmpfs")
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(disk)], check=True)
    try:
        rest = f"strategy = 'ddp'\nworld_size = 2\ncheckpoint = true\ncheckpoint_dir = '{disk}'\n"
        run = sweep(tmp_path, "Large", rest)
        frame = load(run).set_index("strategy")
        assert frame.loc["ddp", "status"] == "failed"
        error = frame.loc["ddp", "error"]
        assert f"a checkpoint could not be written to {disk}: No space left on device" in error
        assert pd.isna(frame.loc["ddp", "snapshot_plain_s"])
        assert list(disk.iterdir()) == []
    finally:
        subprocess.run(["umount", str(disk)], check=True)
