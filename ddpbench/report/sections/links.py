"""The section on links, with step time by bandwidth, and by other link properties or replay options that vary."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from ddpbench.analysis.sentences import capital
from ddpbench.analysis.statistics.estimands import MEDIAN, MEDIAN_INTERVALS
from ddpbench.analysis.summary import StepResults
from ddpbench.report.captions import captioned, label_but_links, setting_but_links, settings_apart
from ddpbench.report.draw import style
from ddpbench.report.draw.rows import Groups, Point, grouped_rows, on_phone, rows_taken
from ddpbench.report.drawn import split
from ddpbench.report.figure_texts import first_short
from ddpbench.report.parts import Cell, Column, Picture, Section, Table
from ddpbench.report.rows import Row, raw_launches
from ddpbench.report.sections import bandwidth, heatmap
from ddpbench.report.series import alike_but
from ddpbench.report.standing import stands
from ddpbench.report.words import launches_each, milliseconds, not_drawn, series_of
from ddpbench.spec.grouping import GroupKey
from ddpbench.spec.links import short_links
from ddpbench.strategies.traits import traits_of

if TYPE_CHECKING:
    from ddpbench.report.draw.sheet import Sheet

MOST_GROUPS = 6
_PITCH_IN = 0.3
_UNIT = "ms per step"


def section(steps: StepResults, rows: Sequence[Row]) -> Section | None:
    """Return the section on links and on options of the workload; None if neither varies."""
    raw = raw_launches(steps.launches)
    able = [row for row in rows if _has(row) and traits_of(row.case).exchanges and row.case.world_size > 1]
    by_rate = bandwidth.by_rate(able)
    drawn = {row.case_id for lines in by_rate for line in lines for row in line.rows}
    groups = [
        group for group in _groups(able) if not drawn.issuperset(row.case_id for row in group if _has(row))
    ]
    caps, every = stands(steps.comparisons, "buckets"), stands(steps.comparisons, "ranks")
    shown, others = split(by_rate)
    curves = [
        bandwidth.picture(lines, index, caps if bandwidth.of_caps(lines) else every)
        for index, lines in enumerate(shown)
    ]
    maps = [
        drawn_map
        for index, (name, members) in enumerate(_maps(rows))
        if (drawn_map := heatmap.picture(name, members, caps, index, across="link")) is not None
    ]
    pictures = [*curves, *split(maps)[0], *([_dots(groups[:MOST_GROUPS], raw)] if groups else [])]
    if not pictures:
        return None
    return Section(
        anchor="links",
        title="Links",
        question="What does a step take when only the links, or what ranks are made to do, change?",
        pictures=tuple(pictures),
        notes=(
            *not_drawn([bandwidth.name_of(lines) for lines in others]),
            *not_drawn([_name(group) for group in groups[MOST_GROUPS:]]),
        ),
    )


def _has(row: Row) -> bool:
    return row.ok and row.step_time_s is not None


def _maps(rows: Sequence[Row]) -> list[tuple[str, list[Row]]]:
    """Return a heat map's cases per strategy and world size, the largest map first."""
    groups: dict[GroupKey, list[Row]] = {}
    for row in rows:
        if row.case.fabric and row.case.bucket_cap_mb is not None and row.case.world_size > 1:
            groups.setdefault(alike_but(row, "fabric", "bucket_cap_mb"), []).append(row)
    several = [_with_caps(members) for members in groups.values()]
    return [("", members) for members in sorted(several, key=lambda members: -len(members)) if members]


def _with_caps(rows: Sequence[Row]) -> list[Row]:
    caps: dict[str, set[float | str | None]] = {}
    for row in rows:
        caps.setdefault(row.case.fabric, set()).add(row.case.bucket_cap_mb)
    return [row for row in rows if len(caps[row.case.fabric]) > 1]


def _groups(rows: Sequence[Row]) -> list[list[Row]]:
    """Return groups that differ only in links, or else only in the workload's options."""
    groups: dict[GroupKey, list[Row]] = {}
    for row in rows:
        groups.setdefault(alike_but(row, "fabric", "workload_options_json"), []).append(row)
    several: list[list[Row]] = []
    for members in groups.values():
        by_fabric: dict[str, list[Row]] = {}
        for row in members:
            by_fabric.setdefault(row.case.fabric, []).append(row)
        options = len({row.case.workload_options_json for row in members}) > 1
        several += by_fabric.values() if options and len(by_fabric) > 1 else [members]
    several = [
        group
        for group in several
        if len({(row.case.fabric, row.case.workload_options_json) for row in group}) > 1
        and (any(row.case.fabric for row in group) or any(row.case.compute != "real" for row in group))
    ]
    several.sort(key=lambda group: (group[0].oversubscribed, -group[0].case.world_size, -len(group)))
    return several


def _name(group: Sequence[Row]) -> str:
    fabrics = {row.case.fabric for row in group}
    link = f", {short_links(group[0].case.fabric)}" if len(fabrics) == 1 and group[0].case.fabric else ""
    return f"{group[0].name}{link}"


def _quickest(group: Sequence[Row]) -> Row:
    return min(group, key=lambda row: row.step_time_s.value if row.step_time_s is not None else math.inf)


def _times(row: Row, group: Sequence[Row]) -> float:
    best = _quickest(group).step_time_s
    assert best is not None
    assert row.step_time_s is not None
    return row.step_time_s.value / best.value


def _words_of(row: Row, group: Sequence[Row]) -> str:
    times = _times(row, group)
    return "shortest mean" if times == 1 else f"{times:.2f} times that"


def _dots(groups: Sequence[Sequence[Row]], raw: Mapping[str, Sequence[float]]) -> Picture:
    shown = [row for group in groups for row in group]
    group = groups[0]
    apart = settings_apart(group)
    best = _quickest(group)
    worst = max(group, key=lambda row: _times(row, group))
    fair = not group[0].oversubscribed
    longer = f"a step takes {_times(worst, group):.2f} times as long"
    heading = (
        first_short(
            f"{_name(group)}: {longer} with {apart[worst.case_id]} as with {apart[best.case_id]}",
            f"{_name(group)}: {longer} with {apart[worst.case_id]}",
            f"{capital(longer)} with {apart[worst.case_id]}",
            f"{capital(longer)} with the slowest of {len(group)} settings",
        )
        if fair
        else "These cases ran oversubscribed: none is ranked"
    )
    caption = captioned(
        setting_but_links(shown),
        [
            f"Markers: step time, {MEDIAN}; whiskers: {MEDIAN_INTERVALS}",
            f"({launches_each(row.launches for row in shown)}); dots: launches.",
            "Hollow markers: emulated or dilated.",
            "Cases of a group differ in nothing but what their row names.",
        ],
    )
    points = _points(groups, raw)
    return Picture(
        file_name="links-settings",
        heading=heading,
        caption=caption,
        alt=(
            f"Dot plot of step time, ms, by links and options for "
            f"{series_of([_name(group) for group in groups])}. {heading}."
        ),
        table=_dots_table(groups, raw),
        width_in=style.FULL_WIDTH_IN,
        height_in=0.85 + _PITCH_IN * rows_taken(points),
        paint=partial(_paint_dots, points=points),
        **on_phone(points, _UNIT),
        missing={},
        label=label_but_links(best),
    )


def _dots_table(groups: Sequence[Sequence[Row]], raw: Mapping[str, Sequence[float]]) -> Table:
    columns = (
        Column("Case"),
        Column("Links and options"),
        Column("Step, ms", number=True),
        Column("Over the shortest", number=True),
        Column("Launches", number=True),
        Column("Each launch, ms"),
        Column("Notes"),
    )
    rows = tuple(
        (
            Cell(text=_name(group)),
            Cell(text=settings_apart(group)[row.case_id]),
            Cell.estimate(row.step_time_s.scaled(1e3) if row.step_time_s else None),
            Cell(text=f"{_times(row, group):.2f}", key=_times(row, group), number=True),
            Cell.count(row.launches),
            Cell(text=", ".join(milliseconds(value) for value in raw.get(row.case_id, ()))),
            Cell(text=row.badges),
        )
        for group in groups
        for row in group
    )
    return Table(caption="Step time by links and by options of the workload", columns=columns, rows=rows)


def _points(groups: Sequence[Sequence[Row]], raw: Mapping[str, Sequence[float]]) -> Groups:
    names = {case_id: name for group in groups for case_id, name in settings_apart(group).items()}

    def point(row: Row, group: Sequence[Row]) -> Point:
        step = row.step_time_s.scaled(1e3) if row.step_time_s is not None else None
        return Point(
            name=names[row.case_id],
            estimate=step,
            launches=[1e3 * value for value in raw.get(row.case_id, ())],
            look=style.look(row.case),
            hollow=row.emulated,
            words=f"{step}   {_words_of(row, group)}",
        )

    return [
        (_name(group), any(row.oversubscribed for row in group), [point(row, group) for row in group])
        for group in groups
    ]


def _paint_dots(sheet: Sheet, *, points: Groups) -> None:
    from ddpbench.report.draw.lines import text_width_in

    every = [point for _, _, members in points for point in members]
    left = 0.35 + max(text_width_in(point.lines, style.TICK_PT) for point in every)
    words_in = max(text_width_in(point.words, style.NOTE_PT) for point in every)
    axes = sheet.axes(left, 0.5, sheet.width_in - left - words_in - 0.35, sheet.height_in - 0.6)
    grouped_rows(axes, points, _UNIT)
