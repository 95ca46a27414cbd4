"""The rule for axes: logarithmic if values span a decade or more, with round ticks whose labels never collide."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ddpbench.report.draw import style
from ddpbench.report.draw.lines import text_width_in

if TYPE_CHECKING:
    from matplotlib.axis import Axis

DECADE = 10.0
"""An axis of times or ratios is logarithmic if the largest value is at least this many times the smallest."""
_LADDERS = ((1, 1.5, 2, 3, 4, 5, 6, 8), (1, 2, 3, 5), (1, 2, 5), (1, 3), (1,))
"""Sets of leading digits that ticks may have. The first set gives the closest ticks, the last the farthest apart."""
_APART_EM = 1.2
"""Minimum gap between two labels side by side, as a multiple of the font size."""


def spans_decades(low: float, high: float) -> bool:
    """Return whether positive values from `low` to `high` need a logarithmic axis."""
    return low > 0 and high / low >= DECADE


def scale(axis: Axis, low: float, high: float, *, margin: float = 0.04) -> None:
    """Set the limits of an axis to the values `low` to `high`; logarithmic if they span a decade.

    `margin` is the room beyond the values, as a fraction. For points, not bars, because 0 may be missing.
    """
    if spans_decades(low, high):
        room = (high / low) ** margin
        logarithmic(axis, low / room, high * room)
        return
    room = margin * (high - low) or margin * abs(high) or 1.0
    limits = (low - room, high + room)
    axis.axes.set_xlim(*limits) if _lies(axis) else axis.axes.set_ylim(*limits)


def logarithmic(axis: Axis, low: float, high: float) -> None:
    """Make an axis logarithmic from `low` to `high`, and label its ticks with plain round numbers.

    Ticks are at 1, 2 and 5 times powers of ten, closer together for a small range and farther apart if labels would
    collide.
    """
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    axes, along = axis.axes, _lies(axis)
    if along:
        axes.set_xscale("log")
        axes.set_xlim(low, high)
    else:
        axes.set_yscale("log")
        axes.set_ylim(low, high)
    length_in = (axes.bbox.width if along else axes.bbox.height) / axes.figure.dpi
    axis.set_major_locator(FixedLocator(log_ticks(low, high, length_in, along=along)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    axis.set_minor_locator(NullLocator())


def log_ticks(low: float, high: float, length_in: float, *, along: bool) -> Sequence[float]:
    """Return the ticks of a logarithmic axis `length_in` inches long, from `low` to `high`.

    `along` is true for an x axis, whose labels may collide by their widths.
    """
    ladders = _LADDERS[0 if high / low < 6 else 1 if high / low < 40 else 2 :]
    found: list[float] = []
    for digits in ladders:
        powers = range(math.floor(math.log10(low)) - 1, math.ceil(math.log10(high)) + 1)
        places = [digit * 10.0**power for power in powers for digit in digits]
        found = [place for place in places if low <= place <= high]
        if not _collide(found, low, high, length_in, along=along):
            return found
    step = 2
    while _collide(found[::step], low, high, length_in, along=along):
        step += 1
    return found[::step]


def _collide(places: Sequence[float], low: float, high: float, length_in: float, *, along: bool) -> bool:
    if len(places) < 2:
        return False
    per_in = length_in / math.log(high / low)
    points = style.TICK_PT
    gap = _APART_EM * points / 72
    sizes = [text_width_in(f"{place:,g}", points) if along else points / 72 for place in places]
    return any(
        math.log(after / before) * per_in < (one + other) / 2 + (gap if along else gap / 4)
        for before, after, one, other in zip(places, places[1:], sizes, sizes[1:], strict=False)
    )


def _lies(axis: Axis) -> bool:
    return axis is axis.axes.xaxis
