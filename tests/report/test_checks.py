"""A page's statements on its own checks: the outcome, impossible values, and cases whose breakdown is marked."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest

from ddpbench.analysis.invariants.checked import Bounded, Checked, Rule, Violation
from ddpbench.cli import run as run_command
from ddpbench.records import RunDir
from ddpbench.report import write_report
from ddpbench.report.draw.canvas import draw
from ddpbench.report.rows import rows_of
from ddpbench.report.sections import breakdown
from tests.report.handmade import ddp, handmade_summary
from tests.report.reading import Read, read
from tests.synthetic import MS, RankLaunch, case_of, write_launch, write_plan

DDP4 = ddp(4).case_id


def checks(kind: str = "impossible", name: str = "links_carry") -> Checked:
    violation = Violation(
        invariant=name,
        statement="no node is faster than its link",
        meaning="Do not use it.",
        kind="impossible" if kind == "impossible" else "doubtful",
        case_id=DDP4,
        label="ddp · 4 ranks <b>",
        broken=Bounded(what="what node 0 sent", seen=2e8, most=1e8, unit="bytes/s", round=2),
    )
    rules = (
        Rule(name=name, statement=violation.statement, cases=3, numbers=9, broken=1),
        Rule(name="other", statement="parts add up", cases=7, numbers=7, broken=0),
        Rule(name="silent", statement="nothing to check here", cases=0, numbers=0, broken=0),
    )
    return Checked(cases=7, rules=rules, violations=(violation,))


def page(path: Path, found: Checked) -> Read:
    path.mkdir(exist_ok=True)
    summary = handmade_summary(checks=found, validity=found.sentences)
    return read(write_report(summary, RunDir(path)).read_text(encoding="utf-8"))


def test_what_is_impossible_stands_at_the_top(tmp_path: Path) -> None:
    document = page(tmp_path, checks())
    banner = document.one("p", class_="banner")
    assert banner.text.startswith(
        "Something impossible was measured: it is not so that no node is faster than its link (ddp · 4 ranks <b>)."
    )
    texts = [element.tag for element in document.elements]
    assert document.elements.index(banner) < texts.index("header")
    bullet = document.all("ul", class_="validity")[0].text
    assert (
        "In ddp · 4 ranks <b> (round 3) what node 0 sent is 1.6 Gbit/s; at most 800 Mbit/s is allowed."
        in bullet
    )
    assert "Checked: 2 invariants over 7 cases; 1 does not hold." in document.one("details", id="checks").text
    items = [element.text for element in document.all("li")]
    assert "No node is faster than its link: does not hold in 1 of 3 cases." in items
    assert "Parts add up: holds in 7 cases." in items
    assert not any("Nothing to check here" in text for text in items)


def test_what_makes_a_reader_doubt_all_numbers_stands_above_the_question(tmp_path: Path) -> None:
    summary = handmade_summary(warnings=("Most launches were disturbed.", "A case beats its upper bound."))
    html = write_report(summary, RunDir(tmp_path)).read_text(encoding="utf-8")
    banners = [one.text.partition(". ")[0] for one in read(html).all("p", class_="banner")]
    assert banners == ["Most launches were disturbed", "A case beats its upper bound"]
    assert (
        html.index('class="banner"') < html.index("<h1>") < html.index('class="about"') < html.index("<nav")
    )


def test_a_doubt_makes_no_banner_and_an_unchecked_page_says_nothing(tmp_path: Path) -> None:
    assert not page(tmp_path / "doubt", checks("doubtful")).all("p", class_="banner")
    silent = page(tmp_path / "silent", Checked())
    assert not silent.all("p", class_="banner") + silent.all("p", class_="checks")


def test_the_data_to_download_have_the_violations(tmp_path: Path) -> None:
    link = page(tmp_path, checks()).one("a", download="report.json").attributes["href"]
    data = json.loads(base64.b64decode(link.partition(",")[2]))
    (violation,) = data["checks"]["violations"]
    assert (violation["case_id"], violation["seen"], violation["most"]) == (DDP4, 2e8, 1e8)


@pytest.mark.usefixtures("painted")
def test_a_breakdown_that_is_not_that_of_the_timed_steps_is_marked() -> None:
    summary = handmade_summary(checks=checks("doubtful", "instrumented_as_timed"))
    section = breakdown.section(summary.steps.breakdown, summary.conclusions.checks, rows_of(summary))
    note = section.notes[0]
    assert note.startswith("* marks cases whose instrumented steps take another time than their timed ones")
    (picture,) = section.pictures
    names = [row[0].text for row in picture.table.rows]
    assert sum(name.endswith(" *") for name in names) == 1
    assert next(name for name in names if name.endswith(" *")).removesuffix(" *") in note
    assert "*: the parts do not describe the timed steps" in picture.caption
    assert draw(picture).png.startswith(b"\x89PNG")
    summary = handmade_summary()
    plain = breakdown.section(summary.steps.breakdown, summary.conclusions.checks, rows_of(summary))
    assert not any("marks cases" in text for text in plain.notes)


@pytest.mark.parametrize(("samples", "is_flagged"), [(8, False), (7, True)])
def test_the_terminal_says_so_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], violating: None, samples: int, is_flagged: bool
) -> None:
    run = RunDir(tmp_path / "run")
    write_plan(run, [case_of("single", 1)])
    launch = RankLaunch(blocks=[[10 * MS] * 10], samples_per_step=samples)
    for number in range(5):
        write_launch(run, case_of("single", 1), number, [launch])
    assert run_command(["report", str(run.path)]) == 0
    output = capsys.readouterr()
    assert output.out == f"{run.report}\n"
    lines = [line for line in output.err.splitlines() if line.startswith("checks: 1 of ")]
    assert len(lines) == is_flagged
