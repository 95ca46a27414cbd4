"""Draw a proposal's figure: speed-up against ranks, with the ideal line and the line of the efficiency threshold."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from ddpbench.features.allocation.analysis.allocation import Allocation, JobSize
from ddpbench.features.allocation.report.sentences import base_rate
from ddpbench.report.draw import style
from ddpbench.report.draw.canvas import error_bars
from ddpbench.report.draw.marks import describe_points
from ddpbench.report.parts import Cell, Column, Picture, Table
from ddpbench.report.words import launches_each, ranks

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from ddpbench.report.draw.sheet import Sheet


def picture(allocation: Allocation) -> Picture:
    """Return the figure of speed-up against ranks on logarithmic axes, with lines for the ideal and the threshold."""
    chosen = allocation.chosen
    heading = f"{allocation.name}: speed-up {chosen.speedup} at {ranks(chosen.world_size)}"
    if chosen.base:
        heading = f"{allocation.name}: no job size above 1 rank has an efficiency of {allocation.cut:g}"
    caption = (
        f"{allocation.setting}. Speed-up over a single process ({base_rate(allocation)}), paired within rounds; "
        f"whiskers are 95 % t-intervals over launches ({launches_each(job.launches for job in allocation.jobs)}). "
        f"Dotted: ideal. Dashed: an efficiency of {allocation.cut:g}. Lines between points only guide the eye."
    )
    sized = [job for job in allocation.jobs if not job.base]
    alt = (
        f"Line chart, both axes logarithmic, of speed-up (no unit) against number of ranks for {allocation.name}: "
        + ", ".join(f"{job.speedup} at {ranks(job.world_size)}" for job in sized)
        + "."
    )
    columns = (Column("Ranks", number=True), Column("Speed-up", number=True))
    rows = tuple((Cell.count(job.world_size), Cell.estimate(job.speedup)) for job in allocation.jobs)
    return Picture(
        file_name="allocation",
        heading=heading,
        caption=caption,
        alt=alt,
        table=Table(caption="Speed-up by number of ranks", columns=columns, rows=rows),
        width_in=style.SMALL_WIDTH_IN,
        height_in=3.8,
        paint=partial(_paint, allocation=allocation),
        missing={},
    )


def _paint(sheet: Sheet, *, allocation: Allocation) -> None:
    axes = sheet.axes(0.6, 0.5, sheet.width_in - 1.7, 3.15)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    sizes = sorted({job.world_size for job in allocation.jobs})
    low, high = 0.87, sizes[-1] * 1.15
    _draw_references(axes, allocation.cut, low, high)
    _draw_speedups(axes, allocation)
    _mark_chosen(axes, allocation.chosen)
    _finish(axes, sizes, (low, high), _heights(allocation, low, high))


def _draw_references(axes: Axes, cut: float, low: float, high: float) -> None:
    for factor, line, name in ((1.0, ":", "ideal"), (cut, "--", f"efficiency {cut:g}")):
        axes.plot(
            [low, high], [factor * low, factor * high], line, color=style.MUTED, linewidth=1.1, zorder=1
        )
        axes.annotate(
            name,
            (high, factor * high),
            xytext=(4, 0),
            textcoords="offset points",
            va="center",
            fontsize=style.NOTE_PT,
            color=style.MUTED,
            annotation_clip=False,
        )


def _draw_speedups(axes: Axes, allocation: Allocation) -> None:
    base = style.base_look()
    axes.plot([1], [1], base.marker, color=base.colour, markersize=6, zorder=3)
    look = style.look(allocation.case)
    sized = [job for job in allocation.jobs if not job.base]
    estimates = [job.speedup for job in sized]
    drawn = axes.errorbar(
        [job.world_size for job in sized],
        [e.value for e in estimates],
        yerr=error_bars(estimates),
        fmt=look.marker,
        linestyle="-",
        linewidth=0.9,
        color=look.colour,
        markersize=6,
        markeredgecolor=look.outline or look.colour,
        elinewidth=1.2,
        capsize=2.5,
        zorder=3,
    )
    describe_points(drawn, "", *(f"{ranks(job.world_size)}: speed-up {job.speedup}" for job in sized))


def _mark_chosen(axes: Axes, chosen: JobSize) -> None:
    axes.plot(
        [chosen.world_size],
        [chosen.speedup.value],
        "o",
        markersize=14,
        markerfacecolor="none",
        markeredgecolor=style.INK,
        markeredgewidth=1.0,
        zorder=4,
    )
    axes.annotate(
        "chosen",
        (chosen.world_size, chosen.speedup.value),
        xytext=(9, -12),
        textcoords="offset points",
        fontsize=style.NOTE_PT,
        color=style.INK,
    )


def _heights(allocation: Allocation, low: float, high: float) -> tuple[float, float]:
    """Return the ends of the axis, with room for the two reference lines and for whiskers above 0."""
    estimates = [job.speedup for job in allocation.jobs if not job.base]
    values = [bound for e in estimates for bound in (e.value, e.low) if bound and bound > 0]
    bottom = min([low * allocation.cut, *values]) / 1.05
    top = max(high, *(e.high or e.value for e in estimates)) * 1.1
    return bottom, top


def _finish(
    axes: Axes, sizes: Sequence[int], width: tuple[float, float], height: tuple[float, float]
) -> None:
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    axes.set_xlim(*width)
    axes.set_ylim(*height)
    axes.set_xlabel("ranks")
    axes.set_ylabel("speed-up")
    axes.grid(visible=True, axis="y")
    shown = sizes if len(sizes) <= 8 else [size for size in sizes if size.bit_count() == 1]
    bottom, top = height
    exponents = range(math.ceil(math.log2(bottom)), math.floor(math.log2(top)) + 1)
    axes.xaxis.set_major_locator(FixedLocator([float(size) for size in shown]))
    axes.yaxis.set_major_locator(FixedLocator([2.0**k for k in exponents]))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
        axis.set_minor_locator(NullLocator())
