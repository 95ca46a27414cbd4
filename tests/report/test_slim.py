"""A figure on the page has fewer bytes than matplotlib's file, and is the same figure."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from ddpbench.report.draw import canvas
from ddpbench.report.draw.slim import slim
from ddpbench.report.rows import rows_of
from ddpbench.report.sections import scaling
from tests.report.handmade import handmade_summary

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
    root = ElementTree.fromstring(slim(WRITTEN.encode()))
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
    assert rules.text == ".a{fill:red}"
    (clip,) = root.iter(f"{SVG}clipPath")
    assert line.get("clip-path") == f"url(#{clip.get('id')})"


@pytest.mark.usefixtures("painted")
def test_a_figure_is_half_as_heavy(monkeypatch: pytest.MonkeyPatch) -> None:
    summary = handmade_summary()
    picture = scaling.section(summary.conclusions.claims, rows_of(summary)).pictures[0]
    heavy: list[bytes] = []

    def kept(svg: bytes) -> bytes:
        heavy.append(svg)
        return slim(svg)

    monkeypatch.setattr(canvas, "slim", kept)
    drawn = canvas.draw(picture)
    assert [len(drawn.svg), len(drawn.narrow)] < [0.55 * len(one) for one in heavy]
    for svg in (drawn.svg, drawn.narrow):
        used = {node.get("href", "#")[1:] for node in ElementTree.fromstring(svg).iter(f"{SVG}use")}
        assert used <= {node.get("id") for node in ElementTree.fromstring(svg).iter()}
