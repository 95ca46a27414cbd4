"""Paint the time and the bus bandwidth of transfers by size, in two plots."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from ddpbench.analysis.statistics.interval import Interval
from ddpbench.report.draw import style
from ddpbench.report.draw.canvas import error_bars
from ddpbench.report.draw.lines import legend_lines
from ddpbench.report.draw.marks import describe, describe_points
from ddpbench.report.rows import Row
from ddpbench.report.sections.communication.curves import TransferCurve
from ddpbench.spec import BucketCap
from ddpbench.spec.grouping import cap_words
from ddpbench.spec.links import links_of, local_rate
from ddpbench.units import format_bytes

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from ddpbench.report.draw.sheet import Sheet


_TICK_IN = 0.56
"""Width of the tick label `512 KiB`, inches."""


def paint(
    sheet: Sheet,
    *,
    row: Row,
    curves: Sequence[TransferCurve],
    caps: Mapping[BucketCap, float],
    rate: float | None,
    stacked: bool = False,
) -> None:
    """Paint time by size in one plot, and bus bandwidth by size in another, above each other if `stacked`.

    Vertical lines mark the bucket caps, and a horizontal line the links' `rate`, GB/s.
    """
    from ddpbench.report.draw.canvas import decades

    height = sheet.height_in - 0.85
    if stacked:
        height = (height - 0.9 - style.LEGEND_LINE_IN * legend_lines(curve.name for curve in curves)) / 2
        left = sheet.axes(0.65, 1.45 + height, sheet.width_in - 0.95, height)
        right = sheet.axes(0.65, 0.55, sheet.width_in - 0.95, height)
    else:
        left = sheet.axes(0.75, 0.55, 3.4, height)
        right = sheet.axes(4.85, 0.55, 3.1, height)
    left.set_title("time per transfer")
    right.set_title("bus bandwidth")
    sizes = [point.bytes for curve in curves for point in curve.points]
    for axes in (left, right):
        axes.set_xscale("log", base=2)
        _size_axis(axes, min(sizes) / 1.4, max(sizes) * 1.4)
        axes.set_xlabel("bytes per transfer")
        axes.grid(visible=True, axis="y")
        for size in caps.values():
            axes.axvline(size, color=style.MUTED, linewidth=0.9, linestyle="--", zorder=1)
    _name_caps(left, caps, math.sqrt(min(sizes) * max(sizes)))
    for curve in curves:
        times = [(float(point.bytes), point.time_ms) for point in curve.points]
        rates = [(float(point.bytes), point.busbw) for point in curve.points if point.busbw is not None]
        _curve(left, row, curve, times, "ms")
        if rates:
            _curve(right, row, curve, rates, "GB/s")
    left.set_yscale("log")
    left.set_ylabel("ms")
    decades(left, [e for curve in curves for p in curve.points for e in _ends(p.time_ms)])
    if rate is not None:
        right.axhline(rate, linestyle=":", color=style.MUTED, linewidth=1.2, zorder=1)
    right.set_ylim(bottom=0)
    right.set_ylabel("GB/s")
    if stacked:
        _legend(sheet, row, curves)
    else:
        _label(right, row, curves)


def _name_caps(axes: Axes, caps: Mapping[BucketCap, float], middle: float) -> None:
    at_size: dict[float, list[str]] = {}
    for cap, size in caps.items():
        at_size.setdefault(size, []).append(cap_words(cap))
    for size, names in at_size.items():
        axes.annotate(
            f"{' and '.join(names)} cap{'s' if len(names) > 1 else ''}",
            (size, 0.02),
            xycoords=("data", "axes fraction"),
            xytext=(3, 0) if size < middle else (-3, 0),
            textcoords="offset points",
            fontsize=style.SMALLEST_PT,
            rotation=90,
            ha="left" if size < middle else "right",
            va="bottom",
        )


def slowest_rate(rows: Iterable[Row]) -> float | None:
    """Return the smallest `link_rate` of these cases, GB/s; None if no case has one."""
    return min((rate for row in rows if (rate := link_rate(row)) is not None), default=None)


def link_rate(row: Row) -> float | None:
    """Return the rate of the slowest link that a ring of all ranks crosses, GB/s. It bounds the ring's busbw.

    It is the slowest node's or, within one node, a rank's. None if no such link was emulated.
    """
    links = links_of(row.case.fabric)
    if links is None:
        return None
    if row.case.nodes > 1:
        rate: float | None = min(links.of_node(node) for node in range(row.case.nodes))
    else:
        rate = local_rate(row.case.fabric, row.case.ranks_per_node)
    return None if rate is None else rate / 8e9


def _ends(estimate: Interval) -> list[float]:
    return [
        value for value in (estimate.value, estimate.low, estimate.high) if value is not None and value > 0
    ]


def _size_axis(axes: Axes, low: float, high: float) -> None:
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    exponents = list(range(math.ceil(math.log2(low)), math.floor(math.log2(high)) + 1))
    most = max(2, int(axes.bbox.width / axes.figure.dpi / _TICK_IN))
    step = max(1, math.ceil(len(exponents) / most))
    axes.set_xlim(low, high)
    axes.xaxis.set_major_locator(FixedLocator([2.0**exponent for exponent in exponents[::step]]))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: format_bytes(value)))
    axes.xaxis.set_minor_locator(NullLocator())


def _curve(
    axes: Axes, row: Row, curve: TransferCurve, points: Sequence[tuple[float, Interval]], unit: str
) -> None:
    look = style.look(row.case, curve.variant)
    values = [estimate.value for _, estimate in points]
    drawn = axes.errorbar(
        [size for size, _ in points],
        values,
        yerr=error_bars(estimate for _, estimate in points),
        fmt=look.marker,
        linestyle="none",
        color=look.colour,
        markersize=5,
        markerfacecolor="white" if row.emulated else look.colour,
        markeredgecolor=look.outline or look.colour,
        elinewidth=1.1,
        capsize=2,
        zorder=3,
    )
    titles = (f"{curve.name}, {format_bytes(size)}: {estimate} {unit}" for size, estimate in points)
    describe_points(drawn, curve.name, *titles)


def _legend(sheet: Sheet, row: Row, curves: Sequence[TransferCurve]) -> None:
    from matplotlib.lines import Line2D

    looks = [(curve, style.look(row.case, curve.variant)) for curve in curves]
    handles = [
        Line2D(
            [],
            [],
            linestyle="none",
            marker=look.marker,
            markersize=5,
            markerfacecolor="white" if row.emulated else look.colour,
            markeredgecolor=look.outline or look.colour,
            label=curve.name,
        )
        for curve, look in looks
    ]
    sheet.legend(handles, columns=1, length=1.0)


def _label(axes: Axes, row: Row, curves: Sequence[TransferCurve]) -> None:
    from ddpbench.report.draw.canvas import spread

    top = axes.get_ylim()[1]
    ends = [
        (curve, point.busbw.value / top)
        for curve in curves
        if (point := curve.points[-1]).busbw is not None and point.busbw is not None
    ]
    places = spread([height for _, height in ends], gap=0.08, low=0.04, high=0.96)
    for (curve, _), place in zip(ends, places, strict=True):
        look = style.look(row.case, curve.variant)
        (sign,) = axes.plot(
            [1.05],
            [place],
            look.marker,
            transform=axes.transAxes,
            clip_on=False,
            color=look.colour,
            markeredgecolor=look.outline or look.colour,
            markerfacecolor="white" if row.emulated else look.colour,
            markersize=5,
        )
        label = axes.text(
            1.09, place, curve.name, transform=axes.transAxes, va="center", fontsize=style.NOTE_PT
        )
        for artist in (sign, label):
            describe(artist, curve.name)
