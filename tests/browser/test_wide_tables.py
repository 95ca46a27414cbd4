"""At 1280 pixels no column of any table is cut off, in a page of every section and in one of many settings."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable
from typing import Any

import pytest

from ddpbench.analysis import summarize
from ddpbench.analysis.summary import RunSummary
from ddpbench.records import RunDir
from ddpbench.report import write_report
from tests.emulated import write_emulated
from tests.report.handmade import bucket_comparisons, handmade_summary

pytestmark = pytest.mark.browser
Open = Callable[..., Any]
A4_PX = 688
"""A page without its margins of 14 mm."""

TABLES = """() => [...document.querySelectorAll(".tabled")].map((region) => ({
  table: region.querySelector("table").id,
  needs: region.scrollWidth,
  has: region.clientWidth,
  points: Math.min(...[...region.querySelectorAll("th, td, .under")].map((node) =>
    0.75 * parseFloat(getComputedStyle(node).fontSize))),
}))"""


def many_settings() -> RunSummary:
    """A sweep in which every setting varies, with long names and rates of seven digits."""
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
    return dataclasses.replace(summary, cases=cases)


@pytest.fixture(scope="session")
def crowded(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_report(many_settings(), RunDir(tmp_path_factory.mktemp("crowded"))).as_uri()


@pytest.fixture(scope="session")
def emulated(tmp_path_factory: pytest.TempPathFactory) -> str:
    run = write_emulated(tmp_path_factory.mktemp("emulated") / "run", rounds=5)
    return write_report(summarize(run), run).as_uri()


@pytest.mark.parametrize(
    ("report", "least"), [("address", 8), ("whole", 15), ("emulated", 15), ("crowded", 8)]
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
"""Between a number and the words after it, pixels."""


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


@pytest.mark.parametrize("report", ["address", "emulated", "crowded"])
def test_no_column_is_cut_off_on_paper(opened: Open, request: pytest.FixtureRequest, report: str) -> None:
    page = opened(A4_PX, url=request.getfixturevalue(report))
    page.emulate_media(media="print")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    edge = "node => node.getBoundingClientRect().right"
    cut = page.evaluate(
        f"[...document.querySelectorAll('.tabled table')].filter(n => ({edge})(n) > innerWidth + 1).map(n => n.id)"
    )
    assert cut == []
