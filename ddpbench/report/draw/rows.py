"""Horizontal rows of bars or points, their words beside them or, for a phone, above them."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from ddpbench.analysis.statistics.interval import Interval
from ddpbench.report.draw import style
from ddpbench.report.draw.canvas import mark, text_width_in
from ddpbench.report.draw.sheet import Sheet

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_STACKED_PITCH_IN = 0.2
_PHONE_ROW_IN = style.NARROW_WIDTH_IN - 0.32
_THIN_PT, _SLIVER_PT = 3.0, 0.6
"""Narrower parts of a bar have no edge, which would cover them; what has no width is still seen."""


def block(axes: Axes, fill: style.Fill, when: tuple[float, float], *, centre: float, height: float) -> None:
    """A part of a bar, from and to a value along x, whose limits are set; one too thin for an edge has none."""
    start, end = sorted(when)
    low, high = axes.get_xlim()
    wide = 72 * axes.bbox.width / axes.figure.dpi * (end - start) / abs(high - low)
    outline = fill.outline
    if wide < _THIN_PT and not fill.hollow:
        outline |= {"edgecolor": fill.colour, "hatch": None, "linewidth": _SLIVER_PT}
    axes.barh(centre, end - start, left=start, height=height, color=fill.colour, **outline, zorder=2)


def axis_end(longest: float) -> float:
    """Return where an axis of bars ends: of bars without any length, as a stranger's records may have them, at 1."""
    return longest if longest > 0 else 1.0


def whiskers(axes: Axes, place: float, estimate: Interval) -> None:
    """An interval across the end of a bar, with a rim in the ground's colour that shows it on any fill."""
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
    axes: Axes, place: float, name: str, told: str, *, ground: str = style.GROUND, **options: Any
) -> None:
    """Writes what a row is at its left and what was measured at its right, above its bar at a place along y.

    A ground keeps lines off the words.
    """
    for x, side, text, more in ((0.0, "left", name, {}), (1.0, "right", told, options)):
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
    """A row of `grouped_rows`: its name, its value (None where there is none), and the words next to it."""

    name: str
    estimate: Interval | None
    launches: Sequence[float]
    look: style.Look
    hollow: bool
    told: str
    across: int = 200
    """Characters that a line of its name holds next to the axes."""

    @property
    def lines(self) -> str:
        """Its name in lines."""
        return textwrap.fill(self.name, self.across)


Groups = Sequence[tuple[str, bool, Sequence[Point]]]
"""Of rows: each a heading, whether it ran oversubscribed, and its points."""


def grouped_rows(axes: Axes, groups: Groups, xlabel: str, *, above: int = 0) -> None:
    """Points on horizontal rows from 0 on, under a heading for each group.

    A point's words are in so many lines above it, so that it may use the whole width, or beside it where 0.
    """
    place = 0.0
    ticks: list[tuple[float, str]] = []
    for heading, over, points in groups:
        _head(axes, place, heading, len(points) * (1 + above), over=over, inset=0 if above else 4)
        place += 1
        for point in points:
            words: dict[str, Any] = {"style": "normal" if point.estimate is not None else "italic"}
            if above:
                _words_above(axes, place, point, above, over=over, **words)
                place += above
            else:
                ticks.append((place, point.lines))
                axes.text(
                    1.02,
                    place,
                    point.told,
                    transform=axes.get_yaxis_transform(),
                    fontsize=style.NOTE_PT,
                    va="center",
                    **words,
                )
            if point.estimate is not None:
                mark(
                    axes,
                    place,
                    point.estimate,
                    point.launches,
                    point.look,
                    hollow=point.hollow,
                    aside=0.27,
                    sideways=True,
                )
            place += 1
    axes.set_ylim(place - 0.5, -0.6)
    axes.set_yticks([at for at, _ in ticks], [name for _, name in ticks])
    axes.tick_params(axis="y", length=0)
    axes.set_xlim(left=0)
    axes.margins(x=0.04)
    axes.grid(visible=True, axis="x")
    axes.set_xlabel(xlabel)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,g}")
    axes.spines["left"].set_visible(False)
    axes.axvline(0, color=style.MUTED, linewidth=0.8)


def _head(axes: Axes, place: float, heading: str, rows: int, *, over: bool, inset: int) -> None:
    """Write a group's heading above its rows, and shade them if it ran oversubscribed."""
    if over:
        axes.axhspan(
            place - 0.5, place + rows + 0.5, color=style.OVERSUBSCRIBED_GROUND, linewidth=0, zorder=0
        )
    axes.annotate(
        f"{heading}{', oversubscribed' if over else ''}",
        (0, place),
        xycoords=("axes fraction", "data"),
        xytext=(inset, 0),
        textcoords="offset points",
        fontsize=style.LABEL_PT,
        fontweight="bold",
        va="center",
    )


def _words_above(axes: Axes, place: float, point: Point, lines: int, *, over: bool, **words: Any) -> None:
    """Write a point's name and words above it, in this number of lines."""
    name = point.name
    ground = style.OVERSUBSCRIBED_GROUND if over else style.GROUND
    if lines > 1:
        over_bar(axes, place + 0.5, name, "", ground=ground)
    over_bar(axes, place + lines - 0.5, "" if lines > 1 else name, point.told, ground=ground, **words)


def on_phone(groups: Groups, xlabel: str) -> dict[str, Any]:
    """Return a picture's `narrow` and `narrow_in` for grouped rows."""
    words = [f"{point.name}   {point.told}" for _, _, points in groups for point in points]
    above = 1 if max(text_width_in(each, style.NOTE_PT) for each in words) <= _PHONE_ROW_IN else 2
    rows = sum(1 + (1 + above) * len(points) for _, _, points in groups)
    return {
        "narrow": partial(_stacked_rows, groups=groups, xlabel=xlabel, above=above),
        "narrow_in": (style.NARROW_WIDTH_IN, 0.65 + _STACKED_PITCH_IN * rows),
    }


def _stacked_rows(sheet: Sheet, *, groups: Groups, xlabel: str, above: int) -> None:
    axes = sheet.axes(0.12, 0.5, _PHONE_ROW_IN, sheet.height_in - 0.55)
    grouped_rows(axes, groups, xlabel, above=above)
    axes.locator_params(axis="x", nbins=5)
