"""Test the page's script for figures: values of marks, one highlighted series, and a figure as a file."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse

import pytest

from tests.browser.waiting import until

pytestmark = pytest.mark.browser
Open = Callable[..., Any]

SCRIPT = Path(__file__).parents[2] / "ddpbench/report/page.js"
FIGURE = ".titled:has(#figure-1) ~ figure"
MARKS = "figure svg [role=img]:has(> title):visible"
MARK = f".titled:has(#figure-1) ~ {MARKS}"
TITLE = "mark => mark.querySelector('title').textContent"
SHOWN_BY_BROWSER = """[...document.querySelectorAll("figure svg title")].filter(
  title => getComputedStyle(title.parentNode).pointerEvents !== "none").length"""
"""The number of titles that a browser itself shows next to the pointer."""
LABEL = f"{FIGURE} svg [data-s]:visible:has(text)"
OPACITIES = (
    """svg => [...svg.querySelectorAll("[data-s]")].map(n => [n.dataset.s, getComputedStyle(n).opacity])"""
)


def centre(place: Any) -> tuple[float, float]:
    place.scroll_into_view_if_needed()
    box = place.bounding_box()
    return box["x"] + box["width"] / 2, box["y"] + box["height"] / 2


def test_the_pointer_shows_what_a_mark_is(opened: Open) -> None:
    page = opened()
    assert page.locator(".tip").is_hidden()
    mark = page.locator(MARK).first
    x, y = centre(mark)
    page.mouse.move(x - 6, y)
    tip = page.locator(".tip")
    assert tip.inner_text() == mark.evaluate(TITLE)
    assert "speed-up" in tip.inner_text()
    box = tip.bounding_box()
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= 1280
    assert page.evaluate(SHOWN_BY_BROWSER) == 0, "nothing is shown twice"
    page.mouse.move(2, 2)
    assert tip.is_hidden()


def test_a_label_keeps_its_series_in_view(opened: Open) -> None:
    page = opened()
    label = page.locator(LABEL).first
    series = label.get_attribute("data-s")
    page.mouse.move(*centre(label))
    svg = page.locator(f"{FIGURE} svg:visible").first
    found = svg.evaluate(OPACITIES)
    assert {opacity for own, opacity in found if own == series} == {"1"}
    assert {opacity for own, opacity in found if own != series} == {"0.15"}
    assert len(found) > 10
    page.mouse.move(2, 2)
    assert {opacity for _, opacity in svg.evaluate(OPACITIES)} == {"1"}


def test_a_keyboard_goes_through_labels_and_marks(opened: Open) -> None:
    page = opened()
    page.locator(f"{FIGURE} .scroll").first.focus()
    page.keyboard.press("Tab")
    focus = "(at => at.ariaLabel ?? at.querySelector('title').textContent)(document.activeElement)"
    outlined = "getComputedStyle(document.activeElement).outlineStyle"
    first = page.evaluate(focus)
    assert page.locator(f"{FIGURE} svg:visible").first.get_attribute("class") == "picks"
    assert page.locator(".tip").is_hidden(), "a label says itself what it is"
    assert page.evaluate(outlined) == "solid"
    page.keyboard.press("End")
    last = page.evaluate(focus)
    assert page.locator(".tip").inner_text() == last
    page.keyboard.press("ArrowRight")
    assert page.evaluate(focus) == first, "after the last comes the first"
    page.keyboard.press("ArrowLeft")
    assert page.evaluate(focus) == last
    page.keyboard.press("Escape")
    assert page.locator(".tip").is_hidden()
    page.keyboard.press("Home")
    assert page.evaluate(focus) == first
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "opener", "a figure is one stop, not fifty"
    assert page.locator("svg.picks").count() == 0


def test_a_tap_shows_a_value_and_a_swipe_scrolls(opened: Open) -> None:
    page = opened(390, has_touch=True, is_mobile=True)
    mark = page.locator(MARK).first
    x, y = centre(mark)
    page.touchscreen.tap(x, y)
    tip = page.locator(".tip")
    assert "speed-up" in tip.inner_text()
    assert tip.bounding_box()["x"] + tip.bounding_box()["width"] <= 390
    page.touchscreen.tap(x, y + 60)
    assert tip.is_hidden()
    prevented = page.evaluate(
        """() => { const svg = document.querySelector(".narrow-form svg");
        return ["touchstart", "touchmove", "pointerdown", "pointermove"].filter(name =>
          !svg.dispatchEvent(new Event(name, {bubbles: true, cancelable: true}))); }"""
    )
    assert prevented == []
    assert page.evaluate("document.documentElement.scrollWidth") <= 390


def test_a_figure_opens_as_a_file_from_a_page_that_was_copied_alone(
    opened: Open, address: str, tmp_path: Path
) -> None:
    alone = tmp_path / "alone.html"
    shutil.copy(unquote(urlparse(address).path), alone)
    page = opened(url=alone.as_uri())
    assert page.locator(".opener").count() == page.locator("figure").count() == 5
    page.mouse.move(*centre(page.locator(LABEL).first))
    with page.context.expect_page() as waiting:
        page.get_by_role("link", name="Open SVG of Figure 1").click()
    other = waiting.value
    until(other, "document.documentElement?.localName === 'svg'")
    assert other.url.startswith("blob:")
    assert "speed-up" in other.evaluate("document.querySelector('title').textContent")
    assert other.evaluate("[...document.querySelectorAll('text')].some(text => text.textContent === 'ranks')")
    added = "[tabindex], .picks"
    assert other.evaluate(f"document.querySelectorAll('{added}').length") == 0
    assert other.evaluate("getComputedStyle(document.querySelector('path')).fill") == "rgb(255, 255, 255)"


def test_without_a_script_titles_are_the_browsers_and_no_link_is_dead(opened: Open) -> None:
    page = opened(java_script_enabled=False)
    assert page.locator(".opener, .tip, [tabindex='-1']").count() == 0
    assert page.locator("figure svg title").count() > 50
    assert page.evaluate(SHOWN_BY_BROWSER) > 50


def test_the_script_stays_small() -> None:
    """A page is read on slow lines too; a chart library has a hundred times as much."""
    text = SCRIPT.read_text(encoding="utf-8")
    code = "\n".join(line.strip() for line in text.splitlines() if not line.strip().startswith("//"))
    assert len(code[code.index("const NEAR") :]) < 3300
