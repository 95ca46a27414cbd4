"""Two processes read a run with the same result as one."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from ddpbench.analysis.read import reading
from ddpbench.analysis.read.cases import read_cases
from ddpbench.analysis.scaling import curves
from ddpbench.analysis.scaling.curves import LawsOf
from ddpbench.analysis.scaling.laws import fit_all
from ddpbench.analysis.table.frame import case_table
from ddpbench.helper_process import Helper
from ddpbench.records import RunDir
from ddpbench.records.plan import read_plan
from ddpbench.spec import PlannedCase
from tests.synthetic import case_of, write_run


@pytest.mark.usefixtures("two_processes")
@pytest.mark.parametrize("works", [True, False])
def test_two_readers_see_what_one_sees(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, works: bool) -> None:
    write_run(tmp_path / "run", 9)
    run = RunDir(tmp_path / "run")
    plan = read_plan(run)
    alone = read_cases(run, plan)
    monkeypatch.setattr(reading, "WORTH_SHARING", 2)
    monkeypatch.setattr(reading, "_AT_ONCE", 2)
    if not works:  # the other process ends at once, without an answer
        monkeypatch.setattr(sys, "executable", "/bin/false")
    shared = reading.read_cases_of(run, plan)
    assert [one.case_id for one in shared] == [one.case_id for one in alone]
    assert [one.timings for one in shared] == [one.timings for one in alone]
    assert [one.parts for one in shared] == [one.parts for one in alone]
    assert case_table(plan, shared, {}).equals(case_table(plan, alone, {}))


@pytest.mark.usefixtures("two_processes")
@pytest.mark.parametrize("works", [True, False])
def test_laws_are_the_same_whoever_fits_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, works: bool
) -> None:
    write_run(tmp_path / "run", 12)
    run = RunDir(tmp_path / "run")
    plan = read_plan(run)
    cases = read_cases(run, plan)
    alone = LawsOf(cases, {}).found()
    assert any(curve.laws.fits for curve in alone)
    monkeypatch.setattr(curves, "WORTH_SHARING", 1)
    if not works:
        monkeypatch.setattr(sys, "executable", "/bin/false")
    with Helper() as helper:
        here: list[object] = []
        asked = LawsOf(cases, {}, helper)
        monkeypatch.setattr(curves, "fit_all", lambda some: here.append(some) or fit_all(some))
        shared = asked.found()
    assert bool(here) is not works
    assert shared == alone


@pytest.mark.parametrize(("workload", "own"), [("gpt:nano", False), ("lib/train.py:Mine", True)])
def test_a_failure_says_where_its_logs_are_and_what_leads_on(
    tmp_path: Path, workload: str, own: bool
) -> None:
    entries = [PlannedCase(case=case_of("ddp", 2, workload=workload))]
    run = write_run(tmp_path / "run", entries, rounds=2, failing=1)
    log = run.launch(entries[0].case.case_id, "measure", 0).log(1)
    log.write_text("ValueError: made up", encoding="utf-8")
    (case,) = read_cases(run, read_plan(run))
    assert f"(2 of 2 launches were not ok; logs in {log.parent}; once fixed, measure again" in case.error
    assert (
        case.error.endswith(
            "--retry-failed; if the fix changes lib/train.py, measure into another --out instead)"
        )
        is own
    )
