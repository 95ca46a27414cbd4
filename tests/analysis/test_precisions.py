"""Gain by autocast, from made-up launches whose ratios are exact."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddpbench import write_report
from ddpbench.analysis import summarize
from ddpbench.records import RunDir
from ddpbench.spec import Budget, Case, PlannedCase
from tests.frames import framed
from tests.synthetic import MS, RankLaunch, case_of, write_launch, write_plan, write_proof

STEP_MS = {"full": 10.0, "bf16": 5.0, "fp16": 12.5}


def write(
    folder: Path,
    rounds: int = 6,
    *,
    crowded: bool = False,
    more_ranks: tuple[int, ...] = (),
    **changes: object,
) -> RunDir:
    """Write DDP at 2 ranks in three precisions, and at more, crowded; rounds drift together, which cancels in pairs."""
    run = RunDir(folder / "run")
    cases = [
        case_of("ddp", ranks, precision=precision, **changes)
        for ranks in (2, *more_ranks)
        for precision in STEP_MS
    ]
    planned = [PlannedCase(case=case, oversubscribed=crowded or case.world_size > 2) for case in cases]
    write_plan(run, planned, Budget(rounds_min=min(rounds, 5), rounds_max=20))
    for case in cases:
        write_proof(run, case)
        for number in range(rounds):
            wobble = 1 + 0.001 * (number % 2) * (case.precision != "full")
            step = round(STEP_MS[case.precision] * (1 + 0.1 * number) * wobble * MS)
            write_launch(run, case, number, [RankLaunch(blocks=((step,) * 10,))] * case.world_size)
    return run


def test_each_precision_is_held_against_full(tmp_path: Path) -> None:
    summary = summarize(write(tmp_path))
    rows = framed(summary.steps.comparisons)[framed(summary.steps.comparisons)["topic"] == "precision"]
    by_case = dict(zip(summary.cases["case_id"], summary.cases["precision"], strict=True))
    ratios = {by_case[row["case_id"]]: row for row in rows.to_dict("records")}
    assert set(ratios) == {"bf16", "fp16"}
    assert {by_case[row["best_case_id"]] for row in ratios.values()} == {"full"}
    assert ratios["bf16"]["ratio"] == pytest.approx(0.5, rel=1e-3)
    assert ratios["fp16"]["ratio"] == pytest.approx(1.25, rel=1e-3)
    assert (ratios["bf16"]["verdict"], ratios["fp16"]["verdict"]) == ("faster", "slower")


def test_one_sentence_says_what_they_buy(tmp_path: Path) -> None:
    chosen = [
        finding
        for finding in summarize(write(tmp_path)).conclusions.findings
        if finding.evidence == "precision"
    ]
    assert len(chosen) == 1
    assert chosen[0].text.startswith("DDP at 2 ranks, gpt:nano, against full precision: bf16 is 99.9 % [")
    assert "faster, and fp16 is 25.1 % [" in chosen[0].text
    assert chosen[0].line.endswith("slower (6 launches each; corrected for 2 comparisons).")
    assert chosen[0].verdict == "note"  # one faster, one slower


def test_too_few_rounds_conclude_nothing(tmp_path: Path) -> None:
    chosen = [f for f in summarize(write(tmp_path, 3)).conclusions.findings if f.evidence == "precision"]
    assert [finding.verdict for finding in chosen] == ["too few"]


def test_crowded_cores_make_no_sentence(tmp_path: Path) -> None:
    assert not [
        f for f in summarize(write(tmp_path, crowded=True)).conclusions.findings if f.evidence == "precision"
    ]


def test_a_sentence_is_of_the_family_that_the_figure_is_of(tmp_path: Path) -> None:
    summary = summarize(write(tmp_path, more_ranks=(4,)))
    assert (framed(summary.steps.comparisons)["topic"] == "precision").sum() == 4
    (only,) = [finding for finding in summary.conclusions.findings if finding.evidence == "precision"]
    assert only.text.startswith("DDP at 2 ranks")
    assert "corrected for 4 comparisons" in only.line


def test_cases_that_differ_in_more_are_not_compared(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "run")
    cases = [case_of("ddp", 2), case_of("ddp", 2, precision="bf16", local_batch=16)]
    write_plan(run, cases)
    for case in cases:
        for number in range(6):
            write_launch(run, case, number, [RankLaunch(samples_per_step=case.local_batch)] * 2)
    assert "precision" not in {one.topic for one in summarize(run).steps.comparisons}


@pytest.mark.usefixtures("painted")
def test_the_page_has_a_section_only_where_there_are_several(tmp_path: Path) -> None:
    page = write_report(write(tmp_path).path).read_text(encoding="utf-8").replace("\u00a0", " ")
    assert 'id="precision"' in page
    assert "bf16 is 99.9 % faster and fp16 is 25.1 % slower (against full precision)" in page
    assert (tmp_path / "run/figures/precision.png").stat().st_size > 10_000
    single = RunDir(tmp_path / "other")
    case: Case = case_of("ddp", 2, precision="bf16")
    write_plan(single, [case])
    for number in range(6):
        write_launch(single, case, number, [RankLaunch()] * 2)
    assert 'id="precision"' not in write_report(single.path).read_text(encoding="utf-8")
