"""Debian's chromium, driven by playwright over the DevTools protocol; skipped where either is missing."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ddpbench.analysis import summarize
from ddpbench.records import RunDir
from ddpbench.report import write_report
from tests.lighter import sitecustomize as lighter
from tests.made_once import made_once
from tests.report.handmade import bucket_comparisons, handmade_summary
from tests.synthetic import write_everything

# --no-sandbox: CI runs as root, where chromium's sandbox cannot start; the pages are our own.
ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    program = shutil.which("chromium") or shutil.which("chromium-browser")
    if program is None:
        pytest.skip("no chromium: apt-get install chromium")
    with sync_api.sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=program, args=ARGUMENTS)
        yield running
        running.close()


@pytest.fixture(scope="session")
def address(tmp_path_factory: pytest.TempPathFactory) -> str:
    def make(folder: Path) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv(lighter.PAINTS, "svg")
            write_report(handmade_summary(comparisons=bucket_comparisons()), RunDir(folder))

    return RunDir(made_once(tmp_path_factory, "handmade", make)).report.as_uri()


@pytest.fixture(scope="session")
def whole(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A report in which every section has its figure, from records."""

    def make(folder: Path) -> None:
        run = write_everything(folder / "run")
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv(lighter.PAINTS, "svg")
            write_report(summarize(run), run)

    return RunDir(made_once(tmp_path_factory, "whole", make) / "run").report.as_uri()


@pytest.fixture
def opened(browser: Any, address: str) -> Iterator[Callable[..., Any]]:
    """Open the report; afterwards the page must not have complained or requested anything."""
    contexts = []
    complaints: list[str] = []
    requests: list[str] = []

    def open_page(width: int = 1280, *, url: str = address, **options: Any) -> Any:
        context = browser.new_context(viewport={"width": width, "height": 800}, **options)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", lambda request: requests.append(request.url))
        page.goto(url)
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert complaints == []
    assert [url for url in requests if not url.startswith(("data:", Path("/").as_uri()))] == []
