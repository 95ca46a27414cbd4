"""The figure of training to a target loss, with its lines, its words, and a table of its points."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from ddpbench.analysis.statistics.estimands import MEDIAN, MEDIAN_INTERVALS
from ddpbench.report.captions import captioned, label_of, not_shown
from ddpbench.report.draw import style
from ddpbench.report.figure_texts import first_short
from ddpbench.report.parts import Cell, Column, Picture, Table
from ddpbench.report.rows import Row
from ddpbench.report.sections.time_to_loss.lines import TrainedCase, setting_words, task
from ddpbench.report.sections.time_to_loss.painting import lines_above, names_of, paint
from ddpbench.report.series import MOST_SERIES
from ddpbench.report.words import launches_each, number, series_of
from ddpbench.spec import grouping
from ddpbench.spec.grouping import cap_order
from ddpbench.spec.target_loss import SMOOTHED_BATCHES
from ddpbench.strategies.traits import traits_of

TOLD_POINTS = 10
"""Number of points of each curve in the figure's table."""


def drawn_lines(group: Sequence[TrainedCase]) -> tuple[list[TrainedCase], list[TrainedCase]]:
    """Return the lines to draw, and the lines that are left out for lack of room.

    A strategy is drawn at one bucket cap. A single device is drawn once per batch.
    """
    chosen: dict[tuple[Any, ...], TrainedCase] = {}
    batches = ("local_batch", "global_batch", "scaling")
    for line in sorted(group, key=lambda line: cap_order(line.row.case.bucket_cap_mb)):
        row = line.row
        twice = (
            () if traits_of(row.case).role == "base" else (row.case.scaling,)
        )  # one device trains in the same way under both kinds of scaling
        place = (row.case.world_size, row.case.nodes, row.case.global_batch)
        key = (row.variant, grouping.panel(row.case, but=batches), place, twice)
        if line.points:
            chosen.setdefault(key, line)
    kept = [line for line in group if any(line is one for one in chosen.values())]
    kept.sort(key=lambda line: traits_of(line.row.case).role != "base")
    devices = {line.drawn_name for line in kept if traits_of(line.row.case).role == "base"}
    most = MOST_SERIES + len(devices)
    omitted = [
        line
        for line in group
        if line.points and not any(line is one for one in kept[:most]) and line.drawn_name not in devices
    ]
    return kept[:most], omitted


def picture(
    place: int, lines: Sequence[TrainedCase], group: Sequence[TrainedCase], rows: Sequence[Row], apart: str
) -> Picture:
    """Return the figure of a group of cases, in which `lines` are drawn; `place` counts the figures from 0.

    `apart` is a phrase that distinguishes the group from the groups of other figures.
    """
    heading = _title(group)
    members = [line.row for line in lines]
    missing = {
        row.case_id: f"{row.name} ({row.status})"
        for row in rows
        if not row.ok and traits_of(row.case).role != "bound" and task(row) == task(group[0].row)
    }
    windows = sorted({line.window for line in lines})
    over = f"{windows[0]}" if len(windows) == 1 else f"{windows[0]} to {windows[-1]}"
    caption = captioned(
        setting_words(group),
        [
            f"Mean loss of the last {over} steps ({launches_each(line.launches for line in lines)}). Markers beneath",
            f"the target: where it was reached, {MEDIAN}; whiskers: {MEDIAN_INTERVALS}.",
            *not_shown(missing),
            *(
                ["A line without a marker: not every launch reached it."]
                if any(x.time_s is None for x in lines)
                else []
            ),
            *(["Hollow markers: emulated."] if any(row.emulated for row in members) else []),
            f"These are as many samples in each case as {SMOOTHED_BATCHES} steps of its base case have. Curves are",
            "means over launches, against training time and samples of the whole job. Markers have one row per case.",
            "Grey: one device. Equal curves hide each other: with the same",
            "batches a strategy that averages every step's gradients has one device's, unless the model has BatchNorm",
            "or draws random numbers.",
            *(
                ["Some cases ran with more ranks than cores (oversubscribed)."]
                if any(r.oversubscribed for r in members)
                else []
            ),
        ],
    )
    return Picture(
        file_name="time-to-loss" if not place else f"time-to-loss-{place + 1}",
        heading=heading,
        caption=caption,
        alt=(
            "Two line charts of the mean training loss, left against time, s, right against samples, for "
            f"{series_of([line.drawn_name for line in lines])}. {heading}. {_times(group)}"
        ),
        table=_points_table(lines),
        width_in=style.FULL_WIDTH_IN,
        height_in=3.5 + style.LEGEND_LINE_IN * lines_above(names_of(lines, 2), 2),
        paint=partial(paint, lines=lines),
        narrow=partial(paint, lines=lines, stacked=True),
        narrow_in=(style.NARROW_WIDTH_IN, 5.8 + style.LEGEND_LINE_IN * lines_above(names_of(lines, 1), 1)),
        label=label_of(members),
        group=apart,
        missing=missing,
    )


def _title(lines: Sequence[TrainedCase]) -> str:
    target = lines[0].target
    reached = _fair(lines)
    others = [line for line in reached if traits_of(line.row.case).exchanges]
    bases = [line for line in reached if traits_of(line.row.case).role == "base"]
    if not reached:
        who = "in every launch" if any(line.reached for line in lines) else "in any launch"
        return f"No case on separate cores reached a loss of {target:g} {who}"
    first = min(others or reached, key=_seconds)
    seconds = number(_seconds(first))
    texts = [
        f"{first.drawn_name}: {seconds} s to a loss of {target:g}",
        f"{seconds} s to a loss of {target:g}",
    ]
    if others and bases:
        best = min(bases, key=_seconds)
        texts = [f"{texts[0]}; {best.drawn_name}: {number(_seconds(best))} s", *texts]
    return first_short(*texts)


def _times(lines: Sequence[TrainedCase]) -> str:
    reached = sorted(_fair(lines), key=_seconds)
    words = [f"{line.drawn_name} {line.time_s} s" for line in reached[:3]]
    return f"To the target: {series_of(words)}." if words else ""


def _fair(lines: Sequence[TrainedCase]) -> list[TrainedCase]:
    return [line for line in lines if line.time_s is not None and not line.row.oversubscribed]


def _seconds(line: TrainedCase) -> float:
    assert line.time_s is not None
    return line.time_s.value


def _points_table(lines: Sequence[TrainedCase]) -> Table:
    def listed(line: TrainedCase) -> list[tuple[int, int, float, float]]:
        last = len(line.points) - 1
        places = sorted({round(index * last / (TOLD_POINTS - 1)) for index in range(TOLD_POINTS)})
        return [line.points[place] for place in places]

    return Table(
        caption="Mean loss by step; of each curve some points",
        columns=(
            Column("Case"),
            Column("Step", number=True),
            Column("Samples", number=True),
            Column("Time, s", number=True),
            Column("Mean loss", number=True),
        ),
        rows=tuple(
            (
                Cell(text=line.drawn_name),
                Cell.count(step),
                Cell.count(samples),
                Cell(text=number(time_s), key=time_s, number=True),
                Cell(text=f"{loss:.3f}", key=loss, number=True),
            )
            for line in lines
            for step, samples, time_s, loss in listed(line)
        ),
    )
