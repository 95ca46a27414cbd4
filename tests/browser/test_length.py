"""The page of an ordinary sweep, made from its kept records: short on a screen and on paper."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ddpbench.analysis import summarize
from ddpbench.records import RunDir
from ddpbench.report import write_report
from tests.browser.test_whole import CONTRAST
from tests.kept import unpacked
from tests.lighter import sitecustomize as lighter
from tests.report.handmade import handmade_summary

pytestmark = pytest.mark.browser
Open = Callable[..., Any]

MOST_PX = 5_000
MOST_SHEETS = 8


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> str:
    run = unpacked("quick-two-cores-gloo", tmp_path_factory.mktemp("quick"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(lighter.PAINTS, "svg")
        return write_report(summarize(run), run).as_uri()


def sheets(page: Any) -> int:
    return len(re.findall(rb"/Type\s*/Page\b", page.pdf(prefer_css_page_size=True)))


def test_a_screen_shows_an_ordinary_sweep_in_few_pixels(opened: Open, quick: str) -> None:
    page = opened(1280, url=quick)
    assert page.evaluate("document.documentElement.scrollHeight") <= MOST_PX


def test_an_ordinary_sweep_fits_eight_sheets(opened: Open, quick: str) -> None:
    assert sheets(opened(1280, url=quick)) <= MOST_SHEETS
    assert sheets(opened(1280, url=quick, java_script_enabled=False)) <= MOST_SHEETS


HEIGHTS = """(ids) => ids.map((id) => document.getElementById(id)?.getBoundingClientRect().height ?? -1)"""


def test_paper_has_no_terms_columns_or_toml_and_keeps_what_numbers_mean(opened: Open, quick: str) -> None:
    page = opened(1280, url=quick)
    page.emulate_media(media="print")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.evaluate(HEIGHTS, ["terms", "columns", "experiment", "reproduce"]) == [0, 0, 0, 0]
    shown = page.evaluate("document.body.innerText")
    for words in (
        "of launches may have been missed",
        "did not reach the target half-width",
        "How a number is made",
        "Each strategy is proved before it is timed",
        "Proved before timing: all",
        "geometric mean of the ratios within rounds",
        "AMD EPYC",
    ):
        assert words in shown, words
    for words in ("Data (table", "How to read", "Columns of cases.csv", "Evidence", "How to reproduce"):
        assert words not in shown, words


def test_a_folded_figure_leaves_its_finding_on_paper(opened: Open, quick: str) -> None:
    page = opened(1280, url=quick)
    page.emulate_media(media="print")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    seen = page.evaluate(
        """[...document.querySelectorAll('details.folded')].map(fold =>
        [fold.querySelector('summary').offsetHeight > 0,
         [...fold.children].slice(1).some(node => node.offsetHeight > 0)])"""
    )
    assert len(seen) > 3
    assert all(finding and not drawing for finding, drawing in seen)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.usefixtures("painted")
def test_a_banner_is_read_on_paper_without_its_ground(opened: Open, scheme: str, tmp_path: Path) -> None:
    """Browsers print no background unless asked to, so that ink must stand out from white."""
    summary = handmade_summary()
    changed = replace(summary, conclusions=replace(summary.conclusions, warnings=("Most were disturbed.",)))
    page = opened(1280, url=write_report(changed, RunDir(tmp_path)).as_uri(), color_scheme=scheme)
    page.emulate_media(media="print")
    page.add_style_tag(content="* { background: #fff !important; }")
    ratios = page.evaluate(CONTRAST)
    banner = {name: ratio for name, ratio in ratios.items() if name.startswith("P.banner")}
    assert banner
    assert min(ratios.values()) >= 4.5, {name: ratio for name, ratio in ratios.items() if ratio < 4.5}
