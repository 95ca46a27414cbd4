"""The figure on layouts: what does it matter how many nodes the same ranks stand on? Only where several were run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from ddpbench.analysis.findings import cap_order
from ddpbench.analysis.summary import RunSummary
from ddpbench.report import style
from ddpbench.report.parts import Cell, Column, Picture, Section, Table
from ddpbench.report.series import Row, fullest, label_of, raw_launches, setting_of, variant_words
from ddpbench.report.words import Estimate, launches_each, not_drawn, not_ruled_out, percent, series_of

if TYPE_CHECKING:
    from ddpbench.report.canvas import Sheet

MOST_GROUPS = 5
_PITCH_IN = 0.3
_AS_GOOD = ("equivalent", "unresolved")


def section(summary: RunSummary, rows: Sequence[Row]) -> Section | None:
    """The section on layouts; None where no strategy ran one number of ranks in several."""
    groups = _groups(rows)
    if not groups:
        return None
    words = _words(summary, groups)
    raw = raw_launches(summary, "step_time_s")
    return Section(
        anchor="layouts",
        title="Layouts on nodes",
        question="Does it matter how many nodes the same ranks stand on?",
        pictures=(_picture(groups[:MOST_GROUPS], words, raw),),
        notes=not_drawn([_name(group) for group in groups[MOST_GROUPS:]]),
    )


def shape(row: Row) -> str:
    """A layout as nodes x ranks on each: `2 x 4`."""
    return f"{row.nodes} x {row.world_size // max(row.nodes, 1)}"


def _has(row: Row) -> bool:
    return row.ok and row.step_time_s is not None


def _groups(rows: Sequence[Row]) -> list[list[Row]]:
    """Rows that differ in nothing but nodes; the most ranks with cores of their own first."""
    found: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        key = (row.panel_key, row.strategy, row.variant[:-1], row.bucket, row.world_size)
        found.setdefault(key, []).append(row)
    several = [sorted(group, key=lambda row: row.nodes) for group in found.values() if len(group) > 1]
    several = [group for group in several if sum(_has(row) for row in group) > 1]
    several.sort(
        key=lambda group: (
            group[0].oversubscribed,
            -group[0].world_size,
            -len(group),
            cap_order(group[0].bucket),
        )
    )
    return several


def _words(summary: RunSummary, groups: Sequence[Sequence[Row]]) -> dict[str, tuple[str, Estimate | None]]:
    """For each case its verdict in words, and its step time over the best layout's."""
    known = {row.case_id for group in groups for row in group}
    found: dict[str, tuple[str, Estimate | None]] = {}
    for record in summary.comparisons.to_dict("records"):
        case_id, best, verdict = (str(record[name]) for name in ("case_id", "best_case_id", "verdict"))
        if record["topic"] != "layouts" or case_id not in known:
            continue
        if verdict == "too few":
            found.setdefault(case_id, ("too few rounds to compare", None))
            continue
        found.setdefault(best, ("best", None))
        ratio = Estimate(
            float(record["ratio"]), float(record["ratio_ci_low"]), float(record["ratio_ci_high"])
        )
        found[case_id] = ("as good as best" if verdict in _AS_GOOD else verdict, ratio)
    return found


def _name(group: Sequence[Row]) -> str:
    return group[0].name


def _gap(word: str, ratio: Estimate | None) -> str:
    if ratio is None or word != "slower":
        return word
    return f"{percent(ratio.value - 1)} longer"


def _picture(
    groups: Sequence[Sequence[Row]],
    words: Mapping[str, tuple[str, Estimate | None]],
    raw: Mapping[str, Sequence[float]],
) -> Picture:
    shown = [row for group in groups for row in group if _has(row)]
    heading = _heading(groups, words)
    missing = {
        row.case_id: f"{row.name}, {shape(row)} ({row.status})"
        for group in groups
        for row in group
        if not _has(row)
    }
    marks = ["Best and its equals: paired differences within rounds, corrected for the number of layouts."]
    if any(row.oversubscribed for row in shown):
        marks.append("Grey ground: more ranks than cores (oversubscribed).")
    if any(row.emulated for row in shown):
        marks.append("Hollow markers: emulated or dilated.")
    if missing:
        marks.append(f"Not shown: {'; '.join(missing.values())}.")
    caption = " ".join(
        [
            f"{setting_of(fullest(shown))}. Layouts are nodes x ranks on each. Large markers: mean step time;",
            f"whiskers: 95 % t-intervals over launches ({launches_each(row.launches for row in shown)}); small dots:",
            "single launches.",
            *marks,
        ]
    )
    layouts = series_of(list(dict.fromkeys(shape(row) for row in shown)))
    return Picture(
        file_name="layouts",
        heading=heading,
        caption=caption,
        alt=(
            f"Dot plot of step time, ms, by layout ({layouts}) for "
            f"{series_of([_name(group) for group in groups])}. {heading}."
        ),
        table=_table(groups, words, raw),
        width_in=style.FULL_WIDTH_IN,
        height_in=0.85 + _PITCH_IN * sum(len(group) + 1 for group in groups),
        paint=partial(_paint, groups=groups, words=words, raw=raw),
        label=label_of(shown),
        missing=missing,
    )


def _heading(groups: Sequence[Sequence[Row]], words: Mapping[str, tuple[str, Estimate | None]]) -> str:
    fair = [group for group in groups if not any(row.oversubscribed for row in group)]
    if not fair:
        return "No headline: every layout ran oversubscribed"
    group = fair[0]
    told = {row.case_id: words.get(row.case_id, ("", None))[0] for row in group}
    best = [shape(row) for row in group if told[row.case_id] == "best"]
    if not best:
        return f"{_name(group)}: too few rounds to compare its layouts"
    equals = [shape(row) for row in group if told[row.case_id] == "as good as best"]
    ratios = [words[row.case_id][1] for row in group if told[row.case_id] == "as good as best"]
    left = [ratio.high - 1 for ratio in ratios if ratio is not None and ratio.high is not None]
    slower = [
        f"{shape(row)} takes {_gap(*words[row.case_id])}" for row in group if told[row.case_id] == "slower"
    ]
    first = f"{_name(group)}: {series_of([*best, *equals])} " + (
        f"are best or as good as best ({not_ruled_out(max(left))})" if left else "is best"
    )
    return f"{first}; a step of {series_of(slower)}" if slower else first


def _table(
    groups: Sequence[Sequence[Row]],
    words: Mapping[str, tuple[str, Estimate | None]],
    raw: Mapping[str, Sequence[float]],
) -> Table:
    columns = (
        Column("Case"),
        Column("Layout, nodes x ranks"),
        Column("Step, ms", number=True),
        Column("Over the best's", number=True),
        Column("Verdict"),
        Column("Launches", number=True),
        Column("Each launch, ms"),
        Column("Notes"),
    )
    rows = tuple(
        (
            Cell(text=_name(group)),
            Cell(text=shape(row), key=float(row.nodes)),
            Cell.estimate(row.step_time_s.scaled(1e3) if row.step_time_s and row.ok else None),
            Cell.estimate(words.get(row.case_id, ("", None))[1]),
            Cell(text=words.get(row.case_id, ("", None))[0]),
            Cell.count(row.launches),
            Cell(
                text=", ".join(f"{1e3 * value:.4g}" for value in raw.get(row.case_id, ())) if row.ok else ""
            ),
            Cell(text=row.badges),
        )
        for group in groups
        for row in group
    )
    return Table(caption="Step time by layout of the same ranks on nodes", columns=columns, rows=rows)


def _paint(
    sheet: Sheet,
    *,
    groups: Sequence[Sequence[Row]],
    words: Mapping[str, tuple[str, Estimate | None]],
    raw: Mapping[str, Sequence[float]],
) -> None:
    from ddpbench.report.canvas import Point, grouped_rows

    left, right = 1.1, 2.9
    axes = sheet.axes(left, 0.5, style.FULL_WIDTH_IN - left - right, sheet.height_in - 0.6)
    names = variant_words([row for group in groups for row in group])

    def heading(group: Sequence[Row]) -> str:
        others = names[group[0].case_id].removesuffix(group[0].layout).strip()
        return f"{_name(group)}{f', {others}' if others else ''}"

    def point(row: Row) -> Point:
        step = row.step_time_s.scaled(1e3) if row.step_time_s and row.ok else None
        gap = _gap(*words.get(row.case_id, ("", None)))
        return Point(
            name=shape(row),
            estimate=step,
            launches=[1e3 * value for value in raw.get(row.case_id, ())],
            look=style.look(row.strategy, algorithm=row.algorithm),
            hollow=row.emulated,
            told=f"{step}   {gap}".rstrip() if step is not None else row.status,
        )

    grouped_rows(
        axes,
        [
            (heading(group), any(row.oversubscribed for row in group), [point(row) for row in group])
            for group in groups
        ],
        "ms per step",
    )
