"""Ranks that share cores: excluded from conclusions, unless they cannot have waited long for them."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from ddpbench.analysis import load, summarize
from ddpbench.analysis.findings.wording import MOST_SHARED, conditions
from ddpbench.analysis.read.cases import read_cases
from ddpbench.analysis.read.launches import IDLE_ENOUGH, CaseRun
from ddpbench.records import RunDir
from ddpbench.records.plan import read_plan
from ddpbench.spec import Budget, Case, PlannedCase
from tests.synthetic import MS, RankLaunch, case_of, write_launch, write_plan

FOUR = case_of("ddp", 4)


def measured(path: Path, cpu_ms: list[float | None], case: Case = FOUR, *, crowded: bool = True) -> RunDir:
    """Write a launch of three blocks of 100 ms for each; its ranks together take this processor time per block."""
    run = RunDir(path / "run")
    write_plan(run, [PlannedCase(case=case, oversubscribed=crowded)], Budget())
    for number, cpu in enumerate(cpu_ms):
        own = None if cpu is None else round(cpu * MS / 4)
        write_launch(run, case, number, [RankLaunch(blocks=[[10 * MS] * 10] * 3, cpu_ns=own)] * 4)
    return run


def case_run(run: RunDir) -> CaseRun:
    (found,) = read_cases(run, read_plan(run))
    return found


@pytest.mark.parametrize(
    ("cpu_ms", "share"),
    [
        ([1.0, 1.9, 1.5], 0.019),  # the launch whose ranks worked most
        ([1.0, 2.1, 1.5], 0.021),
        ([80.0, 190.0, 80.0], 1.9),
        ([3.0, None, 3.0], None),
        ([None, None], None),
    ],
)
def test_steps_are_longer_by_at_most_the_time_in_which_some_rank_works(
    tmp_path: Path, cpu_ms: list[float | None], share: float | None
) -> None:
    run = measured(tmp_path, cpu_ms)
    found = case_run(run)
    assert found.shared_cores_share == (share if share is None else pytest.approx(share))
    crowded = share is None or share > IDLE_ENOUGH
    assert found.oversubscribed is crowded
    frame: pd.DataFrame = load(run.path)
    assert list(frame["oversubscribed"]) == [crowded]
    sentences = " ".join(summarize(run).conclusions.validity)
    assert ("left out of fits" in sentences) is crowded
    assert ("no more of a step is waiting for cores" in sentences) is not crowded
    assert bool(conditions([found])) is (share is not None and share < MOST_SHARED)


def test_conclusions_come_with_the_bound(tmp_path: Path) -> None:
    idle = case_run(measured(tmp_path / "idle", [1.0, 1.21]))
    assert conditions([idle]) == ("ranks shared cores: up to 1.3 % of a step may be waiting for them",)
    own = case_run(measured(tmp_path / "own", [2.0, 390.0], crowded=False))
    assert own.shared_cores_share == 0.0
    assert not own.oversubscribed
    assert conditions([own]) == ()
    (text,) = (
        text
        for text in summarize(measured(tmp_path / "told", [1.0, 1.21])).conclusions.validity
        if "more ranks than cores" in text
    )
    assert text == (
        "1 case ran with more ranks than cores, whose processor time together was at most 1.3 % of the time: no more "
        "of a step is waiting for cores (DDP at 4 ranks)."
    )


def test_loader_workers_are_not_counted_so_that_nothing_is_known(tmp_path: Path) -> None:
    case = case_of("ddp", 4, loader_workers=1)
    found = case_run(measured(tmp_path, [2.0, 2.0], case))
    assert found.shared_cores_share is None
    assert found.oversubscribed
