"""The figure of network time by nodes on emulated networks, with the textbook's formula, and the table of traffic."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from ddpbench.analysis.read.traffic import FEWEST, MOST
from ddpbench.analysis.results import NetworkResult
from ddpbench.analysis.statistics.estimands import MEDIAN_INTERVALS
from ddpbench.analysis.statistics.interval import Interval
from ddpbench.formulas import PAYLOAD
from ddpbench.report.captions import burst_words, captioned, label_of, setting_of
from ddpbench.report.draw import style
from ddpbench.report.draw.canvas import error_bars
from ddpbench.report.draw.lines import legend_lines
from ddpbench.report.draw.marks import describe, describe_points
from ddpbench.report.drawn import split
from ddpbench.report.figure_texts import first_short
from ddpbench.report.parts import Cell, Column, Picture, Section, Table
from ddpbench.report.rows import Row
from ddpbench.report.series import Panel, panels_of
from ddpbench.report.words import not_drawn, number, series_of
from ddpbench.spec.links import link_words, local_rate, short_links
from ddpbench.units import counted, format_bytes

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from ddpbench.report.draw.sheet import Sheet

_OWN_LINKS = (
    " Where the ranks of a node have separate links (local), the link is that of the rank that sent or received "
    "most, with what stays within its node; what leaves the node is not counted apart."
)


@dataclass(frozen=True, kw_only=True, slots=True)
class NetworkPoint:
    """Network time of a case's step, as measured and by the formula, in milliseconds."""

    row: Row
    time_ms: Interval
    formula: str
    formula_ms: float | None
    bound_ms: float | None
    gradient_bytes: float | None
    sent_bytes: float | None
    formula_bytes: float | None
    rounds: int

    def per_byte(self, time_ms: float | None) -> Cell:
        """Return a cell with a time divided by the bytes of the gradients, ns; an empty cell if either is unknown."""
        if time_ms is None or not self.gradient_bytes:
            return Cell(text="", number=True)
        value = 1e6 * time_ms / self.gradient_bytes
        return Cell(text=number(value), key=value, number=True)


@dataclass(frozen=True, kw_only=True, slots=True)
class NetworkCurve:
    """A strategy's points on one fabric, by number of nodes."""

    name: str
    strategy: str
    variant: int
    points: tuple[NetworkPoint, ...]

    @property
    def look(self) -> style.Look:
        """Return the curve's colour and marker."""
        return style.look(self.points[0].row.case, self.variant)


def section(network: Sequence[NetworkResult], rows: Sequence[Row]) -> Section | None:
    """Return the section on emulated networks; None if no link was emulated."""
    if not any(row.case.fabric for row in rows):
        return None
    points = _points(network, rows)
    drawable = [(panel, lines) for panel in panels_of(rows) if (lines := _lines(panel, points))]
    drawn, rest = split(drawable)
    traffic = _traffic(rows)
    absent = ""
    if not drawable:
        absent = (
            "No strategy was measured on two or more numbers of nodes of one fabric with instrumented transfers: how "
            "its communication grows with nodes cannot be drawn."
        )
    return Section(
        anchor="network",
        title="Network",
        question="How does the cost of aggregation grow with the nodes, and what does the textbook say?",
        pictures=tuple(_picture(panel, lines, index) for index, (panel, lines) in enumerate(drawn)),
        notes=(
            *(note for panel, _ in drawn for note in panel.of_strategies()[1]),
            *not_drawn([panel.name for panel, _ in rest]),
        ),
        absent=absent,
        tables=(traffic,) if traffic is not None else (),
    )


def _points(network: Sequence[NetworkResult], rows: Sequence[Row]) -> dict[str, NetworkPoint]:
    by_id = {row.case_id: row for row in rows}
    by_case: dict[str, NetworkPoint] = {}
    for one in network:
        if (row := by_id.get(one.case_id)) is None:
            continue
        by_case[row.case_id] = NetworkPoint(
            row=row,
            time_ms=one.network_s.scaled(1e3),
            formula=one.formula,
            formula_ms=None if one.formula_s is None else 1e3 * one.formula_s,
            bound_ms=None if one.bound_s is None else 1e3 * one.bound_s,
            gradient_bytes=one.gradient_bytes,
            sent_bytes=one.sent_bytes,
            formula_bytes=one.formula_bytes,
            rounds=one.rounds,
        )
    return by_case


def _lines(panel: Panel, points: Mapping[str, NetworkPoint]) -> list[NetworkCurve]:
    lines: list[NetworkCurve] = []
    for item in panel.of_strategies()[0]:
        by_shape: dict[int, list[NetworkPoint]] = {}
        for row in item.rows:
            point = points.get(row.case_id)
            if point is not None and row.case.nodes > 1 and not row.oversubscribed:
                by_shape.setdefault(row.case.world_size // row.case.nodes, []).append(point)
        shape = max(by_shape, key=lambda a_node: len(by_shape[a_node]), default=0)
        shaped = sorted(by_shape.get(shape, []), key=lambda point: point.row.case.nodes)
        if len({point.row.case.nodes for point in shaped}) > 1:
            each = f", {shape} ranks per node" if shape > 1 else ""
            lines.append(
                NetworkCurve(
                    name=f"{item.name}{each}",
                    strategy=item.strategy,
                    variant=item.variant,
                    points=tuple(shaped),
                )
            )
    return lines


def _picture(panel: Panel, lines: Sequence[NetworkCurve], index: int) -> Picture:
    every = [point for line in lines for point in line.points]
    row = every[-1].row
    formulas = list(dict.fromkeys(point.formula for point in every if point.formula_ms is not None))
    heading = _title(lines)
    rounds = sorted({point.rounds for point in every})
    span = f"{rounds[0]} to {rounds[-1]} rounds" if len(rounds) > 1 else counted(rounds[0], "round")
    behind = (
        f"Dotted: the formula{'s' if len(formulas) > 1 else ''} of {series_of(formulas)} for the gradients' bytes, at "
        f"{100 * PAYLOAD:g} % of the limiting link's rate (the payload of 1,500-byte frames) and without latency."
        if formulas
        else "No formula is known for what was run."
    )
    if formulas:
        behind += (
            f" After a pause a link passes {burst_words([point.row for point in every])} of its rate at once, which "
            "the formulas do not know: so much less is possible for each transfer."
        )
    if any(point.bound_ms is not None for point in every):
        behind += " Least: what any algorithm needs, that taken off."
    if any(point.row.case.shrink != 1 for point in every):
        behind += (
            " Socket buffers do not shrink: a sender computes on while they empty, and its transfer may outlast "
            "a step."
        )
    caption = captioned(
        setting_of(row),
        [
            f"Whiskers: {MEDIAN_INTERVALS} over {span}, hidden by the marker where they are shorter.",
            "Hollow markers: emulated links.",
            "Network time: while any rank transfers, computing or not, which counts what overlaps",
            "once. Parts of a step are means over ranks: do not add it to them. From instrumented steps, which need",
            f"not be as long as timed ones. Both axes are logarithmic. {behind}",
        ],
    )
    nodes = series_of([str(size) for size in sorted({point.row.case.nodes for point in every})])
    return Picture(
        file_name="network" if index == 0 else f"network-{index + 1}",
        heading=heading,
        caption=caption,
        alt=(
            f"Line chart of network time, ms, against number of nodes ({nodes}) for "
            f"{series_of([line.name for line in lines])}, with the textbook's formulas as dotted lines. "
            f"{heading}. {_details(lines)}"
        ),
        table=_table(lines, panel),
        width_in=style.SMALL_WIDTH_IN,
        height_in=3.8,
        paint=partial(_paint, lines=lines),
        narrow=partial(_paint_narrow, lines=lines),
        narrow_in=(
            style.NARROW_WIDTH_IN,
            3.6 + style.LEGEND_LINE_IN * legend_lines(map(_valued_name, lines)),
        ),
        missing={},
        label=label_of(point.row for point in every),
        group=panel.name,
    )


def _told(lines: Sequence[NetworkCurve]) -> list[tuple[str, NetworkPoint]]:
    """Return the strategies with the longest and shortest network time, at the most nodes that all have.

    Without a common number of nodes, return the first strategy twice, at its most and its fewest nodes.
    """
    shared = set.intersection(*({point.row.case.nodes for point in line.points} for line in lines))
    if len(lines) > 1 and shared:
        nodes = max(shared)
        at = {line.name: point for line in lines for point in line.points if point.row.case.nodes == nodes}
        ordered = sorted(at, key=lambda name: at[name].time_ms.value)
        return [(name, at[name]) for name in (ordered[-1], ordered[0])]
    return [(lines[0].name, lines[0].points[place]) for place in (-1, 0)]


def _title(lines: Sequence[NetworkCurve]) -> str:
    (one, long), (other, short) = _told(lines)
    most, least = long.time_ms.number, short.time_ms.number
    nodes = f"{long.row.case.nodes} nodes"
    if long.row.case.nodes == short.row.case.nodes:
        return first_short(
            f"At {nodes} {one} transfers for {most} ms of a step, {other} for {least} ms",
            f"At {nodes} transfers take {least} to {most} ms of a step",
        )
    return first_short(
        f"{one} transfers for {most} ms of a step on {nodes}, {least} ms on {short.row.case.nodes}",
        f"Transfers take {most} ms of a step on {nodes}, {least} ms on {short.row.case.nodes}",
    )


def _details(lines: Sequence[NetworkCurve]) -> str:
    times = [
        f"{point.time_ms} ms with {name} on {point.row.case.nodes} nodes" for name, point in _told(lines)
    ]
    return f"Network time of a step, overlapped or not: {', '.join(times)}."


def _table(lines: Sequence[NetworkCurve], panel: Panel) -> Table:
    """Return the table, whose caption states the links, and the rounds if all cases have the same number."""
    every = [point for line in lines for point in line.points]
    links = link_words(every[0].row.case.fabric)
    rounds = {point.rounds for point in every}
    columns = (
        Column("Strategy"),
        Column("Nodes", number=True),
        Column("Ranks", number=True),
        Column("Network time, ms", number=True),
        Column("Formula"),
        Column("By the formula, ms", number=True),
        Column("Measured over formula", number=True),
        Column("Per gradient byte, ns", number=True),
        Column("By the formula, ns", number=True),
        Column("Least, ns", number=True),
        Column("Busiest rank sent", number=True),
        Column("By the formula", number=True),
        *([Column("Rounds", number=True)] if len(rounds) > 1 else []),
    )
    rows = tuple(
        (
            Cell(text=line.name),
            Cell.count(point.row.case.nodes),
            Cell.count(point.row.case.world_size),
            Cell.estimate(point.time_ms),
            Cell(text=point.formula),
            Cell(
                text="" if point.formula_ms is None else number(point.formula_ms),
                key=point.formula_ms,
                number=True,
            ),
            Cell(
                text="" if not point.formula_ms else number(point.time_ms.value / point.formula_ms),
                key=None if not point.formula_ms else point.time_ms.value / point.formula_ms,
                number=True,
            ),
            point.per_byte(point.time_ms.value),
            point.per_byte(point.formula_ms),
            point.per_byte(point.bound_ms),
            _size(point.sent_bytes),
            _size(point.formula_bytes),
            *([Cell.count(point.rounds)] if len(rounds) > 1 else []),
        )
        for line in lines
        for point in line.points
    )
    parts = [panel.name, "" if links in panel.name else links]
    parts += [counted(number, "round") for number in rounds if len(rounds) == 1]
    name = "; ".join(filter(None, parts))
    table = Table(caption=f"Network time of a step by number of nodes ({name})", columns=columns, rows=rows)
    return table.without_empty_columns()


def _traffic(rows: Sequence[Row]) -> Table | None:
    several = len({row.case.workload for row in rows}) > 1
    lines = []
    for row in rows:
        if not row.ok or row.traffic is None:
            continue
        ratio = row.traffic_ratio
        lines.append(
            (
                Cell(
                    text=row.name,
                    under=row.case.workload if several else "",
                ),
                Cell(text=short_links(row.case.fabric)),
                Cell.count(row.case.nodes),
                _size(row.gradient_bytes),
                _size(row.traffic.sent),
                _size(row.traffic.received),
                _size(row.expected_node_bytes),
                Cell(
                    text="" if ratio is None else f"{ratio:.3f}",
                    key=ratio,
                    number=True,
                ),
            )
        )
    if not lines:
        return None
    own = _OWN_LINKS if any(local_rate(row.case.fabric, row.case.ranks_per_node) for row in rows) else ""
    columns = (
        Column("Case"),
        Column("Link"),
        Column("Nodes", number=True),
        Column("Gradients", number=True),
        Column("Sent", number=True),
        Column("Received", number=True),
        Column("Formula, sent", number=True),
        Column("Sent over formula", number=True),
    )
    return Table(
        caption=(
            "Bytes a step over the link of the node that sent, and of the one that received most, counted by the "
            "kernel in timed blocks, and what the algorithm's formula says is sent. Headers, acknowledgements, "
            f"barriers and what a block's edges cut off explain {FEWEST:g} to {MOST:g}.{own}"
        ),
        columns=columns,
        rows=tuple(lines),
        fold="Bytes a step over the links",
    )


def _size(value: float | None) -> Cell:
    if value is None:
        return Cell(text="", number=True)
    return Cell(text=format_bytes(float(value)), key=float(value), number=True)


def _paint(sheet: Sheet, *, lines: Sequence[NetworkCurve]) -> None:
    from ddpbench.report.draw.canvas import spread

    axes = sheet.axes(0.75, 0.55, sheet.width_in - 2.75, sheet.height_in - 0.75)
    _paint_lines(axes, lines)
    low, high = (math.log(value) for value in axes.get_ylim())
    wanted = [(math.log(line.points[-1].time_ms.value) - low) / (high - low) for line in lines]
    places = spread(wanted, gap=0.13, low=0.04, high=0.96)
    for line, place in zip(lines, places, strict=True):
        label = axes.text(
            1.03,
            place,
            f"{line.name}\n{line.points[-1].time_ms} ms",
            transform=axes.transAxes,
            va="center",
            fontsize=style.NOTE_PT,
            linespacing=1.15,
        )
        describe(label, line.name)


def _paint_narrow(sheet: Sheet, *, lines: Sequence[NetworkCurve]) -> None:
    from matplotlib.lines import Line2D

    above = 0.15 + style.LEGEND_LINE_IN * legend_lines(map(_valued_name, lines))
    axes = sheet.axes(0.65, 0.5, sheet.width_in - 0.8, sheet.height_in - 0.5 - above)
    _paint_lines(axes, lines)
    handles = [
        Line2D(
            [],
            [],
            color=line.look.colour,
            marker=line.look.marker,
            markersize=6,
            markerfacecolor="white",
            markeredgecolor=line.look.outline or line.look.colour,
            label=_valued_name(line),
        )
        for line in lines
    ]
    sheet.legend(handles, columns=1, series={_valued_name(line): line.name for line in lines})


def _valued_name(line: NetworkCurve) -> str:
    last = line.points[-1]
    return f"{line.name}: {last.time_ms} ms at {last.row.case.nodes} nodes"


def _paint_lines(axes: Axes, lines: Sequence[NetworkCurve]) -> None:
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    from ddpbench.report.draw.canvas import decades

    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    every = [point for line in lines for point in line.points]
    sizes = sorted({point.row.case.nodes for point in every})
    for line in lines:
        _curve(axes, line)
    values = [value for point in every for value in (*_ends(point.time_ms), point.formula_ms) if value]
    decades(axes, values)
    axes.set_xlim(sizes[0] / 1.2, sizes[-1] * 1.2)
    axes.xaxis.set_major_locator(FixedLocator([float(size) for size in sizes]))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlabel("nodes")
    axes.set_ylabel("network time of a step, ms")
    axes.grid(visible=True, axis="y")


def _ends(estimate: Interval) -> list[float]:
    return [value for value in (estimate.value, estimate.low, estimate.high) if value]


def _curve(axes: Axes, line: NetworkCurve) -> None:
    look = line.look
    nodes = [point.row.case.nodes for point in line.points]
    known = [point for point in line.points if point.formula_ms is not None]
    (formula,) = axes.plot(
        [point.row.case.nodes for point in known],
        [point.formula_ms or math.nan for point in known],
        linestyle=":",
        color=look.colour,
        linewidth=1.4,
        zorder=1,
    )
    (guide,) = axes.plot(
        nodes, [point.time_ms.value for point in line.points], color=look.colour, linewidth=0.9, zorder=2
    )
    for each in (formula, guide):
        describe(each, line.name)
    drawn = axes.errorbar(
        nodes,
        [point.time_ms.value for point in line.points],
        yerr=error_bars(point.time_ms for point in line.points),
        fmt=look.marker,
        linestyle="none",
        color=look.colour,
        markersize=6.5,
        markerfacecolor="white",
        markeredgecolor=look.outline or look.colour,
        elinewidth=1.2,
        capsize=2.5,
        zorder=3,
    )
    titles = (
        f"{line.name}, {counted(point.row.case.nodes, 'node')}: {point.time_ms} ms" for point in line.points
    )
    describe_points(drawn, line.name, *titles)
