"""Pictures for use outside the page: formats, slides, and the texts in each."""

from __future__ import annotations

import dataclasses
import re
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from ddpbench.analysis.summary import RunSummary
from ddpbench.cli import run
from ddpbench.picture_formats import ONLY_PNG, PictureFormats
from ddpbench.records import RunDir
from ddpbench.report import page, write_report
from ddpbench.report.captions import shared_words
from ddpbench.report.draw import canvas, slide
from ddpbench.report.draw.canvas import draw, drawing, saved
from ddpbench.report.draw.sheet import Sheet
from ddpbench.report.embedded import labelled
from ddpbench.report.outside import conditions, dressed, source_line
from ddpbench.report.parts import Picture, Section
from ddpbench.report.rows import rows_of
from ddpbench.report.sections import breakdown, scaling
from tests.report.handmade import HOST_ATTACK, handmade_summary

pytestmark = pytest.mark.usefixtures("painted")

ALL = frozenset({"png", "svg", "pdf"})


@pytest.fixture(scope="module")
def summary() -> RunSummary:
    return handmade_summary()


def crowded(gap_in: float) -> Callable[[Sheet], None]:
    def paint(sheet: Sheet) -> None:
        for number in range(4):
            sheet.text(0.2, 0.5 + number * gap_in, "a line of text", fontsize=9)

    return paint


@pytest.fixture
def figure_one(monkeypatch: pytest.MonkeyPatch, summary: RunSummary) -> None:
    """Return one figure that is quickly drawn: statements on its files hold for all."""
    quick = dataclasses.replace(first_picture(summary), paint=crowded(0.5))
    section = Section(anchor="scaling", title="Scaling", pictures=(quick,))
    monkeypatch.setattr(page, "FIGURES", {"scaling": lambda *_: section})


def first_picture(summary: RunSummary, wanted: PictureFormats = ONLY_PNG) -> Picture:
    rows = rows_of(summary)
    section = scaling.section(summary.conclusions.claims, rows)
    assert section is not None
    return dressed(summary, rows, section.pictures[:1], wanted)[0]


def texts_of(figure: Any) -> dict[str, float]:
    """Return the texts of a figure that are not empty, without line breaks, with their sizes in points."""
    from matplotlib.text import Text

    found = [text for text in figure.findobj(Text) if text.get_visible() and text.get_text().strip()]
    return {" ".join(text.get_text().split()): float(text.get_fontsize()) for text in found}


def laid(picture: Picture, larger: float = 1.0) -> dict[str, float]:
    """Return the texts of a slide, in points of a slide that is 13.33 inches wide."""
    with drawing():
        figure = slide._laid(picture, larger)
        scale = slide.WIDTH_IN / figure.get_figwidth()
        return {text: size * scale for text, size in texts_of(figure).items()}


def test_a_picture_says_its_conditions_and_its_source(summary: RunSummary) -> None:
    picture = first_picture(summary)
    assert picture.subtitle == ", ".join(
        [*conditions(rows_of(summary)), *(["brackets: 95 % intervals"] if "[" in picture.heading else [])]
    )
    assert "weak scaling with a local batch of 8" in picture.subtitle
    assert picture.subtitle.count("launches each") == 1
    assert picture.source == source_line(summary)
    assert picture.source.startswith("Source: ddpbench")
    assert HOST_ATTACK not in picture.source
    assert "torch" in picture.source


def test_what_the_numbers_are_is_in_the_subtitle_and_the_alternative_text(summary: RunSummary) -> None:
    rows = rows_of(summary)
    bare = dataclasses.replace(first_picture(summary), label=("emulated 1 Gbit/s link", "shrunk /50"))
    (picture,) = dressed(summary, rows, [bare], ONLY_PNG)
    assert ", emulated 1 Gbit/s link, shrunk /50, " in picture.subtitle
    assert "All of it: emulated 1 Gbit/s link, shrunk /50." in labelled(bare).alt


def test_what_differs_within_the_run_is_no_condition(summary: RunSummary) -> None:
    rows = rows_of(summary)
    batch = dataclasses.replace(rows[1].case, local_batch=64, workload="mlp:large")
    some = [rows[0], dataclasses.replace(rows[1], case=batch)]
    assert set(conditions(some)[:-1]) <= set(shared_words(some))
    words = ", ".join(conditions(some))
    assert "batch" not in words
    assert rows[0].case.workload not in words
    assert "float32" in words


def test_files_are_those_wanted_and_equal_each_time(
    summary: RunSummary, tmp_path: Path, figure_one: None
) -> None:
    wanted = PictureFormats(figures=ALL, slides=ALL)
    found: list[dict[str, bytes]] = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        write_report(summary, RunDir(tmp_path / name), wanted=wanted)
        folders = (RunDir(tmp_path / name).figures, RunDir(tmp_path / name).slides)
        found.append({f"{f.name}/{p.name}": p.read_bytes() for f in folders for p in sorted(f.iterdir())})
    one, other = found
    assert set(one) == {f"{folder}/scaling.{kind}" for folder in ("figures", "slides") for kind in ALL}
    assert one == other
    assert struct.unpack(">II", one["slides/scaling.png"][16:24]) == (1920, 1080)
    for folder in ("figures", "slides"):
        assert one[f"{folder}/scaling.pdf"].startswith(b"%PDF")
        ElementTree.fromstring(one[f"{folder}/scaling.svg"])
    width, height = (
        float(ElementTree.fromstring(one["slides/scaling.svg"]).attrib[name].removesuffix("pt"))
        for name in ("width", "height")
    )
    assert width / height == pytest.approx(16 / 9, rel=1e-3)


def test_a_png_is_written_beside_other_formats(summary: RunSummary, tmp_path: Path, figure_one: None) -> None:
    run = RunDir(tmp_path)
    write_report(summary, run, wanted=PictureFormats(figures=frozenset({"svg"}), slides=frozenset({"svg"})))
    for folder in (run.figures, run.slides):
        assert {path.name for path in folder.iterdir()} == {"scaling.png", "scaling.svg"}


def test_no_file_is_older_than_the_page(summary: RunSummary, tmp_path: Path, figure_one: None) -> None:
    run_dir = RunDir(tmp_path)
    run_dir.figures.mkdir()
    run_dir.slides.mkdir()
    stale = [run_dir.figures / "buckets.svg", run_dir.slides / "heatmap-2.pdf"]
    kept = run_dir.slides / "mine.pdf"
    earlier = run_dir.figures / "scaling.pdf"
    for path in (*stale, kept, earlier):
        path.write_bytes(b"old")
    write_report(summary, run_dir)
    assert not any(path.exists() for path in stale)
    assert kept.read_bytes() == b"old", "what this package did not write is not its to remove"
    assert earlier.read_bytes().startswith(b"%PDF"), "asked for once, it is written with each report"
    assert (run_dir.slides / "scaling.pdf").exists()
    assert (run_dir.figures / "scaling.png").exists()


def test_a_slide_has_its_finding_large_and_no_caption(summary: RunSummary) -> None:
    picture = first_picture(summary)
    sizes = laid(picture)
    assert sizes[picture.heading] >= 18
    assert sizes[picture.source] >= 10
    assert picture.subtitle in sizes
    caption = " ".join(picture.caption.split())
    assert not any(sentence and sentence in " ".join(sizes) for sentence in caption.split(". ")[1:])
    on_page = {"ranks": 9.0}  # the page's labels
    with drawing():
        figure = slide._fitting(picture)
        scale = slide.WIDTH_IN / figure.get_figwidth()
        assert texts_of(figure)["ranks"] * scale > 1.25 * on_page["ranks"]


@pytest.mark.parametrize(("gap_in", "largest"), [(0.16, 1.2), (0.5, 1.5)])
def test_type_is_as_large_as_no_two_texts_collide(summary: RunSummary, gap_in: float, largest: float) -> None:
    picture = dataclasses.replace(first_picture(summary), paint=crowded(gap_in))
    with drawing():
        figure = slide._fitting(picture)
    assert texts_of(figure)["a line of text"] <= 9 * largest + 0.01
    assert texts_of(figure)["a line of text"] >= 9 * (largest - 0.2)
    assert slide._collisions(figure) == 0


def test_the_figures_own_png_has_title_conditions_and_source(
    summary: RunSummary, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: dict[str, float] = {}

    def look(figure: Any, kind: str, **options: Any) -> bytes:
        if kind == "png":
            seen.update(texts_of(figure))
        return saved(figure, kind, **options)

    monkeypatch.setattr(canvas, "saved", look)
    picture = first_picture(summary)
    assert draw(picture).files["figures/scaling.png"].startswith(b"\x89PNG")
    assert picture.heading in seen
    assert picture.subtitle in seen
    assert any(text.endswith(picture.source) for text in seen)
    setting = picture.caption.partition(". ")[0]
    assert sum(setting in text for text in seen) <= 1, "the conditions are stated once"


def test_an_unknown_format_is_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert run(["report", str(tmp_path), "--figures", "svg,gif"]) == 2
    assert "unknown format 'gif'; known: pdf, png, svg" in capsys.readouterr().err
    assert run(["report", str(tmp_path), "--figures", ","]) == 2
    assert "--figures ',': give one or more of png, svg, pdf, separated by commas" in capsys.readouterr().err


def written_on(picture: Picture) -> set[str]:
    """Return the texts on its axes: labels of ticks and of bars' parts."""
    from matplotlib.text import Text

    found: set[str] = set()

    def paint(sheet: Sheet) -> None:
        picture.paint(sheet)
        sheet.figure.draw_without_rendering()
        found.update(one.get_text() for axes in sheet.figure.axes for one in axes.findobj(Text))

    draw(dataclasses.replace(picture, paint=paint))
    return found


def test_the_breakdown_draws_the_numbers_of_its_table(summary: RunSummary) -> None:
    """A value has one rounding."""
    (picture,) = breakdown.section(
        summary.steps.breakdown, summary.conclusions.checks, rows_of(summary)
    ).pictures
    parts = {text for text in written_on(picture) if re.fullmatch(r"[\d,]+\.\d+", text)}
    assert len(parts) > 3
    assert parts <= {cell.text for row in picture.table.evenly_rounded().rows for cell in row}


def test_axes_separate_thousands_as_texts_do(summary: RunSummary) -> None:
    (picture,) = breakdown.section(
        summary.steps.breakdown, summary.conclusions.checks, rows_of(summary)
    ).pictures

    def paint(sheet: Sheet) -> None:
        axes = sheet.axes(0.5, 0.5, 4, 2)
        axes.set_xlim(0, 4000)

    written = written_on(dataclasses.replace(picture, paint=paint))
    assert {"500", "1,000", "4,000", "0.2"} <= written
    assert "1000" not in written
