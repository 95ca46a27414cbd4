"""Paint the loss curves of training to a target loss, and the points where the target was reached."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ddpbench.analysis.statistics.interval import Interval
from ddpbench.report.draw import style
from ddpbench.report.draw.lines import in_legend, in_lines
from ddpbench.report.draw.marks import describe, describe_points
from ddpbench.report.sections.time_to_loss.lines import TrainedCase
from ddpbench.strategies.traits import traits_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from ddpbench.report.draw.sheet import Sheet

_DASHES: tuple[Any, ...] = ("-", (0, (5, 1.6)), (0, (1.2, 1.2)), (0, (6, 1.4, 1.2, 1.4)), (0, (3, 3)))
_BASE_DASHES: tuple[Any, ...] = ((0, (3, 3)), (0, (1.2, 2.4)), (0, (5, 2.5, 1.2, 2.5)))
_ROW = 0.055
"""Distance between the rows of markers beneath the target, as a fraction of the range of losses."""


def names_of(lines: Sequence[TrainedCase], across: int) -> list[str]:
    """Return the lines' names, broken to fit a legend of `across` columns. A phone's legend has one column."""
    if across == 1:
        return [in_legend(line.drawn_name) for line in lines]
    return [in_lines(line.drawn_name, style.FULL_WIDTH_IN / across - 0.6, style.NOTE_PT) for line in lines]


def lines_above(names: Sequence[str], across: int) -> int:
    """Return the number of lines of text in a legend of these names in `across` columns."""
    heights = [name.count("\n") + 1 for name in names]
    return sum(max(heights[at : at + across]) for at in range(0, len(heights), across))


def paint(sheet: Sheet, *, lines: Sequence[TrainedCase], stacked: bool = False) -> None:
    """Paint the loss by time and by samples in two charts, one above the other if `stacked`. Cases are named on top."""
    from matplotlib.lines import Line2D

    across = 1 if stacked else 2
    names = names_of(lines, across)
    top = 0.28 + style.LEGEND_LINE_IN * lines_above(names, across)
    left, gap, bottom = 0.6, 0.35, 0.5
    width = (sheet.width_in - left - gap * (across - 1) - 0.2) / across
    high = (sheet.height_in - top - 0.1) * across / 2
    panels = [
        sheet.axes(left, bottom + high * (1 - index), width, high - bottom - 0.2)
        if stacked
        else sheet.axes(left + index * (width + gap), bottom, width, high - bottom)
        for index in range(2)
    ]
    looks = _looks(lines)
    for axes, column in zip(panels, (2, 1), strict=True):
        for place, (line, name, (look, dash)) in enumerate(zip(lines, names, looks, strict=True), start=1):
            (curve,) = axes.plot(
                [point[column] for point in line.points],
                [point[3] for point in line.points],
                color=look.colour,
                linestyle=dash,
                linewidth=1.8 if traits_of(line.row.case).role == "base" else 1.4,
                zorder=4 if traits_of(line.row.case).role == "base" else 3,  # above the markers drawn later
            )
            describe(curve, name)
            at, unit = (line.time_s, "s") if column == 2 else (_exact(line.samples), "samples")
            title = f"{name}: the target after {at} {unit}"
            _reach(axes, line, look, at, line.target - place * _ROW * _range(lines), (name, title))
    _finish(panels, lines)
    panels[1].tick_params(axis="y", labelleft=stacked)
    sheet.legend(
        [
            Line2D(
                [],
                [],
                color=look.colour,
                linestyle=dash,
                linewidth=1.4,
                marker=look.marker,
                markersize=5.5,
                markerfacecolor="white" if line.row.emulated else look.colour,
                markeredgecolor=look.outline or look.colour,
                label=name,
            )
            for line, name, (look, dash) in zip(lines, names, looks, strict=True)
        ],
        columns=across,
        length=3.4,
    )


def _looks(lines: Sequence[TrainedCase]) -> list[tuple[style.Look, Any]]:
    seen: dict[str, int] = {}
    looks = []
    for line in lines:
        colour = style.look(line.row.case).colour
        variant = seen[colour] = seen.get(colour, -1) + 1
        dashes = _BASE_DASHES if traits_of(line.row.case).role == "base" else _DASHES
        look = style.look(line.row.case, variant)
        looks.append((look, dashes[variant % len(dashes)]))
    return looks


def _exact(value: float | None) -> Interval | None:
    return None if value is None else Interval(value)


def _range(lines: Sequence[TrainedCase]) -> float:
    losses = [lines[0].target, *(point[3] for line in lines for point in line.points)]
    return max(losses) - min(losses)


def _reach(
    axes: Axes,
    line: TrainedCase,
    look: style.Look,
    at: Interval | None,
    place: float,
    shown: tuple[str, str],
) -> None:
    if at is None:
        return
    whiskers = None
    if at.low is not None and at.high is not None:
        whiskers = [[at.value - at.low], [at.high - at.value]]
    drawn = axes.errorbar(
        [at.value],
        [place],
        xerr=whiskers,
        fmt=look.marker,
        color=look.colour,
        markersize=6.5,
        markerfacecolor="white" if line.row.emulated else look.colour,
        markeredgecolor=look.outline or look.colour,
        markeredgewidth=0.8,
        elinewidth=1.2,
        capsize=2.5,
        clip_on=False,
        zorder=5,
    )
    describe_points(drawn, *shown)


def _finish(panels: Sequence[Axes], lines: Sequence[TrainedCase]) -> None:
    target = lines[0].target
    losses = [point[3] for line in lines for point in line.points]
    high, whole = max([target, *losses]), _range(lines)
    low = min(target - _ROW * whole * (len(lines) + 1), *losses)
    for axes, title, unit in zip(
        panels,
        ("Mean loss against training time", "Mean loss against samples"),
        ("s", "samples"),
        strict=True,
    ):
        axes.axhline(target, color=style.MUTED, linestyle=":", linewidth=1.0, zorder=1)
        axes.set_ylim(low, high + 0.04 * whole)
        axes.set_xlim(left=0)
        axes.set_title(title)
        axes.set_xlabel(unit)
        axes.grid(visible=True, axis="y")
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:,g}")
        axes.annotate(
            f"target {target:g}",
            (0, target),
            xycoords=("axes fraction", "data"),
            xytext=(3, 3),
            textcoords="offset points",
            fontsize=style.SMALLEST_PT,
            color=style.MUTED,
        )
