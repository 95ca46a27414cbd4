"""Page faults: reported where launches of a case differ in them by enough to show in their times."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddpbench.analysis import summarize
from ddpbench.records import RunDir
from ddpbench.spec import Budget
from tests.synthetic import MS, RankLaunch, case_of, write_launch, write_plan

DDP = case_of("ddp", 2)


def fault_text(path: Path, faults: list[int | None], step_ns: int = 10 * MS) -> str:
    """Return the sentences on launches of three blocks of ten steps; rank 1 has `faults` in each block, rank 0 none."""
    run = RunDir(path / "run")
    write_plan(run, [DDP], Budget(rounds_min=2, rounds_max=9))
    for number, count in enumerate(faults):
        quiet = None if count is None else 0
        ranks = [RankLaunch(blocks=[[step_ns] * 10] * 3, minor_faults=each) for each in (quiet, count)]
        write_launch(run, DDP, number, ranks)
    found = [text for text in summarize(run).conclusions.validity if text.startswith("Page faults")]
    assert len(found) <= 1
    return "".join(found)


def test_launches_that_differ_are_told_with_the_fewest_and_the_most_a_step(tmp_path: Path) -> None:
    # 30 to 9,000 per block of ten steps: 3 to 900 per step, and 897 of them take about 0.9 ms of 10
    text = fault_text(tmp_path, [30, 40, 9000])
    assert "launches of 1 case (3 to 900 a step at worst)" in text
    assert text.endswith("(DDP at 2 ranks).")


@pytest.mark.parametrize(
    "faults",
    [
        [9000, 9100, 9000],  # equal in each launch: a property of the training
        [30, 1900, 30],  # 0.19 ms of 10 are under 2 %
        [None, None],  # older records
    ],
)
def test_what_is_alike_or_small_or_not_counted_is_not_told(tmp_path: Path, faults: list[int | None]) -> None:
    assert not fault_text(tmp_path, faults)


def test_the_same_faults_are_more_of_a_shorter_step(tmp_path: Path) -> None:
    assert fault_text(tmp_path, [30, 1900, 30], step_ns=MS)
