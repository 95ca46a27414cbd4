"""The parts that a page shows at once, and those that it folds: all but one waterfall, figures of two rows."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ddpbench.analysis.finding import Finding
from ddpbench.analysis.sentences import sentence
from ddpbench.analysis.statistics.interval import Interval
from ddpbench.records import RunDir
from ddpbench.report import write_report
from ddpbench.report.figure_texts import words_in
from ddpbench.report.folds import LONGEST_LIMIT, folded, in_short, open_findings, without_repeats
from ddpbench.report.parts import Cell, Column, Picture, Section, Table
from ddpbench.report.rows import rows_of
from ddpbench.report.sections import waterfall
from tests.kept import KEPT, summary_of
from tests.report.handmade import bucket_comparisons, handmade_summary
from tests.report.reading import read
from tests.report.test_causes import falls


def finding(evidence: str, *cases: str, kind: str = "speed-up") -> Finding:
    return Finding(kind=kind, text=sentence("So it is"), evidence=evidence, verdict="note", cases=cases)  # type: ignore[arg-type]


def picture(file_name: str, rows: int = 9, columns: int = 4) -> Picture:
    table = Table(
        caption="Data",
        columns=(Column("A"),) * columns,
        rows=((Cell(text="1"),) * columns,) * rows,
    )
    return Picture(
        file_name=file_name,
        heading="It is so",
        caption="",
        alt="",
        table=table,
        width_in=9.6,
        height_in=4.4,
        paint=lambda _: None,
        missing={},
    )


def section(anchor: str, *pictures: Picture) -> Section:
    return Section(anchor=anchor, title=anchor, pictures=pictures)


def test_of_several_figures_of_a_kind_the_first_is_open() -> None:
    three = section("waterfall", picture("waterfall"), picture("waterfall-2"), picture("waterfall-3"))
    assert folded(three, []) == [False, True, True]
    two_kinds = section("buckets", picture("buckets"), picture("heatmap"), picture("buckets-2"))
    assert folded(two_kinds, []) == [False, False, True]


def test_a_figure_of_two_rows_is_folded_unless_its_table_is_wide() -> None:
    assert folded(section("buckets", picture("buckets", rows=2)), []) == [True]
    assert folded(section("buckets", picture("buckets", rows=3)), []) == [False]
    assert folded(section("breakdown", picture("breakdown", rows=2, columns=12)), []) == [False]


def test_details_are_folded_unless_the_answer_refers_to_them() -> None:
    network = section("network", picture("network"))
    assert folded(network, [finding("scaling")]) == [True]
    assert folded(network, [finding("scaling"), finding("network")]) == [False]
    added = section("of-a-package", picture("added"))
    assert folded(added, []) == [False], "what was added is shown"


def test_the_waterfall_of_the_answered_case_comes_first() -> None:
    summary = handmade_summary()
    rows = [row for row in rows_of(summary) if row.ok and row.case.world_size == 4]
    losses = tuple(loss for row in rows[:3] for loss in falls(case_id=row.case_id))
    answered = rows[2]
    usual, asked = (
        waterfall.section(losses, rows_of(summary), first=first) for first in ([], ["none", answered.case_id])
    )
    assert len(usual.pictures) == len(asked.pictures) == 3
    assert answered.name not in usual.pictures[0].heading
    assert answered.name in asked.pictures[0].heading
    assert folded(asked, []) == [False, True, True]


def test_a_finding_that_the_answer_contains_is_not_repeated() -> None:
    answer = finding("scaling", "ddp", "single", kind="answer")
    same, other, elsewhere = (
        finding("scaling", "ddp"),
        finding("scaling", "ddp", "master"),
        finding("breakdown", "ddp"),
    )
    claim = finding("scaling", "ddp", kind="claim")
    nobody = finding("scaling")
    kept = without_repeats([same, other, elsewhere, claim, nobody, answer], [answer])
    assert kept == [other, elsewhere, claim, nobody]
    compares = replace(same, ratio=Interval(1.2, 1.1, 1.3))
    assert without_repeats([compares], [answer]) == [compares], "its interval is of these two cases"
    assert without_repeats([compares], [answer, compares]) == []


def test_what_findings_have_in_common_is_said_once(tmp_path: Path) -> None:
    summary = handmade_summary(comparisons=bucket_comparisons())
    several = tuple(
        replace(finding("scaling", case), tags=("corrected for 10 comparisons", f"only {case}"))
        for case in "abc"
    )
    changed = replace(summary, conclusions=replace(summary.conclusions, findings=several, answer=()))
    html = write_report(changed, RunDir(tmp_path)).read_text(encoding="utf-8")
    assert html.count("corrected for 10 comparisons") == 1
    assert "Findings 1, 2 and 3: corrected for 10 comparisons." in html
    assert html.count("only b") == 1


def test_long_lists_of_limits_and_long_notes_are_folded(tmp_path: Path) -> None:
    summary = handmade_summary()
    limits = tuple(f"Limit number {number}." for number in range(1, 8))
    changed = replace(summary, conclusions=replace(summary.conclusions, validity=limits, answer=()))
    document = read(write_report(changed, RunDir(tmp_path)).read_text(encoding="utf-8"))
    (fold,) = [one for one in document.all("details") if one.text.startswith("4 more limits")]
    assert "Limit number 4." in fold.text
    assert "Limit number 3." not in fold.text


def test_the_fifth_finding_and_those_after_it_are_folded(tmp_path: Path) -> None:
    several = tuple(
        replace(finding("scaling", case), text=sentence(f"Case {case} is fast")) for case in "abcdef"
    )
    summary = handmade_summary()
    changed = replace(summary, conclusions=replace(summary.conclusions, findings=several, answer=()))
    document = read(write_report(changed, RunDir(tmp_path)).read_text(encoding="utf-8"))
    (fold,) = [one for one in document.all("details") if one.text.startswith("2 more findings")]
    assert "Case e is fast." in fold.text
    assert "Case d is fast." not in fold.text
    first, rest = document.all("ol", class_="findings")
    assert "start" not in first.attributes
    assert rest.attributes["start"] == "5", "numbering continues"


def test_no_verdict_on_a_claim_is_folded() -> None:
    claims = [finding("claims", case, kind="claim") for case in "abcdef"]
    assert open_findings([]) == 4
    assert open_findings([finding("scaling", "a"), *claims, finding("scaling", "b")]) == 7


@pytest.mark.parametrize("anchor", ["terms", "columns", "experiment", "reproduce"])
def test_terms_columns_and_toml_are_for_the_screen_only(anchor: str, page: Path) -> None:
    document = read(page.read_text(encoding="utf-8"))
    assert "screen" in document.one("details", id=anchor).attributes["class"].split()


OVERSUBSCRIBED = (
    "2 cases ran with more ranks than cores (oversubscribed): their numbers are left out of fits and of claims that "
    "others decide (A at 2: b, B)."
)
WIDE = (
    "7 cases did not reach the target half-width of 2 % in as many rounds as were allowed (ring (DDP) at 2 ranks, "
    "ring (DDP) at 4 ranks and 5 more). Next."
)


@pytest.mark.parametrize(
    ("text", "short", "rest"),
    [
        ("A case has few rounds.", "A case has few rounds.", ""),
        ("Rounds resemble each other. So it is.", "Rounds resemble each other.", "So it is."),
        (
            OVERSUBSCRIBED,
            "2 cases ran with more ranks than cores (oversubscribed).",
            "Their numbers are left out of fits and of claims that others decide (A at 2: b, B).",
        ),
        (
            WIDE,
            "7 cases did not reach the target half-width of 2 % in as many rounds as were allowed.",
            "Ring (DDP) at 2 ranks, ring (DDP) at 4 ranks and 5 more. Next.",
        ),
    ],
)
def test_a_limit_is_one_short_sentence_and_the_rest_is_folded(text: str, short: str, rest: str) -> None:
    assert in_short(text) == (short, rest)


@pytest.mark.parametrize("name", KEPT)
def test_limits_of_kept_runs_are_short_and_lose_nothing(name: str) -> None:
    for text in summary_of(name)["validity"]:
        short, rest = in_short(text)
        assert words_in(short) <= LONGEST_LIMIT, short
        assert words_in(short) + words_in(rest) == words_in(text)


def test_a_page_folds_the_details_of_a_limit(tmp_path: Path) -> None:
    summary = handmade_summary(validity=("Few rounds were run. They decide nothing.",))
    document = read(write_report(summary, RunDir(tmp_path)).read_text(encoding="utf-8"))
    (limit,) = document.all("ul", class_="validity")[0:1]
    assert " ".join(limit.text.split()) == "Few rounds were run. DetailsThey decide nothing."
    details = [one.text for one in document.all("details") if one.text.startswith("Details")]
    assert details == ["DetailsThey decide nothing."]
