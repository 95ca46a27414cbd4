"""A figure on the page has fewer bytes than matplotlib's file, and is the same figure."""

from __future__ import annotations

import itertools
import re
from dataclasses import replace
from typing import Any
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

import pytest
from matplotlib.figure import Figure

from ddpbench.picture_formats import PictureFormats
from ddpbench.report.draw import canvas, style
from ddpbench.report.draw.painter import _drawn
from ddpbench.report.draw.slim import prefix_of, slim
from ddpbench.report.draw.texts import finished
from ddpbench.report.rows import rows_of
from ddpbench.report.sections import scaling, waterfall
from tests.lighter.sitecustomize import PAINTS
from tests.report.handmade import handmade_summary, sections_of

SVG = "{http://www.w3.org/2000/svg}"
WRITTEN = """<svg xmlns:xlink="http://www.w3.org/1999/xlink" xmlns="http://www.w3.org/2000/svg" viewBox="0 0 9 9">
 <metadata><x/></metadata>
 <g id="figure_1">
  <!-- 20 -->
  <g style="fill: red" transform="translate(5.935938 7.0) scale(0.085 -0.085)">
   <defs><path id="DejaVuSans-13" d="M 10 10
L 12.004 10 L 12.008 15.5 z
M 0.5 -2 M 3 3 L 4 4" transform="scale(0.015625)"/></defs>
   <use xlink:href="#DejaVuSans-13"/>
   <use xlink:href="#DejaVuSans-13" transform="translate(63.625 0)"/>
  </g>
  <path d="M 0 0 L 1 1" style="fill: red" clip-path="url(#p03b)"/>
 </g>
 <defs><clipPath id="p03b"><rect x="1.23456" y="0" width="2" height="3"/></clipPath></defs>
</svg>"""


def test_what_only_an_editor_needs_is_left_out_and_the_rest_is_meant_as_before() -> None:
    root = ElementTree.fromstring(slim(WRITTEN.encode(), "own", (12, 12)))
    assert [node for node in root.iter() if "metadata" in node.tag] == []
    glyph, line = root.iter(f"{SVG}path")
    assert glyph.get("d") == "m10,10l2,0,.01,5.5zm-9.5-12m2.5,5l1,1", (
        "rounded where it is, so nothing adds up"
    )
    assert glyph.get("transform") == "scale(0.015625)", "a factor is not rounded"
    first, second = root.iter(f"{SVG}use")
    assert first.get("href") == second.get("href") == f"#{glyph.get('id')}"
    assert second.get("x") == "63.62"
    (group,) = root.findall(f"{SVG}g")
    assert group.get("transform") == "translate(5.94 7) scale(0.085 -0.085)"
    (rules,) = root.iter(f"{SVG}style")
    assert group.get("class") == line.get("class") == "a"
    assert (rules.text or "").endswith("#own .a{fill:red}")
    assert root.get("id") == "own"
    assert {node.get("id", "own")[:3] for node in root.iter()} == {"own"}
    (clip,) = root.iter(f"{SVG}clipPath")
    assert line.get("clip-path") == f"url(#{clip.get('id')})"


@pytest.mark.usefixtures("painted")
def test_a_figure_is_two_fifths_lighter(monkeypatch: pytest.MonkeyPatch) -> None:
    summary = handmade_summary()
    picture = scaling.section(summary.conclusions.claims, rows_of(summary)).pictures[0]
    heavy: list[bytes] = []

    def kept(svg: bytes, *rest: Any) -> bytes:
        heavy.append(svg)
        return slim(svg, *rest)

    monkeypatch.setattr(canvas, "slim", kept)
    drawn = canvas.draw(picture)
    assert [len(drawn.svg), len(drawn.narrow)] < [0.6 * len(one) for one in heavy]
    for svg in (drawn.svg, drawn.narrow):
        used = {node.get("href", "#")[1:] for node in ElementTree.fromstring(svg).iter(f"{SVG}use")}
        assert used <= {node.get("id") for node in ElementTree.fromstring(svg).iter()}


@pytest.fixture(scope="module")
def drawn() -> dict[str, Element]:
    """Return every form of the figures of a page, by file name and form."""
    found = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(PAINTS, "svg")
        for section in sections_of(handmade_summary()):
            for picture in section.pictures:
                one = canvas.draw(picture)
                found[f"{picture.file_name}, wide"] = ElementTree.fromstring(one.svg)
                found[f"{picture.file_name}, narrow"] = ElementTree.fromstring(one.narrow)
    return found


def test_ids_and_rules_of_a_figure_are_its_own(drawn: dict[str, Element]) -> None:
    """All figures are parts of one page."""
    roots = [root.get("id", "") for root in drawn.values()]
    assert len(set(roots)) == len(roots) == 10
    assert not any(one.startswith(other) for one, other in itertools.permutations(roots, 2))
    for root in drawn.values():
        own = root.get("id", "")
        (sheet,) = root.iter(f"{SVG}style")
        rules = re.sub(r"@media[^{]*\{(.*?\})\}", r"\1", sheet.text or "")
        selectors = [rule.partition("{")[0] for rule in rules.split("}") if rule]
        assert len(selectors) > 10
        assert {selector.split()[0] for selector in selectors} == {f"#{own}"}
        assert all(node.get("id", own).startswith(own) for node in root.iter())


def test_a_file_name_gives_the_same_ids_on_every_page() -> None:
    assert prefix_of("scaling", "wide") == prefix_of("scaling", "wide") != prefix_of("scaling", "narrow")
    names = [f"{name}-{number}" for name in ("scaling", "own") for number in range(500)]
    assert len({prefix_of(name, form) for name in names for form in ("wide", "narrow")}) == 2 * len(names)
    assert re.fullmatch("f[0-9a-z]{5}", prefix_of("<b>", "wide"))


def test_texts_are_text_with_the_width_at_which_they_were_placed(drawn: dict[str, Element]) -> None:
    words = [node for root in drawn.values() for node in root.iter(f"{SVG}text")]
    assert {"ranks", "ms per step", "waiting for ranks"} <= {node.text for node in words}
    lengths = {node.text: node.get("textLength") for node in words}
    assert lengths["1"] is None, "one letter is placed by its middle or an end"
    assert all(length is not None for text, length in lengths.items() if len(text or "") > 1)
    advances = {"r": 0.411, "a": 0.613, "n": 0.634, "k": 0.579, "s": 0.521}  # of DejaVu Sans
    sizes = {
        float(node.get("textLength", "0")) / sum(advances.values()) for node in words if node.text == "ranks"
    }
    assert sorted(sizes) == pytest.approx([8, 9], abs=0.02), "points"
    assert not any(node.get("lengthAdjust") for node in words)


def test_letters_of_joined_scripts_are_not_moved_apart() -> None:
    text = '<text style="font-size: 9px; font-family: &apos;DejaVu Sans&apos;">{}</text>'
    svg = f'<svg xmlns="{SVG[1:-1]}">{text.format("Latin, Ω ≤ 3")}{text.format("مرحبا")}{text.format("模型 1")}</svg>'
    with canvas.drawing():
        latin, arabic, chinese = ElementTree.fromstring(finished(svg.encode(), ["DejaVu Sans"]))
    assert latin.get("lengthAdjust") is None
    assert arabic.get("lengthAdjust") == chinese.get("lengthAdjust") == "spacingAndGlyphs"


def test_a_file_and_a_slide_have_text_too(drawn: dict[str, Element]) -> None:
    wanted = PictureFormats(figures=frozenset({"svg"}), slides=frozenset({"svg"}))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(PAINTS, "svg")
        picture = replace(sections_of(handmade_summary())[0].pictures[0], wanted=wanted)
        files = _drawn(picture).files
    for name in ("figures/scaling.svg", "slides/scaling.svg"):
        texts = list(ElementTree.fromstring(files[name]).iter(f"{SVG}text"))
        assert len(texts) > 20
        assert all(node.get("textLength") for node in texts if len(node.text or "") > 1)


def test_a_pattern_is_no_larger_than_the_figure() -> None:
    """A tile of dots has over a thousand curves."""
    heavy = {}
    for fill in (*style.PHASES.values(), style.OVERLAPPED, *waterfall._FILLS.values()):
        with canvas.drawing(), pytest.MonkeyPatch.context() as patch:
            patch.setenv(PAINTS, "svg")
            figure = Figure(figsize=(3.0, 2.0))
            figure.add_axes((0, 0, 1, 1)).barh([0], [1], color=fill.colour, **fill.outline)
            heavy[fill.name] = len(slim(canvas.saved(figure, "svg"), "own", (300, 200)))
    assert max(heavy.values()) < 8_000, heavy
