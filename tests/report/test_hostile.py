"""A run from a stranger: none of its texts acts in the page, in its figures or in downloads."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from pathlib import Path
from urllib.parse import unquote

import pytest

from ddpbench.records import RunDir
from ddpbench.report import write_report
from tests.lighter.sitecustomize import PAINTS
from tests.report.hostile import ATTACK, hostile_summary
from tests.report.reading import Read, read

SCRIPT = Path(__file__).parents[2] / "ddpbench/report/page.js"


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Read:
    with pytest.MonkeyPatch.context() as patch:
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
    assert not {"iframe", "svg", "object", "embed", "form", "base"} & {one.tag for one in hostile.elements}
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
    assert kinds == {"#", "data:,", "data:image/svg+xml,", *base64_of}


def test_no_figure_holds_a_script(hostile: Read) -> None:
    """In the page they are images, which run no script; opened as files they would."""
    figures = [one.attributes["src"] for one in hostile.all("img")]
    assert figures
    for figure in figures:
        elements = list(ET.fromstring(unquote(figure.partition(",")[2])).iter())
        assert len(elements) > 20
        assert not {"script", "foreignObject", "a", "iframe"} & {
            one.tag.rpartition("}")[2] for one in elements
        }
        assert not [name for one in elements for name in one.attrib if name.lower().startswith("on")]
