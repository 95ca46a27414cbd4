"""The figure on checkpoints, with the time of one checkpoint, and the fraction of all time that checkpoints take."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from ddpbench.analysis.checkpoints import INTERVALS, CheckpointCost, share
from ddpbench.analysis.sentences import capital
from ddpbench.analysis.statistics.estimands import MEDIAN, MEDIAN_INTERVALS
from ddpbench.analysis.statistics.interval import Interval
from ddpbench.report.captions import alike_setting, captioned, label_of
from ddpbench.report.draw import style
from ddpbench.report.draw.lines import height_in, in_lines, text_width_in
from ddpbench.report.draw.marks import describe
from ddpbench.report.draw.rows import NAMES_IN, over_bar
from ddpbench.report.figure_texts import first_short
from ddpbench.report.parts import Cell, Column, Picture, Table
from ddpbench.report.rows import Row
from ddpbench.report.sections.checkpoints.bars import finish, right_end, whiskered
from ddpbench.report.words import launches_each, milliseconds, percent, series_of
from ddpbench.units import counted

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from ddpbench.report.draw.sheet import Sheet

_PITCH_IN, _NARROW_PITCH_IN, _SHARES_IN = 0.4, 0.56, 3.2
"""Minimum heights of a bar's row on a page and on a phone, and the height of the lower plot on a phone; inches."""
_PHONE_IN = style.NARROW_WIDTH_IN - 0.3
_METHODS = {"plain": "rank 0, torch.save", "dcp": "all ranks, DCP"}
_MARKERS = {"plain": "o", "dcp": "s"}
_COLOURS = {"plain": "#0072B2", "dcp": "#D55E00"}


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckpointCosts:
    """The cost of a case's checkpoints by one method. Times are in seconds.

    `shares` are the fractions of time that checkpoints take at each of `INTERVALS`, computed from `mean_s` and
    `step_mean_s`.
    """

    row: Row
    method: str
    cost_s: Interval
    mean_s: float
    first_s: float
    write_s: float
    size_bytes: int
    writers: int
    checkpoints: int
    launches: int
    step_mean_s: float
    shares: tuple[float, ...]
    steps_for_1_percent: int


def costs_of(saved: Sequence[CheckpointCost], rows: Sequence[Row]) -> list[CheckpointCosts]:
    """Return the checkpoint costs of each case and method.

    Cases that are not oversubscribed come first, then those with the most ranks.
    """
    by_id = {row.case_id: row for row in rows if row.ok}
    costs: list[CheckpointCosts] = []
    for cost in saved:
        if (row := by_id.get(cost.case_id)) is None:
            continue
        costs.append(
            CheckpointCosts(
                row=row,
                method=cost.method,
                cost_s=cost.cost,
                mean_s=cost.mean_s,
                first_s=cost.first_s,
                write_s=cost.write_s,
                size_bytes=cost.bytes,
                writers=cost.writers,
                checkpoints=cost.checkpoints,
                launches=cost.launches,
                step_mean_s=cost.step_mean_s,
                shares=tuple(cost.share(steps) for steps in INTERVALS),
                steps_for_1_percent=cost.steps_for_small_share,
            )
        )
    costs.sort(key=lambda cost: (cost.row.oversubscribed, -cost.row.case.world_size, cost.row.strategy_name))
    return costs


def checkpoint_picture(costs: Sequence[CheckpointCosts]) -> Picture:
    """Return the figure of the time of a checkpoint, and of the fraction of all time that checkpoints take."""
    heading = _title(costs)
    sizes = sorted({round(cost.size_bytes / 1e6, 1) for cost in costs})
    megabytes = f"{sizes[0]:,g}" if len(sizes) == 1 else f"{sizes[0]:,g} to {sizes[-1]:,g}"
    caption = captioned(
        alike_setting(cost.row for cost in costs),
        [
            f"State of model and optimizer, {megabytes} MB, on the disk and flushed (fsync), {MEDIAN}",
            f"({launches_each(cost.launches for cost in costs)}); whiskers: {MEDIAN_INTERVALS}.",
            "Times are from barrier to barrier, each launch's first included,",
            f"{counted(min(cost.checkpoints // cost.launches for cost in costs), 'checkpoint')} of a method in each",
            f"launch. Right, for {costs[0].row.name}: the checkpoint's time over",
            "that of a checkpoint and the steps between two of them, means over launches; dotted: 1 %; for the others",
            "see the table.",
        ],
    )
    return Picture(
        file_name="checkpoints",
        heading=heading,
        caption=caption,
        alt=(
            "Left: horizontal bars of the time of one checkpoint, ms, by case and method. Right: line chart of the "
            f"share of time, %, against steps between checkpoints. {heading}. {_details(costs)}"
        ),
        table=_table(costs),
        width_in=style.FULL_WIDTH_IN,
        height_in=max(3.0, 1.0 + _pitch_in(costs) * len(costs)),
        paint=partial(_paint, costs=costs),
        narrow=partial(_paint_narrow, costs=costs),
        narrow_in=(style.NARROW_WIDTH_IN, _SHARES_IN + 0.8 + _narrow_pitch_in(costs) * len(costs)),
        label=label_of(cost.row for cost in costs),
        missing={},
    )


def _title(costs: Sequence[CheckpointCosts]) -> str:
    first = costs[0]
    same_case = [cost for cost in costs if cost.row.case_id == first.row.case_id]
    times = series_of([cost.cost_s.scaled(1e3).number for cost in same_case], "or")
    steps = series_of([f"{cost.steps_for_1_percent:,}" for cost in same_case], "or")
    takes = f"a checkpoint takes {times} ms"
    share = f"1 % of time at one in {steps} steps"
    return first_short(
        f"{first.row.name}: {takes}, {share}",
        f"{first.row.name}: {takes}",
        f"{capital(takes)}, {share}",
    )


def _details(costs: Sequence[CheckpointCosts]) -> str:
    same_case = [cost for cost in costs if cost.row.case_id == costs[0].row.case_id]
    return f"{series_of([f'{_ms(cost.cost_s)} ({_METHODS[cost.method]})' for cost in same_case], 'or')}."


def _ms(estimate: Interval) -> str:
    scaled = estimate.scaled(1e3)
    return f"{scaled.number} ms {scaled.brackets}".strip()


def _table(costs: Sequence[CheckpointCosts]) -> Table:
    columns = (
        Column("Case"),
        Column("Method"),
        Column("Checkpoint, ms", number=True),
        Column("First, ms", number=True),
        Column("Longest rank's own part, ms", number=True),
        Column("MB", number=True),
        Column("Ranks that write", number=True),
        *(Column(f"Share at one in {steps:,} steps", number=True) for steps in INTERVALS),
        Column("Steps for 1 %", number=True),
        Column("Launches", number=True),
    )
    rows = tuple(
        (
            Cell(text=cost.row.name),
            Cell(text=_METHODS[cost.method]),
            Cell.estimate(cost.cost_s.scaled(1e3)),
            Cell.ms(cost.first_s),
            Cell.ms(cost.write_s),
            Cell(text=f"{cost.size_bytes / 1e6:,.1f}", key=cost.size_bytes, number=True),
            Cell.count(cost.writers),
            *(Cell(text=_share(part), key=part, number=True) for part in cost.shares),
            Cell.count(cost.steps_for_1_percent),
            Cell.count(cost.launches),
        )
        for cost in costs
    )
    return Table(caption="Checkpoints of model and optimizer", columns=columns, rows=rows)


def _share(fraction: float) -> str:
    return percent(fraction) if fraction >= 0.0005 else "< 0.1 %"


def _names(costs: Sequence[CheckpointCosts], room_in: float, points: float) -> list[str]:
    return [f"{in_lines(cost.row.name, room_in, points)}\n{_METHODS[cost.method]}" for cost in costs]


def _pitch_in(costs: Sequence[CheckpointCosts]) -> float:
    return max(_PITCH_IN, height_in(_names(costs, NAMES_IN, style.TICK_PT), style.TICK_PT) + 0.06)


def _narrow_pitch_in(costs: Sequence[CheckpointCosts]) -> float:
    names = _names(costs, _PHONE_IN, style.NOTE_PT)
    return max(_NARROW_PITCH_IN, height_in(names, style.NOTE_PT) + 0.24)


def _paint(sheet: Sheet, *, costs: Sequence[CheckpointCosts]) -> None:
    names = _names(costs, NAMES_IN, style.TICK_PT)
    left = 0.3 + max(text_width_in(name, style.TICK_PT) for name in names)
    height = sheet.height_in - 0.8
    bars = sheet.axes(left, 0.5, 5.3 - left, height)
    for place, cost in enumerate(costs):
        _bar(bars, place, cost, height=0.5, label=milliseconds(cost.cost_s.value))
    finish(bars, names, "ms a checkpoint")
    _scale(bars, costs)
    lines = sheet.axes(6.55, 0.5, sheet.width_in - 6.55 - 0.25, height)
    _paint_shares(lines, [cost for cost in costs if cost.row.case_id == costs[0].row.case_id])


def _paint_narrow(sheet: Sheet, *, costs: Sequence[CheckpointCosts]) -> None:
    bars = sheet.axes(0.12, _SHARES_IN + 0.5, _PHONE_IN, sheet.height_in - _SHARES_IN - 0.8)
    scale = _NARROW_PITCH_IN / _narrow_pitch_in(costs)
    for place, (cost, name) in enumerate(zip(costs, _names(costs, _PHONE_IN, style.NOTE_PT), strict=True)):
        _bar(bars, place + 0.46 - 0.16 * scale, cost, height=0.32 * scale, label="")
        over_bar(bars, place + 0.46 - 0.35 * scale, name, f"{milliseconds(cost.cost_s.value)} ms")
    finish(bars, [], "ms a checkpoint")
    bars.set_ylim(len(costs) - 0.5, -0.5)
    bars.locator_params(axis="x", nbins=6)
    _scale(bars, costs)
    lines = sheet.axes(0.65, 0.5, sheet.width_in - 0.9, _SHARES_IN - 0.9)
    _paint_shares(lines, [cost for cost in costs if cost.row.case_id == costs[0].row.case_id])


def _bar(axes: Axes, place: float, cost: CheckpointCosts, *, height: float, label: str) -> None:
    fill = style.Fill("", _COLOURS[cost.method])
    title = f"{cost.row.name}, {_METHODS[cost.method]}: {cost.cost_s.scaled(1e3)} ms a checkpoint"
    whiskered(axes, place, cost.cost_s.scaled(1e3), fill, height=height, label=label, title=title)


def _scale(bars: Axes, costs: Sequence[CheckpointCosts]) -> None:
    bars.set_xlim(0, right_end([cost.cost_s.scaled(1e3) for cost in costs]))
    bars.set_title("One checkpoint")


def _paint_shares(axes: Axes, costs: Sequence[CheckpointCosts]) -> None:
    from matplotlib.ticker import FuncFormatter, NullLocator

    steps = [10 ** (1 + index / 10) for index in range(41)]
    for cost in costs:
        ys = [100 * share(cost.mean_s, cost.step_mean_s, round(count)) for count in steps]
        axes.plot(steps, ys, color=_COLOURS[cost.method], linewidth=1.1, zorder=3)
        (points,) = axes.plot(
            INTERVALS,
            [100 * part for part in cost.shares],
            _MARKERS[cost.method],
            color=_COLOURS[cost.method],
            markersize=4.5,
            zorder=4,
            label=_METHODS[cost.method],
        )
        pairs = zip(INTERVALS, cost.shares, strict=True)
        name = _METHODS[cost.method]
        describe(
            points,
            "",
            *(f"{name}, every {steps:,} steps: {100 * part:.2g} % of the time" for steps, part in pairs),
        )
    axes.axhline(1, linestyle=":", color=style.MUTED, linewidth=1.2, zorder=1)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("steps between two checkpoints")
    axes.set_title("Share of time, % (log scales)")
    axes.legend(loc="upper right", borderpad=0)
    axes.grid(visible=True, axis="y")
    axes.xaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_minor_locator(NullLocator())
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
