"""Texts in scripts that the figures' own font lacks: drawn with another font, or reported as boxes."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace
from xml.etree import ElementTree

import pytest

from ddpbench.picture_formats import PictureFormats
from ddpbench.report.draw import canvas
from ddpbench.report.draw.canvas import DrawnPicture, draw
from ddpbench.report.draw.sheet import Sheet
from ddpbench.report.draw.slide import draw_slide
from ddpbench.report.embedded import with_pictures
from ddpbench.text_safety import unprintable
from tests.report.test_painter import picture

pytestmark = pytest.mark.usefixtures("painted")

SECTOR = "\N{SECTOR}"
"""DejaVu Sans Mono, which comes with matplotlib, has it, and DejaVu Sans does not."""
NOBODYS = "\N{CYPRO-MINOAN SIGN CM001}"


def named(heading: str) -> DrawnPicture:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return draw(replace(picture(1), heading=heading))


def test_a_character_that_the_font_lacks_is_drawn_with_an_installed_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = named(f"case {SECTOR}")
    assert not found.missing
    asked: list[set[str]] = []

    def none(characters: set[str]) -> Sequence[str]:
        asked.append(set(characters))
        return ()

    monkeypatch.setattr(canvas, "fonts_with", none)
    box = named(f"case {SECTOR}")
    assert box.missing == {SECTOR}
    assert asked == [{SECTOR}]
    assert box.png != found.png


def test_a_figure_in_the_fonts_own_characters_asks_for_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(canvas, "fonts_with", lambda _: pytest.fail("asked for a font"))
    assert not named("größer, Ω, ≤").missing


def test_what_no_font_has_is_said_below_the_pages_heading_and_warns_of_nothing() -> None:
    found = named(f"case {NOBODYS}<b>")
    assert found.missing == {NOBODYS}
    page = with_pictures("<h1>Mine</h1>", [found])
    assert page.startswith(
        f"<h1>Mine</h1>\n<p>The files of figures have boxes in place of {NOBODYS}: no font that is installed"
    )
    assert with_pictures("<h1>Mine</h1>", [named("plain")]) == "<h1>Mine</h1>"


def test_a_slide_is_drawn_too() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        made = draw_slide(replace(picture(1), heading=f"{NOBODYS} {SECTOR} \N{ROCKET} مرحبا 模型"), ["png"])
    assert made["png"].startswith(b"\x89PNG")


FORBIDDEN = "".join(
    chr(number)
    for number in (
        *range(9),
        11,
        12,
        *range(14, 32),
        0xD800,
        0xDFFF,
        0xFDD0,
        0xFFFE,
        0xFFFF,
        0x1FFFE,
        0x10FFFF,
    )
)
"""Characters that XML forbids, or that are not characters in Unicode."""


def paint_forbidden(sheet: Sheet) -> None:
    axes = sheet.axes(0.3, 0.3, 1.0, 0.4)
    axes.set_title(FORBIDDEN)
    axes.set_xticks([0, 1], [f"a{FORBIDDEN}", FORBIDDEN])
    axes.set_xlabel(FORBIDDEN)
    axes.annotate(FORBIDDEN, (0.5, 0.5))
    (line,) = axes.plot([0, 1], [0, 1], label=f"b{FORBIDDEN}")
    sheet.legend([line], columns=1)
    sheet.text(0.1, 0.1, FORBIDDEN)


def test_no_text_makes_an_svg_that_no_parser_reads() -> None:
    """Matplotlib writes each text unchanged into a comment."""
    formats = frozenset({"svg", "pdf"})
    found = replace(
        picture(1, paint_forbidden),
        heading=f"A {FORBIDDEN}",
        subtitle=FORBIDDEN,
        caption=FORBIDDEN,
        source=FORBIDDEN,
        narrow=paint_forbidden,
        narrow_in=(2.0, 1.0),
        wanted=PictureFormats(figures=formats),
    )
    drawn = draw(found)
    for svg in (
        drawn.svg,
        drawn.narrow,
        drawn.files["figures/figure-1.svg"],
        draw_slide(found, ["svg"])["svg"],
    ):
        ElementTree.fromstring(svg)
        assert not unprintable(svg.decode("utf-8"))
    assert b"/Title" not in drawn.files["figures/figure-1.pdf"]
