"""The figure that compares the throughput of evaluation with that of training."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from ddpbench.analysis.statistics.estimands import MEDIAN, MEDIAN_INTERVALS
from ddpbench.report.captions import alike_setting, captioned, label_of
from ddpbench.report.draw import style
from ddpbench.report.draw.lines import height_in, in_lines, text_width_in
from ddpbench.report.draw.rows import NAMES_IN, over_bar
from ddpbench.report.figure_texts import first_short
from ddpbench.report.parts import Cell, Column, Picture, Table
from ddpbench.report.rows import Row
from ddpbench.report.sections.checkpoints.bars import finish, right_end, whiskered
from ddpbench.report.words import launches_each, series_of
from ddpbench.strategies.traits import traits_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from ddpbench.report.draw.sheet import Sheet

_PITCH_IN, _NARROW_PITCH_IN = 0.5, 0.62
_PHONE_IN = style.NARROW_WIDTH_IN - 0.3
_TRAINING = style.PHASES["backward"]
_EVALUATION = style.PHASES["forward"]


def evaluation_picture(rows: Sequence[Row]) -> Picture:
    """Return the figure of each case's throughput in training and in evaluation."""
    heading = _heading(rows)
    caption = captioned(
        alike_setting(rows),
        [
            f"The whole job, {MEDIAN} ({launches_each(row.launches for row in rows)}); whiskers: {MEDIAN_INTERVALS}.",
            *(
                ["Grey: more ranks than cores (oversubscribed)."]
                if any(r.oversubscribed for r in rows)
                else []
            ),
            "Evaluation: forward and loss without gradients, in eval mode, on each rank's own batches, in blocks",
            "between barriers with nothing exchanged inside them.",
        ],
    )
    return Picture(
        file_name="evaluation",
        heading=heading,
        caption=caption,
        alt=(
            "Horizontal bars of throughput, samples per second, in training and in evaluation, for "
            f"{series_of([row.name for row in rows])}. {heading}. {_rates(rows)}"
        ),
        table=Table(
            caption="Training and evaluation",
            columns=(
                Column("Case"),
                Column("Training, samples/s", number=True),
                Column("Evaluation, samples/s", number=True),
                Column("Evaluation over training", number=True),
                Column("Launches", number=True),
                Column("Notes"),
            ),
            rows=tuple(
                (
                    Cell(text=row.name),
                    Cell.estimate(row.samples_per_s),
                    Cell.estimate(row.evaluation_samples_per_s),
                    Cell(text=_times(row), key=_over(row), number=True),
                    Cell.count(row.launches),
                    Cell(text=row.badges),
                )
                for row in rows
            ),
        ),
        width_in=style.FULL_WIDTH_IN,
        height_in=0.95 + _pitch_in(rows) * len(rows),
        paint=partial(_paint, rows=rows),
        narrow=partial(_paint_narrow, rows=rows),
        narrow_in=(style.NARROW_WIDTH_IN, 0.9 + _narrow_pitch_in(rows) * len(rows)),
        label=label_of(rows),
        missing={},
    )


def _over(row: Row) -> float | None:
    if row.samples_per_s is None or row.evaluation_samples_per_s is None:
        return None
    return row.evaluation_samples_per_s.value / row.samples_per_s.value


def _times(row: Row) -> str:
    over = _over(row)
    return "" if over is None else f"{over:.2f}"


def _told(rows: Sequence[Row]) -> Row:
    fair = [row for row in rows if not row.oversubscribed]
    return max(fair or rows, key=lambda row: (row.case.world_size, traits_of(row.case).role == "reference"))


def _rates(rows: Sequence[Row]) -> str:
    most = _told(rows)
    return f"{most.name}: {most.evaluation_samples_per_s} samples/s in evaluation."


def _heading(rows: Sequence[Row]) -> str:
    most = _told(rows)
    rate = most.evaluation_samples_per_s.number if most.evaluation_samples_per_s is not None else "no"
    times = f"{_times(most)} times that in training"
    return first_short(
        f"{most.name}: {rate} samples/s in evaluation, {times}",
        f"Evaluation: {rate} samples/s, {times}",
    )


def _names(rows: Sequence[Row], room_in: float, points: float) -> list[str]:
    return [in_lines(row.name, room_in, points) for row in rows]


def _pitch_in(rows: Sequence[Row]) -> float:
    return max(_PITCH_IN, height_in(_names(rows, NAMES_IN, style.TICK_PT), style.TICK_PT) + 0.06)


def _narrow_pitch_in(rows: Sequence[Row]) -> float:
    names = _names(rows, _PHONE_IN, style.NOTE_PT)
    return max(_NARROW_PITCH_IN, height_in(names, style.NOTE_PT) + 0.45)


def _paint(sheet: Sheet, *, rows: Sequence[Row]) -> None:
    names = _names(rows, NAMES_IN, style.TICK_PT)
    left = 0.3 + max(text_width_in(name, style.TICK_PT) for name in names)
    axes = sheet.axes(left, 0.5, sheet.width_in - left - 1.9, sheet.height_in - 0.85)
    _bars(axes, rows, aside=0.19, height=0.34)
    finish(axes, names, "samples/s")
    _scale(sheet, axes, rows)


def _paint_narrow(sheet: Sheet, *, rows: Sequence[Row]) -> None:
    axes = sheet.axes(0.12, 0.5, sheet.width_in - 1.75, sheet.height_in - 0.8)
    scale = _NARROW_PITCH_IN / _narrow_pitch_in(rows)
    _bars(axes, rows, aside=0.14 * scale, height=0.25 * scale, lower=0.425 - 0.265 * scale)
    for place, (row, name) in enumerate(zip(rows, _names(rows, _PHONE_IN, style.NOTE_PT), strict=True)):
        ground = style.OVERSUBSCRIBED_GROUND if row.oversubscribed else style.GROUND
        over_bar(axes, place + 0.425 - 0.565 * scale, name, "", ground=ground)
    finish(axes, [], "samples/s")
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.locator_params(axis="x", nbins=4)
    _scale(sheet, axes, rows)


def _bars(axes: Axes, rows: Sequence[Row], *, aside: float, height: float, lower: float = 0.0) -> None:
    """Draw two bars per case, centred `aside` above and below a y position `lower` beneath the row's middle."""
    for place, row in enumerate(rows):
        if row.oversubscribed:
            axes.axhspan(place - 0.5, place + 0.5, color=style.OVERSUBSCRIBED_GROUND, linewidth=0, zorder=0)
        for fill, offset, estimate in (
            (_TRAINING, lower - aside, row.samples_per_s),
            (_EVALUATION, lower + aside, row.evaluation_samples_per_s),
        ):
            if estimate is not None:
                label = str(estimate)
                title = f"{row.name}, {fill.name}: {label} samples/s"
                whiskered(axes, place + offset, estimate, fill, height=height, label=label, title=title)


def _scale(sheet: Sheet, axes: Axes, rows: Sequence[Row]) -> None:
    from matplotlib.patches import Patch

    estimates = [each for row in rows for each in (row.samples_per_s, row.evaluation_samples_per_s)]
    axes.set_xlim(0, right_end([each for each in estimates if each is not None]))
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    sheet.legend(
        [
            Patch(facecolor=fill.colour, label=name, **fill.outline)
            for fill, name in ((_TRAINING, "training"), (_EVALUATION, "evaluation"))
        ],
        columns=2,
    )
