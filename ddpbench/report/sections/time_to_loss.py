"""The figure on training to a loss: who gets there first, in time and in samples? Only where it was asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import pandas as pd

from ddpbench.analysis.descents import FIRST_STEPS
from ddpbench.analysis.summary import RunSummary
from ddpbench.report.captions import fullest, label_of, setting_of
from ddpbench.report.draw import style
from ddpbench.report.parts import Cell, Column, Picture, Section, Table
from ddpbench.report.rows import Row
from ddpbench.report.series import MOST_SERIES, variant_words
from ddpbench.report.words import Estimate, launches_each, not_drawn, number, ranks, series_of
from ddpbench.spec import grouping
from ddpbench.spec.goal import SMOOTHED_BATCHES
from ddpbench.spec.grouping import PANEL, Key, cap_order
from ddpbench.spec.links import link_words
from ddpbench.strategies.traits import traits_of
from ddpbench.units import counted

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from ddpbench.report.draw.canvas import Sheet

MOST_FIGURES = 3
TOLD_POINTS = 10
"""Of each curve so many points are in the figure's table."""
_DASHES: tuple[Any, ...] = ("-", (0, (5, 1.6)), (0, (1.2, 1.2)), (0, (6, 1.4, 1.2, 1.4)), (0, (3, 3)))
_BASE_DASHES: tuple[Any, ...] = ((0, (3, 3)), (0, (1.2, 2.4)), (0, (5, 2.5, 1.2, 2.5)))
_ROW = 0.055
"""Of the losses' range: how far apart the rows of markers beneath the target are."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Line:
    """A case that was trained to a loss. Times are seconds; its points are (step, samples, time, mean loss)."""

    row: Row
    name: str
    target: float
    window: int
    batch: int
    launches: int
    reached: int
    lowest: float | None
    steps_trained: int
    apart: float | None
    time_s: Estimate | None
    steps: float | None
    samples: float | None
    speedup: Estimate | None
    points: tuple[tuple[int, int, float, float], ...]

    @property
    def drawn_name(self) -> str:
        """Its name in the figure, where one device stands once for both kinds of scaling."""
        scaling = f", {self.row.case.scaling} scaling"
        return self.name.removesuffix(scaling) if traits_of(self.row.case).role == "base" else self.name


def section(summary: RunSummary, rows: Sequence[Row]) -> Section | None:
    """Return the section on trainings to a loss; None where no case was trained to one."""
    groups = _groups(summary, rows)
    if not groups:
        return None
    shown = groups[:MOST_FIGURES]
    notes = list(not_drawn([_setting(group) for group in groups[MOST_FIGURES:]]))
    drawn: list[list[Line]] = []
    for group in shown:
        lines, omitted = _drawn(group)
        drawn.append(lines)
        if omitted:
            names = series_of([line.name for line in omitted])
            notes.append(f"Not drawn, to keep lines apart; the table has them: {names}.")
    every = [line for group in groups for line in group]
    apart = _apart(shown)
    if any(traits_of(row.case).role == "bound" and row.ok for row in rows):
        notes.append("Independent ranks train models of their own: they have no common loss to bring down.")
    if any(line.row.case.data == "memory" for line in every):
        notes.append(
            "With data in memory the same few batches come again and again: that loss is one of learning them."
        )
    return Section(
        anchor="time-to-loss",
        title="Time to a loss",
        question="Who reaches the loss first, and who trains the most samples for it?",
        pictures=tuple(
            _picture(number, lines, group, rows, apart[number])
            for number, (lines, group) in enumerate(zip(drawn, shown, strict=True))
            if lines
        ),
        tables=tuple(_table(group, words) for group, words in zip(shown, apart, strict=True)),
        notes=tuple(notes),
    )


def _groups(summary: RunSummary, rows: Sequence[Row]) -> list[list[Line]]:
    """Return the cases trained to a loss, those together for which it means the same; the largest groups first."""
    if summary.goals.empty:
        return []
    by_id = {row.case_id: row for row in rows if row.ok}
    table = {str(record["case_id"]): record for record in summary.cases.to_dict("records")}
    points: dict[str, list[tuple[int, int, float, float]]] = {}
    for record in summary.curves.to_dict("records"):
        point = (int(record["step"]), int(record["samples"]), float(record["time_s"]), float(record["loss"]))
        points.setdefault(str(record["case_id"]), []).append(point)
    found: dict[tuple[Any, ...], list[tuple[Row, Mapping[Any, Any]]]] = {}
    for goal in summary.goals.to_dict("records"):
        row = by_id.get(str(goal["case_id"]))
        if row is not None:
            found.setdefault((_task(row), float(goal["target"])), []).append((row, goal))
    groups = []
    for members in found.values():
        names = _names([row for row, _ in members])
        groups.append(
            [
                _line(row, names[row.case_id], goal, table[row.case_id], points.get(row.case_id, ()))
                for row, goal in members
            ]
        )
    return sorted(groups, key=lambda group: -len(group))


def _task(row: Row) -> Key:
    """Return what cases must share for one loss to mean the same for all of them."""
    return grouping.deciding("loss", row.case)


def _line(
    row: Row,
    name: str,
    goal: Mapping[Any, Any],
    record: Mapping[Any, Any],
    points: Sequence[tuple[int, int, float, float]],
) -> Line:
    def estimate(pattern: str) -> Estimate | None:
        value = _optional(record[pattern.format("")])
        ends = (_optional(record[pattern.format(end)]) for end in ("_ci_low", "_ci_high"))
        return None if value is None else Estimate(value, *ends)

    return Line(
        row=row,
        name=name,
        target=float(goal["target"]),
        window=int(goal["window"]),
        batch=int(goal["batch"]),
        launches=int(goal["launches"]),
        reached=int(goal["reached"]),
        lowest=_optional(goal["lowest_loss"]),
        steps_trained=int(goal["steps_trained"]),
        apart=_optional(goal["apart"]),
        time_s=estimate("time_to_loss{}_s"),
        steps=_optional(record["steps_to_loss"]),
        samples=_optional(record["samples_to_loss"]),
        speedup=estimate("speedup_to_loss{}"),
        points=tuple(points),
    )


def _optional(value: Any) -> float | None:
    return None if pd.isna(value) else float(value)


def _names(rows: Sequence[Row]) -> dict[str, str]:
    """Strategy, ranks and samples per step; caps, links, threads, loaders and scaling where they tell cases apart."""
    variants = variant_words(rows)
    caps = {
        name: len({row.case.bucket_cap_mb for row in rows if row.case.strategy == name}) > 1
        for name in {r.case.strategy for r in rows}
    }
    linked = len({row.case.fabric for row in rows if not row.needs_no_link}) > 1
    cases = [row.case for row in rows]
    told = {"local_batch", "global_batch", "scaling", "fabric"}  # by the batch, and below
    apart = [name for name in grouping.differing(cases, PANEL) if name not in told]
    names: dict[str, str] = {}
    for row in rows:
        words = [
            " ".join([row.strategy_name, variants[row.case_id]]).rstrip(),
            ranks(row.case.world_size),
            f"batch {row.case.global_batch:,}",
            *([f"{row.bucket_name} buckets"] if caps[row.case.strategy] else []),
            *(
                [link_words(row.case.fabric) or "the machine's own links"]
                if linked and not row.needs_no_link
                else []
            ),
            *grouping.words(row.case, apart, cases),
        ]
        names[row.case_id] = ", ".join(words)
    counts = list(names.values())
    scaling = {row.case_id: row.case.scaling for row in rows}
    return {
        case_id: f"{name}, {scaling[case_id]} scaling" if counts.count(name) > 1 else name
        for case_id, name in names.items()
    }


def _drawn(group: Sequence[Line]) -> tuple[list[Line], list[Line]]:
    """Return the lines of a figure, and those it has no room for: one bucket cap each, and one device once a batch."""
    chosen: dict[tuple[Any, ...], Line] = {}
    batches = ("local_batch", "global_batch", "scaling")
    for line in sorted(group, key=lambda line: cap_order(line.row.case.bucket_cap_mb)):
        row = line.row
        twice = (
            () if traits_of(row.case).role == "base" else (row.case.scaling,)
        )  # one device is the same under both
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


def _setting(group: Sequence[Line]) -> str:
    """Return the setting in words, but for scaling and batch, which differ from line to line."""
    return setting_of(fullest([line.row for line in group]), but=("scaling",))


def _apart(groups: Sequence[Sequence[Line]]) -> list[str]:
    """Return what tells the groups from each other; empty where there is one."""
    cases = [fullest([line.row for line in group]).case for group in groups]
    names = [name for name in PANEL if name not in ("local_batch", "global_batch", "scaling")]
    apart = grouping.differing(cases, names)
    return [", ".join(grouping.words(case, apart, cases)) for case in cases]


def _fair(lines: Sequence[Line]) -> list[Line]:
    return [line for line in lines if line.time_s is not None and not line.row.oversubscribed]


def _heading(lines: Sequence[Line]) -> str:
    target = lines[0].target
    reached = _fair(lines)
    others = [line for line in reached if traits_of(line.row.case).exchanges]
    bases = [line for line in reached if traits_of(line.row.case).role == "base"]
    if not reached:
        who = "in every launch" if any(line.reached for line in lines) else "in any launch"
        return f"No case with cores of its own reached a loss of {target:g} {who}"
    first = min(others or reached, key=_seconds)
    text = f"{first.drawn_name}: {first.time_s} s to a loss of {target:g}"
    if others and bases:
        best = min(bases, key=_seconds)
        text += f"; {best.drawn_name}: {best.time_s} s"
    return text


def _seconds(line: Line) -> float:
    assert line.time_s is not None
    return line.time_s.value


def _picture(
    place: int, lines: Sequence[Line], group: Sequence[Line], rows: Sequence[Row], apart: str
) -> Picture:
    heading = _heading(group) + (f" ({apart})" if apart else "")
    members = [line.row for line in lines]
    missing = {
        row.case_id: f"{row.name} ({row.status})"
        for row in rows
        if not row.ok and traits_of(row.case).role != "bound" and _task(row) == _task(group[0].row)
    }
    windows = sorted({line.window for line in lines})
    over = f"{windows[0]}" if len(windows) == 1 else f"{windows[0]} to {windows[-1]}"
    caption = " ".join(
        [
            f"{_setting(group)}.",
            f"Mean loss of the last {over} steps (as many samples in each case as {SMOOTHED_BATCHES} steps of its base",
            f"case have), means over launches ({launches_each(line.launches for line in lines)}), against training",
            "time and samples of the whole job. Markers beneath the target, a row a case: where it was reached;",
            "whiskers: 95 % t-intervals over launches. Grey: one device. Equal curves hide each other: with the same",
            "batches a strategy that averages every step's gradients has one device's, unless the model has BatchNorm",
            "or draws random numbers.",
            *(
                ["A line without a marker: not every launch reached it."]
                if any(x.time_s is None for x in lines)
                else []
            ),
            *(
                ["Some cases ran with more ranks than cores (oversubscribed)."]
                if any(r.oversubscribed for r in members)
                else []
            ),
            *(["Hollow markers: emulated."] if any(row.emulated for row in members) else []),
        ]
    )
    return Picture(
        file_name="time-to-loss" if not place else f"time-to-loss-{place + 1}",
        heading=heading,
        caption=caption,
        alt=(
            "Two line charts of the mean training loss, left against time, s, right against samples, for "
            f"{series_of([line.drawn_name for line in lines])}. {heading}."
        ),
        table=_points_table(lines),
        width_in=style.FULL_WIDTH_IN,
        height_in=3.5 + _LEGEND_LINE_IN * -(-len(lines) // 2),
        paint=partial(_paint, lines=lines),
        label=label_of(members),
        missing=missing,
    )


def _points_table(lines: Sequence[Line]) -> Table:
    def told(line: Line) -> list[tuple[int, int, float, float]]:
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
            for step, samples, time_s, loss in told(line)
        ),
    )


def _table(group: Sequence[Line], apart: str) -> Table:
    """Return what each case needs to reach the loss, beside its speed-up in samples/s."""
    notes = {line.row.case_id: _notes(line) for line in group}
    noted = any(notes.values())
    held = any(line.apart is not None for line in group)
    what = (
        " Apart from one device: the largest relative difference of a step's loss from that of single with as large a "
        f"batch, over the first {FIRST_STEPS} steps."
    )
    columns = (
        Column("Case"),
        Column("Steps", number=True),
        Column("Samples", number=True),
        Column("Time to the loss, s", number=True),
        Column("Speed-up to it", number=True),
        Column("Speed-up in samples/s", number=True),
        *([Column("Apart from one device", number=True)] if held else []),
        Column("Reached it", number=True),
        *([Column("Notes")] if noted else []),
    )
    return Table(
        caption=(
            f"To a loss of {group[0].target:g}{f' ({apart})' if apart else ''}; in brackets 95 % t-intervals over "
            f"launches.{what if held else ''}"
        ),
        columns=columns,
        rows=tuple(
            (
                Cell(text=line.name),
                _mean_cell(line.steps),
                _mean_cell(line.samples),
                Cell.estimate(line.time_s),
                Cell.estimate(line.speedup),
                Cell.estimate(line.row.speedup),
                *([_apart_cell(line.apart)] if held else []),
                Cell(text=f"{line.reached} of {line.launches}", key=line.reached, number=True),
                *([Cell(text=notes[line.row.case_id])] if noted else []),
            )
            for line in group
        ),
    )


def _apart_cell(value: float | None) -> Cell:
    return Cell(text="" if value is None else f"{value:.1g}", key=value, number=True)


def _mean_cell(value: float | None) -> Cell:
    return Cell(text="" if value is None else f"{value:,.0f}", key=value, number=True)


def _notes(line: Line) -> str:
    """Return whether it had cores of its own, and how far it came if it did not reach the loss in every launch."""
    words = ["oversubscribed"] if line.row.oversubscribed else []
    if line.time_s is None:
        steps = counted(line.steps_trained, "step")
        lowest = line.lowest
        words.append(
            f"ended after {steps}" if lowest is None else f"lowest mean {lowest:.3g} in up to {steps}"
        )
    return "; ".join(words)


_LEGEND_LINE_IN = 0.17


def _paint(sheet: Sheet, *, lines: Sequence[Line]) -> None:
    from matplotlib.lines import Line2D

    top = 0.28 + _LEGEND_LINE_IN * -(-len(lines) // 2)
    left, gap, bottom = 0.6, 0.35, 0.5
    width = (sheet.width_in - left - gap - 0.2) / 2
    height = sheet.height_in - bottom - top - 0.1
    panels = [sheet.axes(left + index * (width + gap), bottom, width, height) for index in range(2)]
    looks = _looks(lines)
    for axes, column in zip(panels, (2, 1), strict=True):
        for place, (line, (look, dash)) in enumerate(zip(lines, looks, strict=True), start=1):
            axes.plot(
                [point[column] for point in line.points],
                [point[3] for point in line.points],
                color=look.colour,
                linestyle=dash,
                linewidth=1.8 if traits_of(line.row.case).role == "base" else 1.4,
                zorder=4 if traits_of(line.row.case).role == "base" else 3,  # to be seen on what follows it
            )
            at = line.time_s if column == 2 else _exact(line.samples)
            _reach(axes, line, look, at, line.target - place * _ROW * _range(lines))
    _finish(panels, lines)
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
                label=line.drawn_name,
            )
            for line, (look, dash) in zip(lines, looks, strict=True)
        ],
        columns=2,
        length=3.4,
    )


def _looks(lines: Sequence[Line]) -> list[tuple[style.Look, Any]]:
    """Colour and marker by strategy; lines of one colour have different dashes, and markers of their own."""
    seen: dict[str, int] = {}
    looks = []
    for line in lines:
        colour = style.look(line.row.case.strategy, algorithm=line.row.case.algorithm).colour
        variant = seen[colour] = seen.get(colour, -1) + 1
        dashes = _BASE_DASHES if traits_of(line.row.case).role == "base" else _DASHES
        look = style.look(line.row.case.strategy, variant, line.row.case.algorithm)
        looks.append((look, dashes[variant % len(dashes)]))
    return looks


def _exact(value: float | None) -> Estimate | None:
    return None if value is None else Estimate(value)


def _range(lines: Sequence[Line]) -> float:
    """From the target, or the lowest loss that is drawn, to the highest."""
    losses = [lines[0].target, *(point[3] for line in lines for point in line.points)]
    return max(losses) - min(losses)


def _reach(axes: Axes, line: Line, look: style.Look, at: Estimate | None, place: float) -> None:
    if at is None:
        return
    whiskers = None
    if at.low is not None and at.high is not None:
        whiskers = [[at.value - at.low], [at.high - at.value]]
    axes.errorbar(
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


def _finish(panels: Sequence[Axes], lines: Sequence[Line]) -> None:
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
    panels[1].tick_params(axis="y", labelleft=False)
