"""Draw a case over runs: each run's step time, the levels, and the changes between the levels."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from ddpbench.analysis.sentences import sentence
from ddpbench.features.history.analysis import CaseHistory, ChangePoint, History
from ddpbench.features.history.analysis.reading import started_utc
from ddpbench.features.history.analysis.series import ABSENT
from ddpbench.features.history.analysis.wording import (
    change_words,
    day_of,
    gap_words,
    since_words,
    verdict_words,
)
from ddpbench.report.draw import style
from ddpbench.report.draw.canvas import spread
from ddpbench.report.draw.lines import text_width_in
from ddpbench.report.draw.marks import describe
from ddpbench.report.parts import Cell, Column, Picture, Table
from ddpbench.report.words import moment
from ddpbench.units import counted

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from ddpbench.report.draw.sheet import Sheet

HOW_TO_READ = (
    "Each dot is a run: the geometric mean of its launches (a report has their median), with its 95 % interval over "
    "them. Horizontal lines are levels, the geometric means of their runs. Dashed lines are change-points, with the "
    "ratio of the level after to the one before, and its 95 % interval over runs. Vertical axes do not start at zero."
)
_RUN, _FAILED = "#0072B2", "#C4502F"
_HEIGHT_IN, _NARROW_HEIGHT_IN = 2.9, 2.8
_LEFT_IN, _BOTTOM_IN, _RIGHT_IN = 0.72, 0.34, 0.4
_LEGEND_IN, _LABELS_IN = 0.28, 0.36
_MOST_TICKS = 8
_IN_SECONDS = 10.0
"""The step time, in seconds, from which the vertical axis is in seconds rather than milliseconds."""
_LEAST_SPAN = 0.2
"""The least span of the vertical axis, as a fraction of its middle value, so that noise does not look like a change."""


def case_picture(history: History, case: CaseHistory) -> Picture:
    """Return the figure of one case over runs."""
    verdict = verdict_words(history, case)
    finding = verdict
    if len(case.changes) > 2:
        finding = f"{len(case.changes)} changes, the latest {since_words(history, case.changes[-1])}"
    gaps = gap_words(history, case)
    return Picture(
        file_name="history",
        heading=f"{case.label}: {finding}",
        caption=f"{counted(len(case.measured), 'run')} with numbers.{f' {gaps}' if gaps else ''}",
        alt=f"Dot plot of step time against runs, for {case.label}. {sentence(verdict)}",
        table=_table(history, case),
        width_in=style.FULL_WIDTH_IN,
        height_in=_HEIGHT_IN,
        paint=partial(_paint, history=history, case=case, ticks=_MOST_TICKS),
        missing={},
        narrow=partial(_paint, history=history, case=case, ticks=3),
        narrow_in=(style.NARROW_WIDTH_IN, _NARROW_HEIGHT_IN),
    )


def _table(history: History, case: CaseHistory) -> Table:
    return Table(
        caption=f"Step times of {case.label} by run, with 95 % intervals over launches",
        columns=(
            Column("Run"),
            Column("Started"),
            Column("Step, ms", number=True),
            Column("Launches", number=True),
            Column("Note"),
        ),
        rows=tuple(
            (
                Cell(text=history.sides[point.run].name),
                Cell(text=moment(started_utc(history.sides[point.run]))),
                Cell.estimate(None if point.step is None else point.step.scaled(1e3)),
                Cell.count(point.launches),
                Cell(text=point.reason),
            )
            for point in case.points
        ),
        sortable=False,
    )


def _paint(sheet: Sheet, *, history: History, case: CaseHistory, ticks: int) -> None:
    width = sheet.width_in - _LEFT_IN - _RIGHT_IN
    height = sheet.height_in - _BOTTOM_IN - _LEGEND_IN - (_LABELS_IN if case.changes else 0.0)
    axes = sheet.axes(_LEFT_IN, _BOTTOM_IN, width, height)
    first, last = case.points[0].run, case.points[-1].run
    axes.set_xlim(first - 0.6, last + 0.6)
    low, high = _limits(case)
    scale, unit = (1.0, "s") if high >= _IN_SECONDS else (1e3, "ms")
    axes.set_ylim(scale * low, scale * high)
    axes.grid(visible=True, axis="y")
    _paint_runs(axes, case, scale, [side.name for side in history.sides])
    for level in case.levels:
        ends = [level.first - 0.35, level.last + 0.35]
        axes.plot(ends, [scale * level.step_s] * 2, "-", color=style.INK, linewidth=1.6, zorder=2.5)
    places = [(change.before + change.after) / 2 for change in case.changes]
    for place in places:
        axes.axvline(place, color=style.MUTED, linewidth=1.0, linestyle="--", zorder=1)
    _label_changes(
        sheet, case.changes, [_LEFT_IN + width * (x - first + 0.6) / (last - first + 1.2) for x in places]
    )
    axes.set_ylabel(f"step time, {unit}")
    _set_ticks(axes, history, first, last, ticks)
    sheet.legend(_handles(case, "run" if ticks < _MOST_TICKS else "run, 95 % interval"), columns=4)


def _limits(case: CaseHistory) -> tuple[float, float]:
    """Return the ends of the step-time axis (s): all intervals, but at least `_LEAST_SPAN`."""
    steps = [point.step for point in case.measured if point.step is not None]
    low = min(step.value if step.low is None else step.low for step in steps)
    high = max(step.value if step.high is None else step.high for step in steps)
    more = max(0.06 * (high - low), (_LEAST_SPAN * (high + low) / 2 - (high - low)) / 2)
    return low - more, high + more


def _paint_runs(axes: Axes, case: CaseHistory, scale: float, names: Sequence[str]) -> None:
    for point in case.points:
        step = point.step
        if step is None:
            if point.status != ABSENT:
                axes.plot(
                    [point.run],
                    [0.035],
                    "x",
                    color=_FAILED,
                    markersize=6,
                    markeredgewidth=1.6,
                    transform=axes.get_xaxis_transform(),
                )
            continue
        if step.low is not None and step.high is not None:
            axes.plot(
                [point.run] * 2,
                [scale * step.low, scale * step.high],
                "-",
                color=_RUN,
                linewidth=1.1,
                zorder=2,
            )
        (drawn,) = axes.plot([point.run], [scale * step.value], "o", color=_RUN, markersize=4.5, zorder=3)
        describe(drawn, "", f"{names[point.run]}: {step.scaled(1e3)} ms per step")


def _label_changes(sheet: Sheet, changes: Sequence[ChangePoint], wanted_in: Sequence[float]) -> None:
    """Write each change's ratio above its line, with intervals if there is room for all."""
    if not changes:
        return
    long = [change_words(change, joint="\n") for change in changes]
    short = [f"{change.ratio.value:.2f}" for change in changes]
    low, high = _LEFT_IN, sheet.width_in - _RIGHT_IN
    for texts in (long, short):
        size = max(text_width_in(text, style.NOTE_PT) for text in texts)
        if size * len(texts) <= high - low:
            break
    places = spread(list(wanted_in), gap=size, low=low + size / 2, high=high - size / 2)
    bottom = sheet.height_in - _LEGEND_IN - _LABELS_IN + 0.04
    for text, place in zip(texts, places, strict=True):
        sheet.text(place, bottom, text, ha="center", va="bottom", fontsize=style.NOTE_PT, linespacing=1.15)


def _set_ticks(axes: Axes, history: History, first: int, last: int, most: int) -> None:
    """Label a few runs by day, by time (UTC) within one day, or by number if unknown."""
    places = range(first, last + 1, max(1, math.ceil((last - first) / (most - 1))))
    days = [day_of(history.sides[place]) for place in places]
    if len(set(days)) == 1 and days[0]:
        names = [moment(started_utc(history.sides[place]))[11:16] for place in places]
    else:
        names = [day or f"run {place + 1}" for day, place in zip(days, places, strict=True)]
    axes.set_xticks(list(places), names)


def _handles(case: CaseHistory, run: str) -> list[object]:
    from matplotlib.lines import Line2D

    handles: list[object] = [
        Line2D([], [], color=_RUN, marker="o", markersize=4.5, linewidth=1.1, label=run),
        Line2D([], [], color=style.INK, linewidth=1.6, label="level"),
    ]
    if case.changes:
        handles.append(Line2D([], [], color=style.MUTED, linestyle="--", label="change-point"))
    if any(point.status != ABSENT for point in case.gaps):
        handles.append(
            Line2D([], [], color=_FAILED, marker="x", linestyle="", markeredgewidth=1.6, label="no numbers")
        )
    return handles
