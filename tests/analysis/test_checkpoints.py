"""Cost of checkpoints: shares worked out by hand, and a case's columns from a few written launches."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from ddpbench.analysis import load, summarize
from ddpbench.analysis.checkpoints import checkpoint_runs, share, steps_for_share
from ddpbench.records import Checkpoint, RunDir
from ddpbench.spec import Budget
from tests.frames import framed
from tests.synthetic import MS, ORIGIN_NS, RankLaunch, case_of, write_launch, write_plan, write_sessions

DDP = case_of("ddp", 2)


def test_the_share_is_that_of_time_and_not_of_steps() -> None:
    # 2 s for a checkpoint and 100 steps of 0.18 s: 2 of 20 s
    assert share(2.0, 0.18, 100) == pytest.approx(0.1)
    assert share(2.0, 0.18, 10_000) == pytest.approx(2 / 1802)


@pytest.mark.parametrize(
    ("checkpoint_s", "step_s", "steps"),
    [
        (1.0, 0.1, 990),  # 99 s of steps for 1 s
        (1.0, 0.3, 330),
        (2.0, 0.7, 283),  # 198 / 0.7 = 282.9
        (0.0001, 1.0, 1),
    ],
)
def test_the_interval_for_one_per_cent(checkpoint_s: float, step_s: float, steps: int) -> None:
    assert steps_for_share(checkpoint_s, step_s) == steps
    assert share(checkpoint_s, step_s, steps) <= 0.01 + 1e-12
    if steps > 1:
        assert share(checkpoint_s, step_s, steps - 1) > 0.01


def checkpoint(start_ms: int, end_ms: int, *, size: int, write_ms: int | None, index: int = 0) -> Checkpoint:
    return Checkpoint(
        method="dcp",
        index=index,
        bytes=size,
        start_ns=start_ms * MS,
        end_ns=end_ms * MS,
        write_ns=None if write_ms is None else write_ms * MS,
    )


def test_a_checkpoint_runs_from_the_first_rank_to_the_last() -> None:
    ranks = [[checkpoint(0, 100, size=40, write_ms=80)], [checkpoint(2, 103, size=60, write_ms=90)]]
    run = checkpoint_runs(3, ranks, one_host=True)["dcp"]
    assert run.timing.time_s == pytest.approx(0.103)
    assert (run.timing.round, run.timing.steps) == (3, 1)
    assert (run.write_s, run.bytes, run.writers) == (pytest.approx(0.090), 100, 2)
    apart = checkpoint_runs(3, ranks, one_host=False)["dcp"]
    assert apart.timing.time_s == pytest.approx(0.101)


def test_a_checkpoint_that_a_rank_lacks_is_left_out() -> None:
    whole = [checkpoint(0, 10, size=1, write_ms=1), checkpoint(20, 90, size=1, write_ms=1, index=1)]
    run = checkpoint_runs(0, [whole, whole[:1]], one_host=True)["dcp"]
    assert run.timing.steps == 1
    assert run.timing.time_s == pytest.approx(0.010)
    assert checkpoint_runs(0, [whole, []], one_host=True) == {}


def launch(plain_ms: tuple[int, int], evaluation_ms: int = 4) -> list[RankLaunch]:
    """Return ranks that train at 10 ms per step; rank 1 begins and ends each checkpoint 1 ms later and never writes."""

    def checkpoints(late: int) -> list[tuple[str, int, int, int, int | None]]:
        first, second = plain_ms
        return [
            ("plain", 0 if late else 900, late * MS, (first + late) * MS, None if late else 5 * MS),
            (
                "plain",
                0 if late else 900,
                (200 + late) * MS,
                (200 + second + late) * MS,
                None if late else 7 * MS,
            ),
        ]

    return [
        RankLaunch(evaluation=[[evaluation_ms * MS] * 10] * 2, checkpoints=checkpoints(late))
        for late in (0, 1)
    ]


def test_the_columns_of_a_case(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "run")
    write_plan(run, [DDP], Budget(rounds_min=1, rounds_max=3))
    write_launch(run, DDP, 0, launch((99, 19)))
    write_launch(run, DDP, 1, launch((19, 19), evaluation_ms=8))
    write_launch(run, DDP, 2, launch((29, 19), evaluation_ms=6))
    write_sessions(run)
    (row,) = load(run).to_dict("records")
    assert row["step_time_s"] == pytest.approx(0.010)  # as if nothing had followed
    assert row["snapshot_plain_s"] == pytest.approx((30 + 20) / 2 / 1e3)  # the median launch's mean
    assert pd.isna(row["snapshot_plain_ci_low_s"])  # three launches
    assert row["snapshot_bytes"] == 900
    assert pd.isna(row["snapshot_dcp_s"])
    assert row["evaluation_step_time_s"] == pytest.approx(0.006)
    assert row["evaluation_samples_per_s"] == pytest.approx(16 / 0.006)  # 8 samples per step and rank
    summary = summarize(run)
    sentence = summary.conclusions.answer[0].text
    start = (
        "1 % of the time pays for a checkpoint of DDP at 2 ranks every 347 steps"  # 99 * 35 / 10, rounded up
    )
    assert sentence == f"{start}: it takes 25.0 ms by rank 0."
    (costs,) = framed(summary.checkpoints).to_dict("records")
    assert (costs["method"], costs["bytes"], costs["writers"]) == ("plain", 900, 1)
    assert (costs["checkpoints"], costs["launches"]) == (6, 3)
    assert costs["first_s"] == pytest.approx((100 + 20 + 30) / 3 / 1e3)
    assert costs["write_s"] == pytest.approx(0.006)
    # A share of all time uses the mean: (60 + 20 + 25) / 3 ms per checkpoint, though the median launch's is
    # 25.
    assert (costs["cost_s"], costs["cost_mean_s"]) == (pytest.approx(0.025), pytest.approx(0.035))
    assert costs["step_time_mean_s"] == pytest.approx(0.010)
    assert costs["share_100"] == pytest.approx(0.035 / (0.035 + 1.0))
    assert costs["share_1000"] == pytest.approx(0.035 / 10.035)
    assert costs["share_10000"] == pytest.approx(0.035 / 100.035)
    assert costs["steps_for_1_percent"] == 347  # 99 x 35 ms / 10 ms = 346.5


def test_a_run_that_asked_for_neither_has_empty_columns(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "run")
    write_plan(run, [DDP], Budget(rounds_min=1, rounds_max=1))
    write_launch(run, DDP, 0, [RankLaunch(), RankLaunch(start_ns=ORIGIN_NS)])
    frame = load(run)
    names = [
        name
        for name in frame.columns
        if name.startswith(("evaluation_", "snapshot_")) and name != "snapshot_every"
    ]
    assert len(names) == 13
    assert frame[names].isna().all().all()
    assert not summarize(run).checkpoints
