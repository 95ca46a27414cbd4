"""The figure of transfers: time and bus bandwidth against size. Is communication bound by latency or bandwidth?"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import pandas as pd

from ddpbench.analysis.steps.communication import FACTORS, MIN_SIZES
from ddpbench.analysis.summary import RunSummary
from ddpbench.report.draw import style
from ddpbench.report.parts import Cell, Column, Picture, Section, Table
from ddpbench.report.series import MOST_SERIES, Row, label_of, panels_of, setting_of, variant_words
from ddpbench.report.words import Estimate, not_drawn, number, percent, ranks, series_of
from ddpbench.spec.grouping import cap_order, cap_words
from ddpbench.spec.links import links_of
from ddpbench.units import counted, format_bytes

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from ddpbench.report.draw.canvas import Sheet

MOST_FIGURES = 2
_MIB = 2**20
_QUESTION = "Is communication bound by latency or by bandwidth?"


@dataclass(frozen=True, kw_only=True, slots=True)
class Point:
    """Transfers of one size: time in milliseconds, busbw in GB/s (None where no factor is known)."""

    bytes: int
    time_ms: Estimate
    busbw: Estimate | None
    rounds: int
    transfers: int
    latency_share: float | None = None
    """How much of its time is latency, by the line through its curve; None where there is none that fits."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Curve:
    """One operation on one number of ranks, by size."""

    op: str
    world_size: int
    variant: int
    points: tuple[Point, ...]
    latency_ms: Estimate | None = None
    """Where the line through its points is at no bytes; None where sizes are too few or too near."""
    mib_ms: float = 0.0
    """What a MiB more takes, by that line."""
    misfit: float = 0.0

    @property
    def name(self) -> str:
        """As the figure labels it."""
        return f"{self.op}, {ranks(self.world_size)}"


def section(summary: RunSummary, rows: Sequence[Row]) -> Section:
    """Return the section on transfers, with a figure for each strategy that has enough sizes."""
    by_id = {row.case_id: row for row in rows}
    groups: dict[int, list[Mapping[Any, Any]]] = {}
    for record in summary.transfers.to_dict("records"):
        if str(record["case_id"]) in by_id:
            groups.setdefault(int(record["group"]), []).append(record)
    pictures: list[Picture] = []
    left: list[str] = []
    bound: list[str] = []
    for records in groups.values():
        row = by_id[str(records[0]["case_id"])]
        if len(pictures) < MOST_FIGURES:
            curves = _curves(records)
            pictures.append(_picture(row, rows, curves, len(pictures)))
            bound += [sentence for curve in curves if (sentence := _bound_by(row, curve))]
        else:
            left.append(f"{row.strategy_name}, {row.case.workload}")
    absent = ""
    if not pictures:
        absent = (
            f"No strategy has instrumented transfers of {MIN_SIZES} or more sizes on one number of ranks above one, "
            "with cores of its own: too few to tell latency from bandwidth. A sweep over bucket_cap_mb gives them."
        )
    return Section(
        anchor="communication",
        title="Communication",
        question=_QUESTION,
        pictures=tuple(pictures),
        notes=(*bound, *not_drawn(left)),
        absent=absent,
    )


def _curves(records: Sequence[Mapping[Any, Any]]) -> list[Curve]:
    points: dict[tuple[str, int], list[Point]] = {}
    line_of: dict[tuple[str, int], Mapping[Any, Any]] = {}
    for record in records:
        busbw = _estimate(record, "busbw", "busbw_ci_low", "busbw_ci_high")
        time = _estimate(record, "time_s", "time_ci_low_s", "time_ci_high_s")
        assert time is not None
        points.setdefault((str(record["op"]), int(record["world_size"])), []).append(
            Point(
                bytes=int(record["bytes"]),
                time_ms=time.scaled(1e3),
                busbw=None if busbw is None else busbw.scaled(1e-9),
                rounds=int(record["rounds"]),
                transfers=int(record["transfers"]),
                latency_share=None if pd.isna(record["latency_share"]) else float(record["latency_share"]),
            )
        )
        line_of[str(record["op"]), int(record["world_size"])] = record
    curves = []
    for index, (key, found) in enumerate(sorted(points.items())):
        latency = _estimate(line_of[key], "latency_s", "latency_ci_low_s", "latency_ci_high_s")
        per_byte, misfit = (
            math.nan if pd.isna(line_of[key][name]) else float(line_of[key][name])
            for name in ("byte_s", "misfit")
        )
        curves.append(
            Curve(
                op=key[0],
                world_size=key[1],
                variant=index,
                points=tuple(sorted(found, key=lambda one: one.bytes)),
                latency_ms=None if latency is None else latency.scaled(1e3),
                mib_ms=1e3 * _MIB * per_byte,
                misfit=misfit,
            )
        )
    return curves


def _bound_by(row: Row, curve: Curve) -> str:
    """Whether latency or bandwidth takes a transfer's time, at the smallest and the largest size; or why none can tell.

    Empty where sizes are too few or too near for a line.
    """
    latency, first, last = curve.latency_ms, curve.points[0], curve.points[-1]
    if latency is None:
        return ""
    name = f"{row.strategy_name}, {curve.name}"
    if first.latency_share is None or last.latency_share is None:
        return (
            f"{name}: no line of time over size comes nearer to all sizes than {percent(curve.misfit)}, so latency "
            "cannot be told from bandwidth."
        )
    line = f"time grows by {number(curve.mib_ms)} ms per MiB, within {percent(curve.misfit)} at every size"
    if latency.value <= 0 or (latency.low is not None and latency.low <= 0):
        most = "" if latency.high is None else f" (at most {number(max(latency.high, 0.0))} ms)"
        return f"{name}: {line}, and no latency can be told from 0{most}: bandwidth takes the time."
    return (
        f"{name}: {line}, on top of a latency of {latency} ms. It is {percent(first.latency_share)} of the time of "
        f"{format_bytes(first.bytes)} and {percent(last.latency_share)} of that of {format_bytes(last.bytes)}; the "
        "rest is bandwidth."
    )


def _estimate(record: Mapping[Any, Any], value: str, low: str, high: str) -> Estimate | None:
    found = [None if pd.isna(record[name]) else float(record[name]) for name in (value, low, high)]
    return None if found[0] is None else Estimate(found[0], found[1], found[2])


def _picture(row: Row, rows: Sequence[Row], curves: Sequence[Curve], index: int) -> Picture:
    panels = panels_of(rows)
    panel = next((one for one in panels if any(member.case_id == row.case_id for member in one.rows)), None)
    same = [one for one in (panel.rows if panel else rows) if one.case.strategy == row.case.strategy]
    caps = sorted(
        {one.case.bucket_cap_mb for one in same if one.variant == row.variant and one.ok}, key=cap_order
    )
    words = variant_words(rows)[row.case_id]
    name = f"{row.strategy_name} {words}".strip()
    drawn = curves[:MOST_SERIES]
    heading = _heading(name, drawn)
    if panel and panel.name:
        heading = f"{panel.name} · {heading}"
    lines = _cap_lines(caps, drawn)
    marks = []
    outside = [cap_words(cap) for cap in caps if cap is not None and cap not in lines]
    if lines:
        marks.append(f"Vertical lines: the bucket caps {series_of([cap_words(cap) for cap in lines])}.")
    if outside:
        marks.append(
            f"Beyond the sizes shown: the {series_of(outside)} cap{'s' if len(outside) > 1 else ''}."
        )
    if len(curves) > len(drawn):
        marks.append(
            f"Only {MOST_SERIES} fit; in the table: {series_of([c.name for c in curves[MOST_SERIES:]])}."
        )
    if _link_rate(row) is not None:
        marks.append("Dotted, right: the rate of the slowest node's link, headers included.")
    factors = [f"{op}: {FACTORS[op][0]}" for op in dict.fromkeys(c.op for c in curves) if op in FACTORS]
    unknown = [op for op in dict.fromkeys(c.op for c in curves) if op not in FACTORS]
    if unknown:
        marks.append(f"nccl-tests has no factor for {series_of(unknown)}: no busbw.")
    rounds = sorted({point.rounds for curve in curves for point in curve.points})
    caption = " ".join(
        [
            f"{name}, {setting_of(row)}, {row.case.backend or 'no backend'}. A transfer takes from when its data can",
            "flow until its last rank has the result; time in a queue behind others is not in it, and time that",
            "several share over the same links is divided evenly among them. Transfers run beside computation and",
            "differ with it, so no line joins them. One point a size: the mean over all instrumented",
            f"transfers of it; whiskers: 95 % t-intervals over {rounds[0]} to {rounds[-1]} rounds."
            if len(rounds) > 1
            else f"transfers of it; whiskers: 95 % t-intervals over {counted(rounds[0], 'round')}.",
            *(
                [f"busbw is bytes over time, times nccl-tests' factor for n ranks ({'; '.join(factors)})."]
                if factors
                else []
            ),
            *marks,
        ]
    )
    return Picture(
        file_name="communication" if index == 0 else f"communication-{index + 1}",
        heading=heading,
        caption=caption,
        alt=(
            f"Two dot plots against transfer size: time, ms, and bus bandwidth, GB/s, for "
            f"{series_of([curve.name for curve in drawn])}. {heading}."
        ),
        table=_table(name, curves),
        width_in=style.FULL_WIDTH_IN,
        height_in=4.0,
        paint=partial(_paint, row=row, curves=drawn, caps=lines),
        label=label_of([row]),
        missing={},
    )


def _heading(name: str, curves: Sequence[Curve]) -> str:
    """Return the smallest and the largest transfer on the most ranks: what more bytes cost, and what they yield."""
    curve = max(curves, key=lambda one: (one.world_size, len(one.points)))
    first, last = curve.points[0], curve.points[-1]
    return (
        f"{name}, {curve.name}: {format_bytes(first.bytes)} take {_time(first)}, "
        f"{format_bytes(last.bytes)} take {_time(last)}"
    )


def _time(point: Point) -> str:
    rate = f" ({point.busbw.number} GB/s)" if point.busbw is not None else ""
    return f"{point.time_ms} ms{rate}"


def _cap_lines(
    caps: Sequence[float | str | None], curves: Sequence[Curve]
) -> dict[float | str | None, float]:
    """Return the caps near the sizes drawn, each with its bytes; the default's is 25 MiB."""
    sizes = [point.bytes for curve in curves for point in curve.points]
    low, high = min(sizes) / 2, max(sizes) * 2
    found = {cap: _MIB * (25.0 if isinstance(cap, str) else cap) for cap in caps if cap is not None}
    return {cap: size for cap, size in found.items() if low <= size <= high}


def _table(name: str, curves: Sequence[Curve]) -> Table:
    rows = tuple(
        (
            Cell(text=curve.op),
            Cell.count(curve.world_size),
            Cell(text=format_bytes(point.bytes), key=point.bytes, number=True),
            Cell.estimate(point.time_ms),
            Cell.estimate(point.busbw),
            Cell.count(point.transfers),
            Cell.count(point.rounds),
        )
        for curve in curves
        for point in curve.points
    )
    columns = (
        Column("Operation"),
        Column("Ranks", number=True),
        Column("Size", number=True),
        Column("Time, ms", number=True),
        Column("busbw, GB/s", number=True),
        Column("Transfers", number=True),
        Column("Rounds", number=True),
    )
    return Table(caption=f"Transfers by size, {name}", columns=columns, rows=rows)


def _paint(
    sheet: Sheet, *, row: Row, curves: Sequence[Curve], caps: Mapping[float | str | None, float]
) -> None:
    from ddpbench.report.draw.canvas import decades

    height = sheet.height_in - 0.85
    left = sheet.axes(0.75, 0.55, 3.4, height)
    right = sheet.axes(4.85, 0.55, 3.1, height)
    left.set_title("time per transfer")
    right.set_title("bus bandwidth")
    sizes = [point.bytes for curve in curves for point in curve.points]
    for axes in (left, right):
        axes.set_xscale("log", base=2)
        _size_axis(axes, min(sizes) / 1.4, max(sizes) * 1.4)
        axes.set_xlabel("bytes per transfer")
        axes.grid(visible=True, axis="y")
        for size in caps.values():
            axes.axvline(size, color=style.MUTED, linewidth=0.9, linestyle="--", zorder=1)
    middle = math.sqrt(min(sizes) * max(sizes))
    at_size: dict[float, list[str]] = {}
    for cap, size in caps.items():
        at_size.setdefault(size, []).append(cap_words(cap))
    for size, names in at_size.items():
        left.annotate(
            f"{' and '.join(names)} cap{'s' if len(names) > 1 else ''}",
            (size, 0.02),
            xycoords=("data", "axes fraction"),
            xytext=(3, 0) if size < middle else (-3, 0),
            textcoords="offset points",
            fontsize=style.SMALLEST_PT,
            rotation=90,
            ha="left" if size < middle else "right",
            va="bottom",
        )
    for curve in curves:
        times = [(float(point.bytes), point.time_ms) for point in curve.points]
        rates = [(float(point.bytes), point.busbw) for point in curve.points if point.busbw is not None]
        _curve(left, row, curve, times)
        if rates:
            _curve(right, row, curve, rates)
    left.set_yscale("log")
    left.set_ylabel("ms")
    decades(left, [e for curve in curves for p in curve.points for e in _ends(p.time_ms)])
    rate = _link_rate(row)
    if rate is not None:
        right.axhline(rate, linestyle=":", color=style.MUTED, linewidth=1.2, zorder=1)
    right.set_ylim(bottom=0)
    right.set_ylabel("GB/s")
    _label(right, row, curves)


def _link_rate(row: Row) -> float | None:
    """Return the rate of an emulated fabric's slowest link, GB/s: what a ring's busbw cannot exceed."""
    links = links_of(row.case.fabric)
    return None if links is None else min(links.bandwidth) / 8e9


def _ends(estimate: Estimate) -> list[float]:
    return [
        value for value in (estimate.value, estimate.low, estimate.high) if value is not None and value > 0
    ]


def _size_axis(axes: Axes, low: float, high: float) -> None:
    """Ticks at powers of two, in KiB and MiB; as many as fit."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    exponents = list(range(math.ceil(math.log2(low)), math.floor(math.log2(high)) + 1))
    step = max(1, math.ceil(len(exponents) / 6))
    axes.set_xlim(low, high)
    axes.xaxis.set_major_locator(FixedLocator([2.0**exponent for exponent in exponents[::step]]))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: format_bytes(value)))
    axes.xaxis.set_minor_locator(NullLocator())


def _curve(axes: Axes, row: Row, curve: Curve, points: Sequence[tuple[float, Estimate]]) -> None:
    look = style.look(row.case.strategy, curve.variant, row.case.algorithm)
    values = [estimate.value for _, estimate in points]
    whiskers = [
        [0.0 if e.low is None else e.value - e.low for _, e in points],
        [0.0 if e.high is None else e.high - e.value for _, e in points],
    ]
    axes.errorbar(
        [size for size, _ in points],
        values,
        yerr=whiskers,
        fmt=look.marker,
        linestyle="none",
        color=look.colour,
        markersize=5,
        markerfacecolor="white" if row.emulated else look.colour,
        markeredgecolor=look.outline or look.colour,
        elinewidth=1.1,
        capsize=2,
        zorder=3,
    )


def _label(axes: Axes, row: Row, curves: Sequence[Curve]) -> None:
    """Each curve's name in the right margin, at the height of its last point."""
    from ddpbench.report.draw.canvas import spread

    top = axes.get_ylim()[1]
    ends = [
        (curve, point.busbw.value / top)
        for curve in curves
        if (point := curve.points[-1]).busbw is not None and point.busbw is not None
    ]
    places = spread([height for _, height in ends], gap=0.08, low=0.04, high=0.96)
    for (curve, _), place in zip(ends, places, strict=True):
        look = style.look(row.case.strategy, curve.variant, row.case.algorithm)
        axes.plot(
            [1.05],
            [place],
            look.marker,
            transform=axes.transAxes,
            clip_on=False,
            color=look.colour,
            markeredgecolor=look.outline or look.colour,
            markerfacecolor="white" if row.emulated else look.colour,
            markersize=5,
        )
        axes.text(1.09, place, curve.name, transform=axes.transAxes, va="center", fontsize=style.NOTE_PT)
