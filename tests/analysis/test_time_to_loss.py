"""Trainings to a loss: times, samples and speed-ups against those worked out by hand from written records."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from ddpbench.analysis import RunSummary, load, summarize
from ddpbench.analysis.findings.families import Families
from ddpbench.analysis.read.cases import read_cases
from ddpbench.analysis.statistics.interval import Interval
from ddpbench.analysis.statistics.judgement import plain
from ddpbench.analysis.time_to_loss import MOST_POINTS
from ddpbench.records import RunDir
from ddpbench.records.plan import read_plan
from ddpbench.spec import Budget, Case
from tests.synthetic import MS, RankLaunch, alternate, case_of, write_launch, write_plan, write_sessions

SINGLE = case_of("single", 1)
DDP, MASTER, MANY = case_of("ddp", 2), case_of("master", 2), case_of("ddp", 2, bucket_cap_mb=1.0)
STRONG = case_of("ddp", 2, local_batch=4, global_batch=8, scaling="strong")
STRONG_SINGLE = case_of("single", 1, scaling="strong")
T4 = 2.776445105  # t(0.975, 4)


def falling(high: int, low: int) -> list[float]:
    """Return a loss of 3 for `high` steps, then of 1 for `low`."""
    return [3.0] * high + [1.0] * low


def rank(
    step_ms: float,
    losses: Sequence[float],
    *,
    late_ms: float = 0,
    group: int = 30,
    **changes: Any,
) -> RankLaunch:
    """Return a rank that trains in groups of steps, with 50 ms of agreeing between them, starting `late_ms` later."""
    step_ns, curve, at = int(step_ms * MS), [], 10 * MS
    for start in range(0, len(losses), group):
        part = losses[start : start + group]
        curve.append((at + int(late_ms * MS), [step_ns] * len(part), part))
        at += len(part) * step_ns + 50 * MS
    return RankLaunch(blocks=[[step_ns] * 10], curve=curve, **changes)


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    return RunDir(tmp_path / "run")


def write(run: RunDir, launches: dict[Case, Sequence[Sequence[RankLaunch]]], rounds: int) -> RunSummary:
    """Write each case's ranks, round by round."""
    write_plan(run, list(launches), Budget(rounds_min=1, rounds_max=rounds, until_loss=2.0))
    for case, by_round in launches.items():
        for number, ranks in enumerate(by_round):
            write_launch(run, case, number, ranks)
    write_sessions(run)
    return summarize(run)


def row_of(run: RunDir, case: Case) -> dict[str, Any]:
    frame = load(run)
    (row,) = frame[frame["case_id"] == case.case_id].to_dict("records")
    return row


def test_the_time_to_a_loss_runs_to_the_slowest_rank_without_the_agreeing_between_groups(run: RunDir) -> None:
    """A single device: 32 steps are half below and half above 2 at step 56. Two ranks, batches twice as large: over 16
    steps, at step 28. With 30 steps and a second group's 26 the 50 ms between them are not counted.
    """
    write(
        run,
        {
            SINGLE: [[rank(10, falling(40, 25))]],
            DDP: [[rank(8, falling(20, 15)), rank(8, falling(20, 15), late_ms=2)]],
        },
        1,
    )
    base, row = row_of(run, SINGLE), row_of(run, DDP)
    assert (base["steps_to_loss"], base["samples_to_loss"]) == (56, 56 * 8)
    assert base["time_to_loss_s"] == pytest.approx(0.560)
    assert (row["steps_to_loss"], row["samples_to_loss"]) == (28, 28 * 16)
    assert row["time_to_loss_s"] == pytest.approx(28 * 0.008 + 0.002)
    assert (base["speedup_to_loss"], row["speedup_to_loss"]) == (1.0, pytest.approx(0.560 / 0.226))
    assert base["target_loss"] == row["target_loss"] == 2.0
    assert row["lowest_loss"] == pytest.approx((3 + 15 * 1) / 16)
    assert pd.isna(row["time_to_loss_ci_low_s"])


def test_a_steps_loss_is_the_mean_over_ranks_that_know_one(run: RunDir, violating: None) -> None:
    case = case_of(
        "ddp", 3
    )  # twelve steps' samples are nearly those of 32 steps of one device: 11 are averaged
    losses = [[4.0] * 20, [0.5] * 20]
    ranks = [rank(10, [], samples_per_step=0), *(rank(10, own) for own in losses)]
    silent = replace(ranks[0], curve=[(10 * MS, [10 * MS] * 20, [])])
    write(run, {case: [[silent, *ranks[1:]]]}, 1)
    row = row_of(run, case)
    assert row["lowest_loss"] == pytest.approx(2.25)
    assert pd.isna(row["time_to_loss_s"])


def test_across_hosts_a_step_ends_when_its_slowest_ranks_does(run: RunDir) -> None:
    far = rank(9, falling(20, 15), start_ns=77, host="node-2")
    write(run, {DDP: [[rank(8, falling(20, 15)), far]]}, 1)
    assert row_of(run, DDP)["time_to_loss_s"] == pytest.approx(28 * 0.009)


def test_the_speed_up_to_a_loss_is_paired_within_rounds(run: RunDir) -> None:
    drift, ratios = [1.0, 1.4, 0.9, 1.2, 1.1], [1.60, 1.62, 1.58, 1.61, 1.59]
    singles = [[rank(10 * f, falling(40, 25))] for f in drift]
    both = [
        [rank(20 * f / r, falling(20, 15))] * 2 for f, r in zip(drift, ratios, strict=True)
    ]  # 28 steps of twice the time over 56
    write(run, {SINGLE: singles, DDP: both}, 5)
    row = row_of(run, DDP)
    times = [28 * int(20 * MS * f / r) for f, r in zip(drift, ratios, strict=True)]
    logs = [math.log(ratio) for ratio in ratios]
    speedup = math.exp(sum(logs) / 5)  # not of totals, in which a slow round would weigh more
    half = T4 * math.sqrt(sum((x - sum(logs) / 5) ** 2 for x in logs) / 4 / 5)
    assert row["speedup_to_loss"] == pytest.approx(speedup)
    assert row["speedup_to_loss_ci_low"] == pytest.approx(speedup * math.exp(-half), rel=1e-5)
    assert row["speedup_to_loss_ci_high"] == pytest.approx(speedup * math.exp(half), rel=1e-5)
    assert row["time_to_loss_s"] == pytest.approx(sorted(times)[2] / 1e9)


def test_the_speed_up_to_a_loss_of_another_group_is_taken_through_the_anchor(run: RunDir) -> None:
    """The machine is half as fast in the second group, among which the anchor trains to the loss."""
    anchor = replace(rank(20, falling(40, 25)), blocks=[[10 * MS] * 10, [20 * MS] * 10])
    launches = {
        SINGLE: [anchor],
        DDP: [rank(8, falling(20, 15))] * 2,
        MASTER: [rank(32, falling(20, 15))] * 2,
    }
    write_plan(run, list(launches), Budget(rounds_min=1, rounds_max=1, until_loss=2.0))
    for case, ranks in launches.items():
        path = write_launch(run, case, 0, ranks)
        if case is SINGLE:
            alternate(path, [[DDP], [MASTER]], (0, 1))
        else:
            alternate(path, [[SINGLE]])
    write_sessions(run)
    summarize(run)
    assert row_of(run, DDP)["speedup_to_loss"] == pytest.approx(56 * 10 / (28 * 8))
    assert row_of(run, MASTER)["speedup_to_loss"] == pytest.approx(56 * 10 / (28 * 16))
    assert row_of(run, SINGLE)["time_to_loss_s"] == pytest.approx(56 * 0.020), "its own time stays"


def test_a_loss_that_one_launch_missed_has_no_time_and_is_told(run: RunDir) -> None:
    rounds = [[rank(10, falling(40, 25))], [rank(10, falling(60, 5))]]
    summary = write(run, {SINGLE: rounds}, 2)
    row = row_of(run, SINGLE)
    assert row["target_loss"] == 2.0
    assert all(
        pd.isna(row[name])
        for name in ("time_to_loss_s", "samples_to_loss", "steps_to_loss", "speedup_to_loss")
    )
    # at their ends 25 of 32 steps and 5 of 32 have a loss of 1
    lowest = min((7 * 3 + 25) / 32, (27 * 3 + 5) / 32)
    assert row["lowest_loss"] == pytest.approx(lowest)
    (sentence,) = [text for text in summary.conclusions.validity if "did not reach the loss of 2" in text]
    assert f"1 of 2 launches did, lowest mean loss {lowest:.3g} in up to 65 steps" in sentence


def test_a_case_that_was_not_asked_has_no_curve(run: RunDir) -> None:
    summary = write(run, {SINGLE: [[RankLaunch()]]}, 1)
    assert not summary.training.loss_curves
    assert not summary.training.time_to_loss
    assert pd.isna(row_of(run, SINGLE)["target_loss"])


def test_ranks_whose_groups_differ_give_no_curve(run: RunDir) -> None:
    torn = rank(8, falling(20, 15))
    write(run, {DDP: [[rank(8, falling(20, 15)), replace(torn, curve=torn.curve[:1])]]}, 1)
    assert pd.isna(row_of(run, DDP)["target_loss"])


def test_one_devices_losses_are_those_of_the_same_batch(run: RunDir) -> None:
    near = [loss * (1 + 1e-6 * (number == 7)) for number, loss in enumerate(falling(40, 25))]
    far = [loss * (1 + 0.5 * (number > 25)) for number, loss in enumerate(near)]  # later than is compared
    launches = {
        STRONG_SINGLE: [[rank(10, falling(40, 25))]],
        STRONG: [[rank(6, far, samples_per_step=4)] * 2],
        DDP: [[rank(8, falling(20, 15))] * 2],
    }
    found = {one.case_id: one for one in write(run, launches, 1).training.time_to_loss}
    assert found[STRONG.case_id].one_device_case_id == STRONG_SINGLE.case_id
    assert found[STRONG.case_id].apart == pytest.approx(1e-6, rel=1e-3)
    assert found[DDP.case_id].one_device_case_id is None  # its batch is twice as large
    assert found[DDP.case_id].batch == 16
    assert found[STRONG_SINGLE.case_id].apart is None


def test_a_curve_is_the_mean_over_launches_thinned_out(run: RunDir) -> None:
    long = [3.0 - number / 1000 for number in range(900)]
    rounds = [[rank(step, long, group=100)] for step in (10, 12)]
    curve = write(run, {SINGLE: rounds}, 2).training.loss_curves
    assert len(curve) == MOST_POINTS
    assert all(point.samples == 8 * point.step for point in curve)
    first, last = curve[0], curve[-1]
    assert (first.step, last.step) == (32, 900)
    assert first.loss == pytest.approx(3.0 - 31 / 2 / 1000)
    assert last.time_s == pytest.approx(900 * 0.011)


def test_a_finding_tells_where_the_faster_per_sample_is_the_later_one(run: RunDir) -> None:
    """Twice the batch trains 1.25 times as many samples per second, but needs as many steps."""
    wobble = [1.0, 1.01, 0.99, 1.005, 0.995]
    launches: dict[Case, Any] = {
        SINGLE: [[rank(10 * f, falling(40, 25))] for f in wobble],
        DDP: [[rank(16 * f, falling(50, 25))] * 2 for f in wobble],
    }
    findings = [
        one.line for one in write(run, launches, 5).conclusions.findings if one.evidence == "time-to-loss"
    ]
    # 56 steps of 10 ms to the loss, against 58 (over 16 steps) of 16 ms
    assert findings[0].startswith(
        "DDP at 2 ranks trains 1.25 [1.25, 1.25] times as many samples/s as single at 1 rank"
    )
    assert "but takes 1.66 [1.66, 1.66] times as long to a loss of 2" in findings[0]
    assert "is 1.25 [1.25, 1.25] times as fast as single per sample, but 0.603" in findings[1]
    assert "0.603 [0.603, 0.603] times as fast to loss 2 (0.928 [" in findings[1]
    assert "; 16 and 8 samples per step; " in findings[1]


def _said(run: RunDir, launches: dict[Case, Any], rounds: int) -> tuple[str, RunSummary]:
    summary = write(run, launches, rounds)
    return next(one.line for one in summary.conclusions.findings if "but takes" in one.line), summary


def test_a_finding_has_the_speed_ups_of_the_table(run: RunDir) -> None:
    """The pair's own interval is used everywhere: 1.25 times as fast, and 0.6 times to the loss."""
    wobble = [1.0, 1.02, 0.98, 1.01, 0.97, 1.03]
    other = [1.02, 0.99, 1.0, 0.98, 1.03, 1.01]
    line, summary = _said(
        run,
        {
            SINGLE: [[rank(10 * f, falling(40, 25))] for f in wobble],
            DDP: [[rank(16 * f, falling(50, 25))] * 2 for f in other],
        },
        6,
    )
    row = summary.cases.set_index("case_id").loc[DDP.case_id]
    rate, loss = (
        Interval(value=row[name], low=row[f"{name}_ci_low"], high=row[f"{name}_ci_high"])
        for name in ("speedup", "speedup_to_loss")
    )
    assert f"trains {plain(rate)} times as many samples/s" in line
    assert f"takes {plain(loss.reciprocal())} times as long" in line


def test_a_finding_has_the_interval_of_two_cases_that_their_family_has(run: RunDir) -> None:
    """Three strategies at two ranks: all their pairs have one interval each, in the findings on throughput and here."""
    dice = [[1.0, 1.02, 0.98, 1.01, 0.97, 1.03], [1.02, 0.99, 1.0, 0.98, 1.03, 1.01]]
    dice.append([0.99, 1.01, 1.02, 1.0, 0.98, 0.97])
    steps = {DDP: (16, 50), MASTER: (22, 30), MANY: (24, 20)}
    line, summary = _said(
        run,
        {
            case: [[rank(step * f, falling(high, 25))] * 2 for f in wobble]
            for (case, (step, high)), wobble in zip(steps.items(), dice, strict=True)
        },
        6,
    )
    cases = read_cases(run, read_plan(run))
    named = next(one.cases for one in summary.conclusions.findings if "but takes" in one.line)
    quick, soon = (next(one for one in cases if one.case_id == case_id) for case_id in named)
    judged = Families(cases).judge(quick, soon)
    assert judged is not None
    assert f"trains {plain(judged.ratio.reciprocal())} times as many samples/s" in line
