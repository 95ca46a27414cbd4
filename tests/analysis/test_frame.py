"""The table of a run: every number against one worked out by hand from a few written launches."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from ddpbench.analysis import COLUMNS, load, read_csv, summarize, write_csv
from ddpbench.analysis.table.column import setting
from ddpbench.analysis.table.columns import TABLE, page
from ddpbench.analysis.table.frame import DTYPES
from ddpbench.errors import IdentityError
from ddpbench.records import RunDir
from ddpbench.spec import Budget, Case, PlannedCase
from tests.frames import framed
from tests.synthetic import (
    MS,
    ORIGIN_NS,
    Outcome,
    RankLaunch,
    case_of,
    write_launch,
    write_plan,
    write_proof,
    write_run,
    write_sessions,
)

SINGLE = case_of("single", 1)
DDP = case_of("ddp", 2)
T4 = 2.776445105  # t(0.975, 4)


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    return RunDir(tmp_path / "run")


def plain(step_ms: float, **changes: Any) -> RankLaunch:
    """Return a timed block of ten equal steps."""
    return RankLaunch(blocks=[[int(step_ms * MS)] * 10], **changes)


def row_of(frame: pd.DataFrame, case: Case) -> dict[str, Any]:
    (row,) = frame[frame["case_id"] == case.case_id].to_dict("records")
    return row


def test_times_are_each_rank_s_own_whichever_begins_first(run: RunDir) -> None:
    write_plan(run, [DDP], Budget(rounds_min=1, rounds_max=1))
    early = RankLaunch(blocks=[[10 * MS] * 10, [12 * MS] * 10])
    late = RankLaunch(blocks=[[10 * MS] * 10, [12 * MS] * 10], start_ns=ORIGIN_NS + 3 * MS)
    write_launch(run, DDP, 0, [early, late])
    row = row_of(load(run), DDP)
    assert row["steps"] == 20
    assert row["step_time_s"] == pytest.approx((100 + 120) / 20 / 1e3)
    assert row["samples_per_s"] == pytest.approx(20 * 16 / 0.220)  # 8 samples per step and rank
    assert pd.isna(row["step_time_ci_low_s"])
    assert row["status"] == "ok"


def test_speed_up_and_efficiency_are_paired_within_rounds(run: RunDir) -> None:
    write_plan(run, [SINGLE, DDP], Budget(rounds_max=5, target_half_width=0.05))
    drift = [1.0, 1.4, 0.9, 1.2, 1.1]
    ratios = [1.60, 1.62, 1.58, 1.61, 1.59]
    for number, (factor, ratio) in enumerate(zip(drift, ratios, strict=True)):
        write_launch(run, SINGLE, number, [plain(10 * factor)])
        write_launch(run, DDP, number, [plain(20 * factor / ratio)] * 2)
    frame = load(run)
    row, base = row_of(frame, DDP), row_of(frame, SINGLE)
    times = [int(20 * MS * f / r) for f, r in zip(drift, ratios, strict=True)]
    speedup = math.exp(sum(math.log(ratio) for ratio in ratios) / 5)  # a slow round weighs no more
    assert row["speedup"] == pytest.approx(speedup)
    assert row["efficiency"] == pytest.approx(speedup / 2)
    logs = [math.log(ratio) for ratio in ratios]
    mean = sum(logs) / 5
    half = T4 * math.sqrt(sum((x - mean) ** 2 for x in logs) / 4 / 5)
    assert row["speedup_ci_low"] == pytest.approx(speedup * math.exp(-half), rel=1e-5)
    assert row["speedup_ci_high"] == pytest.approx(speedup * math.exp(half), rel=1e-5)
    assert row["efficiency_ci_high"] == pytest.approx(speedup / 2 * math.exp(half), rel=1e-5)
    # drift does not cancel in the step time itself
    step = [row[name] for name in ("step_time_ci_low_s", "step_time_s", "step_time_ci_high_s")]
    assert step == pytest.approx([min(times) / 1e9, sorted(times)[2] / 1e9, max(times) / 1e9])
    assert half < 0.05 < math.log(step[2] / step[0]) / 2
    assert row["ci_reached"] is True
    assert base["ci_reached"] is False  # a base case is judged by its own step time
    assert (base["speedup"], base["efficiency"]) == (1.0, 1.0)
    assert pd.isna(base["speedup_ci_low"])
    assert row["baseline_case_id"] == base["case_id"]


def test_strong_scaling_s_base_case_has_the_same_global_batch(run: RunDir) -> None:
    base = case_of("single", 1, local_batch=16, global_batch=16, scaling="strong")
    case = case_of("ddp", 2, local_batch=8, global_batch=16, scaling="strong")
    write_plan(run, [base, case], Budget(rounds_min=1, rounds_max=1))
    write_launch(run, base, 0, [plain(20, samples_per_step=16)])
    write_launch(run, case, 0, [plain(16)] * 2)
    assert row_of(load(run), case)["speedup"] == pytest.approx(20 / 16)


def test_without_a_base_case_there_is_no_speed_up(run: RunDir) -> None:
    write_plan(run, [DDP], Budget(rounds_min=1, rounds_max=1))
    write_launch(run, DDP, 0, [plain(10)] * 2)
    row = row_of(load(run), DDP)
    assert pd.isna(row["speedup"])
    assert pd.isna(row["efficiency"])
    assert row["baseline_case_id"] == SINGLE.case_id


def test_what_a_launch_costs_and_holds(run: RunDir) -> None:
    write_plan(run, [DDP], Budget(rounds_min=2, rounds_max=2))
    write_proof(run, DDP, flops_per_sample=5e8)
    for number, peak in enumerate((300, 500)):
        ranks = [
            plain(
                10, peak_memory_bytes=peak, gradient_bytes=1000, checksum="a", steps=STEPS, buckets=(600, 400)
            ),
            plain(10, peak_memory_bytes=peak - 100, gradient_bytes=1000, checksum="a", steps=STEPS),
        ]
        write_launch(run, DDP, number, ranks)
    row = row_of(load(run), DDP)
    assert row["peak_memory_bytes"] == 500
    assert row["gradient_bytes"] == 1000
    assert row["actual_bucket_bytes"] == "600;400"
    assert row["flops_per_sample"] == 5e8
    assert row["params_equal"] is True
    assert pd.isna(row["mfu"])


def test_held_bytes_are_those_of_the_rank_that_holds_most_together(run: RunDir) -> None:
    write_plan(run, [DDP, SINGLE], Budget(rounds_min=2, rounds_max=2))
    for number, most in enumerate(((40, 30, 99), (40, 30, 100))):
        ranks = [plain(10, steps=STEPS, held=held) for held in (most, (50, 35, 50))]
        write_launch(run, DDP, number, ranks)
        write_launch(run, SINGLE, number, [plain(10)])
    row = row_of(load(run), DDP)
    names = ("held_parameter_bytes", "held_gradient_bytes", "held_optimizer_bytes")
    assert [row[name] for name in names] == [40, 30, 100]
    assert all(pd.isna(row_of(load(run), SINGLE)[name]) for name in names)  # an older run records none


STEPS = [(ORIGIN_NS, ORIGIN_NS + 100, [("forward", ORIGIN_NS, ORIGIN_NS + 40)], [])]


@pytest.mark.parametrize(
    ("checksums", "expected"), [(("a", "a"), True), (("a", "b"), False), (("", ""), None)]
)
def test_params_equal(run: RunDir, checksums: tuple[str, str], expected: bool | None) -> None:
    write_plan(run, [DDP], Budget(rounds_min=1, rounds_max=1))
    write_launch(run, DDP, 0, [plain(10, checksum=text) for text in checksums])
    found = row_of(load(run), DDP)["params_equal"]
    assert pd.isna(found) if expected is None else found is expected


def test_compute_time_comes_from_independent_ranks_of_the_same_setting(run: RunDir) -> None:
    independent = case_of("independent", 2)
    other_batch = case_of("ddp", 2, local_batch=16)
    write_plan(run, [independent, DDP, other_batch], Budget(rounds_min=1, rounds_max=1))
    at = ORIGIN_NS
    alone = [(at, at + 100, [("forward", at, at + 30), ("backward", at + 30, at + 90)], [])]
    crowded = [(at, at + 100, [("forward", at, at + 40), ("backward", at + 40, at + 99)], [])]
    write_launch(run, independent, 0, [plain(10, steps=alone)] * 2)
    write_launch(run, DDP, 0, [plain(10, steps=crowded)] * 2)
    write_launch(run, other_batch, 0, [plain(10, steps=crowded)] * 2)
    frame = load(run)
    assert row_of(frame, independent)["compute_time_s"] == pytest.approx(90e-9)
    assert row_of(frame, DDP)["compute_time_s"] == pytest.approx(90e-9)
    assert row_of(frame, DDP)["forward_time_s"] == pytest.approx(40e-9)
    assert pd.isna(row_of(frame, other_batch)["compute_time_s"])
    assert pd.isna(row_of(frame, independent)["comm_time_s"])  # nothing is sent


def test_noise_is_named_and_counted(run: RunDir) -> None:
    write_plan(run, [SINGLE])
    noises: list[dict[str, Any]] = [
        {"steal_fraction": 0.011},
        {"steal_fraction": 0.5, "foreign_fraction": 0.051},
        {"clock_change": 0.06},
        {"shared_machine": True},
        {"steal_fraction": 0.01, "foreign_fraction": 0.05, "clock_change": 0.05},
        {"in_turn": True},
    ]
    for number, noise in enumerate(noises):
        rank = plain(10, ready=number != 3)
        write_launch(run, SINGLE, number, [rank], Outcome(noise=noise))
    assert row_of(load(run), SINGLE)["noise_flag"] == (
        "steal 2/6; foreign load 1/6; clock change 1/6; not steady 1/6; shared machine 1/6"
    )


def test_a_case_is_ok_with_enough_launches_whatever_else_failed(run: RunDir) -> None:
    write_plan(run, [SINGLE], Budget(rounds_min=2, rounds_max=3))
    write_launch(run, SINGLE, 0, outcome=Outcome(status="hung", error="rank 0 made no step"))
    for number in (1, 2):
        write_launch(run, SINGLE, number, [plain(10)])
    row = row_of(load(run), SINGLE)
    assert (row["status"], row["launches"], row["launches_failed"]) == ("ok", 2, 1)
    assert pd.isna(row["error"])


def test_otherwise_it_has_its_worst_status_and_says_what_to_do(run: RunDir) -> None:
    write_plan(run, [SINGLE], Budget(rounds_min=3, rounds_max=3))
    write_launch(run, SINGLE, 0, outcome=Outcome(status="failed", error="an exception"))
    write_launch(run, SINGLE, 1, outcome=Outcome(status="oom", error="out of memory: use a smaller batch"))
    write_launch(run, SINGLE, 2, [plain(10)])
    row = row_of(load(run), SINGLE)
    assert (row["status"], row["launches"], row["launches_failed"]) == ("oom", 1, 2)
    assert "round 2: out of memory: use a smaller batch" in row["error"]
    assert "--retry-failed" in row["error"]
    assert "logs in" not in row["error"], "there are none, as of a run that is kept"


def test_an_interrupted_sweep_says_how_far_it_came_and_how_to_resume(run: RunDir) -> None:
    write_plan(run, [SINGLE])
    write_launch(run, SINGLE, 0, [plain(10)])
    write_launch(run, SINGLE, 1, [plain(10)], outcome=None)  # unfinished: ignored
    row = row_of(load(run), SINGLE)
    assert (row["status"], row["launches"]) == ("unfinished", 1)
    assert row["error"] == (
        f"measured in 1 of at least 5 rounds so far; resume with: ddpbench sweep {run.path}"
    )
    assert row["step_time_s"] == pytest.approx(0.01)


def test_a_sweep_whose_budget_was_spent_leaves_cases_ok_with_the_rounds_they_have(run: RunDir) -> None:
    """Their rows give the number; a case without any is reported, and the page lists the missing rounds."""
    write_plan(run, [SINGLE, DDP], Budget(total=180.0))
    for number in range(3):
        write_launch(run, SINGLE, number, [plain(10)])
    write_sessions(run, "budget")
    single, ddp = (row_of(load(run), case) for case in (SINGLE, DDP))
    assert (single["status"], single["launches"]) == ("ok", 3)
    assert ddp["status"] == "unfinished"
    assert ddp["error"] == (
        "not measured: budget.total, 3 min, was spent before its first launch; resume with: "
        f"ddpbench sweep {run.path}"
    )
    sentence = next(text for text in summarize(run).conclusions.validity if text.startswith("budget.total"))
    assert sentence.startswith("budget.total, 3 min, was spent before 5 rounds were done: 1 case")
    assert " has 3" in sentence
    assert sentence.endswith(f"To run the rest: ddpbench sweep {run.path}")


def test_a_launch_that_failed_still_fails_its_case_when_the_budget_was_spent(run: RunDir) -> None:
    write_plan(run, [SINGLE], Budget(total=180.0))
    write_launch(run, SINGLE, 0, [plain(10)])
    write_launch(run, SINGLE, 1, outcome=Outcome(status="failed", error="an exception"))
    write_sessions(run, "budget")
    assert row_of(load(run), SINGLE)["status"] == "failed"


def test_what_fails_its_proof_has_no_numbers(run: RunDir) -> None:
    write_plan(run, [SINGLE, DDP], Budget(rounds_min=1, rounds_max=1))
    write_proof(run, DDP, Outcome(status="diverged", error="gradients differ: error 0.3, allowed 1e-10"))
    write_launch(run, SINGLE, 0, [plain(10)])
    write_launch(run, DDP, 0, [plain(10)] * 2)
    row = row_of(load(run), DDP)
    assert (row["status"], row["launches"]) == ("diverged", 0)
    assert "allowed 1e-10" in row["error"]
    assert pd.isna(row["step_time_s"])
    assert pd.isna(row["speedup"])


def test_a_skipped_case_keeps_its_reason(run: RunDir) -> None:
    write_plan(run, [PlannedCase(case=DDP, skip_reason="nccl moves data between GPUs only")])
    row = row_of(load(run), DDP)
    assert (row["status"], row["error"]) == ("skipped", "nccl moves data between GPUs only")
    assert row["launches"] == 0
    assert pd.isna(row["steps"])


def damage_one_line(path: Path) -> None:
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    lines[1] = "not JSON\n"
    path.write_text("".join(lines), encoding="utf-8")


def test_a_damaged_record_fails_its_launch_by_name(run: RunDir) -> None:
    write_plan(run, [DDP], Budget(rounds_min=1, rounds_max=2))
    folder = write_launch(run, DDP, 0, [plain(10)] * 2)
    damage_one_line(folder / "rank-00001.attempt-0.jsonl")
    row = row_of(load(run), DDP)
    assert (row["status"], row["launches_failed"]) == ("failed", 1)
    assert "rank-00001.attempt-0.jsonl, line 2" in row["error"]
    assert any(
        "rank-00001.attempt-0.jsonl, line 2" in text for text in summarize_quietly(run).conclusions.validity
    )
    write_launch(run, DDP, 1, [plain(10)] * 2)
    assert row_of(load(run), DDP)["status"] == "ok"
    validity = summarize_quietly(run).conclusions.validity
    assert any("Damaged records" in text and "line 2" in text for text in validity)


def summarize_quietly(run: RunDir) -> Any:
    if not run.sessions.exists():
        write_sessions(run)
    return summarize(run)


def test_a_missing_rank_s_file_fails_the_launch(run: RunDir) -> None:
    write_plan(run, [DDP], Budget(rounds_min=1, rounds_max=1))
    write_launch(run, DDP, 0, [plain(10)], expected_ranks=2)
    row = row_of(load(run), DDP)
    assert row["status"] == "failed"
    assert "no timed steps of every rank" in row["error"]


def test_a_torn_last_line_costs_only_what_it_held(run: RunDir) -> None:
    write_plan(run, [SINGLE], Budget(rounds_min=1, rounds_max=1))
    folder = write_launch(run, SINGLE, 0, [plain(10)])
    path = folder / "rank-00000.attempt-0.jsonl"
    path.write_bytes(path.read_bytes()[:-20])  # the rank's outcome
    row = row_of(load(run), SINGLE)
    assert row["status"] == "ok"
    assert row["step_time_s"] == pytest.approx(0.01)
    assert pd.isna(row["peak_memory_bytes"])
    assert any("torn" in text for text in summarize_quietly(run).conclusions.validity)


def test_an_outcome_that_cannot_be_read_is_a_failed_launch(run: RunDir) -> None:
    write_plan(run, [SINGLE], Budget(rounds_min=1, rounds_max=1))
    folder = write_launch(run, SINGLE, 0, [plain(10)])
    (folder / "outcome.json").write_text("{", encoding="utf-8")
    row = row_of(load(run), SINGLE)
    assert (row["status"], row["launches_failed"]) == ("failed", 1)
    assert "outcome.json" in row["error"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"schema_version": 99}', "schema 99"),
        ('{"schema_version": 1}', "experiment is missing"),
        ('{"schema_version": 1, "cases": [{"case_id": "x"}]}', "damaged"),
        ('{"schema_version": 1, "cases": 3}', "damaged"),
        ("[]", "an object was expected"),
        ("{", "cannot be read"),
    ],
)
def test_a_plan_that_is_none_is_refused(run: RunDir, text: str, words: str) -> None:
    run.create()
    run.plan.write_text(text, encoding="utf-8")
    with pytest.raises(IdentityError, match=words):
        load(run)


def test_a_folder_without_a_plan_is_no_run_directory(tmp_path: Path) -> None:
    with pytest.raises(IdentityError, match=r"not a run directory: plan\.json is missing"):
        load(tmp_path)


def test_a_plan_whose_contents_do_not_give_its_ids_is_refused(run: RunDir) -> None:
    write_plan(run, [DDP])
    text = run.plan.read_text(encoding="utf-8")
    run.plan.write_text(text.replace('"local_batch": 8', '"local_batch": 9'), encoding="utf-8")
    with pytest.raises(IdentityError, match=DDP.case_id):
        load(run)


def test_exactly_the_promised_columns_come_back_from_csv(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", 17, rounds=2, blocks=1, steps=2, failing=1)
    frame = load(run)
    assert tuple(frame.columns) == COLUMNS
    assert {name: str(dtype) for name, dtype in frame.dtypes.items()} == DTYPES
    text = frame["bucket_cap_mb"].dropna().unique()
    assert list(text) == ["default", "1", "5", "25"]
    back = read_csv(write_csv(frame, run))
    pd.testing.assert_frame_equal(frame, back, rtol=1e-15)
    lines = run.table.read_text(encoding="utf-8").splitlines()
    assert lines[0] == ",".join(COLUMNS)
    assert not any(",-1," in line for line in lines)


def test_a_table_of_an_earlier_version_lacks_its_later_columns(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", 3, rounds=2, blocks=1, steps=2)
    frame = load(run)
    for name in ("seed", "queue_time_s", "params_equal", "noise_flag"):  # a column of each type
        path = tmp_path / "cases.csv"
        frame.drop(columns=[name]).to_csv(path, index=False)
        back = read_csv(path)
        assert back[name].isna().all()
        assert str(back[name].dtype) == DTYPES[name]


def test_a_table_of_something_else_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "other.csv"
    path.write_text("a,b\n1,2\n", encoding="utf-8")
    with pytest.raises(ValueError, match="case_id"):
        read_csv(path)


def test_numbers_do_not_depend_on_the_order_in_which_files_are_found(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", 5, rounds=11, blocks=1, steps=1)
    frame = load(run)
    assert frame["launches"].tolist() == [11] * 5
    rounds = framed(summarize(run).steps.launches).groupby("case_id")["round"].agg(list)
    assert all(list(found) == list(range(11)) for found in rounds)


def test_without_a_shared_round_there_is_no_speed_up(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    single, ddp = case_of("single", 1), case_of("ddp", 2)
    write_plan(run, [PlannedCase(case=single), PlannedCase(case=ddp)], Budget(rounds_min=2))
    for number in (0, 1):
        write_launch(run, single, number, [RankLaunch()])
        write_launch(run, ddp, number + 2, [RankLaunch()] * 2)
    row = row_of(load(run), ddp)
    assert row["step_time_s"] == pytest.approx(0.01)
    assert pd.isna(row["speedup"])
    assert pd.isna(row["efficiency_ci_low"])


def test_a_setting_of_a_type_that_is_no_column_s_is_refused() -> None:
    assert setting("snapshot_every").unit == "steps"
    with pytest.raises(TypeError, match=r"bucket_cap_mb is of type .* add its column in"):
        setting("bucket_cap_mb")


def test_the_page_of_columns_has_each_column_once_without_the_ends_of_intervals() -> None:
    listed = re.findall(r"(?m)^\| `(\w+)`( ±)? \|", page())
    with_ends = {column.of for column in TABLE if column.of}
    assert {name for name, mark in listed if mark} == with_ends
    assert sorted(name for name, _ in listed) == sorted(column.name for column in TABLE if not column.of)
