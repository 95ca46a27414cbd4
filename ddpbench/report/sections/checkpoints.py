"""Figures on what a job does beside training: evaluation by world size, and the cost of snapshots."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import pandas as pd

from ddpbench.analysis.checkpoints import INTERVALS, share
from ddpbench.analysis.summary import RunSummary
from ddpbench.report.captions import label_of, setting_of
from ddpbench.report.draw import style
from ddpbench.report.parts import Cell, Column, Picture, Section, Table
from ddpbench.report.rows import Row
from ddpbench.report.words import Estimate, launches_each, milliseconds, percent, series_of
from ddpbench.strategies import TABLE, load_strategy
from ddpbench.strategies.traits import traits_of
from ddpbench.units import counted

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from ddpbench.report.draw.canvas import Sheet

MOST_CASES = 8
_PITCH_IN = 0.5
_METHODS = {"plain": "rank 0, torch.save", "dcp": "all ranks, DCP"}
_MARKERS = {"plain": "o", "dcp": "s"}
_COLOURS = {"plain": "#0072B2", "dcp": "#D55E00"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Cost:
    """A case's snapshots of one method. Times are seconds."""

    row: Row
    method: str
    cost_s: Estimate
    first_s: float
    write_s: float
    size_bytes: int
    writers: int
    snapshots: int
    launches: int
    step_s: float
    shares: tuple[float, ...]
    steps_for_1_percent: int


def section(summary: RunSummary, rows: Sequence[Row]) -> Section | None:
    """Return the section on evaluation and snapshots; None where no case was asked for either."""
    evaluated = [row for row in rows if row.ok and row.evaluation_samples_per_s is not None]
    evaluated.sort(key=lambda row: (row.oversubscribed, -row.case.world_size))
    costs = _costs(summary, rows)
    if not evaluated and not costs:
        return None
    shown = _ordered(evaluated[:MOST_CASES])
    names = list(dict.fromkeys(cost.row.case_id for cost in costs))[: MOST_CASES // 2]
    drawn = [cost for cost in costs if cost.row.case_id in names]
    notes = []
    if len(evaluated) > len(shown):
        notes.append(
            f"{len(shown)} of {len(evaluated)} evaluated cases are drawn, those with most ranks first."
        )
    if len({cost.row.case_id for cost in costs}) > len(names):
        notes.append("Not all snapshots are drawn; cases.csv has them all.")
    bare = [row.strategy_name for row in shown if traits_of(row.case).one_process and row.case.world_size > 1]
    if bare:
        notes.append(f"{bare[0]} evaluates the bare model on one device: its replicas are not used for it.")
    if any(traits_of(row.case).role == "bound" for row in evaluated) and costs:
        notes.append("Independent ranks have no common state to save: no snapshots.")
    cut = {row.case.strategy: row.strategy_name for row in rows if row.ok}
    parted = [name for key, name in cut.items() if key in TABLE and not load_strategy(key).whole_state]
    if parted:
        notes.append(f"Not timed for {series_of(parted)}, whose ranks hold parts of model or optimizer.")
    pictures = [_evaluation_picture(shown)] if shown else []
    pictures += [_snapshot_picture(drawn)] if drawn else []
    return Section(
        anchor="checkpoints",
        title="Checkpoints and evaluation",
        question="What does a job cost beside its training steps?",
        pictures=tuple(pictures),
        notes=tuple(notes),
    )


def _ordered(rows: Sequence[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: (row.case.world_size, row.strategy_name))


def _costs(summary: RunSummary, rows: Sequence[Row]) -> list[Cost]:
    by_id = {row.case_id: row for row in rows if row.ok}
    found: list[Cost] = []
    for record in summary.snapshots.to_dict("records"):
        row = by_id.get(str(record["case_id"]))
        if row is None:
            continue
        low, high = record["cost_ci_low_s"], record["cost_ci_high_s"]
        found.append(
            Cost(
                row=row,
                method=str(record["method"]),
                cost_s=Estimate(float(record["cost_s"]), _optional(low), _optional(high)),
                first_s=float(record["first_s"]),
                write_s=float(record["write_s"]),
                size_bytes=int(record["bytes"]),
                writers=int(record["writers"]),
                snapshots=int(record["snapshots"]),
                launches=int(record["launches"]),
                step_s=float(record["step_time_s"]),
                shares=tuple(float(record[f"share_{steps}"]) for steps in INTERVALS),
                steps_for_1_percent=int(record["steps_for_1_percent"]),
            )
        )
    found.sort(key=lambda cost: (cost.row.oversubscribed, -cost.row.case.world_size, cost.row.strategy_name))
    return found


def _optional(value: Any) -> float | None:
    return None if pd.isna(value) else float(value)


# Evaluation


def _evaluation_picture(rows: Sequence[Row]) -> Picture:
    heading = _evaluation_heading(rows)
    settings = {setting_of(row) for row in rows}
    caption = " ".join(
        [
            *([f"{next(iter(settings))}."] if len(settings) == 1 else []),
            "Evaluation: forward and loss without gradients, in eval mode, on each rank's own batches, in blocks",
            "between barriers with nothing exchanged inside them. Means of the whole job",
            f"({launches_each(row.launches for row in rows)}); whiskers: 95 % t-intervals over launches.",
            *(
                ["Grey: more ranks than cores (oversubscribed)."]
                if any(r.oversubscribed for r in rows)
                else []
            ),
        ]
    )
    return Picture(
        file_name="evaluation",
        heading=heading,
        caption=caption,
        alt=(
            "Horizontal bars of throughput, samples per second, in training and in evaluation, for "
            f"{series_of([row.name for row in rows])}. {heading}."
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
        height_in=0.95 + _PITCH_IN * len(rows),
        paint=partial(_paint_evaluation, rows=rows),
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


def _evaluation_heading(rows: Sequence[Row]) -> str:
    fair = [row for row in rows if not row.oversubscribed]
    most = max(fair or rows, key=lambda row: (row.case.world_size, traits_of(row.case).role == "reference"))
    return (
        f"{most.name}: {most.evaluation_samples_per_s} samples/s in evaluation, {_times(most)} times the "
        "samples/s in training"
    )


_TRAINING = style.PHASES["backward"]
_EVALUATION = style.PHASES["forward"]


def _paint_evaluation(sheet: Sheet, *, rows: Sequence[Row]) -> None:
    from matplotlib.patches import Patch

    from ddpbench.report.draw.canvas import text_width_in

    left = 0.3 + max(text_width_in(row.name, style.TICK_PT) for row in rows)
    axes = sheet.axes(left, 0.5, sheet.width_in - left - 1.9, sheet.height_in - 0.85)
    for place, row in enumerate(rows):
        if row.oversubscribed:
            axes.axhspan(place - 0.5, place + 0.5, color=style.OVERSUBSCRIBED_GROUND, linewidth=0, zorder=0)
        for fill, offset, estimate in (
            (_TRAINING, -0.19, row.samples_per_s),
            (_EVALUATION, 0.19, row.evaluation_samples_per_s),
        ):
            if estimate is not None:
                _whiskered(axes, place + offset, estimate, fill, height=0.34, label=str(estimate))
    _finish(axes, [row.name for row in rows], "samples/s")
    estimates = [each for row in rows for each in (row.samples_per_s, row.evaluation_samples_per_s)]
    axes.set_xlim(0, _right_end([each for each in estimates if each is not None]))
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    sheet.legend(
        [
            Patch(facecolor=fill.colour, edgecolor=fill.edge, linewidth=0.6, label=name)
            for fill, name in ((_TRAINING, "training"), (_EVALUATION, "evaluation"))
        ],
        columns=2,
    )


def _whiskered(
    axes: Axes, place: float, estimate: Estimate, fill: style.Fill, *, height: float, label: str
) -> None:
    axes.barh(
        place,
        estimate.value,
        height=height,
        color=fill.colour,
        edgecolor=fill.edge,
        hatch=fill.hatch or None,
        linewidth=0.6,
        zorder=2,
    )
    if estimate.low is not None and estimate.high is not None:
        axes.errorbar(
            [estimate.value],
            [place],
            xerr=[[estimate.value - estimate.low], [estimate.high - estimate.value]],
            fmt="none",
            ecolor=style.INK,
            elinewidth=1.1,
            capsize=2.5,
            zorder=4,
        )
    axes.annotate(
        label,
        (1.01, place),
        xycoords=("axes fraction", "data"),
        fontsize=style.SMALLEST_PT,
        va="center",
        annotation_clip=False,
    )


def _right_end(estimates: Sequence[Estimate]) -> float:
    """Room for all bars, and for whiskers as long as they leave the bars to be seen."""
    longest = max(estimate.value for estimate in estimates)
    return 1.04 * min(max(estimate.high or estimate.value for estimate in estimates), 2 * longest)


def _finish(axes: Axes, names: Sequence[str], unit: str) -> None:
    axes.set_ylim(len(names) - 0.45, -0.55)
    axes.set_yticks(range(len(names)), names)
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel(unit)
    axes.grid(visible=True, axis="x")
    axes.spines["left"].set_visible(False)


# Snapshots


def _snapshot_picture(costs: Sequence[Cost]) -> Picture:
    heading = _snapshot_heading(costs)
    settings = {setting_of(cost.row) for cost in costs}
    sizes = sorted({round(cost.size_bytes / 1e6, 1) for cost in costs})
    megabytes = f"{sizes[0]:,g}" if len(sizes) == 1 else f"{sizes[0]:,g} to {sizes[-1]:,g}"
    caption = " ".join(
        [
            *([f"{next(iter(settings))}."] if len(settings) == 1 else []),
            f"State of model and optimizer, {megabytes} MB, on the disk and flushed (fsync), from barrier to barrier.",
            f"Means, each launch's first included ({launches_each(cost.launches for cost in costs)},",
            f"{counted(min(cost.snapshots // cost.launches for cost in costs), 'snapshot')} of a method in each);",
            f"whiskers: 95 % t-intervals over launches. Right, for {costs[0].row.name}: the snapshot's time over",
            "that of a snapshot and the steps between two of them; dotted: 1 %; for the others see the table.",
        ]
    )
    return Picture(
        file_name="snapshots",
        heading=heading,
        caption=caption,
        alt=(
            "Left: horizontal bars of the time of one snapshot, ms, by case and method. Right: line chart of the "
            f"share of time, %, against steps between snapshots. {heading}."
        ),
        table=_snapshot_table(costs),
        width_in=style.FULL_WIDTH_IN,
        height_in=max(3.0, 1.0 + 0.4 * len(costs)),
        paint=partial(_paint_snapshots, costs=costs),
        label=label_of(cost.row for cost in costs),
        missing={},
    )


def _snapshot_heading(costs: Sequence[Cost]) -> str:
    first = costs[0]
    told = [cost for cost in costs if cost.row.case_id == first.row.case_id]
    words = series_of([f"{_ms(cost.cost_s)} ({_METHODS[cost.method]})" for cost in told], "or")
    steps = series_of([f"{cost.steps_for_1_percent:,}" for cost in told], "or")
    return f"{first.row.name}: a snapshot takes {words}, 1 % of the time at one in {steps} steps"


def _ms(estimate: Estimate) -> str:
    scaled = estimate.scaled(1e3)
    return f"{scaled.number} ms {scaled.interval}".strip()


def _snapshot_table(costs: Sequence[Cost]) -> Table:
    columns = (
        Column("Case"),
        Column("Method"),
        Column("Snapshot, ms", number=True),
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
    return Table(caption="Snapshots of model and optimizer", columns=columns, rows=rows)


def _share(fraction: float) -> str:
    return percent(fraction) if fraction >= 0.0005 else "< 0.1 %"


def _paint_snapshots(sheet: Sheet, *, costs: Sequence[Cost]) -> None:
    from ddpbench.report.draw.canvas import text_width_in

    names = [f"{cost.row.name}\n{_METHODS[cost.method]}" for cost in costs]
    left = 0.3 + max(text_width_in(line, style.TICK_PT) for name in names for line in name.split("\n"))
    height = sheet.height_in - 0.8
    bars = sheet.axes(left, 0.5, 5.3 - left, height)
    for place, cost in enumerate(costs):
        fill = style.Fill("", _COLOURS[cost.method])
        estimate = cost.cost_s.scaled(1e3)
        _whiskered(bars, place, estimate, fill, height=0.5, label=milliseconds(cost.cost_s.value))
    _finish(bars, names, "ms a snapshot")
    bars.set_xlim(0, _right_end([cost.cost_s.scaled(1e3) for cost in costs]))
    bars.set_title("One snapshot")
    lines = sheet.axes(6.55, 0.5, sheet.width_in - 6.55 - 0.25, height)
    _paint_shares(lines, [cost for cost in costs if cost.row.case_id == costs[0].row.case_id])


def _paint_shares(axes: Axes, costs: Sequence[Cost]) -> None:
    from matplotlib.ticker import FuncFormatter, NullLocator

    steps = [10 ** (1 + index / 10) for index in range(41)]
    for cost in costs:
        ys = [100 * share(cost.cost_s.value, cost.step_s, round(count)) for count in steps]
        axes.plot(steps, ys, color=_COLOURS[cost.method], linewidth=1.1, zorder=3)
        axes.plot(
            INTERVALS,
            [100 * part for part in cost.shares],
            _MARKERS[cost.method],
            color=_COLOURS[cost.method],
            markersize=4.5,
            zorder=4,
            label=_METHODS[cost.method],
        )
    axes.axhline(1, linestyle=":", color=style.MUTED, linewidth=1.2, zorder=1)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("steps between two snapshots")
    axes.set_title("Share of time, % (log scales)")
    axes.legend(loc="upper right", borderpad=0)
    axes.grid(visible=True, axis="y")
    axes.xaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_minor_locator(NullLocator())
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
