"""A run from a stranger: none of its texts acts in the page, in its figures or in downloads."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ddpbench.records import RunDir
from ddpbench.report import write_report
from tests.lighter.sitecustomize import PAINTS
from tests.report.hostile import ATTACK, hostile_figure, hostile_summary
from tests.report.reading import Read, read

SCRIPT = Path(__file__).parents[2] / "ddpbench/report/page.js"


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Read:
    with pytest.MonkeyPatch.context() as patch, hostile_figure():
        patch.setenv(PAINTS, "1")
        page = write_report(hostile_summary(), RunDir(tmp_path_factory.mktemp("hostile")))
    return read(page.read_text(encoding="utf-8"))


def test_the_pages_script_is_the_only_one_and_nothing_else_acts(hostile: Read) -> None:
    (script,) = hostile.all("script")
    assert "".join(script.parts) == SCRIPT.read_text(encoding="utf-8")
    names = {name for element in hostile.elements for name in element.attributes}
    assert not [
        name for name in names if name.startswith("on") or name in ("autofocus", "srcdoc", "formaction")
    ]
    assert not {"iframe", "img", "object", "embed", "form", "base"} & {one.tag for one in hostile.elements}
    assert not [one for one in hostile.all("meta") if one.attributes.get("http-equiv") == "refresh"]
    assert sum(ATTACK[:40] in one.text for one in hostile.elements) > 40, "all of it is shown as text"


def test_every_address_is_a_place_on_the_page_or_data_of_its_own(hostile: Read) -> None:
    addresses = [
        value
        for element in hostile.elements
        for name, value in element.attributes.items()
        if name in ("href", "src", "srcset", "action", "data", "poster", "ping")
    ]
    kinds = {re.sub(r"(?s)^(#|data:[^,]*,).*", r"\1", address) for address in addresses}
    base64_of = {f"data:{kind};base64," for kind in ("text/csv", "application/json")}
    assert kinds == {"#", "data:,", *base64_of}


DRAWN = {"svg", "style", "g", "defs", "path", "use", "clippath", "rect", "pattern", "text", "title"}
"""Elements of a figure, as HTML's parser names them. They are part of the page, and nothing else is among them."""


def test_figures_hold_marks_and_texts_only(hostile: Read) -> None:
    within = [one for one in hostile.elements if one.tag in DRAWN - {"style", "title"}]
    svgs = [one for one in within if one.tag == "svg"]
    assert len(svgs) > 4
    assert len(within) > 50 * len(svgs)
    names = {name for one in within for name in one.attributes}
    assert names <= {
        *("xmlns", "id", "viewbox", "width", "height", "font-family", "class", "style", "aria-hidden"),
        *("d", "x", "y", "href", "transform", "clip-path", "fill", "patternunits", "textlength"),
        *("lengthadjust", "role", "data-s", "aria-label"),
    }
    others = {one.tag for one in hostile.elements} - DRAWN
    assert others <= {*PAGE.split()}, "and the page around them has no element more"
    drawn = [one.text for one in within if one.tag == "text"]
    shown = " ".join(ATTACK.split())
    assert [text.removeprefix("]]>") for text in drawn if "<script>" in text] == [shown] * 14, "as they are"
    titles = [one.text.removeprefix("]]>") for one in hostile.all("title")]
    assert titles.count(shown) == 8
    assert {one.attributes["data-s"] for one in within if "data-s" in one.attributes} <= {*"0123456789"}


PAGE = (
    "html head meta title link style body a p strong header h1 h2 h3 details summary dl div dt dd nav ul ol li main "
    "span table caption thead tbody tr th td figure figcaption pre code em footer script label section"
)
