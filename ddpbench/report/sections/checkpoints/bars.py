"""Horizontal bars with whiskers, one per row, for the figures of evaluation and checkpoints."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ddpbench.analysis.statistics.interval import Interval
from ddpbench.report.draw import style
from ddpbench.report.draw.marks import describe
from ddpbench.report.draw.rows import axis_end, whiskers

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def whiskered(
    axes: Axes, place: float, estimate: Interval, fill: style.Fill, *, height: float, label: str, title: str
) -> None:
    """Draw a row's bar with whiskers, and write `label` to the right of the axes. `title` says what the bar shows."""
    bars = axes.barh(
        place,
        estimate.value,
        height=height,
        color=fill.colour,
        **fill.outline,
        zorder=2,
    )
    for bar in bars:
        describe(bar, "", title)
    whiskers(axes, place, estimate)
    axes.annotate(
        label,
        (1.01, place),
        xycoords=("axes fraction", "data"),
        fontsize=style.SMALLEST_PT,
        va="center",
        annotation_clip=False,
    )


def right_end(estimates: Sequence[Interval]) -> float:
    """Return the end of an x axis with room for all bars and whiskers, but at most about twice the longest bar."""
    longest = max(estimate.value for estimate in estimates)
    return 1.04 * axis_end(min(max(estimate.high or estimate.value for estimate in estimates), 2 * longest))


def finish(axes: Axes, names: Sequence[str], unit: str) -> None:
    """Set the limits along y, write the rows' names from top to bottom, and the unit beneath the x axis."""
    axes.set_ylim(len(names) - 0.45, -0.55)
    axes.set_yticks(range(len(names)), names)
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel(unit)
    axes.grid(visible=True, axis="x")
    axes.spines["left"].set_visible(False)
