"""A page's statements on frameworks and on shared cores: each was wrong for the records of kept runs."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from ddpbench.analysis import summarize
from ddpbench.analysis.summary import RunSummary
from ddpbench.records import RunDir
from ddpbench.report.folds import without_repeats
from ddpbench.report.page import _in_short
from ddpbench.report.parts import Table
from ddpbench.report.rows import rows_of
from ddpbench.report.sections import scaling, strategies
from ddpbench.report.summary_json import embedded_json
from ddpbench.report.tables.cases import summary_table
from ddpbench.report.tables.data_parallel import data_parallel_section

REPORTS = Path(__file__).parents[2] / "reports"


@pytest.fixture(scope="module")
def frameworks() -> RunSummary:
    return summarize(RunDir(REPORTS / "frameworks"))


@pytest.fixture(scope="module")
def hybrid() -> RunSummary:
    return summarize(RunDir(REPORTS / "hybrid"))


def notes_of(table: Table) -> list[str]:
    return [row[-1].text for row in table.rows]


def test_a_framework_of_its_own_is_not_told_as_faster_than_itself(frameworks: RunSummary) -> None:
    answer = frameworks.conclusions.answer[0].line
    assert answer.startswith("1 of 6 wrappers is slower than DDP at 2 ranks: DeepSpeed by 37 % [25, 49]; ")
    assert "; 18 launches each" in answer  # of 20 and 21, in which both ended well
    rows = rows_of(frameworks)
    section = strategies.section(frameworks.steps.launches, frameworks.conclusions.findings, rows)
    assert section is not None
    assert any(note.startswith("TF Mirrored: ") for note in section.notes)


def test_each_speed_up_names_its_base_and_its_rounds(frameworks: RunSummary) -> None:
    section = scaling.section(frameworks.conclusions.claims, rows_of(frameworks))
    assert section is not None
    (picture,) = section.pictures
    assert "Base case: single, 1 rank, launched by torchrun, 6,416" in picture.caption
    assert "No speed-up of TF Mirrored and TF MultiWorker: their base cases are torch's." in picture.caption
    assert "No speed-up of Ray Train: Ray Train started no base case in this run." in picture.caption
    cases = frameworks.cases.set_index("strategy")
    assert cases.loc["ray_train", ["speedup", "efficiency", "compute_time_s"]].isna().all(axis=None)
    launched = frameworks.cases.set_index("case_id")["launcher"]
    divided = frameworks.cases[frameworks.cases["speedup"].notna()]
    assert (divided["baseline_case_id"].map(launched) == divided["launcher"]).all()
    rows = frameworks.cases.set_index(["strategy", "launcher", "world_size"])
    assert math.isnan(rows.loc[("single", "local", 1), "speedup"]), (
        "what it was added for has no base case now"
    )
    computed = rows["compute_time_s"]
    assert computed["ddp", "torchrun", 1] == computed["single", "torchrun", 1], "not the forked one's"
    assert "t-intervals (19 to 21 rounds each)" in picture.caption
    assert "omitted" not in picture.caption, "frameworks without a speed-up take no other's place"
    table = {(row[0].text, row[1].text): row[4].text for row in picture.table.rows}
    assert table["DeepSpeed", "2"] == "21"
    assert table["DDP", "1"] == "19"


def test_data_parallel_is_told_of_where_it_was_run_alone(frameworks: RunSummary) -> None:
    assert data_parallel_section(frameworks.steps.phases, rows_of(frameworks)) is None


def test_two_kinds_of_one_framework_are_two_names(frameworks: RunSummary) -> None:
    section = strategies.section(
        frameworks.steps.launches, frameworks.conclusions.findings, rows_of(frameworks)
    )
    assert section is not None
    pairs = [{row[0].text, row[1].text} for row in section.tables[0].rows]
    assert {"DDP, 2 ranks", "Lightning, 2 ranks, api=trainer"} in pairs
    assert {"DDP, 2 ranks", "Lightning, 2 ranks, api=fabric"} in pairs


def test_each_ratio_of_a_sentence_on_several_is_in_the_report_s_data(frameworks: RunSummary) -> None:
    (finding,) = [one for one in json.loads(embedded_json(frameworks))["findings"] if "ratios" in one]
    assert len(finding["ratios"]) == len(finding["cases"]) - 1 == 5
    named = "Accelerate, Lightning (api=trainer), Lightning (api=fabric), the HF Trainer and Ray Train"
    assert finding["text"].startswith(f"{named} against DDP")
    assert "21 of 41 launches of Ray Train and DDP disturbed" in finding["tags"]
    assert max(one["high"] for one in finding["ratios"]) == pytest.approx(1.235, abs=0.005)
    section = strategies.section(
        frameworks.steps.launches, frameworks.conclusions.findings, rows_of(frameworks)
    )
    assert section is not None
    assert [row[3].text for row in section.tables[0].rows].count("cannot tell") == 6


def test_the_answer_s_wrappers_are_those_of_the_findings_and_of_the_table(frameworks: RunSummary) -> None:
    """The answer counts six that compute with torch; each has its verdict in a finding, and so have the other two."""
    (answer,) = frameworks.conclusions.answer
    shown = without_repeats(frameworks.conclusions.findings, frameworks.conclusions.answer)
    compared = [one for one in shown if one.kind == "strategies"]
    counted = [one for one in compared if {*one.cases} <= {*answer.cases}]
    others = [one for one in compared if one not in counted]
    assert [one.verdict for one in counted] == ["faster", "unresolved"]
    assert counted[0].text.startswith("DDP is 37 % [25, 49] faster than DeepSpeed at 2 ranks")
    assert {case for one in counted for case in one.cases} == {*answer.cases}
    assert [one.verdict for one in others] == ["faster", "unresolved"]
    for name, one in zip(("TF Mirrored", "TF MultiWorker"), others, strict=True):
        assert f"{name} computes with other kernels" in one.tags
    rows = [row for row in rows_of(frameworks) if row.strategy_name.startswith("TF ")]
    assert len(rows) == 4
    assert all(row.speedup is None and "other kernels, no speed-up over torch" in row.flaws for row in rows)


def test_launches_that_were_planned_and_not_made_are_not_told_as_made(frameworks: RunSummary) -> None:
    assert "413 of 420 launches in 21 rounds, none failed" in _in_short(frameworks)


def test_of_steps_that_may_have_waited_for_cores_none_is_best(hybrid: RunSummary) -> None:
    assert all("best" not in note for note in notes_of(summary_table(hybrid, rows_of(hybrid))))


def test_a_claim_names_which_of_several_cases_of_a_strategy_it_is_about(hybrid: RunSummary) -> None:
    lines = [one.line for one in hybrid.conclusions.findings if one.kind == "claim"]
    assert any(
        "FSDP (replicas=2) is 27 % [4, 188] faster than ring (DDP) at 4 ranks" in line for line in lines
    )
