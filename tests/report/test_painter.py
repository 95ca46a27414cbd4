"""Figures drawn by two processes equal those drawn by one, and none is lost with the second process."""

from __future__ import annotations

import gc
import os
import pickle
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import psutil
import pytest
from matplotlib.figure import Figure

import ddpbench
from ddpbench.analysis.overview.build import summarize
from ddpbench.cache import FOLDER
from ddpbench.helper_process import NOBODY, WORTH_STARTING, Others, for_report
from ddpbench.picture_formats import PictureFormats
from ddpbench.records import RunDir
from ddpbench.report import page
from ddpbench.report.draw.canvas import DrawnPicture, draw
from ddpbench.report.draw.painter import WORTH_SHARING, Painter, _drawn, _name, draw_all
from ddpbench.report.draw.sheet import Sheet
from ddpbench.report.draw.style import on_dark
from ddpbench.report.draw.theme import set_theme
from ddpbench.report.parts import Picture, Table
from tests.kept import KEPT, unpacked
from tests.lighter import sitecustomize as lighter
from tests.synthetic import write_run


@pytest.fixture(autouse=True)
def two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1})
    monkeypatch.setenv(lighter.SHARES, "1")


def second_process() -> Others:
    found = for_report(WORTH_STARTING)
    assert len(found.processes) == 1
    return found


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


@pytest.mark.thorough
def test_a_page_is_the_same_whoever_draws(tmp_path: Path, painted: None) -> None:
    write_run(tmp_path / "run", 8)
    summary = summarize(RunDir(tmp_path / "run"))
    with second_process() as second:
        shared = page.build(summary, Painter(second))
    assert len(shared.figures) >= WORTH_SHARING
    assert shared == page.build(summary)


def test_a_run_of_few_cases_starts_no_second_process() -> None:
    assert for_report(WORTH_STARTING - 1) is NOBODY


def test_what_cannot_be_handed_over_is_drawn_here(painted: None) -> None:
    pictures = [picture(number, lambda sheet: paint_a_line(sheet, 1)) for number in range(WORTH_SHARING)]
    with second_process() as second:
        painter = Painter(second)
        painter.start(pictures)  # lambdas: no pickle
        drawn = painter.drawn()
    assert len(drawn) == WORTH_SHARING
    assert all(images.png.startswith(b"\x89PNG") for images in drawn)


def test_a_painter_that_dies_costs_no_figure(painted: None) -> None:
    pictures = [picture(number) for number in range(WORTH_SHARING)]
    with second_process() as second:
        painter = Painter(second)
        second.processes[0].process.kill()
        painter.start(pictures)
        drawn = painter.drawn()
    assert drawn == draw_all(pictures)


class Elsewhere:
    """A second process that draws `able` pictures, one at a time, and then fails."""

    def __init__(self, able: int) -> None:
        self.left = able
        self.asked: list[Picture] = []

    def ask(self, work: object, question: Picture) -> None:
        assert work is _drawn
        self.asked.append(question)

    def answer(self) -> DrawnPicture | None:
        self.left -= 1
        return draw(self.asked[-1]) if self.left >= 0 else None


@pytest.mark.parametrize("able", [0, 2, 99])
def test_each_picture_is_drawn_once_by_who_is_free(
    painted: None, monkeypatch: pytest.MonkeyPatch, able: int
) -> None:
    pictures = [replace(picture(number), height_in=2.0 - number / 10) for number in range(8)]
    expected = draw_all(pictures)
    elsewhere = Elsewhere(able)
    painter = Painter(Others(elsewhere))  # type: ignore[arg-type]
    painter.start(pictures)
    assert painter._dealt is not None
    painter._dealt._dealing[0].join(60)  # this process is busy with other things
    here: list[Picture] = []

    def drawn_here(one: Picture) -> DrawnPicture:
        here.append(one)
        return draw(one)

    monkeypatch.setattr("ddpbench.report.draw.painter.draw", drawn_here)
    assert painter.drawn() == expected
    there = [one.file_name for one in elsewhere.asked][: min(able, len(pictures))]
    assert there == [one.file_name for one in pictures][: len(there)]
    assert sorted(there + [one.file_name for one in here]) == [one.file_name for one in pictures]
    assert len(there) == min(able, len(pictures))


def test_an_answer_that_cannot_be_read_costs_no_figure(painted: None) -> None:
    class Broken(Elsewhere):
        def answer(self) -> DrawnPicture | None:
            raise MemoryError

    pictures = [picture(number) for number in range(5)]
    painter = Painter(Others(Broken(0)))  # type: ignore[arg-type]
    painter.start(pictures)
    assert painter.drawn() == draw_all(pictures)


def test_a_picture_has_the_same_name_in_every_process() -> None:
    script = (
        "from functools import partial; from ddpbench.report.draw.painter import _name\n"
        "from ddpbench.report.parts import Picture, Table; from ddpbench.picture_formats import PictureFormats\n"
        "given = dict(file_name='a', heading='', caption='', alt='', width_in=2.0, height_in=1.0, missing={})\n"
        "print(_name(Picture(**given, table=Table(caption='', columns=(), rows=()), paint=partial(print, 1), "
        "wanted=PictureFormats(figures=frozenset({'png', 'svg', 'pdf'})))))"
    )
    names = {
        subprocess.run(
            [sys.executable, "-c", script],
            env=os.environ | {"PYTHONHASHSEED": seed},
            cwd=Path(__file__).parents[2],
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for seed in ("1", "2", "3")
    }
    assert len(names) == 1
    assert names.pop().endswith(".figure\n")


def test_a_picture_of_a_run_read_again_has_the_same_name(tmp_path: Path) -> None:
    """Texts that were one object have become copies, and the reverse."""
    run = write_run(tmp_path / "run", 5)
    summaries = [summarize(run), pickle.loads(pickle.dumps(summarize(run)))]
    names = []
    for summary in summaries:
        painter = Kept()
        page.build(summary, painter)
        names.append([_name(one) for one in painter.pictures])
    assert len(names[0]) > 3
    assert all(names[0])
    assert names[0] == names[1]


@pytest.mark.thorough
def test_what_another_process_is_sent_is_all_that_a_picture_is_drawn_from(tmp_path: Path) -> None:
    """Draw a picture of each file name that the kept runs have, wide and narrow."""
    pictures: dict[str, Picture] = {}
    for name in KEPT:
        painter: Any = Undrawn()
        page.build(summarize(unpacked(name, tmp_path)), painter)
        pictures |= {one.file_name.rstrip("-0123456789"): one for one in painter.pictures}
    assert {"breakdown", "inputs", "scaling"} <= set(pictures)
    for picture in pictures.values():
        draw(pickle.loads(pickle.dumps(picture)))


class Undrawn:
    """A painter that keeps pictures and draws none."""

    def start(self, pictures: Sequence[Picture]) -> None:
        self.pictures = pictures

    def drawn(self) -> list[DrawnPicture]:
        return [DrawnPicture(svg=b"<svg/>", png=b"", narrow=b"", files={}) for _ in self.pictures]


class Kept(Painter):
    """A painter that keeps what it is asked to draw."""

    def start(self, pictures: Sequence[Picture]) -> None:
        self.pictures = pictures
        super().start(pictures)


def test_a_report_leaves_no_figure_behind(
    painted: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0})
    run = write_run(tmp_path / "run", 4)
    gc.collect()
    before = figures(generation=2)
    gc.disable()  # only the report's work makes objects grow old
    try:
        ddpbench.write_report(run.path)
        assert figures(generation=0) > 0
        assert figures(generation=2) == before
    finally:
        gc.enable()
    gc.collect()
    assert figures(generation=None) == before


def figures(generation: int | None) -> int:
    return sum(issubclass(type(one), Figure) for one in gc.get_objects(generation))


def test_a_figure_is_drawn_once(painted: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FOLDER, str(tmp_path))
    tmp_path.chmod(0o700)
    # started after the code was written
    later = time.time() + 86_400
    monkeypatch.setattr(psutil.Process, "create_time", lambda _: later)
    asked: list[str] = []

    def noted(one: Picture) -> DrawnPicture:
        asked.append(one.file_name)
        return draw(one)

    monkeypatch.setattr("ddpbench.report.draw.painter.draw", noted)
    pictures = [picture(number) for number in range(3)]

    def drawn(some: list[Picture]) -> list[DrawnPicture]:
        asked.clear()
        painter = Painter()
        painter.start(some)
        return painter.drawn()

    expected = drawn(pictures)
    assert asked == ["figure-0", "figure-1", "figure-2"]
    assert drawn(pictures) == expected
    assert not asked
    # any difference makes another picture: what is painted, its words, the files that are wanted
    others = [
        picture(0),
        replace(pictures[1], paint=partial(paint_a_line, number=7)),
        replace(pictures[2], wanted=PictureFormats(figures=frozenset({"png", "svg"}))),
        picture(3, lambda sheet: paint_a_line(sheet, 1)),  # which cannot be pickled
        replace(pictures[0], heading="Another"),
    ]
    found = drawn(others)
    assert asked == ["figure-1", "figure-2", "figure-3", "figure-0"]
    assert found[0] == expected[0]
    assert found[1].png != expected[1].png
    assert "figures/figure-2.svg" in found[2].files
    drawn(others)
    assert asked == ["figure-3"]


def test_a_figure_changes_its_colours_with_the_page_and_keeps_those_that_stand_out_on_both() -> None:
    text = '<text>#1f2328 fill="#ffffff" var(--1f2328)</text>'
    root = ElementTree.fromstring(
        f'<svg><rect fill="#ffffff"/><g style="fill: #1f2328; stroke: #d55e00">{text}</g></svg>'
    )
    rules = set_theme(root, "#own")
    assert rules.startswith("#own{--000000:#000000;--1f2328:#1f2328;--ffffff:#ffffff;fill:var(--000000)}")
    dark = "#own{--000000:#e6e8eb;--1f2328:#e6e8eb;--ffffff:#15181c;}"
    assert rules.endswith(f"@media screen and (prefers-color-scheme:dark){{{dark}}}")
    rect, group = root
    assert rect.attrib == {"style": "fill: var(--ffffff)"}
    assert group.attrib == {"style": "fill: var(--1f2328); stroke: #d55e00"}
    assert group[0].text == '#1f2328 fill="#ffffff" var(--1f2328)', "what is written stays as it is"


def test_the_heat_maps_ramp_is_turned_round_for_dark_ground() -> None:
    assert on_dark("#ffffff") == "#15181c"
    assert on_dark("#8fbbdd") == "#2f5f86"
    # half way along, to the whole number
    assert on_dark("#c7ddee") == "#223c51"
