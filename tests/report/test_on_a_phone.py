"""Every figure has a drawing for a phone, and no two of its words overlap."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from matplotlib.text import Text

from ddpbench.analysis import summarize
from ddpbench.analysis.summary import RunSummary
from ddpbench.report.draw import style
from ddpbench.report.draw.canvas import drawing
from ddpbench.report.draw.sheet import Sheet
from ddpbench.report.parts import Picture
from tests.emulated import write_emulated
from tests.report.handmade import sections_of
from tests.synthetic import write_everything

SHOWN_PX = 358
"""Width of a figure on a screen of 390 pixels."""
APART_PT = 1.0
"""Least distance of two words on one line, points."""


@pytest.fixture(scope="module")
def summaries(tmp_path_factory: pytest.TempPathFactory) -> list[RunSummary]:
    every = summarize(write_everything(tmp_path_factory.mktemp("every") / "run"))
    return [every, summarize(write_emulated(tmp_path_factory.mktemp("emulated") / "run"))]


@pytest.fixture(scope="module")
def pictures(summaries: list[RunSummary]) -> list[Picture]:
    sections = [section for summary in summaries for section in sections_of(summary)]
    return [picture for section in sections for picture in section.pictures]


def collisions(picture: Picture, *, narrow: bool) -> Iterator[str]:
    """Yield texts that overlap, are cut off, or are smaller than any text should be."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    width, height = picture.narrow_in if narrow else (picture.width_in, picture.height_in)
    paint = picture.narrow if narrow else picture.paint
    assert paint is not None
    with drawing():
        figure = Figure(figsize=(width, height))
        paint(Sheet(figure, width_in=width, height_in=height, lifted_in=0.0))
        renderer: Any = FigureCanvasAgg(figure).get_renderer()  # type: ignore[no-untyped-call]
        point = figure.dpi / 72
        texts: list[Text] = []
        with pytest.MonkeyPatch.context() as patch, renderer._draw_disabled():
            patch.setattr(
                Text, "draw", lambda self, *_: texts.append(self)
            )  # ticks beyond the ends are not drawn
            figure.draw(renderer)
        texts = [one for one in texts if one.get_visible() and one.get_text().strip()]
        boxes = [(one.get_text(), one.get_window_extent(renderer)) for one in texts]
        small = [one.get_text() for one in texts if float(one.get_fontsize()) < style.SMALLEST_PT]
    yield from (f"{text!r} is too small" for text in small)
    for place, (text, box) in enumerate(boxes):
        if box.x0 < 0 or box.x1 > figure.bbox.x1 or box.y0 < 0 or box.y1 > figure.bbox.y1:
            yield f"{text!r} is cut off"
        for other, other_box in boxes[:place]:
            if box.padded(APART_PT * point / 2, -APART_PT * point / 2).overlaps(other_box):
                yield f"{text!r} lies on {other!r}"


def test_every_figure_is_drawn_for_a_phone(pictures: list[Picture]) -> None:
    assert len({picture.file_name for picture in pictures}) > 12
    assert [picture.file_name for picture in pictures if picture.narrow is None] == []
    least = {one.file_name: style.SMALLEST_PT / 72 * SHOWN_PX / one.narrow_in[0] for one in pictures}
    assert {name: size for name, size in least.items() if size < 10} == {}, "pixels of its smallest text"


@pytest.mark.parametrize("narrow", [True, False])
def test_no_words_lie_on_each_other(pictures: list[Picture], narrow: bool) -> None:
    found = {picture.file_name: list(collisions(picture, narrow=narrow)) for picture in pictures}
    assert {name: words for name, words in found.items() if words} == {}
