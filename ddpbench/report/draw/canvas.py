"""Draw a picture as SVG for the page and as files."""

from __future__ import annotations

import io
import re
import textwrap
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from ddpbench.analysis.statistics.interval import Interval
from ddpbench.report.draw import style
from ddpbench.report.draw.glyphs import fonts_with, missing_glyphs
from ddpbench.report.draw.png import digest_of, png_of, stamped
from ddpbench.report.draw.scales import logarithmic
from ddpbench.report.draw.sheet import Sheet
from ddpbench.report.draw.slim import prefix_of, slim
from ddpbench.report.draw.texts import finished
from ddpbench.report.parts import Picture
from ddpbench.text_safety import clean, within

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.container import ErrorbarContainer
    from matplotlib.figure import Figure
    from matplotlib.transforms import Bbox

T = TypeVar("T")
_MARGIN_IN = 0.15
_TITLE_LINE_IN = 0.2
_NOTE_LINE_IN = 0.15
_TITLE_CHARACTERS_PER_IN = 9.6
_NOTE_CHARACTERS_PER_IN = 15.5
_MOST_CHARACTERS = 4_000
"""Maximum length of a title, subtitle, caption or source. A usual caption has a few hundred characters."""
_WHOLE = re.compile(
    r"(?<=shrunk) (?=/)|(?<=\d) (?=x \d)|(?<=\d x) (?=\d)|(?<=\d) (?=%|[kMG]?bit/s|[KMG]iB|ms\b)"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class DrawnPicture:
    """A drawn picture as SVG and PNG."""

    svg: bytes
    png: bytes
    files: Mapping[str, bytes] = field(default_factory=dict)
    """Files by path in the run directory: the PNG, and the other requested formats."""
    narrow: bytes = b""
    """SVG of the picture's layout for a phone; empty if it has no separate layout."""
    missing: frozenset[str] = frozenset()
    """Characters drawn as boxes because no installed font has them."""


def error_bars(estimates: Iterable[Interval | None]) -> list[list[float]]:
    """Return the distances from values to the lower and upper ends of their intervals, as `yerr` for `Axes.errorbar`.

    A distance is 0 if an end or the interval is unknown.
    """
    pairs = [
        (
            one.value - one.low if one and one.low is not None else 0.0,
            one.high - one.value if one and one.high is not None else 0.0,
        )
        for one in estimates
    ]
    return [[below for below, _ in pairs], [above for _, above in pairs]]


def mark(
    axes: Axes,
    place: float,
    estimate: Interval,
    launches: Sequence[float],
    look: style.Look,
    *,
    hollow: bool,
    aside: float,
    sideways: bool = False,
) -> ErrorbarContainer:
    """Draw one case's estimate as a marker with whiskers, and its launches as small dots on both sides.

    `place` is x, or y if `sideways`; `aside` is the dots' distance from it. Return the marker and its whiskers.
    """
    spots = [place + aside * (1 if index % 2 else -1) for index in range(len(launches))]
    dots = (launches, spots) if sideways else (spots, launches)
    axes.plot(*dots, ".", color=look.ink, markersize=3.2, alpha=0.75, zorder=2)
    whiskers = None
    if estimate.low is not None and estimate.high is not None:
        whiskers = [[estimate.value - estimate.low], [estimate.high - estimate.value]]
    return axes.errorbar(
        *(([estimate.value], [place]) if sideways else ([place], [estimate.value])),
        xerr=whiskers if sideways else None,
        yerr=None if sideways else whiskers,
        fmt=look.marker,
        color=look.colour,
        ecolor=look.ink,
        markersize=6.5,
        markerfacecolor="white" if hollow else look.colour,
        markeredgecolor=look.ink,
        markeredgewidth=0.8,
        elinewidth=1.3,
        capsize=3,
        zorder=3,
    )


def spread(wanted: list[float], *, gap: float, low: float, high: float) -> list[float]:
    """Return label positions in the order of `wanted` and near it, at least `gap` apart.

    The positions are between `low` and `high` if there is room.
    """
    order = sorted(range(len(wanted)), key=lambda index: wanted[index])
    placed = [min(max(wanted[index], low), high) for index in order]
    for _ in range(50):
        moved = False
        for index in range(1, len(placed)):
            overlap = gap - (placed[index] - placed[index - 1])
            if overlap > 1e-9:
                placed[index - 1] -= overlap / 2
                placed[index] += overlap / 2
                moved = True
        placed = [min(max(value, low), high) for value in placed]
        if not moved:
            break
    for index in range(1, len(placed)):  # move up positions that the bounds have squeezed together
        placed[index] = max(placed[index], placed[index - 1] + gap)
    result = [0.0] * len(wanted)
    for index, value in zip(order, placed, strict=True):
        result[index] = value
    return result


def decades(axes: Axes, values: Sequence[float]) -> None:
    """Make a y axis logarithmic around `values`, and label its ticks with plain numbers (`scales.logarithmic`)."""
    logarithmic(axes.yaxis, min(values) / 1.25, max(values) * 1.25)


def note_characters(width_in: float) -> int:
    """Return how many characters of a subtitle, caption or source fit on a line of a picture `width_in` inches wide."""
    return int((width_in - 2 * _MARGIN_IN) * _NOTE_CHARACTERS_PER_IN)


def wrapped(text: str, width: int) -> list[str]:
    """Return the lines of a text, each at most `width` characters long.

    No-break spaces keep `shrunk /4`, `8 x 1` and `1 Gbit/s` on one line. The middle of a text longer than
    `_MOST_CHARACTERS` is left out, because each line makes the picture higher.
    """
    return textwrap.wrap(_WHOLE.sub("\N{NO-BREAK SPACE}", within(clean(text), _MOST_CHARACTERS)), width)


@contextmanager
def drawing(families: Sequence[str] = ()) -> Iterator[set[str]]:
    """Set matplotlib to `style.SETTINGS` within this context, ignoring a user's matplotlibrc.

    After the context, the yielded set has the characters drawn as boxes, which no font in `families` has. Texts are
    passed through `clean`, because matplotlib also writes them into comments of an SVG.
    """
    import matplotlib as mpl

    missing: set[str] = set()
    with mpl.rc_context(), warnings.catch_warnings(), _clean_texts():
        show = warnings.showwarning

        def note(message: Warning | str, *rest: Any, **more: Any) -> None:
            if missing_now := missing_glyphs([str(message)]):
                missing.update(missing_now)
            else:
                show(message, *rest, **more)

        warnings.showwarning = note
        warnings.filterwarnings("always", message="Glyph .* missing from font")
        mpl.rcdefaults()
        mpl.rcParams.update(cast(Any, style.SETTINGS))
        mpl.rcParams["font.family"] = [*style.SETTINGS["font.family"], *families]
        yield missing


@contextmanager
def _clean_texts() -> Iterator[None]:
    from matplotlib.text import Text

    before = Text.set_text

    def set_text(self: Text, s: object) -> None:
        before(self, None if s is None else clean(str(s)))

    Text.set_text = set_text  # type: ignore[method-assign]
    try:
        yield
    finally:
        Text.set_text = before  # type: ignore[method-assign]


def with_glyphs(draw_with: Callable[[Sequence[str]], tuple[T, set[str]]]) -> tuple[T, set[str]]:
    """Call `draw_with` without extra fonts, or again with fonts for characters that are missing.

    Return the drawing, and the characters that no installed font has.
    """
    drawn, missing = draw_with(())
    if missing and (families := fonts_with(missing)):
        drawn, missing = draw_with(families)
    return drawn, missing


_NO_DATE: dict[str, dict[str, None]] = {
    "svg": {"Date": None, "Creator": None},
    "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
}
"""Metadata without a date: equal figures give equal bytes."""


def saved(figure: Figure, kind: str, *, dpi: float = style.PNG_DPI, part: Bbox | None = None) -> bytes:
    """Return a figure as the bytes of a png, svg or pdf file.

    For svg and pdf, `part` limits the file to a part of the figure. Must be called within `drawing`.
    """
    import matplotlib as mpl

    if kind == "png":
        return png_of(_pixels(figure, dpi), dpi)
    file = io.BytesIO()
    figure.savefig(file, format=kind, bbox_inches=part, metadata=_NO_DATE[kind])
    if kind == "svg":
        return finished(file.getvalue(), mpl.rcParams["font.family"])
    return file.getvalue()


def _pixels(figure: Figure, dpi: float) -> NDArray[np.uint8]:
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    canvas: Any = FigureCanvasAgg(figure)
    before = figure.dpi
    figure.dpi = dpi
    try:
        canvas.draw()
        return np.asarray(canvas.buffer_rgba())
    finally:
        figure.dpi = before


def draw(picture: Picture) -> DrawnPicture:
    """Draw a picture as a bare SVG, and as a PNG with title, conditions, caption and source.

    Files in other `wanted` formats have the same contents as the PNG.
    """
    drawn, missing = with_glyphs(lambda families: _draw(picture, families))
    return replace(drawn, missing=frozenset(missing))


def _draw(picture: Picture, families: Sequence[str]) -> tuple[DrawnPicture, set[str]]:
    from matplotlib.figure import Figure
    from matplotlib.transforms import Bbox

    text_in = picture.width_in - 2 * _MARGIN_IN
    title = wrapped(picture.heading, int(text_in * _TITLE_CHARACTERS_PER_IN))
    subtitle, caption, source = (
        wrapped(text, note_characters(picture.width_in))
        for text in (picture.subtitle, picture.caption, picture.source)
    )
    above = len(title) * _TITLE_LINE_IN + len(subtitle) * _NOTE_LINE_IN + 2 * _MARGIN_IN
    notes = [*caption, *([""] if caption and source else []), *source]
    below = len(notes) * _NOTE_LINE_IN + 2 * _MARGIN_IN
    whole = picture.height_in + above + below
    with drawing(families) as missing:
        figure = Figure(figsize=(picture.width_in, whole), facecolor="white")
        sheet = Sheet(figure, width_in=picture.width_in, height_in=picture.height_in, lifted_in=below)
        picture.paint(sheet)
        x = _MARGIN_IN / picture.width_in
        note: dict[str, Any] = {
            "va": "top",
            "fontsize": style.NOTE_PT,
            "color": style.MUTED,
            "linespacing": 1.25,
        }
        words = [
            figure.text(
                x,
                1 - _MARGIN_IN / whole,
                "\n".join(title),
                va="top",
                fontsize=style.TITLE_PT,
                fontweight="bold",
                linespacing=1.15,
            ),
            figure.text(
                x, 1 - (_MARGIN_IN + len(title) * _TITLE_LINE_IN) / whole, "\n".join(subtitle), **note
            ),
            figure.text(x, (below - _MARGIN_IN) / whole, "\n".join(notes), **note),
        ]
        png = saved(figure, "png")
        files = {
            f"figures/{picture.file_name}.{kind}": png if kind == "png" else saved(figure, kind)
            for kind in sorted(picture.wanted.figures | {"png"})
        }
        for word in words:
            word.set_visible(False)
        body = Bbox.from_extents(0, below, picture.width_in, below + picture.height_in)
        svg = page_form(saved(figure, "svg", part=body), picture, "wide")
        narrow = narrow_form(picture) if picture.narrow is not None else b""
    png = stamped(png, digest_of(svg))  # a test uses this to compare a stored picture with its page
    files[f"figures/{picture.file_name}.png"] = png
    return DrawnPicture(narrow=narrow, svg=svg, png=png, files=files), missing


def narrow_form(picture: Picture) -> bytes:
    """Return the SVG of a picture's layout for a phone. Must be called within `drawing`."""
    from matplotlib.figure import Figure

    assert picture.narrow is not None
    width, height = picture.narrow_in
    figure = Figure(figsize=(width, height), facecolor="white")
    picture.narrow(Sheet(figure, width_in=width, height_in=height, lifted_in=0.0))
    return page_form(saved(figure, "svg"), picture, "narrow")


def page_form(svg: bytes, picture: Picture, form: Literal["wide", "narrow"]) -> bytes:
    """Return the SVG of one form of a picture, wide or narrow, as the page contains it."""
    width, height = picture.narrow_in
    size = picture.size if form == "wide" else (round(width * 100), round(height * 100))
    return slim(svg, prefix_of(picture.file_name, form), size)
