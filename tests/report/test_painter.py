"""Figures drawn by two processes are those drawn by one, and none is lost with the second."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from ddpbench.analysis.overview.build import summarize
from ddpbench.records import RunDir
from ddpbench.report import page
from ddpbench.report.draw.canvas import Sheet
from ddpbench.report.draw.painter import WORTH_SHARING, WORTH_STARTING, Painter, draw_all
from ddpbench.report.parts import Picture, Table
from tests.synthetic import write_run


@pytest.fixture(autouse=True)
def two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1})


def picture(number: int, paint: object = None) -> Picture:
    return Picture(
        file_name=f"figure-{number}",
        heading=f"Heading {number}",
        caption="",
        alt="",
        table=Table(caption="", columns=(), rows=()),
        width_in=2.0,
        height_in=1.0,
        paint=paint or partial(paint_a_line, number=number),  # type: ignore[arg-type]
        missing={},
    )


def paint_a_line(sheet: Sheet, number: int) -> None:
    axes = sheet.figure.add_axes((0.2, 0.2, 0.7, 0.7))
    axes.plot([0, number], [0, 1])


def test_a_page_is_the_same_whoever_draws(tmp_path: Path, painted: None) -> None:
    write_run(tmp_path / "run", 8)
    summary = summarize(RunDir(tmp_path / "run"))
    with Painter(WORTH_STARTING) as painter:
        assert painter.beside is not None
        shared = page.build(summary, painter)
    assert len(shared.figures) >= WORTH_SHARING
    assert shared == page.build(summary)


def test_a_run_of_few_cases_starts_no_second_process() -> None:
    with Painter(WORTH_STARTING - 1) as painter:
        assert painter.beside is None


def test_what_cannot_be_handed_over_is_drawn_here(painted: None) -> None:
    pictures = [picture(number, lambda sheet: paint_a_line(sheet, 1)) for number in range(WORTH_SHARING)]
    with Painter(WORTH_STARTING) as painter:
        painter.start(pictures)  # lambdas: no pickle
        drawn = painter.drawn()
    assert len(drawn) == WORTH_SHARING
    assert all(images.png.startswith(b"\x89PNG") for images in drawn)


def test_a_painter_that_dies_costs_no_figure(painted: None) -> None:
    pictures = [picture(number) for number in range(WORTH_SHARING)]
    with Painter(WORTH_STARTING) as painter:
        assert painter.beside is not None
        painter.beside.process.kill()
        painter.start(pictures)
        drawn = painter.drawn()
    assert drawn == draw_all(pictures)
