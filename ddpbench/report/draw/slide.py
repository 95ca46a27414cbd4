"""Draw a picture as a 16:9 slide, with its heading as title, no caption, and text as large as fits."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Literal

from ddpbench.report.draw import style
from ddpbench.report.draw.canvas import drawing, saved, with_glyphs, wrapped
from ddpbench.report.draw.sheet import Sheet
from ddpbench.report.draw.texts import width_em
from ddpbench.report.parts import Picture

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from matplotlib.transforms import Bbox

WIDTH_IN, HEIGHT_IN = 40 / 3, 7.5
PIXELS_PER_IN = 144
"""Resolution that makes a slide 1920 x 1080 pixels large."""
_MARGIN_IN = 0.45
_TITLE_PT, _SUBTITLE_PT, _SOURCE_PT = 25.0, 14.0, 11.0
_LARGER = (1.5, 1.35, 1.2, 1.1)
"""Factors by which text is larger than in the figure; the first that fits is used."""
_APART, _EDGE = 3.0, 12.0
"""Minimum distance in points between texts, and between a text and the slide's edge."""
_LINE = 1.3
_LEAST_BODY_IN = 1.5


def draw_slide(picture: Picture, formats: Iterable[str]) -> dict[str, bytes]:
    """Return a picture's slide as file contents by format: png, svg or pdf."""
    kinds = list(formats)

    def drawn(families: Sequence[str]) -> tuple[dict[str, bytes], set[str]]:
        with drawing(families) as missing:
            figure = _fitting(picture)
            dpi = PIXELS_PER_IN * _inch_of(figure)
            return {kind: saved(figure, kind, dpi=dpi) for kind in kinds}, missing

    return with_glyphs(drawn)[0]


def _inch_of(figure: Figure) -> float:
    return WIDTH_IN / figure.get_figwidth()


def _fitting(picture: Picture) -> Figure:
    plain = _laid(picture, 1.0)
    least = _collisions(plain)
    for larger in _LARGER:
        figure = _laid(picture, larger)
        if _collisions(figure) <= least:
            return figure
    return plain


def _laid(picture: Picture, larger: float) -> Figure:
    """Return the slide with the picture's dimensions, which saving scales; `larger` enlarges the text."""
    from matplotlib.figure import Figure
    from matplotlib.text import Text

    title, title_pt = _title(picture.heading)
    subtitle = _lines(picture.subtitle, _SUBTITLE_PT)
    source = _lines(picture.source, _SOURCE_PT)
    title_in, subtitle_in, source_in = (
        _LINE * size / 72 * count
        for count, size in (
            (len(title), title_pt),
            (len(subtitle), _SUBTITLE_PT),
            (len(source), _SOURCE_PT),
        )
    )
    above = _MARGIN_IN + title_in + subtitle_in + 0.2
    below = _MARGIN_IN / 2 + source_in + 0.15
    room = max(HEIGHT_IN - above - below, _LEAST_BODY_IN)
    scale = min((WIDTH_IN - 2 * _MARGIN_IN) / picture.width_in, room / picture.height_in)
    figure = Figure(figsize=(WIDTH_IN / scale, HEIGHT_IN / scale), facecolor="white")
    picture.paint(
        Sheet(
            figure,
            width_in=picture.width_in,
            height_in=picture.height_in,
            lifted_in=(below + (room - scale * picture.height_in) / 2) / scale,
            shifted_in=(WIDTH_IN / scale - picture.width_in) / 2,
        )
    )
    for text in figure.findobj(Text):
        text.set_fontsize(float(text.get_fontsize()) * larger)
    left = _MARGIN_IN / WIDTH_IN
    words: tuple[tuple[float, Sequence[str], dict[str, Any]], ...] = (
        (HEIGHT_IN - _MARGIN_IN, title, {"fontsize": title_pt / scale, "fontweight": "bold"}),
        (
            HEIGHT_IN - _MARGIN_IN - title_in - 0.05,
            subtitle,
            {"fontsize": _SUBTITLE_PT / scale, "color": style.MUTED},
        ),
        (_MARGIN_IN / 2 + source_in, source, {"fontsize": _SOURCE_PT / scale, "color": style.MUTED}),
    )
    for top, lines, options in words:
        figure.text(left, top / HEIGHT_IN, "\n".join(lines), va="top", linespacing=1.15, **options)
    return figure


def _title(heading: str) -> tuple[list[str], float]:
    """Return the title's lines and font size in points, reduced if there would be more than two lines."""
    size = _TITLE_PT
    while len(lines := _lines(heading, size, "bold")) > 2 and size > _TITLE_PT / 1.5:
        size -= 1
    return lines, size


def _lines(text: str, points: float, weight: Literal["normal", "bold"] = "normal") -> list[str]:
    room = 72 * (WIDTH_IN - 2 * _MARGIN_IN)
    lines: list[str] = []
    for word in " ".join(wrapped(text, len(text) + 1)).split(" "):
        joined = f"{lines[-1]} {word}" if lines else word
        if lines and points * width_em(joined, weight) <= room:
            lines[-1] = joined
        else:
            lines.append(word)
    return [line for line in lines if line]


def _collisions(figure: Figure) -> int:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.text import Text

    renderer: Any = FigureCanvasAgg(figure).get_renderer()  # type: ignore[no-untyped-call]
    figure.draw_without_rendering()
    point = figure.dpi / 72
    boxes: list[Bbox] = [
        text.get_window_extent(renderer).padded(_APART * point / 2, 0.0)
        for text in figure.findobj(Text)
        if text.get_visible() and text.get_text().strip()
    ]
    edge = figure.bbox.padded(-_EDGE * point)
    outside: int = sum(
        box.x0 < edge.x0 or box.x1 > edge.x1 or box.y0 < edge.y0 or box.y1 > edge.y1 for box in boxes
    )
    pairs: int = sum(a.overlaps(b) for index, a in enumerate(boxes) for b in boxes[:index])
    return outside + pairs
