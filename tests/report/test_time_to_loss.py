"""The section on trainings to a loss: when it is shown, and what its figure, tables and notes say."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ddpbench.analysis import RunSummary, summarize
from ddpbench.records import RunDir
from ddpbench.report import write_report
from ddpbench.report.parts import Section, Table
from ddpbench.report.rows import rows_of
from ddpbench.report.sections import time_to_loss
from ddpbench.spec import Budget, Case
from tests.analysis.test_time_to_loss import DDP, SINGLE, STRONG, STRONG_SINGLE, falling, rank
from tests.report.handmade import handmade_summary
from tests.report.reading import read
from tests.synthetic import RankLaunch, case_of, write_launch, write_plan, write_sessions

INDEPENDENT = case_of("independent", 2)


def summary_of(folder: Path, launches: dict[Case, list[RankLaunch]]) -> RunSummary:
    """Return five rounds of each case's ranks, the same in all of them."""
    run = RunDir(folder / "run")
    write_plan(run, list(launches), Budget(rounds_min=5, rounds_max=5, until_loss=2.0))
    for case, ranks in launches.items():
        for number in range(5):
            write_launch(run, case, number, ranks)
    write_sessions(run)
    return summarize(run)


@pytest.fixture
def summary(tmp_path: Path) -> RunSummary:
    return summary_of(
        tmp_path,
        {
            SINGLE: [rank(10, falling(40, 25))],
            STRONG_SINGLE: [rank(10, falling(40, 25))],
            STRONG: [rank(6, falling(40, 25), samples_per_step=4)] * 2,
            DDP: [rank(16, falling(50, 9))] * 2,
            INDEPENDENT: [rank(10, [])] * 2,
        },
    )


def made(summary: RunSummary) -> Section:
    section = time_to_loss.section(summary.training, rows_of(summary))
    assert section is not None
    return section


def cells(table: Table, column: str) -> list[str]:
    place = [each.title for each in table.columns].index(column)
    return [row[place].text for row in table.rows]


def test_the_table_has_steps_samples_time_and_speed_up(summary: RunSummary) -> None:
    (table,) = made(summary).tables
    assert cells(table, "Case") == [
        "single, 1 rank, batch 8, weak scaling",
        "single, 1 rank, batch 8, strong scaling",
        "DDP, 2 ranks, batch 8",
        "DDP, 2 ranks, batch 16",
    ]
    assert cells(table, "Steps") == ["56", "56", "56", "58"]
    assert cells(table, "Samples") == ["448", "448", "448", "928"]
    assert cells(table, "Time to the loss, s") == ["0.560", "0.560", "0.336", "0.928"]
    assert cells(table, "Speed-up to it") == ["1.00", "1.00", "1.67", "0.603"]
    assert cells(table, "Speed-up in samples/s") == ["1.00", "1.00", "1.67", "1.25"]
    assert cells(table, "Apart from one device") == ["", "", "0", ""]
    assert cells(table, "Reached it") == ["5 of 5"] * 4


def test_the_figure_draws_one_device_once_and_names_the_first(summary: RunSummary) -> None:
    section = made(summary)
    (picture,) = section.pictures
    assert picture.heading.startswith(
        "DDP, 2 ranks, batch 8: 0.336 s to a loss of 2; single, 1 rank, batch 8: 0.560 s"
    )
    assert "DDP, 2 ranks, batch 8 0.336 [0.336, 0.336] s" in picture.alt
    drawn = list(dict.fromkeys(cells(picture.table, "Case")))
    assert len(drawn) == 3
    assert sum(name.startswith("single") for name in drawn) == 1
    assert "Mean loss of the last 16 to 32 steps" in picture.caption
    assert "5 launches each" in picture.caption
    assert not any("Not drawn" in note for note in section.notes)
    assert any("Independent ranks" in note for note in section.notes)


def test_a_case_that_did_not_get_there_says_how_far_it_came(tmp_path: Path) -> None:
    summary = summary_of(tmp_path, {SINGLE: [rank(10, falling(60, 5))]})
    section = made(summary)
    (table,) = section.tables
    assert cells(table, "Time to the loss, s") == [""]
    assert cells(table, "Reached it") == ["0 of 5"]
    assert cells(table, "Notes")[0].startswith("lowest mean 2.69 in up to 65 steps")
    assert section.pictures[0].heading == "No case on separate cores reached a loss of 2 in any launch"
    assert "A line without a marker" in section.pictures[0].caption


def test_two_tasks_have_a_figure_each_that_says_which_it_is(tmp_path: Path) -> None:
    half = replace(SINGLE, precision="fp16")
    section = made(
        summary_of(tmp_path, {SINGLE: [rank(10, falling(40, 25))], half: [rank(9, falling(40, 25))]})
    )
    first, second = section.pictures
    assert first.heading == "single, 1 rank, batch 8: 0.560 s to a loss of 2"
    assert second.heading.endswith(" 0.504 s to a loss of 2")
    assert [first.group, second.group] == ["full precision", "fp16 autocast"]
    assert "0.504 [0.504, 0.504] s" in second.alt
    assert [picture.file_name for picture in section.pictures] == ["time-to-loss", "time-to-loss-2"]
    assert "fp16" in section.tables[1].caption
    assert "Apart from one device" not in section.tables[0].caption


def test_a_training_too_short_for_a_mean_has_a_table_and_no_figure(tmp_path: Path) -> None:
    summary = summary_of(tmp_path, {SINGLE: [rank(10, falling(3, 2))]})
    section = made(summary)
    assert section.pictures == ()
    assert cells(section.tables[0], "Notes")[0].startswith("ended after 5 steps")


def test_the_section_is_there_only_where_a_loss_was_asked_for(summary: RunSummary, tmp_path: Path) -> None:
    run = RunDir(tmp_path / "run")
    document = read(write_report(summary, run).read_text(encoding="utf-8"))
    assert document.one("h2", id="time-to-loss").text.startswith("Time to a loss")
    assert (run.figures / "time-to-loss.png").exists()
    assert any("a loss of 2" in finding.line for finding in summary.conclusions.findings)
    plain = handmade_summary()
    assert time_to_loss.section(plain.training, rows_of(plain)) is None
    write_report(plain, run)
    assert not (run.figures / "time-to-loss.png").exists()


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_a_loss_that_is_not_finite_is_left_out_of_the_figure_and_noted(tmp_path: Path, value: float) -> None:
    lost = [*falling(20, 5), *[value] * 40]
    summary = summary_of(
        tmp_path,
        {
            SINGLE: [rank(10, falling(40, 25))],
            DDP: [rank(16, lost)] * 2,
            STRONG: [rank(9, [value] * 65, samples_per_step=4)] * 2,
        },
    )
    section = made(summary)
    (picture,) = section.pictures
    assert picture.table is not None
    assert not {"nan", "inf", "-inf"} & set(cells(picture.table, "Mean loss"))
    (note,) = (each for each in section.notes if "not a finite number" in each)
    assert "DDP, 2 ranks, batch 16 (from step " in note
    path = write_report(summary, RunDir(tmp_path / "run"))
    assert "Not drawn where the mean loss is not a finite number" in path.read_text(encoding="utf-8")
