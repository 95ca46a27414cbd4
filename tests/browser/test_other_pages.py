"""The pages of a history and of a comparison have the report's script: values of marks, and figures as files."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ddpbench.analysis.regression import changes_of, read_side
from ddpbench.features.history.report.page import write_history
from ddpbench.report.comparison import write_comparison
from ddpbench.spec import PlannedCase
from tests.browser.test_figures import MARKS, SHOWN_BY_BROWSER, TITLE, centre
from tests.browser.waiting import until
from tests.features.history.test_history_figures import DAY, handmade
from tests.lighter import sitecustomize as lighter
from tests.synthetic import case_of, write_run

pytestmark = pytest.mark.browser
Open = Callable[..., Any]


@pytest.fixture(scope="session")
def history(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the address of a history of eight runs with one change."""
    path = tmp_path_factory.mktemp("history") / "history.html"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(lighter.PAINTS, "svg")
        write_history(handmade(8, [4], step_s=0.04, every=DAY), path)
    return path.as_uri()


@pytest.fixture(scope="session")
def comparison(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the address of a comparison of two runs."""
    folder = tmp_path_factory.mktemp("comparison")
    planned = [PlannedCase(case=case_of("single", 1)), PlannedCase(case=case_of("ddp", 2))]
    sides = [read_side(write_run(folder / name, planned, rounds=6)) for name in ("base", "new")]
    path = folder / "comparison.html"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(lighter.PAINTS, "svg")
        write_comparison(changes_of(*sides), path)
    return path.as_uri()


@pytest.mark.parametrize("name", ["history", "comparison"])
@pytest.mark.parametrize("width", [390, 1280])
def test_the_pointer_shows_what_a_mark_is(
    opened: Open, request: pytest.FixtureRequest, name: str, width: int
) -> None:
    page = opened(width, url=request.getfixturevalue(name))
    mark = page.locator(MARKS).first
    page.mouse.move(*centre(mark))
    tip = page.locator(".tip")
    assert tip.inner_text() == mark.evaluate(TITLE)
    assert page.evaluate(SHOWN_BY_BROWSER) == 0, "nothing is shown twice"
    page.mouse.move(2, 2)
    assert tip.is_hidden()


@pytest.mark.parametrize("name", ["history", "comparison"])
def test_a_figure_opens_as_a_file(opened: Open, request: pytest.FixtureRequest, name: str) -> None:
    page = opened(url=request.getfixturevalue(name))
    with page.context.expect_page() as waiting:
        page.get_by_role("link", name="Open SVG of Figure 1").click()
    other = waiting.value
    until(other, "document.documentElement?.localName === 'svg'")
    assert other.evaluate("document.querySelectorAll('title').length") > 0


@pytest.mark.parametrize("name", ["history", "comparison"])
def test_without_a_script_the_page_reads(opened: Open, request: pytest.FixtureRequest, name: str) -> None:
    page = opened(java_script_enabled=False, url=request.getfixturevalue(name))
    assert page.locator(".opener, .tip, [tabindex='-1']").count() == 0
    assert page.locator("figure svg title").count() > 0


@pytest.mark.parametrize("name", ["history", "comparison"])
def test_paper_has_what_is_folded(opened: Open, request: pytest.FixtureRequest, name: str) -> None:
    page = opened(url=request.getfixturevalue(name))
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.evaluate("document.querySelectorAll('details:not([open])').length") == 0
