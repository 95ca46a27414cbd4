"""Texts of figures in fonts that a reader may have: as wide as laid out, so that none overlaps or is cut off."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytestmark = pytest.mark.browser
Open = Callable[..., Any]

FONTS = ["DejaVu Sans", "DejaVu Sans Condensed", "DejaVu Sans Mono", "DejaVu Serif"]
"""The figures' own, one a tenth narrower, one of wide letters that are all alike, and one with serifs."""
LAID = """(font) => [...document.querySelectorAll("figure svg")].filter(svg => svg.checkVisibility()).map(svg => {
  svg.setAttribute("font-family", font);
  const frame = svg.getBoundingClientRect();
  const scale = frame.width / svg.viewBox.baseVal.width;
  return [...svg.querySelectorAll("text")].filter(text => text.textContent.trim()).map(text => {
    const box = text.getBoundingClientRect();
    return [text.textContent, ...[box.left - frame.left, box.top - frame.top, box.right - frame.left,
      box.bottom - frame.top].map(edge => edge / scale), frame.width / scale, frame.height / scale];
  });
})"""
"""Texts with their left, top, right and bottom edges and the figure's width and height, all in points."""
LINE = 0.3
"""Share of a text's height above and below its letters."""


def faults(texts: list[list[Any]]) -> list[str]:
    """Describe the texts of a figure that are cut off, or that lie on another."""
    found, before = [], []
    for words, left, top, right, bottom, width, height in texts:
        inset = LINE * min(bottom - top, right - left)
        box = (left + 0.5, top + inset, right - 0.5, bottom - inset)
        if box[0] < 0 or box[1] < 0 or box[2] > width or box[3] > height:
            found.append(f"{words!r} is cut off")
        found += [
            f"{words!r} lies on {others!r}"
            for others, other in before
            if box[0] < other[2] and other[0] < box[2] and box[1] < other[3] and other[1] < box[3]
        ]
        before.append((words, box))
    return found


@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("font", FONTS)
def test_texts_fit_in_any_font(opened: Open, whole: str, font: str, width: int) -> None:
    page = opened(width, url=whole)
    page.evaluate("document.querySelectorAll('details').forEach(details => (details.open = true))")
    figures = page.evaluate(LAID, font)
    assert len(figures) > 12
    assert sum(map(len, figures)) > 400
    assert [fault for texts in figures for fault in faults(texts)] == []


def test_texts_of_figures_are_found_and_copied(opened: Open, whole: str) -> None:
    page = opened(url=whole)
    copied = page.evaluate(
        """() => { const label = [...document.querySelectorAll("svg text")].find(t => t.textContent === "ms per step");
        getSelection().selectAllChildren(label); return [getSelection().toString(), find("ms per step")]; }"""
    )
    assert copied == ["ms per step", True]
