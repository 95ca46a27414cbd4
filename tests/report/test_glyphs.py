"""Texts in scripts that the figures' own font lacks: drawn with another font, or said to be boxes."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace

import pytest

from ddpbench.report.draw import canvas
from ddpbench.report.draw.canvas import Drawn, draw
from ddpbench.report.draw.slide import draw_slide
from ddpbench.report.embedded import with_images
from tests.report.test_painter import picture

pytestmark = pytest.mark.usefixtures("painted")

SECTOR = "\N{SECTOR}"
"""DejaVu Sans Mono has it, which matplotlib brings, and DejaVu Sans does not."""
NOBODYS = "\N{CYPRO-MINOAN SIGN CM001}"


def named(heading: str) -> Drawn:
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
    page = with_images("<h1>Mine</h1>", [found])
    assert page.startswith(
        f"<h1>Mine</h1>\n<p>The figures have boxes in place of {NOBODYS}: no font that is installed"
    )
    assert with_images("<h1>Mine</h1>", [named("plain")]) == "<h1>Mine</h1>"


def test_a_slide_is_drawn_too() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        made = draw_slide(replace(picture(1), heading=f"{NOBODYS} {SECTOR} \N{ROCKET} مرحبا 模型"), ["png"])
    assert made["png"].startswith(b"\x89PNG")
