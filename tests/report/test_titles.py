"""Marks of figures say what they show: `<title>` of points, bars and cells, and which series a label names."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

import pytest
from matplotlib.figure import Figure

from ddpbench.analysis import summarize
from ddpbench.report.draw import style
from ddpbench.report.draw.canvas import draw, drawing, saved
from ddpbench.report.draw.marks import describe
from ddpbench.report.draw.sheet import Sheet
from ddpbench.report.parts import Picture
from tests.emulated import write_emulated
from tests.lighter.sitecustomize import PAINTS
from tests.report.handmade import handmade_summary, sections_of
from tests.report.test_glyphs import FORBIDDEN
from tests.report.test_palette import TEXT, contrast
from tests.report.test_slim import SVG
from tests.synthetic import write_everything


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> list[Picture]:
    every = summarize(write_everything(tmp_path_factory.mktemp("every") / "run"))
    emulated = summarize(write_emulated(tmp_path_factory.mktemp("emulated") / "run"))
    sections = [section for summary in (every, emulated) for section in sections_of(summary)]
    return [picture for section in sections for picture in section.pictures]


@pytest.fixture(scope="module")
def forms(pictures: list[Picture]) -> list[tuple[str, Element]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(PAINTS, "svg")
        drawn = [(picture.file_name, draw(picture)) for picture in pictures]
    return [(name, ElementTree.fromstring(svg)) for name, one in drawn for svg in (one.svg, one.narrow)]


def titles_of(root: Element) -> list[str]:
    return [node.text or "" for node in root.iter(f"{SVG}title")]


def test_marks_of_every_figure_say_what_and_how_much(forms: list[tuple[str, Element]]) -> None:
    assert len({name for name, _ in forms}) > 12
    silent = [name for name, root in forms if not titles_of(root)]
    assert silent == []
    titles = [title for _, root in forms for title in titles_of(root)]
    assert len(titles) > 500
    assert [title for title in titles if "\n" in title or not re.search(r"\S, |\S: ", title)] == []
    assert [title for title in titles if re.search(r"\b(None|nan|0\.00 ms for)\b", title)] == []
    assert sum(bool(re.search(r"\[[\d.,]+, [\d.,]+\]", title)) for title in titles) > len(titles) / 2, (
        "intervals"
    )


def test_titles_are_first_in_marks_that_are_read_out(forms: list[tuple[str, Element]]) -> None:
    for _, root in forms:
        for node in root.iter():
            titled = [place for place, child in enumerate(node) if child.tag == f"{SVG}title"]
            assert titled in ([], [0])
            assert (node.get("role") == "img") == (bool(titled) or "aria-label" in node.attrib)


def test_titles_have_the_numbers_of_the_table() -> None:
    picture = sections_of(handmade_summary())[0].pictures[0]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(PAINTS, "svg")
        titles = titles_of(ElementTree.fromstring(draw(picture).svg))
    measured = [
        (cell.measured, row[0].text)
        for row in picture.table.rows
        for cell in row
        if cell.measured is not None
    ]
    shown = [title for title in titles if ": speed-up" in title or ": efficiency" in title]
    assert len(shown) == len(titles) == 22
    values = {str(value) for value, _ in measured}
    assert {title.partition(": ")[2].partition(" ")[2] for title in shown} <= values
    assert any(title.startswith("DDP, 8 ranks: speed-up 2.08 [2.04, 2.12]") for title in shown)


def in_series(root: Element) -> Iterator[tuple[str, bool]]:
    """Yield the number of the series of each element that has one, and whether it is a mark with a title."""
    for node in root.iter():
        if "data-s" in node.attrib:
            yield node.attrib["data-s"], any(True for _ in node.iter(f"{SVG}title"))


@pytest.mark.parametrize("name", ["scaling", "breakdown", "one-step", "network", "time-to-loss"])
def test_labels_name_series_of_marks(forms: list[tuple[str, Element]], name: str) -> None:
    for root in (root for file_name, root in forms if file_name == name):
        found = list(in_series(root))
        marks, labels = ({series for series, mark in found if mark is kind} for kind in (True, False))
        assert len(marks) > 1
        assert len(labels) > 1
        assert labels <= marks, "no label names a series without marks"


def test_a_label_is_read_out_as_its_own_texts(forms: list[tuple[str, Element]]) -> None:
    labels = [node for _, root in forms for node in root.iter() if "aria-label" in node.attrib]
    assert len(labels) > 10
    for label in labels:
        assert "data-s" in label.attrib
        assert label.attrib["aria-label"].split() == " ".join(label.itertext()).split()


def drawn_with(title: str, series: str, points: int = 3) -> Element:
    with drawing(), pytest.MonkeyPatch.context() as patch:
        patch.setenv(PAINTS, "svg")
        figure = Figure(figsize=(3.0, 2.0))
        axes = Sheet(figure, width_in=3.0, height_in=2.0, lifted_in=0.0).axes(0.3, 0.3, 2.0, 1.0)
        (line,) = axes.plot(range(points), range(points), "o")
        describe(line, series, *[title] * 3)
        return ElementTree.fromstring(saved(figure, "svg"))


@pytest.mark.parametrize("text", [FORBIDDEN, '</title><script>"x"</script>&amp;', "marked:{}", "a\nb\tc"])
def test_titles_of_a_strangers_names_are_text(text: str) -> None:
    root = drawn_with(text, text)
    assert len(titles_of(root)) == 3
    assert {child.tag for node in root.iter(f"{SVG}title") for child in node} == set()
    assert "\n" not in titles_of(root)[0]
    assert not any("marked:" in (node.get("id") or "") for node in root.iter())


def test_what_has_not_as_many_points_as_titles_says_all(monkeypatch: pytest.MonkeyPatch) -> None:
    assert titles_of(drawn_with("a", "", points=2)) == ["a\na\na"]


@pytest.mark.usefixtures("painted")
def test_equal_pictures_are_equal_bytes(pictures: list[Picture]) -> None:
    picture = replace(pictures[0])
    assert (draw(picture).svg, draw(picture).narrow) == (draw(pictures[0]).svg, draw(pictures[0]).narrow)


def test_texts_stand_out_from_the_ground_in_both_themes(forms: list[tuple[str, Element]]) -> None:
    """Numbers on a part of a bar have a separate colour, which `test_palette.py` compares with the part's."""
    colours = set()
    for _, root in forms:
        (sheet,) = root.iter(f"{SVG}style")
        rules = dict(re.findall(r"#\w+ \.(\w+)\{([^}]*)\}", sheet.text or ""))
        for text in root.iter(f"{SVG}text"):
            own = rules.get(text.get("class", ""), "") + text.get("style", "")
            found = re.search(r"fill: ?(?:var\(--)?#?([0-9a-f]{6})", own)
            colours.add(f"#{found[1]}" if found else "#000000")
    on_fills = {style.DARK_TEXT.lower(), style.LIGHT_TEXT.lower()}
    assert len(colours - on_fills) > 3
    contrasts = {
        colour: min(contrast(colour, style.GROUND), contrast(style.on_dark(colour), style.on_dark("#ffffff")))
        for colour in colours - on_fills
    }
    assert {colour: ratio for colour, ratio in contrasts.items() if ratio < TEXT} == {}
