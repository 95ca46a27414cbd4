"""The figure on precision, which shows how much faster autocast makes a step, for runs with several precisions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from ddpbench.analysis.sentences import capital
from ddpbench.analysis.statistics.estimands import MEDIAN, MEDIAN_INTERVALS
from ddpbench.analysis.statistics.judgement import OPEN, TOO_FEW_WORDS, Judgement
from ddpbench.analysis.summary import StepResults
from ddpbench.report.captions import grey_ground, label_of, not_shown
from ddpbench.report.draw import style
from ddpbench.report.draw.rows import Groups, Point, grouped_rows, on_phone, rows_taken
from ddpbench.report.figure_texts import first_short
from ddpbench.report.parts import Cell, Column, Picture, Section, Table
from ddpbench.report.rows import Row, raw_launches
from ddpbench.report.series import alike_but
from ddpbench.report.words import launches_each, not_drawn, number, percent, series_of
from ddpbench.spec.grouping import GroupKey, cap_order

if TYPE_CHECKING:
    from ddpbench.report.draw.sheet import Sheet

MOST_GROUPS = 6
_PITCH_IN = 0.3
_UNIT = "ms per step"
_ORDER = ("full", "bf16", "fp16")
_Words = Mapping[str, Judgement]
"""Result of each case's comparison with full precision, by case id."""


def section(steps: StepResults, rows: Sequence[Row]) -> Section | None:
    """Return the section on precision; None if no cases differ only in precision."""
    groups = _groups(rows)
    if not groups:
        return None
    shown = groups[:MOST_GROUPS]
    words = {one.case_id: one.judgement for one in steps.comparisons if one.topic == "precision"}
    notes = not_drawn([_name(group) for group in groups[MOST_GROUPS:]])
    if any(row.case.device == "cpu" for group in groups for row in group):
        notes = (
            *notes,
            "A CPU without instructions for a type (AVX512_BF16, AMX) converts to it and back in software.",
        )
    return Section(
        anchor="precision",
        title="Precision",
        question="What does computing in bf16 or fp16 buy?",
        pictures=(_picture(shown, words, raw_launches(steps.launches)),),
        notes=notes,
    )


def _groups(rows: Sequence[Row]) -> list[list[Row]]:
    """Return groups that differ only in precision: separate cores first, then most ranks."""
    groups: dict[GroupKey, list[Row]] = {}
    for row in rows:
        key = alike_but(row, "precision")
        groups.setdefault(key, []).append(row)
    several = [
        sorted(g, key=lambda row: _ORDER.index(row.case.precision)) for g in groups.values() if len(g) > 1
    ]
    several = [group for group in several if sum(row.ok for row in group) > 1]
    several.sort(
        key=lambda group: (
            group[0].oversubscribed,
            -group[0].case.world_size,
            cap_order(group[0].case.bucket_cap_mb),
        )
    )
    return several


def _name(group: Sequence[Row]) -> str:
    return f"{group[0].name}, {group[0].workload_name}"


def _picture(
    groups: Sequence[Sequence[Row]],
    words: _Words,
    raw: Mapping[str, Sequence[float]],
) -> Picture:
    shown = [row for group in groups for row in group if row.ok and row.step_time_s is not None]
    heading = _title(groups, words)
    missing = {
        row.case_id: f"{row.name} in {row.case.precision} ({row.status})"
        for group in groups
        for row in group
        if not row.ok
    }
    marks = [*not_shown(missing), *grey_ground(shown)]
    caption = " ".join(
        [
            f"Markers: step time, {MEDIAN}; whiskers: {MEDIAN_INTERVALS}",
            f"({launches_each(row.launches for row in shown)}); dots: launches.",
            *marks,
            "Forward and loss under autocast; parameters and gradients stay in float32. Verdicts: against full",
            "precision, paired within rounds, corrected for the number of all such comparisons.",
        ]
    )
    points = _points(groups, words, raw)
    return Picture(
        file_name="precision",
        heading=heading,
        caption=caption,
        alt=(
            "Dot plot of step time, ms, by precision (full, bf16, fp16) for "
            f"{series_of([_name(group) for group in groups])}. {heading}."
        ),
        table=_table(groups, words),
        width_in=style.FULL_WIDTH_IN,
        height_in=0.85 + _PITCH_IN * rows_taken(points),
        paint=partial(_paint, points=points),
        **on_phone(points, _UNIT),
        label=label_of(row for group in groups for row in group),
        missing=missing,
    )


def _title(groups: Sequence[Sequence[Row]], words: _Words) -> str:
    fair = [group for group in groups if not group[0].oversubscribed]
    if not fair:
        return "Every precision ran oversubscribed: none is ranked"
    group = fair[0]
    gains = [
        f"{row.case.precision} is {words[row.case_id].phrase(bare=True)}"
        for row in group
        if row.case_id in words and words[row.case_id].verdict in ("faster", "slower", "equivalent")
    ]
    if gains:
        than = (
            "than full precision" if len(gains) == 1 and "er" in gains[0][-6:] else "(against full precision)"
        )
        return first_short(
            f"{_name(group)}: {' and '.join(gains)} {than}",
            f"{group[0].name}: {' and '.join(gains)} {than}",
            f"{capital(' and '.join(gains))} {than}",
            f"{capital(gains[0])} {than}",
        )
    if any(row.case_id in words and words[row.case_id].verdict == "unresolved" for row in group):
        return first_short(
            f"{_name(group)}: {OPEN} between precisions", capital(f"{OPEN} between precisions")
        )
    few = f"{TOO_FEW_WORDS} to compare precisions"
    return first_short(f"{_name(group)}: {few}", capital(few))


def _table(
    groups: Sequence[Sequence[Row]],
    words: _Words,
) -> Table:
    with_mfu = any(row.mfu is not None for group in groups for row in group)
    columns = (
        Column("Case"),
        Column("Precision"),
        Column("Samples/s", number=True),
        Column("Step, ms", number=True),
        Column("Over full precision's", number=True),
        Column("Verdict"),
        Column("GFLOP a sample", number=True),
        *([Column("MFU", number=True)] if with_mfu else []),
        Column("Launches", number=True),
    )

    def cells(group: Sequence[Row], row: Row) -> tuple[Cell, ...]:
        flops, mfu = row.flops_per_sample, row.mfu
        judgement = words.get(row.case_id)
        word = (
            judgement.cell
            if judgement is not None
            else "the reference"
            if row.case.precision == "full"
            else ""
        )
        return (
            Cell(text=_name(group)),
            Cell(text=row.case.precision, key=float(_ORDER.index(row.case.precision))),
            Cell.estimate(row.samples_per_s if row.ok else None),
            Cell.estimate(row.step_time_s.scaled(1e3) if row.step_time_s and row.ok else None),
            Cell.estimate(judgement.ratio if judgement is not None and judgement.ratio.has_ends else None),
            Cell(text=word if row.ok else row.status),
            Cell(text="" if flops is None else number(flops / 1e9), key=flops, number=True),
            *([Cell(text="" if mfu is None else percent(mfu), key=mfu, number=True)] if with_mfu else []),
            Cell.count(row.launches),
        )

    return Table(
        caption="Step time by precision",
        columns=columns,
        rows=tuple(cells(group, row) for group in groups for row in group),
    )


def _points(groups: Sequence[Sequence[Row]], words: _Words, raw: Mapping[str, Sequence[float]]) -> Groups:
    def point(row: Row) -> Point:
        step = row.step_time_s.scaled(1e3) if row.step_time_s and row.ok else None
        gap = words[row.case_id].phrase(bare=True) if row.case_id in words else ""
        return Point(
            name=row.case.precision,
            estimate=step,
            launches=[1e3 * value for value in raw.get(row.case_id, ())],
            look=style.look(row.case),
            hollow=row.emulated,
            words=f"{step}   {gap}".rstrip() if step is not None else row.status,
        )

    return [(_name(group), group[0].oversubscribed, [point(row) for row in group]) for group in groups]


def _paint(sheet: Sheet, *, points: Groups) -> None:
    left, right = 0.7, 3.0
    axes = sheet.axes(left, 0.5, sheet.width_in - left - right, sheet.height_in - 0.6)
    grouped_rows(axes, points, _UNIT)
