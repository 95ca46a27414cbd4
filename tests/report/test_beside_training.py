"""The sections on input data and on checkpoints and evaluation: when they are shown, and what they say."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ddpbench.analysis import RunSummary, summarize
from ddpbench.records import RunDir
from ddpbench.report import write_report
from ddpbench.report.parts import Picture, Section
from ddpbench.report.rows import rows_of
from ddpbench.report.sections import checkpoints, inputs
from ddpbench.spec import Budget, Case
from ddpbench.spec.grouping import loading
from tests.report.handmade import handmade_summary
from tests.synthetic import (
    MS,
    ORIGIN_NS,
    RankLaunch,
    case_of,
    write_launch,
    write_plan,
    write_run,
    write_sessions,
)

DDP = case_of("ddp", 2)
MEMORY = replace(DDP, data="memory")


def data_summary(folder: Path, *cases: tuple[Case, float, float]) -> RunSummary:
    """Return six rounds of cases whose steps take and wait for these ms."""
    run = RunDir(folder / "run")
    write_plan(run, [case for case, _, _ in cases], Budget(rounds_min=1, rounds_max=6))
    start = ORIGIN_NS + 10**10
    for number in range(6):
        for case, step_ms, waited_ms in cases:
            step_ns, waited_ns = int(step_ms * MS) + number, int(waited_ms * MS)
            spans = [("data", start, start + waited_ns), ("forward", start + waited_ns, start + step_ns)]
            rank = RankLaunch(blocks=[[step_ns] * 10], steps=[(start, start + step_ns, spans, [])])
            write_launch(run, case, number, [rank] * case.world_size)
    write_sessions(run)
    return summarize(run)


def cells(picture: Picture, column: str) -> list[str]:
    place = [each.title for each in picture.table.columns].index(column)
    return [row[place].text for row in picture.table.rows]


def test_several_data_settings_are_a_figure_beside_data_in_memory(tmp_path: Path) -> None:
    two = replace(DDP, loader_workers=2)
    summary = data_summary(tmp_path, (DDP, 14, 4), (MEMORY, 10, 0), (two, 10.1, 0.05))
    section = inputs.section(summary.inputs, rows_of(summary))
    (picture,) = section.pictures
    assert section.absent == ""
    assert "input-bound with no loader workers; steps take 40.0 % longer" in picture.heading
    assert "a step takes 40.0 % [40.0, 40.0] longer than with data in memory" in picture.alt
    assert cells(picture, "Data") == ["memory", "no loader workers", "2 loader workers"]
    assert cells(picture, "Verdict") == ["the reference", "input-bound", "not input-bound"]
    assert cells(picture, "Waits for data, ms") == ["0.00", "4.0", "0.05"]
    assert cells(picture, "Share waited") == ["0.0 %", "29 %", "0.5 %"]
    assert cells(picture, "Against memory")[1] == "+40.0 % [+40.0, +40.0]"


def test_one_data_setting_is_a_sentence_with_the_waited_share(tmp_path: Path) -> None:
    summary = data_summary(tmp_path, (DDP, 10, 0.6))
    section = inputs.section(summary.inputs, rows_of(summary))
    assert section.pictures == ()
    assert "At most 6.0 % of a step is spent waiting for data" in section.absent
    assert "1 of 1 cases look input-bound" in section.absent


def test_without_instrumented_steps_the_section_says_so(tmp_path: Path) -> None:
    summary = summarize(write_run(tmp_path / "run", 2, steps=0))
    assert "No case has instrumented steps" in inputs.section(summary.inputs, rows_of(summary)).absent


def test_a_panel_has_one_source_of_data(tmp_path: Path) -> None:
    summary = data_summary(tmp_path, (DDP, 14, 4), (MEMORY, 10, 0))
    assert len({row.panel for row in rows_of(summary)}) == 2
    assert {loading(row.case) for row in rows_of(summary)} == {"no loader workers", "data in memory"}


@pytest.fixture
def costs(tmp_path: Path) -> RunSummary:
    """Return DDP that trains at 10 ms per step, evaluates at 4 ms, and takes 50 ms for a checkpoint of 2 MB."""
    run = RunDir(tmp_path / "run")
    write_plan(run, [DDP], Budget(rounds_min=1, rounds_max=5))
    for number in range(5):
        saved = [("plain", 2_000_000, 0, 50 * MS, 40 * MS), ("dcp", 1_000_000, 0, 99 * MS, 90 * MS)]
        ranks = [RankLaunch(evaluation=[[4 * MS] * 10] * 2, checkpoints=saved)]
        waited = [("plain", 0, 0, 50 * MS, None), ("dcp", 1_100_000, 0, 100 * MS, 90 * MS)]
        ranks += [RankLaunch(evaluation=[[4 * MS] * 10] * 2, checkpoints=waited)]
        write_launch(run, DDP, number, ranks)
    write_sessions(run)
    return summarize(run)


def made(summary: RunSummary) -> Section:
    section = checkpoints.section(summary.checkpoints, rows_of(summary))
    assert section is not None
    return section


def test_evaluation_stands_beside_training(costs: RunSummary) -> None:
    picture = made(costs).pictures[0]
    assert cells(picture, "Training, samples/s") == ["1,600"]
    assert cells(picture, "Evaluation, samples/s") == ["4,000"]
    assert cells(picture, "Evaluation over training") == ["2.50"]
    assert "4,000" in picture.heading


def test_checkpoints_are_told_with_their_share_at_intervals(costs: RunSummary) -> None:
    picture = made(costs).pictures[1]
    assert cells(picture, "Method") == ["rank 0, torch.save", "all ranks, DCP"]
    assert cells(picture, "Checkpoint, ms") == ["50.0", "100"]
    assert cells(picture, "MB") == ["2.0", "2.1"]
    assert cells(picture, "Ranks that write") == ["1", "2"]
    assert cells(picture, "Share at one in 100 steps") == ["4.8 %", "9.1 %"]  # 50 of 1,050 ms, 100 of 1,100
    assert cells(picture, "Steps for 1 %") == ["495", "990"]
    assert "1 % of time at one in 495 or 990 steps" in picture.heading
    assert "Right, for DDP" in f"{picture.caption} {picture.reading}"


def test_the_section_is_there_only_where_something_was_measured(costs: RunSummary, tmp_path: Path) -> None:
    page = write_report(costs, RunDir(tmp_path / "run")).read_text(encoding="utf-8")
    assert '<h2 id="checkpoints">' in page
    assert {path.stem for path in (tmp_path / "run/figures").iterdir()} >= {"evaluation", "checkpoints"}
    plain = handmade_summary()
    assert checkpoints.section(plain.checkpoints, rows_of(plain)) is None
