"""The report in a real browser: nothing blocked, nothing loaded, nothing wider than the screen, tables sort."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ddpbench.records import RunDir
from ddpbench.report import write_report
from tests.browser.waiting import until
from tests.report.hostile import hostile_figure, hostile_summary

pytestmark = pytest.mark.browser
Open = Callable[..., Any]

FORMS = "[...document.querySelectorAll('figure svg')].filter(svg => svg.checkVisibility())"
COLUMN = "[...document.querySelectorAll('#table-1 tbody tr')].map(row => row.cells[{}].firstChild?.textContent ?? '')"


@pytest.mark.parametrize("width", [320, 390, 768, 1280, 1920])
def test_the_page_never_scrolls_sideways(opened: Open, width: int) -> None:
    page = opened(width)
    page.evaluate("document.querySelectorAll('details').forEach(details => (details.open = true))")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate("document.body.scrollWidth") <= width


def test_all_figures_are_there_and_fit_a_phone(opened: Open) -> None:
    page = opened(390)
    page.evaluate("document.querySelectorAll('details').forEach(details => (details.open = true))")
    shown = page.evaluate(f"{FORMS}.map(svg => svg.getBoundingClientRect().width)")
    assert len(shown) == 5
    assert all(0 < width <= 390 for width in shown)
    assert page.evaluate(
        "[...document.querySelectorAll('.card')].every(n => n.scrollWidth <= n.clientWidth + 1)"
    )


def test_a_table_that_goes_on_to_the_right_fades_out_until_its_end(opened: Open) -> None:
    page = opened(1280)
    page.evaluate(
        """() => { const region = document.querySelector('#table-1').closest('.scroll');
        region.style.width = '300px'; region.id = 'cut'; }"""
    )
    wide = page.locator("#cut")
    until(page, "document.querySelector('#cut').classList.contains('more')")
    faded = "node => getComputedStyle(node).maskImage !== 'none'"
    assert wide.evaluate("node => node.scrollWidth > node.clientWidth && node.tabIndex === 0")
    assert wide.evaluate(faded)
    wide.evaluate("node => node.scrollTo({left: node.scrollWidth, behavior: 'instant'})")
    until(page, "!document.querySelector('#cut').classList.contains('more')")
    assert not wide.evaluate(faded), "the end is seen as it is"


def test_on_a_phone_panels_stack(opened: Open) -> None:
    def shape(width: int) -> list[float]:
        size = opened(width).evaluate(f"{FORMS}.map(svg => svg.getBoundingClientRect())[0].toJSON()")
        return [size["width"] / size["height"], size["width"]]

    (wide, _), (narrow, shown) = shape(1280), shape(390)
    assert wide > 1.5
    assert narrow < 0.8
    assert shown <= 390, "and none is cut off"


@pytest.mark.parametrize("width", [320, 390, 820])
def test_no_table_is_cut_off_without_a_sign(opened: Open, width: int) -> None:
    page = opened(width)
    page.evaluate("document.querySelectorAll('details').forEach(details => (details.open = true))")
    page.evaluate("() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
    cut = page.evaluate(
        """[...document.querySelectorAll('.scroll')].filter(node => node.scrollWidth - node.clientWidth > 1)
        .filter(node => getComputedStyle(node).maskImage === 'none').map(node => node.ariaLabel)"""
    )
    assert cut == []
    wide = page.evaluate(
        """[...document.querySelectorAll('.tabled')].filter(node => node.scrollWidth - node.clientWidth > 1)
        .filter(node => node.querySelectorAll('thead th').length > 4).map(node => node.ariaLabel)"""
    )
    assert wide == [], "of many columns all numbers are seen"


def test_on_a_phone_the_summary_shows_all_its_numbers(opened: Open) -> None:
    page = opened(390)
    row = page.locator("#table-1 tbody tr", has_text="DDP").first
    assert row.locator("td[data-title='Samples/s']").is_visible()
    assert not page.locator("#table-1 thead").is_visible(), "each number has its title next to it"
    edges = page.evaluate(
        "[...document.querySelectorAll('#table-1 td')].filter(n => n.offsetHeight)"
        ".map(n => n.getBoundingClientRect().right)"
    )
    assert len(edges) > 100
    assert max(edges) <= 390


def test_sorting_by_mouse_and_by_keyboard_sets_aria_sort(opened: Open) -> None:
    page = opened()
    head = page.locator("#table-1 thead th", has_text="Samples/s")
    button = head.get_by_role("button")
    before = page.evaluate(COLUMN.format(4))
    button.click()
    assert head.get_attribute("aria-sort") == "ascending"
    rates = [float(text.replace(",", "")) for text in page.evaluate(COLUMN.format(4)) if text]
    assert len(rates) == 18
    assert rates == sorted(rates)
    assert page.evaluate(COLUMN.format(4))[-2:] == ["", ""], "what was not measured comes last"
    button.press("Enter")
    assert head.get_attribute("aria-sort") == "descending"
    button.press("Space")
    assert head.get_attribute("aria-sort") == "ascending"
    other = page.locator("#table-1 thead th", has_text="Strategy")
    other.get_by_role("button").click()
    assert other.get_attribute("aria-sort") == "ascending"
    assert head.get_attribute("aria-sort") is None
    assert sorted(page.evaluate(COLUMN.format(4))) == sorted(before), "no row is lost"


SHOWN = "[...document.querySelectorAll('#table-1 tbody tr')].filter(row => row.offsetHeight > 0).length"


def test_filtering_by_keyboard_tells_how_many_rows_are_left(opened: Open) -> None:
    page = opened()
    filter_ = page.get_by_role("searchbox", name="Filter rows of: Table 1.")
    status = page.locator(".filter", has=filter_).get_by_role("status")
    assert status.text_content() == ""
    filter_.focus()
    page.keyboard.type("ddp 4")
    ddp_rows = page.evaluate(
        "[...document.querySelectorAll('#table-1 tbody tr')].filter(row => /DDP/.test(row.textContent)"
        " && /4/.test(row.textContent)).length"
    )
    assert page.evaluate(SHOWN) == ddp_rows
    assert status.text_content() == f"{ddp_rows} of 20 rows"
    page.keyboard.type(" no such words")
    assert page.evaluate(SHOWN) == 0
    assert status.text_content() == "0 of 20 rows"
    page.keyboard.press("Escape")
    assert page.evaluate(SHOWN) == 20
    assert filter_.input_value() == ""
    assert status.text_content() == ""


def test_what_is_filtered_sorts_prints_and_is_found_by_its_link(opened: Open) -> None:
    page = opened()
    page.get_by_role("searchbox", name="Filter rows of: Table 1.").fill("INDEPENDENT")
    assert page.evaluate(SHOWN) == 4
    page.locator("#table-1 thead th", has_text="Ranks").get_by_role("button").click()
    assert page.evaluate(SHOWN) == 4, "sorting shows no hidden row"
    page.emulate_media(media="print")
    assert page.evaluate(SHOWN) == 20, "a printed page hides nothing"
    page.emulate_media(media="screen")
    link = page.locator(".head:has(#failures) ~ .tabled a[href^='#case-']").first
    row = link.get_attribute("href")[1:]
    assert not page.locator(f"[id='{row}']").is_visible()
    link.click()
    until(page, "document.querySelector(':target')?.offsetHeight > 0")
    assert page.evaluate(SHOWN) == 20


def test_bucket_caps_sort_by_size_and_not_by_letters(opened: Open) -> None:
    page = opened()
    page.locator("#table-1 thead th", has_text="Bucket").get_by_role("button").click()
    caps = list(dict.fromkeys(page.evaluate(COLUMN.format(2))))
    assert caps == ["", "default", "1 MiB", "5 MiB", "25 MiB"]


def test_what_logs_and_hosts_say_does_nothing(opened: Open) -> None:
    page = opened()
    assert page.locator("text=node<img src=x onerror=alert(1)>").count() > 0
    assert page.evaluate("document.scripts.length") == 1


@pytest.mark.usefixtures("painted")
def test_a_strangers_run_acts_nowhere(opened: Open, tmp_path: Path) -> None:
    """Names, texts and logs of a stranger cannot act; the page's own script, style and pictures still work."""
    with hostile_figure():
        path = write_report(hostile_summary(), RunDir(tmp_path))
    page = opened(url=path.as_uri())
    page.evaluate("document.querySelectorAll('details').forEach(details => (details.open = true))")
    page.locator("#table-1 thead button").first.click()
    page.mouse.move(300, 300)
    assert page.evaluate("window.acted") is None
    assert page.evaluate("document.scripts.length") == 1
    assert page.evaluate("frames.length") == 0
    assert page.evaluate("[...document.links].every(link => /^(#|data:)/.test(link.getAttribute('href')))")
    assert page.evaluate(f"{FORMS}.every(svg => svg.querySelectorAll('text').length > 2)")
    assert page.locator("#table-1 thead th[aria-sort]").count() == 1


def test_the_policy_blocks_what_is_not_the_pages_own(browser: Any, address: str) -> None:
    context = browser.new_context()
    page = context.new_page()
    page.goto(address)
    page.evaluate(
        """() => {
          window.blocked = [];
          addEventListener("securitypolicyviolation", (event) => window.blocked.push(event.effectiveDirective));
          const script = document.createElement("script");
          script.textContent = "window.acted = true";
          document.body.append(script);
          const image = document.createElement("img");
          image.src = "file:///nowhere.png";
          document.body.append(image);
        }"""
    )
    until(page, "window.blocked.length >= 2")
    assert page.evaluate("window.acted") is None
    assert set(page.evaluate("window.blocked")) == {"script-src-elem", "img-src"}
    context.close()


def test_downloads_work_under_the_policy(opened: Open, tmp_path: Path) -> None:
    page = opened()
    for name in ("cases.csv", "report.json"):
        with page.expect_download() as waiting:
            page.get_by_role("link", name=name).click()
        waiting.value.save_as(tmp_path / name)
        assert waiting.value.suggested_filename == name
    assert (tmp_path / "cases.csv").read_text().startswith("case_id,experiment,")
    assert json.loads((tmp_path / "report.json").read_text())["counts"]["planned"] == 95


def test_skip_link_comes_first_and_is_seen_when_focused(opened: Open) -> None:
    page = opened()
    page.keyboard.press("Tab")
    focused = page.evaluate("[document.activeElement.textContent, document.activeElement.offsetLeft >= 0]")
    assert focused == ["Skip to the findings", True]


@pytest.mark.parametrize(("scheme", "ground"), [("light", "rgb(255, 255, 255)"), ("dark", "rgb(21, 24, 28)")])
def test_dark_and_light(opened: Open, scheme: str, ground: str) -> None:
    page = opened(color_scheme=scheme)
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == ground
    card = page.evaluate("getComputedStyle(document.querySelector('.card')).backgroundColor")
    assert card == ground
    grounds = page.evaluate(f"{FORMS}.map(svg => getComputedStyle(svg.querySelector('path')).fill)")
    assert set(grounds) == {ground}, "figures are drawn for the ground they stand on"
    page.emulate_media(media="print")
    printed = page.evaluate(f"{FORMS}.map(svg => getComputedStyle(svg.querySelector('path')).fill)")
    assert set(printed) == {"rgb(255, 255, 255)"}


def test_it_reads_without_javascript(opened: Open) -> None:
    page = opened(java_script_enabled=False)
    assert page.locator("thead button").count() == 0
    assert page.locator("input").count() == 0
    assert page.locator("#table-1 tbody tr").count() == 20


def test_print_is_light_and_shows_the_folded_data(opened: Open) -> None:
    page = opened(color_scheme="dark")
    page.emulate_media(media="print")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert page.pdf(prefer_css_page_size=True).startswith(b"%PDF")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.evaluate("document.querySelectorAll('details:not([open])').length") == 0
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert page.evaluate("document.querySelectorAll('details[open]').length") == 0
