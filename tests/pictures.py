"""Pictures of README and docs, made from the pages of their runs: `make pictures`. `test_kept_runs.py` compares them.

A picture records its source in its own bytes: for a figure the page's SVG, for the picture of a page's top that part
of the page.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

from ddpbench.report.draw.png import digest_of, stamp_of, stamped
from tests.browser.conftest import ARGUMENTS
from tests.pages import PROSE, ROOT

TOP = "report.png"
_WIDTH, _BELOW, _SCALE = 1224, 80, 1.2
"""Pixels: the page's width, the height kept below the heading after the findings, and the scale."""


def pictures() -> list[Path]:
    """Return the pictures of the README and docs/."""
    return [ROOT / path for path in re.findall(r"!\[[^\]]*\]\(([^)]+\.png)\)", PROSE)]


def page_of(picture: Path) -> Path:
    """Return the page of the run to which a picture belongs."""
    folder = picture.parent.parent if picture.parent.name == "figures" else picture.parent
    return folder / "report.html"


def outdated(picture: Path) -> str:
    """Return why a picture does not show its page's content; empty if it does."""
    page, stamp = page_of(picture).read_text(encoding="utf-8"), stamp_of(picture.read_bytes())
    if not stamp:
        return f"{picture.name} does not say what it was made of: make pictures"
    shown = [top_of(page)] if picture.name == TOP else _figures(page)
    return (
        ""
        if stamp in map(digest_of, shown)
        else f"{picture.name} shows another page than its run's: make pictures"
    )


def top_of(page: str) -> bytes:
    """Return the bounds of the picture of a page's top: all before the section after the findings."""
    start, end = page.index("<body"), page.index('<h2 id="validity"')
    return page[start:end].encode()


def _figures(page: str) -> list[bytes]:
    return [one.encode() for one in re.findall(r"<svg .*?</svg>", page, re.DOTALL)]


def make() -> None:
    """Make the pictures of pages' tops; figures are written with their pages, and only compared."""
    from playwright.sync_api import sync_playwright

    program = shutil.which("chromium") or shutil.which("chromium-browser")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=ARGUMENTS)
        for picture in pictures():
            if picture.name == TOP:
                picture.write_bytes(_top(browser, page_of(picture)))
        browser.close()
    wrong = [why for picture in pictures() if (why := outdated(picture))]
    if wrong:
        raise SystemExit("\n".join(wrong))


def _top(browser: Any, page: Path) -> bytes:
    shown = browser.new_page(viewport={"width": _WIDTH, "height": 900}, device_scale_factor=_SCALE)
    shown.goto(page.as_uri())
    height = shown.locator("#validity").bounding_box()["y"] + _BELOW
    area = {"x": 0, "y": 0, "width": _WIDTH, "height": height}
    taken: bytes = shown.screenshot(full_page=True, clip=area)
    shown.close()
    return stamped(taken, digest_of(top_of(page.read_text(encoding="utf-8"))))


if __name__ == "__main__":
    make()
