"""The stopping rule's half-widths: the same as the table's, quickly, from the finished launches."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from ddpbench.analysis import cases_without_target, load, so_far
from ddpbench.records import RunDir
from ddpbench.spec import Budget, PlannedCase
from tests.synthetic import MS, Outcome, RankLaunch, case_of, write_launch, write_plan, write_run

SINGLE, DDP, MASTER = case_of("single", 1), case_of("ddp", 2), case_of("master", 2)


def test_half_widths_are_those_of_the_table(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", 17, rounds=6, blocks=2, steps=1, failing=2)
    widths = so_far(run).widths
    frame = load(run).set_index("case_id")
    assert set(widths) == set(frame.index)
    for case_id, row in frame.iterrows():
        own = row["baseline_case_id"] == case_id
        low, high = (
            row["step_time_ci_low_s" if own else "speedup_ci_low"],
            row["step_time_ci_high_s" if own else "speedup_ci_high"],
        )
        if row["status"] == "ok":
            assert widths[str(case_id)] == pytest.approx(math.log(high / low) / 2)
        else:
            assert widths[str(case_id)] is None
    reached = {case_id for case_id, width in widths.items() if width is not None and width <= 0.02}
    assert reached == set(frame.index[frame["ci_reached"].fillna(value=False)])
    assert 0 < len(reached) < len(widths)
    assert set(cases_without_target(widths, 0.02)) == set(widths) - reached


def test_unknown_before_five_rounds_and_without_skipped_cases(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "run")
    write_plan(run, [SINGLE, DDP, PlannedCase(case=MASTER, skip_reason="no")])
    assert so_far(run).widths == {SINGLE.case_id: None, DDP.case_id: None}
    for number in range(5):
        write_launch(run, SINGLE, number, [RankLaunch()])
        ended = {"outcome": None} if number >= 2 else {}
        write_launch(run, DDP, number, [RankLaunch()] * 2, **ended)
    assert so_far(run).widths == {SINGLE.case_id: pytest.approx(0), DDP.case_id: None}
    assert cases_without_target(so_far(run).widths, 0.02) == [DDP.case_id]


def test_what_failed_or_is_damaged_does_not_count(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "run")
    write_plan(run, [SINGLE], Budget(rounds_min=2, rounds_max=8))
    for number in range(8):
        outcome = Outcome(status="failed", error="x") if number == 1 else Outcome()
        blocks = [[(10 + number) * MS] * 10]
        folder = write_launch(run, SINGLE, number, [RankLaunch(blocks=blocks)], outcome)
        if number == 2:
            (folder / "outcome.json").write_text("{", encoding="utf-8")
        if number == 3:
            (folder / "rank-00000.attempt-0.jsonl").unlink()
    # rounds 0 and 4 to 7 are left, from 10 to 17 ms: the median of five is between the least and the largest
    assert so_far(run).widths == {SINGLE.case_id: pytest.approx(math.log(17 / 10) / 2, rel=1e-6)}


def test_a_case_whose_base_case_has_no_numbers_is_held_to_its_own(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "run")
    write_plan(run, [SINGLE, DDP], Budget(rounds_min=5, rounds_max=5))
    for number, step in enumerate((10, 14, 19.6, 12, 11)):
        write_launch(run, DDP, number, [RankLaunch(blocks=[[round(step * MS)] * 10])] * 2)
        write_launch(run, SINGLE, number, outcome=Outcome(status="failed", error="x"))
    assert so_far(run).widths[DDP.case_id] == pytest.approx(math.log(1.96) / 2, rel=1e-6)
