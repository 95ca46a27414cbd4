"""The figure of transfers by size: its words and its table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from ddpbench.analysis.sentences import capital
from ddpbench.analysis.statistics.estimands import MEDIAN_INTERVALS
from ddpbench.analysis.steps.communication import FACTORS, OTHER_CLOCK
from ddpbench.report.captions import burst_words, captioned, label_of, setting_of
from ddpbench.report.draw import style
from ddpbench.report.draw.lines import legend_lines
from ddpbench.report.figure_texts import first_short
from ddpbench.report.parts import Cell, Column, Picture, Table
from ddpbench.report.rows import Row
from ddpbench.report.sections.communication.curves import MIB, TransferCurve, TransferPoint, answer_of
from ddpbench.report.sections.communication.painting import paint, slowest_rate
from ddpbench.report.series import MOST_SERIES, Panel, panel_by_case, panels_of, variant_words
from ddpbench.report.words import series_of
from ddpbench.spec import BucketCap
from ddpbench.spec.grouping import cap_order, cap_words
from ddpbench.units import counted, format_bytes


def picture(
    row: Row, cases: Sequence[Row], rows: Sequence[Row], curves: Sequence[TransferCurve], index: int
) -> Picture:
    """Return the figure of transfers by size for one strategy.

    The curves come from `cases`, which all have this strategy. `row` is one of `cases`, and `rows` are all cases of the
    run.
    """
    panels = panel_by_case(panels_of(rows))
    panel_name, name = names_of(row, panels, variant_words(rows))
    drawn = curves[:MOST_SERIES]
    panel = panels.get(row.case_id)
    limit = slowest_rate(cases)
    heading = _title(drawn, limit)
    caps = _caps_run(row, panel.rows if panel else rows)
    lines = _cap_lines(caps, drawn)
    return Picture(
        file_name="communication" if index == 0 else f"communication-{index + 1}",
        heading=heading,
        caption=_caption(name, row, curves, _marks(cases, curves, caps, lines)),
        alt=(
            f"Two dot plots against transfer size: time, ms, and bus bandwidth, GB/s, for "
            f"{series_of([curve.name for curve in drawn])}. {heading}. {_details(drawn, limit)}"
        ),
        table=_table(" · ".join(filter(None, [panel_name, name])), curves, limit),
        width_in=style.FULL_WIDTH_IN,
        height_in=4.0,
        paint=partial(paint, row=row, curves=drawn, caps=lines, rate=limit),
        narrow=partial(paint, row=row, curves=drawn, caps=lines, rate=limit, stacked=True),
        narrow_in=(
            style.NARROW_WIDTH_IN,
            5.9 + style.LEGEND_LINE_IN * legend_lines(curve.name for curve in drawn),
        ),
        label=label_of([row]),
        group=", ".join(filter(None, [panel_name, name, _told(drawn).name])),
        missing={},
    )


def names_of(row: Row, panels: Mapping[str, Panel], words: Mapping[str, str]) -> tuple[str, str]:
    """Return the name of a row's panel, and the name of its strategy together with its variant.

    `panels` and `words` are by case id; `words` describes each variant. The panel's name is empty if there is only one
    panel.
    """
    panel = panels.get(row.case_id)
    name = f"{row.strategy_name} {words[row.case_id]}".strip()
    return ("" if panel is None else panel.name), name


def _caps_run(row: Row, rows: Sequence[Row]) -> list[BucketCap]:
    same = [one for one in rows if one.case.strategy == row.case.strategy]
    return sorted(
        {one.case.bucket_cap_mb for one in same if one.variant == row.variant and one.ok}, key=cap_order
    )


def _marks(
    cases: Sequence[Row],
    curves: Sequence[TransferCurve],
    caps: Sequence[BucketCap],
    lines: Mapping[BucketCap, float],
) -> list[str]:
    marks = []
    outside = [cap_words(cap) for cap in caps if cap is not None and cap not in lines]
    if lines:
        marks.append(f"Vertical lines: the bucket caps {series_of([cap_words(cap) for cap in lines])}.")
    if outside:
        marks.append(
            f"Beyond the sizes shown: the {series_of(outside)} cap{'s' if len(outside) > 1 else ''}."
        )
    if len(curves) > MOST_SERIES:
        marks.append(
            f"Only {MOST_SERIES} fit; in the table: {series_of([c.name for c in curves[MOST_SERIES:]])}."
        )
    if slowest_rate(cases) is not None:
        nodes = {row.case.nodes for row in cases}
        whose = "slowest node's link" if max(nodes) > 1 else "ranks' own links"
        within = ", which transfers within one node do not cross" if min(nodes) == 1 < max(nodes) else ""
        marks.append(
            f"Dotted, right: the rate of the {whose}, headers included{within}. After a pause "
            f"{burst_words(cases)} of it pass at once: short transfers may seem faster."
        )
    unknown = [op for op in dict.fromkeys(c.op for c in curves) if op not in FACTORS]
    if unknown:
        marks.append(f"nccl-tests has no factor for {series_of(unknown)}: no busbw.")
    return marks


def _caption(name: str, row: Row, curves: Sequence[TransferCurve], marks: Sequence[str]) -> str:
    factors = [f"{op}: {FACTORS[op][0]}" for op in dict.fromkeys(c.op for c in curves) if op in FACTORS]
    rounds = sorted({point.rounds for curve in curves for point in curve.points})
    return captioned(
        setting_of(row),
        [
            f"One point a size: the median over rounds; whiskers: {MEDIAN_INTERVALS}, of {_rounds_words(rounds)}.",
            *marks,
            "A transfer takes from when its data can",
            "flow until its last rank has the result; time in a queue behind others is not in it, and time that",
            "several share over the same links is divided evenly among them. Transfers run during computation and",
            "differ with it, so no line joins them. A round's value is its instrumented transfers' mean.",
            *(
                [
                    f"busbw is bytes over time, times nccl-tests' factor for n ranks ({'; '.join(factors)}).",
                    f"{OTHER_CLOCK}; this is busbw by call, in the table.",
                ]
                if factors
                else []
            ),
        ],
        name=name,
        end=f", {row.case.backend or 'no backend'}",
    )


def _rounds_words(rounds: Sequence[int]) -> str:
    return f"{rounds[0]} to {rounds[-1]} rounds" if len(rounds) > 1 else counted(rounds[0], "round")


def _told(curves: Sequence[TransferCurve]) -> TransferCurve:
    return max(curves, key=lambda one: (one.world_size, len(one.points)))


def _title(curves: Sequence[TransferCurve], limit: float | None) -> str:
    """Return the finding, without busbw above `limit` (GB/s): links exceed their rate only shortly after a pause."""
    curve = _told(curves)
    answer = answer_of(curve)
    ends = list(dict.fromkeys((curve.points[0], curve.points[-1])))
    times = ", ".join(f"{format_bytes(one.bytes)} take {one.time_ms.number} ms" for one in ends)
    rates = ", ".join(
        f"{format_bytes(one.bytes)} take {one.time_ms.number} ms" + _rate(one, limit) for one in ends
    )
    start = f"{capital(answer)}; " if answer else ""
    return first_short(f"{start}{rates}", f"{start}{times}", capital(answer) or times)


def _details(curves: Sequence[TransferCurve], limit: float | None) -> str:
    curve = _told(curves)
    first, last = curve.points[0], curve.points[-1]
    times = [f"{format_bytes(one.bytes)} take {one.time_ms} ms{_rate(one, limit)}" for one in (first, last)]
    return f"{capital(curve.name)}: {', '.join(times)}."


def _rate(point: TransferPoint, limit: float | None) -> str:
    """Return the busbw in brackets; empty if unknown or above the links' rate."""
    return "" if point.busbw is None or _above(point, limit) else f" ({point.busbw.number} GB/s)"


def _above(point: TransferPoint, limit: float | None) -> bool:
    return point.busbw is not None and limit is not None and point.busbw.value > limit


def _cap_lines(caps: Sequence[BucketCap], curves: Sequence[TransferCurve]) -> dict[BucketCap, float]:
    """Return the bucket caps near the drawn sizes, in bytes; the default cap counts as 25 MiB."""
    sizes = [point.bytes for curve in curves for point in curve.points]
    low, high = min(sizes) / 2, max(sizes) * 2
    cap_bytes = {cap: MIB * (25.0 if isinstance(cap, str) else cap) for cap in caps if cap is not None}
    return {cap: size for cap, size in cap_bytes.items() if low <= size <= high}


def _looks_alike(point: TransferPoint, curve: TransferCurve) -> bool:
    return sum(format_bytes(one.bytes) == format_bytes(point.bytes) for one in curve.points) > 1


def _table(name: str, curves: Sequence[TransferCurve], limit: float | None) -> Table:
    rows = tuple(
        (
            Cell(text=curve.op),
            Cell.count(curve.world_size),
            Cell(
                text=format_bytes(point.bytes),
                under=f"{point.bytes:,} B" if _looks_alike(point, curve) else "",
                key=point.bytes,
                number=True,
            ),
            Cell.estimate(point.time_ms),
            Cell.estimate(point.busbw),
            Cell.estimate(point.call_ms),
            Cell.estimate(point.call_busbw),
            Cell.count(point.transfers),
            Cell.count(point.rounds),
            Cell(text="above the links' rate" if _above(point, limit) else ""),
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
        Column("Time by call, ms", number=True),
        Column("busbw by call, GB/s", number=True),
        Column("Transfers", number=True),
        Column("Rounds", number=True),
        Column("Notes"),
    )
    table = Table(caption=f"Transfers by size, {name}", columns=columns, rows=rows)
    return table.without_empty_columns()
