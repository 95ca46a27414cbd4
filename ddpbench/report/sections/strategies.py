"""The figure of throughput by strategy, which shows the fastest strategy and its distance from the upper bound."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from ddpbench.analysis.bound import bounds_of, is_bounded, outruns
from ddpbench.analysis.finding import Finding
from ddpbench.analysis.results import LaunchResult
from ddpbench.analysis.statistics.estimands import MEDIAN, MEDIAN_INTERVALS
from ddpbench.analysis.statistics.interval import Interval
from ddpbench.analysis.statistics.judgement import MARGIN
from ddpbench.report.captions import captioned, fullest, label_of, marks_of, not_shown, setting_of
from ddpbench.report.draw import style
from ddpbench.report.draw.rows import Groups, Point, grouped_rows, on_phone, rows_taken
from ddpbench.report.drawn import split
from ddpbench.report.figure_texts import first_short
from ddpbench.report.parts import Cell, Column, Picture, Section, Table
from ddpbench.report.rows import Row, raw_launches
from ddpbench.report.series import Panel, Series, panels_of
from ddpbench.report.tables.data_parallel import is_data_parallel
from ddpbench.report.words import launches_each, not_drawn, number, ranks, series_of, valued
from ddpbench.spec import Case, grouping
from ddpbench.spec.grouping import UNDISTURBED
from ddpbench.strategies.traits import traits_of
from ddpbench.units import format_number

if TYPE_CHECKING:
    from ddpbench.report.draw.sheet import Sheet

MOST_ROWS = 16
"""Maximum number of series in a figure, not counting upper bounds. Each series takes a separate row."""
MOST_SIZES = 4
_PITCH_IN = 0.27
_UNIT = "samples/s"


def section(launches: Sequence[LaunchResult], findings: Sequence[Finding], rows: Sequence[Row]) -> Section:
    """Return the section on strategies, with a figure for each of the first groups of comparable cases."""
    raw = raw_launches(launches, "samples_per_s")
    panels = panels_of(rows)
    drawable = [panel for panel in panels if _can_draw(panel)]
    # Cases that differ only in their recovery train in the same way until something fails.
    sound = [panel for panel in drawable if any(row.case.recovery in UNDISTURBED for row in panel.rows)]
    drawable = sound or drawable
    drawn, rest = split(drawable)
    return Section(
        anchor="strategies",
        title="Throughput by strategy",
        question="Which strategy trains most samples per second, and how far is it from the upper bound?",
        pictures=tuple(_picture(panel, index, raw) for index, panel in enumerate(drawn)),
        notes=(*not_drawn([panel.name for panel in rest]), *_stated(rows)),
        absent="" if drawable else "No case was measured, so no throughput can be shown.",
        tables=_ratios(findings, rows),
    )


def _ratios(findings: Sequence[Finding], rows: Sequence[Row]) -> tuple[Table, ...]:
    by_id = {row.case_id: row for row in rows}
    ratios = [
        (by_id[case], by_id[one.cases[-1]], ratio, one.badge)
        for one in findings
        if one.evidence == "strategies" and {*one.cases} <= {*by_id}
        for case, ratio in zip(one.cases, [one.ratio] if one.ratio is not None else one.ratios, strict=False)
    ]
    if not ratios:
        return ()
    return (
        Table(
            caption="Step time of one case over another's, paired within rounds: what the findings are made of. "
            "Intervals hold for all cases at one number of ranks at once, with 95 % confidence.",
            columns=(
                Column("Step time of"),
                Column("over that of"),
                Column("Ratio", number=True),
                Column("Verdict"),
            ),
            rows=tuple(
                (
                    Cell(text=a.names.short(a.case)),
                    Cell(text=b.names.short(b.case)),
                    Cell.estimate(ratio, null=1),
                    Cell(text=verdict),
                )
                for a, b, ratio, verdict in ratios
            ),
            fold="Ratios of step times",
        ),
    )


def _stated(rows: Sequence[Row]) -> list[str]:
    """Return the strategies' own notes, which must be shown with their numbers, except `DataParallel`'s."""
    notes = {
        row.strategy_name: traits_of(row.case).note
        for row in rows
        if _has(row) and not is_data_parallel(row.case)
    }
    return [f"{name}: {note}" for name, note in notes.items() if note]


def _has(row: Row) -> bool:
    return row.ok and row.samples_per_s is not None


def _can_draw(panel: Panel) -> bool:
    return any(_has(row) for item in panel.of_strategies(MOST_ROWS)[0] for row in item.rows)


def _picture(panel: Panel, index: int, raw: Mapping[str, Sequence[float]]) -> Picture:
    series, notes = panel.of_strategies(MOST_ROWS)
    sizes = sorted({row.case.world_size for item in series for row in item.rows if _has(row)}, reverse=True)
    sizes.sort(key=lambda size: size in panel.oversubscribed_sizes)  # stable; oversubscribed sizes last
    kept = sizes[:MOST_SIZES]
    if len(sizes) > MOST_SIZES:
        omitted = sorted(sizes[MOST_SIZES:])
        left = (
            ranks(omitted[0]) if len(omitted) == 1 else f"{series_of([f'{size}' for size in omitted])} ranks"
        )
        notes.append(f"Omitted for space: {left}; see the summary table.")
    groups = [
        (size, [(item, row) for item in series for row in item.rows if row.case.world_size == size])
        for size in kept
    ]
    shown = [row for _, members in groups for _, row in members if _has(row)]
    missing = {
        row.case_id: f"{row.name} ({row.status})"
        for item in series
        for row in item.rows
        if not _has(row) and (row.case.world_size in kept or row.case.world_size not in sizes)
    }
    heading = _title(panel, groups)
    marks = marks_of(shown, missing)
    caption = captioned(
        setting_of(fullest(shown)),
        [
            f"Markers: throughput, {MEDIAN}; whiskers:",
            f"{MEDIAN_INTERVALS} ({launches_each(row.launches for row in shown)}); dots: launches.",
            *marks,
            *_about_bounds(groups),
            *notes,
        ],
    )
    names = list(dict.fromkeys(item.name for _, members in groups for item, row in members if _has(row)))
    gaps = "".join(f" {one}" for one in not_shown(missing))
    points = _points(groups, raw)
    return Picture(
        file_name="strategies" if index == 0 else f"strategies-{index + 1}",
        heading=heading,
        caption=caption,
        alt=(
            f"Dot plot of throughput, samples per second, for {series_of(names)} at "
            f"{series_of([str(size) for size in kept])} ranks. {heading}. {_rates(groups)}{gaps}"
        ),
        table=_table(panel, groups, raw),
        width_in=style.FULL_WIDTH_IN,
        height_in=0.75 + _PITCH_IN * rows_taken(points),
        paint=partial(_paint, points=points),
        **on_phone(points, _UNIT),
        label=label_of(shown),
        group=panel.name,
        missing=missing,
    )


_Groups = Sequence[tuple[int, Sequence[tuple[Series, Row]]]]


def _ranked(groups: _Groups) -> tuple[int, list[tuple[str, Row]], list[tuple[str, Row]]] | None:
    """Return the most ranks at which a case is ranked, the ranked cases there, and all cases there.

    Ranked cases exchange gradients. Oversubscribed cases are left out. None if no case is ranked.
    """
    most = max(size for size, _ in groups)
    for size, members in groups:
        if size == 1 < most:
            continue
        fair = [(item.name, row) for item, row in members if _has(row) and not row.oversubscribed]
        ranked = [
            (name, row)
            for name, row in fair
            if traits_of(row.case).exchanges and row.samples_per_s is not None
        ]
        if ranked:
            return size, sorted(ranked, key=lambda pair: -_rate(pair[1]).value), fair
    return None


def _rate(row: Row) -> Interval:
    assert row.samples_per_s is not None
    return row.samples_per_s


def _title_rate(row: Row) -> str:
    """Return three or four digits, because a title has no interval that justifies more or fewer."""
    return format_number(_rate(row).value)


def _title(panel: Panel, groups: _Groups) -> str:
    found = _ranked(groups)
    if found is None:
        if any(row.oversubscribed for _, members in groups for _, row in members):
            return "Every case above one rank that exchanges gradients ran oversubscribed: none is ranked"
        return "Throughput of ranks that exchange nothing"
    size, ranked, fair = found
    where = f"At {ranks(size)}"
    (fast, first), (slow, last) = ranked[0], ranked[-1]
    listed = series_of([valued(name, _title_rate(row)) for name, row in ranked])
    limit = _beside(ranked, [row for _, row in fair])
    if len(ranked) == 1:
        one = f"{where} {fast} trains {_title_rate(first)} samples/s"
        return first_short(f"{one}{limit}", one, f"{where}: {_title_rate(first)} samples/s")
    return first_short(
        *(
            [f"{where}, samples/s: {listed}{limit}", f"{where}, samples/s: {listed}"]
            if len(ranked) <= 3
            else []
        ),
        f"{where} throughput is {_title_rate(last)} ({slow}) to {_title_rate(first)} samples/s ({fast})",
        f"{where} throughput is {_title_rate(last)} to {_title_rate(first)} samples/s",
    )


def _rates(groups: _Groups) -> str:
    found = _ranked(groups)
    if found is None:
        return ""
    size, ranked, fair = found
    listed = series_of([valued(name, _rate(row)) for name, row in ranked[:3]])
    more = f" ({len(ranked) - 3} more beneath)" if len(ranked) > 3 else ""
    return f"Samples/s at {ranks(size)}: {listed}{more}{_beside(ranked[:3], [row for _, row in fair])}."


def _bound_of(row: Row, bounds: Mapping[Hashable, Row]) -> Interval | None:
    bound = bounds.get(grouping.deciding("compute", row.case))
    return bound.samples_per_s if bound is not None else None


def _beside(shown: Sequence[tuple[str, Row]], rows: Sequence[Row]) -> str:
    """State independent ranks' throughput, as an upper bound unless a case shown is faster."""
    bounds = bounds_of(rows)
    values = {bound.value: bound for _, row in shown if (bound := _bound_of(row, bounds)) is not None}
    if len(values) != 1:
        return ""
    (bound,) = values.values()
    rates = [(name, row, row.samples_per_s.value) for name, row in shown if row.samples_per_s is not None]
    above = [(name, row.case) for name, row, rate in rates if rate > bound.value]
    if any(outruns(row.case, rate, bound.value) for _, row, rate in rates):
        return f"; no upper bound: independent ranks measured {bound.number}"
    less = {name: case for name, case in above if not is_bounded(case)}
    if less:
        return f"; independent ranks {bound.number}, which do not bound {_unbounded(less)}"
    if above:
        return f"; independent ranks {bound.number}, the same within {100 * MARGIN:g} %"
    return f"; upper bound {bound.number}"


def _about_bounds(groups: _Groups) -> list[str]:
    beaten: list[int] = []
    less: dict[str, Case] = {}
    there = False
    for size, members in groups:
        bounds = bounds_of(row for _, row in members if _has(row))
        there = there or bool(bounds)
        for _, row in members:
            bound = _bound_of(row, bounds)
            if bound is None or row.samples_per_s is None or not row.ok:
                continue
            if outruns(row.case, row.samples_per_s.value, bound.value) and size not in beaten:
                beaten.append(size)
            if row.samples_per_s.value > bound.value and traits_of(row.case).exchanges:
                less |= {} if is_bounded(row.case) else {row.strategy_name: row.case}
    if not there:
        return []
    sentences = ["Independent ranks exchange nothing and are the upper bound."]
    if beaten:
        where = f"At {series_of([ranks(size) for size in sorted(beaten)])} they measured less than a strategy that"
        why = "their launches were disturbed or too few, and no bound is established there."
        sentences = [
            "Independent ranks exchange nothing and should be the upper bound.",
            f"{where} exchanges gradients: {why}",
        ]
    if less:
        sentences.append(f"They do not bound {_unbounded(less)}.")
    return sentences


def _unbounded(cases: Mapping[str, Case]) -> str:
    by: dict[str, list[str]] = {}
    for name, case in cases.items():
        engine = traits_of(case).engine
        why = "whose ranks do less each" if engine == "torch" else f"which {engine} computes"
        by.setdefault(why, []).append(name)
    return ", nor ".join(f"{series_of(names)}, {why}" for why, names in by.items())


def _table(panel: Panel, groups: _Groups, raw: Mapping[str, Sequence[float]]) -> Table:
    rows = tuple(
        (
            Cell(text=item.name),
            Cell.count(size),
            Cell.estimate(row.samples_per_s if row.ok else None),
            Cell.count(row.launches),
            Cell(text=", ".join(number(value) for value in raw.get(row.case_id, ())) if row.ok else ""),
            Cell(text=row.badges),
        )
        for size, members in groups
        for item, row in members
    )
    columns = (
        Column("Series"),
        Column("Ranks", number=True),
        Column("Samples/s", number=True),
        Column("Launches", number=True),
        Column("Each launch, samples/s"),
        Column("Notes"),
    )
    name = f" ({panel.name})" if panel.name else ""
    return Table(caption=f"Throughput by strategy and number of ranks{name}", columns=columns, rows=rows)


def _points(groups: _Groups, raw: Mapping[str, Sequence[float]]) -> Groups:
    def point(item: Series, row: Row) -> Point:
        estimate = row.samples_per_s if row.ok else None
        return Point(
            name=item.name,
            estimate=estimate,
            launches=raw.get(row.case_id, ()),
            look=item.look,
            hollow=row.emulated,
            words=str(estimate) if estimate is not None else row.status,
        )

    return [
        (ranks(size), any(row.oversubscribed for _, row in members), [point(*one) for one in members])
        for size, members in groups
    ]


def _paint(sheet: Sheet, *, points: Groups) -> None:
    from ddpbench.report.draw.lines import text_width_in

    left = 0.35 + max(text_width_in(one.lines, style.TICK_PT) for *_, members in points for one in members)
    axes = sheet.axes(left, 0.5, sheet.width_in - left - 1.75, sheet.height_in - 0.6)
    grouped_rows(axes, points, _UNIT)
