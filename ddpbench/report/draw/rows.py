"""Draw horizontal rows of bars or points, with their words next to them or, on a phone, above."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from ddpbench.analysis.statistics.interval import Interval
from ddpbench.report.draw import style
from ddpbench.report.draw.canvas import mark
from ddpbench.report.draw.lines import in_lines, text_width_in
from ddpbench.report.draw.marks import describe, describe_points
from ddpbench.report.draw.scales import scale, spans_decades
from ddpbench.report.draw.sheet import Sheet

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_STACKED_PITCH_IN = 0.2
_PHONE_ROW_IN = style.NARROW_WIDTH_IN - 0.32
NAMES_IN = 2.5
"""Maximum width of names next to the axes, inches. Longer names are broken into lines."""
_HEADINGS_IN = style.FULL_WIDTH_IN - NAMES_IN - 1.0
_THIN_PT, _SLIVER_PT = 3.0, 0.6
"""A part of a bar that is narrower than `_THIN_PT` points is drawn without an edge, because the edge would cover the
part. `_SLIVER_PT` is the minimum width of a part as drawn.
"""


def block(
    axes: Axes,
    fill: style.Fill,
    when: tuple[float, float],
    *,
    centre: float,
    height: float,
    title: str = "",
    series: str | None = None,
) -> None:
    """Draw a part of a horizontal bar between the two x values `when`, without an edge if the part is too thin.

    The axes' x limits must be set before. `title` says what the part shows, with its value. `series` is the part's name
    in the legend; if None, the fill's name is used.
    """
    start, end = sorted(when)
    low, high = axes.get_xlim()
    wide = 72 * axes.bbox.width / axes.figure.dpi * (end - start) / abs(high - low)
    outline = fill.outline
    if wide < _THIN_PT and not fill.hollow:
        outline |= {"edgecolor": fill.colour, "hatch": None, "linewidth": _SLIVER_PT}
    bars = axes.barh(centre, end - start, left=start, height=height, color=fill.colour, **outline, zorder=2)
    for bar in bars:
        describe(bar, fill.name if series is None else series, *([title] if title else []))


def axis_end(longest: float) -> float:
    """Return where an axis of bars ends: at the longest bar, or at 1 if no bar has a length."""
    return longest if longest > 0 else 1.0


def whiskers(axes: Axes, place: float, estimate: Interval) -> None:
    """Draw an interval across the end of a horizontal bar, with a rim that makes it visible on any fill."""
    from matplotlib.patheffects import Normal, Stroke

    if estimate.low is None or estimate.high is None:
        return
    drawn = axes.errorbar(
        [estimate.value],
        [place],
        xerr=[[estimate.value - estimate.low], [estimate.high - estimate.value]],
        fmt="none",
        ecolor=style.INK,
        elinewidth=1.1,
        capsize=2.5,
        zorder=6,
    )
    _, caps, lines = drawn
    for line in (*caps, *lines):
        line.set_path_effects([Stroke(linewidth=2.9, foreground=style.GROUND), Normal()])


def over_bar(
    axes: Axes, place: float, name: str, value: str, *, ground: str = style.GROUND, **options: Any
) -> None:
    """Write a row's name at the left edge of the axes and its value at the right edge, above the row's bar.

    `place` is the y position of the text. A box in the colour `ground` covers grid lines behind it.
    """
    for x, side, text, more in ((0.0, "left", name, {}), (1.0, "right", value, options)):
        axes.text(
            x,
            place,
            text,
            transform=axes.get_yaxis_transform(),
            ha=side,
            va="bottom",
            fontsize=style.NOTE_PT,
            linespacing=1.1,
            bbox={"boxstyle": "square,pad=0.05", "facecolor": ground, "edgecolor": "none"} if text else None,
            zorder=3,
            **more,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Point:
    """A row of `grouped_rows`, with its name, its value (None if unknown), and the words next to it."""

    name: str
    estimate: Interval | None
    launches: Sequence[float]
    look: style.Look
    hollow: bool
    words: str

    @property
    def lines(self) -> str:
        """Return the point's name, broken into lines that fit next to the axes."""
        return in_lines(self.name, NAMES_IN, style.TICK_PT)


Groups = Sequence[tuple[str, bool, Sequence[Point]]]
"""Groups of rows. Each has a heading, whether the group ran oversubscribed, and its points."""


def rows_taken(groups: Groups, *, above: int = 0) -> int:
    """Return the number of rows that `grouped_rows` needs for these groups, with the same `above`."""
    headings = sum(_heading(heading, over, above).count("\n") + 1 for heading, over, _ in groups)
    return headings + sum(_rows(point, above) for _, _, points in groups for point in points)


def _rows(point: Point, above: int) -> int:
    """Return the rows that a point takes; next to the axes, one row has room for two lines."""
    if not above:
        return max(1, point.lines.count("\n"))
    return 2 if above == 1 else 3 + _stacked(point.name).count("\n")


def _stacked(name: str) -> str:
    return in_lines(name, _PHONE_ROW_IN, style.NOTE_PT)


def _heading(heading: str, over: bool, above: int) -> str:
    text = f"{heading}{', oversubscribed' if over else ''}"
    return in_lines(text, (_PHONE_ROW_IN if above else _HEADINGS_IN) / 1.1, style.LABEL_PT)


def grouped_rows(axes: Axes, groups: Groups, xlabel: str, *, above: int = 0) -> None:
    """Draw points on horizontal rows, with a heading above each group.

    The x axis starts at 0, or is logarithmic if the points span a decade. `above` is 0 for words to the right of a
    point, 1 for name and words on one line above it, and 2 for separate lines.
    """
    place = 0.0
    ticks: list[tuple[float, str]] = []
    for heading, over, points in groups:
        lines = _heading(heading, over, above)
        _head(
            axes, place, lines, sum(_rows(one, above) for one in points), over=over, inset=0 if above else 4
        )
        place += lines.count("\n") + 1
        for point in points:
            rows = _rows(point, above)
            words: dict[str, Any] = {"style": "normal" if point.estimate is not None else "italic"}
            if above:
                _words_above(axes, place, point, above, over=over, **words)
                place += rows - 1
            else:
                place += (rows - 1) / 2
                ticks.append((place, point.lines))
                axes.text(
                    1.02,
                    place,
                    point.words,
                    transform=axes.get_yaxis_transform(),
                    fontsize=style.NOTE_PT,
                    va="center",
                    **words,
                )
            if point.estimate is not None:
                drawn = mark(
                    axes,
                    place,
                    point.estimate,
                    point.launches,
                    point.look,
                    hollow=point.hollow,
                    aside=0.27,
                    sideways=True,
                )
                describe_points(drawn, "", f"{point.name}, {heading}: {point.words} {xlabel}")
            place += 1 if above else (rows + 1) / 2
    axes.set_ylim(place - 0.5, -0.6)
    axes.set_yticks([at for at, _ in ticks], [name for _, name in ticks])
    axes.tick_params(axis="y", length=0)
    _finish(axes, groups, xlabel, above=above)


def _finish(axes: Axes, groups: Groups, xlabel: str, *, above: int) -> None:
    values = [value for _, _, points in groups for point in points for value in _values(point)]
    if values and spans_decades(min(values), max(values)):
        scale(axes.xaxis, min(values), max(values))
        axes.set_xlabel(f"{xlabel} (log scale)")
    else:
        axes.set_xlim(left=0)
        axes.margins(x=0.04)
        axes.set_xlabel(xlabel)
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:,g}")
        axes.axvline(0, color=style.MUTED, linewidth=0.8)
        if above:
            axes.locator_params(axis="x", nbins=5)
    axes.grid(visible=True, axis="x")
    axes.spines["left"].set_visible(False)


def _values(point: Point) -> list[float]:
    if point.estimate is None:
        return []
    ends = (point.estimate.value, point.estimate.low, point.estimate.high)
    return [*(end for end in ends if end is not None), *point.launches]


def _head(axes: Axes, place: float, heading: str, rows: int, *, over: bool, inset: int) -> None:
    further = heading.count("\n")
    if over:
        axes.axhspan(
            place - 0.5,
            place + further + rows + 0.5,
            color=style.OVERSUBSCRIBED_GROUND,
            linewidth=0,
            zorder=0,
        )
    axes.annotate(
        heading,
        (0, place + further / 2),
        xycoords=("axes fraction", "data"),
        xytext=(inset, 0),
        textcoords="offset points",
        fontsize=style.LABEL_PT,
        fontweight="bold",
        va="center",
    )


def _words_above(axes: Axes, place: float, point: Point, above: int, *, over: bool, **words: Any) -> None:
    ground = style.OVERSUBSCRIBED_GROUND if over else style.GROUND
    lines = _rows(point, above) - 1
    if above > 1:
        over_bar(axes, place + lines - 1.5, _stacked(point.name), "", ground=ground)
    over_bar(axes, place + lines - 0.5, "" if above > 1 else point.name, point.words, ground=ground, **words)


def on_phone(groups: Groups, xlabel: str) -> dict[str, Any]:
    """Return the arguments `narrow` and `narrow_in` of a `Picture`, to show these groups of rows on a phone."""
    words = [f"{point.name}   {point.words}" for _, _, points in groups for point in points]
    above = 1 if max(text_width_in(each, style.NOTE_PT) for each in words) <= _PHONE_ROW_IN else 2
    rows = rows_taken(groups, above=above)
    return {
        "narrow": partial(_stacked_rows, groups=groups, xlabel=xlabel, above=above),
        "narrow_in": (style.NARROW_WIDTH_IN, 0.65 + _STACKED_PITCH_IN * rows),
    }


def _stacked_rows(sheet: Sheet, *, groups: Groups, xlabel: str, above: int) -> None:
    axes = sheet.axes(0.12, 0.5, _PHONE_ROW_IN, sheet.height_in - 0.55)
    grouped_rows(axes, groups, xlabel, above=above)
