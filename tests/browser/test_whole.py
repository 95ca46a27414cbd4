"""A report with every section and figure, from records: on a phone, in the dark, on paper, by keyboard.

And its tables, with those of others: no column is cut off, in a page of every section and in one of many settings.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ddpbench.analysis import summarize
from ddpbench.analysis.summary import RunSummary
from ddpbench.records import RunDir
from ddpbench.report import write_report
from tests.browser.waiting import until
from tests.emulated import write_emulated
from tests.report.handmade import bucket_comparisons, handmade_summary, with_cases

pytestmark = pytest.mark.browser
Open = Callable[..., Any]

SECTIONS = "scaling strategies breakdown waterfall one-step inputs buckets communication"
CONTRAST = r"""() => {
  const channel = (value) => {
    const part = value / 255;
    return part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
  };
  const parse = (text) => text.match(/[\d.]+/g).map(Number);
  const luminance = (rgb) => 0.2126 * channel(rgb[0]) + 0.7152 * channel(rgb[1]) + 0.0722 * channel(rgb[2]);
  const ground = (node) => {
    for (let at = node; at; at = at.parentElement) {
      const found = parse(getComputedStyle(at).backgroundColor);
      if (found.length < 4 || found[3] > 0) return found;
    }
    return [255, 255, 255];
  };
  const seen = {};
  const texts = "p, a, li, dt, dd, th, td, caption, figcaption, label, input, summary, code, h1, h2, h3, span, button";
  for (const node of document.querySelectorAll(texts)) {
    if (!node.checkVisibility({ opacityProperty: true })) continue;
    if (!node.textContent.trim() && node.tagName !== "INPUT") continue;
    const [ink, behind] = [luminance(parse(getComputedStyle(node).color)), luminance(ground(node))];
    const ratio = (Math.max(ink, behind) + 0.05) / (Math.min(ink, behind) + 0.05);
    const name = node.tagName + "." + node.className;
    seen[name] = Math.min(seen[name] ?? 99, ratio);
  }
  return seen;
}"""


def test_every_section_has_a_figure_in_the_guides_order(opened: Open, whole: str) -> None:
    page = opened(url=whole)
    anchors = page.evaluate("[...document.querySelectorAll('h2')].map(node => node.id)")
    kept = [anchor for anchor in anchors if anchor in SECTIONS.split()]
    assert kept == SECTIONS.split()
    with_figures = page.evaluate(
        """() => { let at = ""; const found = new Set();
        for (const node of document.querySelectorAll("h2, figure")) {
          if (node.tagName === "H2") at = node.id; else found.add(at); }
        return [...found]; }"""
    )
    assert set(SECTIONS.split()) <= set(with_figures)
    assert page.evaluate(
        "[...document.querySelectorAll('figure')].every(one => one.querySelectorAll('svg text').length > 2)"
    )


@pytest.mark.parametrize("width", [320, 390])
def test_no_sideways_scroll_with_everything_open(opened: Open, whole: str, width: int) -> None:
    page = opened(width, url=whole)
    page.evaluate("document.querySelectorAll('details').forEach(details => (details.open = true))")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    wide = page.evaluate(
        "[...document.querySelectorAll('.filter, .filter input')]"
        f".every(node => node.getBoundingClientRect().right <= {width})"
    )
    assert wide, "the filters stay on the screen"


def test_no_figure_scrolls_sideways_on_a_phone(opened: Open, whole: str) -> None:
    page = opened(390, url=whole)
    wide = page.evaluate(
        """[...document.querySelectorAll('.card')].filter(n => n.scrollWidth > n.clientWidth + 1)
        .map(n => n.ariaLabel)"""
    )
    assert wide == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_from_its_ground(opened: Open, whole: str, scheme: str) -> None:
    page = opened(url=whole, color_scheme=scheme)
    ratios = page.evaluate(CONTRAST)
    assert len(ratios) > 15
    assert {name: ratio for name, ratio in ratios.items() if ratio < 4.5} == {}, "WCAG 2.2, 1.4.3"


def test_a_keyboard_reaches_filters_and_heads_and_focus_is_seen(opened: Open, whole: str) -> None:
    page = opened(url=whole)
    page.locator("#summary .anchor").focus()
    seen = []
    for _ in range(4):
        page.keyboard.press("Tab")
        seen.append(
            page.evaluate(
                "[document.activeElement.tagName, getComputedStyle(document.activeElement).outlineStyle]"
            )
        )
    assert seen[0] == ["INPUT", "solid"]
    assert ["BUTTON", "solid"] in seen[1:]


def test_short_tables_have_no_filter(opened: Open, whole: str) -> None:
    page = opened(url=whole)
    rows = page.evaluate(
        "[...document.querySelectorAll('.filter + .tabled table')].map(table => table.tBodies[0].rows.length)"
    )
    assert rows
    assert min(rows) >= 10
    every = page.evaluate(
        "[...document.querySelectorAll('table.sortable')].map(t => t.tBodies[0].rows.length)"
    )
    assert len([count for count in every if count >= 10]) == len(rows)


def test_it_prints_whole(opened: Open, whole: str, tmp_path: Path) -> None:
    page = opened(url=whole, color_scheme="dark")
    page.emulate_media(media="print")
    path = tmp_path / "report.pdf"
    page.pdf(path=str(path), prefer_css_page_size=True)
    content = path.read_bytes()
    assert content.startswith(b"%PDF")
    boxes = {tuple(map(float, box.split())) for box in re.findall(rb"/MediaBox \[([^\]]+)\]", content)}
    assert {(round(box[2]), round(box[3])) for box in boxes} == {(595, 842)}, "A4 upright, points"
    hidden = page.evaluate(
        "[...document.querySelectorAll('details table')].filter(t => !t.closest('.screen, .folded'))"
        ".filter(t => t.offsetHeight === 0).length"
    )
    assert hidden == 0, "only what paper leaves out is left folded"
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_an_ordinary_sweeps_page_is_short_and_answers_first(opened: Open) -> None:
    kept = Path(__file__).parents[2] / "reports" / "quick-two-cores-gloo" / "report.html"
    page = opened(1280, url=kept.as_uri())
    page.evaluate("document.querySelectorAll('*').forEach(n => (n.style.contentVisibility = 'visible'))")
    assert page.evaluate("document.documentElement.scrollHeight") < 5000
    ends = "[...document.querySelectorAll('.answer')].map(node => node.getBoundingClientRect().bottom)"
    assert max(page.evaluate(ends)) < 600
    assert not page.locator("nav").is_visible(), "the table of contents opens when it is asked for"
    page.evaluate("location.hash = 'terms'")
    until(page, "document.querySelector('#terms').open")


A4_PX = 688
"""Width of a page without its margins of 14 mm, pixels."""

TABLES = """() => [...document.querySelectorAll(".tabled")].map((region) => ({
  table: region.querySelector("table").id,
  needs: region.scrollWidth,
  has: region.clientWidth,
  points: Math.min(...[...region.querySelectorAll("th, td, .under")].map((node) =>
    0.75 * parseFloat(getComputedStyle(node).fontSize))),
}))"""


def many_settings() -> RunSummary:
    """Return a sweep in which every setting varies, with long names and rates of seven digits."""
    summary = handmade_summary(comparisons=bucket_comparisons())
    long = "/home/somebody/projects/experiments/a_rather_long_folder/training_script.py:LanguageModel"
    values: dict[str, list[Any]] = {
        "workload": ["gpt:nano", long],
        "dtype": ["float32", "bfloat16"],
        "local_batch": [8, 1024],
        "threads_per_rank": [1, 2],
        "precision": ["full", "bf16"],
        "data": ["loader", "memory"],
        "loader_workers": [0, 4],
        "workload_options_json": ["{}", '{"slow_rank": 3, "slow_factor": 2.5, "jitter": 0.05}'],
        "launches": [5, 20],
    }
    count = len(summary.cases)
    cases = summary.cases.assign(
        **{name: list(itertools.islice(itertools.cycle(each), count)) for name, each in values.items()}
    )
    for name in ("samples_per_s", "samples_per_s_ci_low", "samples_per_s_ci_high"):
        cases[name] = 1000 * cases[name]
    return with_cases(summary, cases)


@pytest.fixture(scope="session")
def crowded(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_report(many_settings(), RunDir(tmp_path_factory.mktemp("crowded"))).as_uri()


@pytest.fixture(scope="session")
def emulated(tmp_path_factory: pytest.TempPathFactory) -> str:
    run = write_emulated(tmp_path_factory.mktemp("emulated") / "run", rounds=5)
    return write_report(summarize(run), run).as_uri()


@pytest.mark.parametrize(
    ("report", "least"),
    [("address", 8), ("whole", 15), pytest.param("emulated", 15, marks=pytest.mark.thorough), ("crowded", 8)],
)
def test_no_column_is_cut_off_and_all_text_stays_legible(
    opened: Open, request: pytest.FixtureRequest, report: str, least: int
) -> None:
    page = opened(1280, url=request.getfixturevalue(report))
    page.evaluate("document.querySelectorAll('details').forEach(details => (details.open = true))")
    tables = page.evaluate(TABLES)
    assert len(tables) >= least
    assert {one["table"]: one["needs"] - one["has"] for one in tables if one["needs"] > one["has"]} == {}
    assert min(one["points"] for one in tables) >= 7.5
    assert page.evaluate("document.documentElement.scrollWidth") <= 1280


GAPS = """() => [...document.querySelectorAll(".tabled tbody .n + td:not(.n)")].flatMap((cell) => {
  const ends = [cell.previousElementSibling, cell].map((node) => {
    const range = document.createRange();
    range.selectNodeContents(node);
    return range.getBoundingClientRect();
  });
  return ends.every((box) => box.width > 0) ? [ends[1].left - ends[0].right] : [];
})"""
"""Gap between a number and the words after it, pixels."""


@pytest.mark.parametrize("width", [820, 1280])
@pytest.mark.parametrize("report", ["whole", "crowded"])
def test_numbers_do_not_touch_the_words_after_them(
    opened: Open, request: pytest.FixtureRequest, report: str, width: int
) -> None:
    page = opened(width, url=request.getfixturevalue(report))
    page.evaluate("document.querySelectorAll('details').forEach(details => (details.open = true))")
    gaps = page.evaluate(GAPS)
    assert len(gaps) > 20
    assert min(gaps) >= 8


@pytest.mark.parametrize(
    "report", ["address", pytest.param("emulated", marks=pytest.mark.thorough), "crowded"]
)
def test_no_column_is_cut_off_on_paper(opened: Open, request: pytest.FixtureRequest, report: str) -> None:
    page = opened(A4_PX, url=request.getfixturevalue(report))
    page.emulate_media(media="print")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    edge = "node => node.getBoundingClientRect().right"
    cut = page.evaluate(
        f"[...document.querySelectorAll('.tabled table')].filter(n => ({edge})(n) > innerWidth + 1).map(n => n.id)"
    )
    assert cut == []
