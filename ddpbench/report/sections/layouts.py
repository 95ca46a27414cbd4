"""The figure on layouts, which shows whether the number of nodes matters when the number of ranks is the same."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from ddpbench.analysis.sentences import capital
from ddpbench.analysis.statistics.estimands import MEDIAN, MEDIAN_INTERVALS
from ddpbench.analysis.statistics.judgement import (
    AS_GOOD,
    BEST,
    CANNOT_TELL,
    SLOWER,
    TOO_FEW,
    Standing,
    at_most,
)
from ddpbench.analysis.summary import StepResults
from ddpbench.naming import layout_of
from ddpbench.report.captions import captioned, fullest, label_of, marks_of, setting_of
from ddpbench.report.draw import style
from ddpbench.report.draw.rows import Groups, Point, grouped_rows, on_phone, rows_taken
from ddpbench.report.figure_texts import first_short
from ddpbench.report.parts import Cell, Column, Picture, Section, Table
from ddpbench.report.rows import Row, raw_launches
from ddpbench.report.series import alike_but
from ddpbench.report.standing import METHOD, stands
from ddpbench.report.words import launches_each, milliseconds, not_drawn, series_of
from ddpbench.spec.grouping import SCALE, VARIANT, GroupKey, cap_order

if TYPE_CHECKING:
    from ddpbench.report.draw.sheet import Sheet

MOST_GROUPS = 5
_PITCH_IN = 0.3
_UNIT = "ms per step"


def section(steps: StepResults, rows: Sequence[Row]) -> Section | None:
    """Return the section on layouts; None if no strategy ran the same number of ranks in several layouts."""
    groups = _groups(rows)
    if not groups:
        return None
    standings = stands(steps.comparisons, "layouts")
    raw = raw_launches(steps.launches)
    return Section(
        anchor="layouts",
        title="Layouts on nodes",
        question="Does it matter how many nodes the same ranks stand on?",
        pictures=(_picture(groups[:MOST_GROUPS], standings, raw),),
        notes=not_drawn([_name(group) for group in groups[MOST_GROUPS:]]),
    )


def shape(row: Row) -> str:
    """Return a case's layout as nodes x ranks per node, for example `2 x 4`."""
    return layout_of(row.case)


def _has(row: Row) -> bool:
    return row.ok and row.step_time_s is not None


def _groups(rows: Sequence[Row]) -> list[list[Row]]:
    """Return groups that differ only in layout: separate cores first, then most ranks."""
    groups: dict[GroupKey, list[Row]] = {}
    for row in rows:
        groups.setdefault(alike_but(row, "nodes", "ranks_per_node"), []).append(row)
    several = [sorted(group, key=lambda row: row.case.nodes) for group in groups.values() if len(group) > 1]
    several = [group for group in several if sum(_has(row) for row in group) > 1]
    several.sort(
        key=lambda group: (
            group[0].oversubscribed,
            -group[0].case.world_size,
            -len(group),
            cap_order(group[0].case.bucket_cap_mb),
        )
    )
    return several


def _name(group: Sequence[Row]) -> str:
    return group[0].names.short(group[0].case, (*VARIANT, *SCALE), layouts=False)


def _picture(
    groups: Sequence[Sequence[Row]],
    standings: Mapping[str, Standing],
    raw: Mapping[str, Sequence[float]],
) -> Picture:
    shown = [row for group in groups for row in group if _has(row)]
    heading = _title(groups, standings)
    missing = {
        row.case_id: f"{_name([row])}, {shape(row)} ({row.status})"
        for group in groups
        for row in group
        if not _has(row)
    }
    marks = [*marks_of(shown, missing), METHOD]
    caption = captioned(
        setting_of(fullest(shown)),
        [
            f"Layouts: nodes x ranks on each. Markers: step time, {MEDIAN}; whiskers: {MEDIAN_INTERVALS}",
            f"({launches_each(row.launches for row in shown)}); dots: launches.",
            *marks,
        ],
    )
    layouts = series_of(list(dict.fromkeys(shape(row) for row in shown)))
    points = _points(groups, standings, raw)
    return Picture(
        file_name="layouts",
        heading=heading,
        caption=caption,
        alt=(
            f"Dot plot of step time, ms, by layout ({layouts}) for "
            f"{series_of([_name(group) for group in groups])}. {heading}."
        ),
        table=_table(groups, standings, raw),
        width_in=style.FULL_WIDTH_IN,
        height_in=0.85 + _PITCH_IN * rows_taken(points),
        paint=partial(_paint, points=points),
        **on_phone(points, _UNIT),
        label=label_of(shown),
        missing=missing,
    )


def _title(groups: Sequence[Sequence[Row]], standings: Mapping[str, Standing]) -> str:
    fair = [group for group in groups if not any(row.oversubscribed for row in group)]
    if not fair:
        return "Every layout ran oversubscribed: none is ranked"
    group = fair[0]
    judged = [(row, standings[row.case_id]) for row in group if row.case_id in standings]
    if all(one.verdict == TOO_FEW for _, one in judged):
        few = "too few rounds to compare layouts"
        return first_short(f"{_name(group)}: {few}", capital(few))

    def which(verdict: str) -> list[str]:
        return [shape(row) for row, one in judged if one.verdict == verdict]

    best, equals, unsure = which(BEST), which(AS_GOOD), which(CANNOT_TELL)
    bound = at_most(one for _, one in judged if one.verdict == AS_GOOD) if equals else ""
    if best:
        first = f"{series_of(best)} is best{f', {series_of(equals)} as good' if equals else ''}"
    elif equals:
        first = f"{series_of(equals)} {'is' if len(equals) == 1 else 'are'} as good as best"
    else:
        first = "this sweep cannot tell which layout is best"
    open_ends = [f"cannot decide {series_of(unsure)}"] if unsure and equals else []
    longest = max(
        ((one, row) for row, one in judged if one.verdict == SLOWER),
        key=lambda pair: pair[0].ratio.value,
        default=None,
    )
    slower = [f"{shape(longest[1])} takes {longest[0].phrase()}"] if longest is not None else []
    return first_short(
        *(
            "; ".join([f"{start}{capital(lead) if not start else lead}", *ends])
            for start in (f"{_name(group)}: ", "")
            for lead, ends in (
                (f"{first} ({bound})" if bound else first, [*open_ends, *slower]),
                (first, [*open_ends, *slower]),
                (first, slower),
                (first, []),
            )
        )
    )


def _table(
    groups: Sequence[Sequence[Row]],
    standings: Mapping[str, Standing],
    raw: Mapping[str, Sequence[float]],
) -> Table:
    columns = (
        Column("Case"),
        Column("Layout, nodes x ranks"),
        Column("Step, ms", number=True),
        Column("Over the best other's", number=True),
        Column("Verdict"),
        Column("Launches", number=True),
        Column("Each launch, ms"),
        Column("Notes"),
    )
    rows = tuple(
        (
            Cell(text=_name(group)),
            Cell(text=shape(row), key=float(row.case.nodes)),
            Cell.estimate(row.step_time_s.scaled(1e3) if row.step_time_s and row.ok else None),
            Cell.estimate(standings[row.case_id].ratio if row.case_id in standings else None),
            Cell(text=standings[row.case_id].cell() if row.case_id in standings else ""),
            Cell.count(row.launches),
            Cell(text=", ".join(milliseconds(value) for value in raw.get(row.case_id, ())) if row.ok else ""),
            Cell(text=row.badges),
        )
        for group in groups
        for row in group
    )
    return Table(caption="Step time by layout of the same ranks on nodes", columns=columns, rows=rows)


def _points(
    groups: Sequence[Sequence[Row]], standings: Mapping[str, Standing], raw: Mapping[str, Sequence[float]]
) -> Groups:
    def point(row: Row) -> Point:
        step = row.step_time_s.scaled(1e3) if row.step_time_s and row.ok else None
        gap = standings[row.case_id].phrase() if row.case_id in standings else ""
        return Point(
            name=shape(row),
            estimate=step,
            launches=[1e3 * value for value in raw.get(row.case_id, ())],
            look=style.look(row.case),
            hollow=row.emulated,
            words=f"{step}   {gap}".rstrip() if step is not None else row.status,
        )

    return [
        (_name(group), any(row.oversubscribed for row in group), [point(row) for row in group])
        for group in groups
    ]


def _paint(sheet: Sheet, *, points: Groups) -> None:
    left, right = 1.1, 2.9
    axes = sheet.axes(left, 0.5, sheet.width_in - left - right, sheet.height_in - 0.6)
    grouped_rows(axes, points, _UNIT)
