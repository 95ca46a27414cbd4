"""The figure of step time by bucket cap, which shows which cap is safe."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from ddpbench.analysis.statistics.estimands import MEDIAN, MEDIAN_INTERVALS
from ddpbench.analysis.statistics.interval import Interval
from ddpbench.analysis.statistics.judgement import AS_GOOD, BEST, CANNOT_TELL, TOO_FEW, Standing, at_most
from ddpbench.analysis.summary import StepResults
from ddpbench.report.captions import captioned, fullest, label_of, marks_of, not_shown, setting_of
from ddpbench.report.draw import style
from ddpbench.report.draw.marks import describe_points
from ddpbench.report.draw.scales import logarithmic, spans_decades
from ddpbench.report.drawn import split
from ddpbench.report.figure_texts import first_short
from ddpbench.report.parts import Cell, Column, Picture, Section, Table
from ddpbench.report.rows import Row, raw_launches
from ddpbench.report.sections import heatmap
from ddpbench.report.series import BY_CAP, panels_of
from ddpbench.report.standing import METHOD, stands
from ddpbench.report.words import launches_each, milliseconds, not_drawn, ranks, series_of
from ddpbench.spec.grouping import GroupKey, cap_order, cap_words

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from ddpbench.report.draw.sheet import Sheet

MOST_SIZES = 3
_BELOW_IN = 1.35
"""Height of the plot of paired differences beneath the step times, inches."""
_ASIDE_IN = 0.12
"""Distance from a mean to the dots of its launches, inches. At a larger distance they would look like a series."""


def section(steps: StepResults, rows: Sequence[Row]) -> Section:
    """Return the section on bucket caps, with figures for the first strategies that were run with several caps.

    A heat map of the first strategy follows its figure if two or more numbers of ranks have several caps.
    """
    raw = raw_launches(steps.launches)
    standings = stands(steps.comparisons, "buckets")
    groups: list[tuple[str, list[Row]]] = []
    for panel in panels_of(rows):
        by_variant: dict[GroupKey, list[Row]] = {}
        for row in panel.rows:
            if row.case.bucket_cap_mb is not None:
                by_variant.setdefault(row.variant, []).append(row)
        groups += [
            (panel.name, members)
            for members in by_variant.values()
            if len({row.case.bucket_cap_mb for row in members}) > 1 and any(_has(row) for row in members)
        ]
    groups.sort(key=lambda group: -sum(_has(row) for row in group[1]))
    drawn, others = split(groups)
    left = [f"{rows[0].strategy_name}{f', {name}' if name else ''}" for name, rows in others]
    absent = ""
    if not groups:
        with_buckets = {row.case.bucket_cap_mb for row in rows if row.case.bucket_cap_mb is not None}
        same = [row for row in rows if row.same_caps]
        absent = (
            f"All bucket caps of this sweep ({same[0].bucket_name}, {same[0].same_buckets}) make the same buckets: "
            "they were run once, and there is nothing to compare."
            if len(with_buckets) == 1 and same
            else f"This sweep has one bucket cap ({cap_words(next(iter(with_buckets)))}): nothing to compare."
            if len(with_buckets) == 1
            else "No strategy with gradient buckets was measured at two or more caps."
        )
    return Section(
        anchor="buckets",
        title=BY_CAP,
        question="Which bucket cap is safe?",
        pictures=tuple(
            picture
            for index, (name, members) in enumerate(drawn)
            for picture in (
                _picture(name, members, index, raw, standings),
                heatmap.picture(name, members, standings, index) if index == 0 else None,
            )
            if picture is not None
        ),
        notes=not_drawn(left),
        absent=absent,
    )


def _has(row: Row) -> bool:
    return row.ok and row.step_time_s is not None


def _picture(
    panel_name: str,
    rows: Sequence[Row],
    index: int,
    raw: Mapping[str, Sequence[float]],
    standings: Mapping[str, Standing],
) -> Picture:
    kept, omitted = _sizes(rows)
    caps = sorted({row.case.bucket_cap_mb for row in rows}, key=cap_order)
    used = [row for row in rows if row.case.world_size in kept]
    shown = [row for row in used if _has(row)]
    missing = {row.case_id: f"{row.name} ({row.status})" for row in rows if not _has(row)}
    heading = _title(shown, standings)
    gaps = "".join(f" {one}" for one in not_shown(missing))
    high = 3.0 + (_BELOW_IN if _judged(shown, standings) else 0.0)
    paint = partial(_paint, rows=used, sizes=kept, caps=caps, raw=raw, standings=standings)
    return Picture(
        file_name="buckets" if index == 0 else f"buckets-{index + 1}",
        heading=heading,
        caption=_caption(shown, _marks(shown, missing, omitted, standings)),
        alt=(
            f"Dot plot of step time, ms, against bucket cap for {rows[0].strategy_name} at "
            f"{series_of([str(size) for size in kept])} ranks. {heading}. {_shortest(shown)}{gaps}"
        ),
        table=_table(panel_name, used, caps, raw, standings),
        width_in=style.FULL_WIDTH_IN if len(kept) > 1 else style.SMALL_WIDTH_IN,
        height_in=high,
        paint=paint,
        narrow=partial(paint, stacked=True),
        narrow_in=(style.NARROW_WIDTH_IN, (high - 0.5) * len(kept)),
        label=label_of(shown),
        group=panel_name,
        missing=missing,
    )


def _judged(rows: Sequence[Row], standings: Mapping[str, Standing]) -> bool:
    return any(row.case_id in standings and standings[row.case_id].ratio.has_ends for row in rows)


def _sizes(rows: Sequence[Row]) -> tuple[list[int], list[int]]:
    sizes = sorted({row.case.world_size for row in rows if _has(row)}, reverse=True)
    several = [
        s
        for s in sizes
        if len({r.case.bucket_cap_mb for r in rows if r.case.world_size == s and _has(r)}) > 1
    ]
    kept = sorted((several or sizes)[:MOST_SIZES])
    return kept, sorted(set(sizes) - set(kept))


def _marks(
    shown: Sequence[Row],
    missing: Mapping[str, str],
    omitted: Sequence[int],
    standings: Mapping[str, Standing],
) -> list[str]:
    marks = marks_of(shown, missing)
    if any(row.case_id in standings and standings[row.case_id].verdict != TOO_FEW for row in shown):
        if _judged(shown, standings):
            marks.append(
                "Beneath: how much longer a step takes than with the fastest other cap, paired within rounds."
            )
        marks.append(METHOD)
    else:
        marks.append("The lowest mean is not called best: this run holds no paired comparison of caps.")
    if omitted:
        where = (
            ranks(omitted[0]) if len(omitted) == 1 else f"{series_of([str(size) for size in omitted])} ranks"
        )
        marks.append(f"Omitted: {where}; see the summary table.")
    return marks


def _caption(shown: Sequence[Row], marks: Sequence[str]) -> str:
    return captioned(
        setting_of(fullest(shown)),
        [
            f"Markers: step time, {MEDIAN};",
            f"whiskers: {MEDIAN_INTERVALS} ({launches_each(row.launches for row in shown)});",
            "dots: launches.",
            *marks,
            "Caps are categories, not a scale; 'default' is 25 MiB after a first bucket of 1 MiB.",
        ],
        name=shown[0].strategy_name,
    )


def _timed(shown: Sequence[Row]) -> list[tuple[Row, Interval]]:
    fair = [row for row in shown if not row.oversubscribed]
    most = max((row.case.world_size for row in fair), default=0)
    return [
        (row, row.step_time_s) for row in fair if row.case.world_size == most and row.step_time_s is not None
    ]


def _shortest(shown: Sequence[Row]) -> str:
    timed = _timed(shown)
    if not timed:
        return ""
    lowest, estimate = min(timed, key=lambda pair: pair[1].value)
    return f"Shortest step: {lowest.bucket_name} buckets, {_ms(estimate)}."


def _title(shown: Sequence[Row], standings: Mapping[str, Standing]) -> str:
    timed = _timed(shown)
    if not timed:
        return "Every case with buckets ran oversubscribed: none is ranked"
    lowest, estimate = min(timed, key=lambda pair: pair[1].value)
    where = ranks(lowest.case.world_size)
    if len(timed) == 1:
        return f"At {where} only {lowest.bucket_name} buckets were measured: {_number(estimate)} ms"
    fastest = f"{lowest.bucket_name} buckets have the shortest step, {_number(estimate)} ms"
    start = f"{lowest.strategy_name} at {where}"
    return first_short(*(f"{start}: {end}" for end in _compared(timed, standings, fastest)))


def _number(estimate: Interval) -> str:
    return estimate.scaled(1e3).number


def _compared(
    timed: Sequence[tuple[Row, Interval]], standings: Mapping[str, Standing], fastest: str
) -> list[str]:
    judged = [(row, standings[row.case_id]) for row, _ in timed if row.case_id in standings]
    if not judged:
        return [fastest]
    if all(one.verdict == TOO_FEW for _, one in judged):
        return [f"{fastest}; too few rounds to compare", "too few rounds to compare bucket caps"]
    equals = [(row, one) for row, one in judged if one.verdict == AS_GOOD]
    names = series_of([row.bucket_name for row, _ in equals])
    bound = at_most(one for _, one in equals) if equals else ""
    best = next(((row, step) for row, step in timed if _verdict(row, standings) == BEST), None)
    if best is not None:
        end = f"; {names} as good, {bound}" if equals else "; every other cap is slower"
        are = f"{best[0].bucket_name} buckets are best"
        return [f"{are}, {_number(best[1])} ms a step{end}", f"{are}{end}", are]
    unsure = series_of([row.bucket_name for row, one in judged if one.verdict == CANNOT_TELL])
    end = f"; this sweep cannot decide {unsure}" if unsure else ""
    if equals:
        are = f"{names} buckets are as good as best"
        return [f"{are}, {bound}{end}", f"{are}{end}", are, f"{len(equals)} bucket caps are as good as best"]
    return [
        f"this sweep cannot tell which bucket cap is best; {fastest}",
        "no bucket cap is shown to be best",
    ]


def _verdict(row: Row, standings: Mapping[str, Standing]) -> str:
    return standings[row.case_id].verdict if row.case_id in standings else ""


def _ms(estimate: Interval) -> str:
    return f"{estimate.scaled(1e3)} ms"


def _table(
    panel_name: str,
    rows: Sequence[Row],
    caps: Sequence[float | str | None],
    raw: Mapping[str, Sequence[float]],
    standings: Mapping[str, Standing],
) -> Table:
    ordered = sorted(rows, key=lambda row: (row.case.world_size, caps.index(row.case.bucket_cap_mb)))
    cells = tuple(
        (
            Cell(text=row.bucket_name, key=float(caps.index(row.case.bucket_cap_mb))),
            Cell.count(row.case.world_size),
            Cell.estimate(row.step_time_s.scaled(1e3) if row.ok and row.step_time_s else None),
            Cell.estimate(_longer(standings.get(row.case_id))),
            Cell.count(row.launches),
            Cell(text=", ".join(milliseconds(value) for value in raw.get(row.case_id, ())) if row.ok else ""),
            Cell(text="; ".join(word for word in (_words(row, standings), row.badges) if word)),
        )
        for row in ordered
    )
    columns = (
        Column("Bucket cap"),
        Column("Ranks", number=True),
        Column("Step, ms", number=True),
        Column("Longer than the fastest other, %", number=True),
        Column("Launches", number=True),
        Column("Each launch, ms"),
        Column("Notes"),
    )
    name = f" ({panel_name})" if panel_name else ""
    return Table(caption=f"{BY_CAP}, {rows[0].strategy_name}{name}", columns=columns, rows=cells)


def _longer(stand: Standing | None) -> Interval | None:
    """Return by how many per cent the step exceeds the fastest other cap's; None for too few pairs."""
    if stand is None or not stand.ratio.has_ends:
        return None
    value, low, high = stand.ratio.value, stand.ratio.low, stand.ratio.high
    assert low is not None
    assert high is not None
    return Interval(100 * (value - 1), 100 * (low - 1), 100 * (high - 1))


def _digits(rows: Sequence[Row], standings: Mapping[str, Standing]) -> int:
    decimals = [
        longer.decimals_in_column()
        for row in rows
        if (longer := _longer(standings.get(row.case_id))) is not None
    ]
    return max(decimals, default=0)


def _words(row: Row, standings: Mapping[str, Standing]) -> str:
    return standings[row.case_id].cell() if row.case_id in standings else ""


def _longest_ms(rows: Sequence[Row], raw: Mapping[str, Sequence[float]]) -> float:
    return max(
        1e3 * max([row.step_time_s.high or 0, row.step_time_s.value, *raw.get(row.case_id, ())])
        for row in rows
        if _has(row) and row.step_time_s is not None
    )


def _shortest_ms(rows: Sequence[Row], raw: Mapping[str, Sequence[float]]) -> float:
    return min(
        1e3 * min([row.step_time_s.low or row.step_time_s.value, *raw.get(row.case_id, ())])
        for row in rows
        if _has(row) and row.step_time_s is not None
    )


def _paint(
    sheet: Sheet,
    *,
    rows: Sequence[Row],
    sizes: Sequence[int],
    caps: Sequence[float | str | None],
    raw: Mapping[str, Sequence[float]],
    standings: Mapping[str, Standing],
    stacked: bool = False,
) -> None:
    from matplotlib.ticker import MaxNLocator

    gap, across = 0.25, 1 if stacked else len(sizes)
    width = (sheet.width_in - 0.75 - 0.1 - gap * (across - 1)) / across
    high = sheet.height_in * across / len(sizes)
    low, top = _shortest_ms(rows, raw), 1.22 * _longest_ms(rows, raw)
    decades = spans_decades(low, top)
    digits = _digits(rows, standings)
    for index, size in enumerate(sizes):
        below = _BELOW_IN if _judged(rows, standings) else 0.0
        column, lines_below = (0, len(sizes) - 1 - index) if stacked else (index, 0)
        left, bottom = 0.75 + column * (width + gap), 0.55 + lines_below * high
        axes = sheet.axes(left, bottom + below, width, high - 0.85 - below)
        over = any(row.oversubscribed for row in rows if row.case.world_size == size)
        axes.set_title(f"{ranks(size)}{', oversubscribed' if over else ''}")
        if over:
            axes.set_facecolor(style.OVERSUBSCRIBED_GROUND)
        axes.set_xlim(-0.6, len(caps) - 0.4)
        for row in rows:
            if row.case.world_size == size:
                _point(
                    axes,
                    row,
                    place=caps.index(row.case.bucket_cap_mb),
                    launches=raw.get(row.case_id, ()),
                    verdict=_verdict(row, standings),
                )
        if decades:
            logarithmic(axes.yaxis, low / 1.25, top * (top / low) ** 0.15)
        else:
            axes.set_ylim(0, top)
            axes.yaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10]))
        axes.set_xticks(range(len(caps)), [cap_words(cap) for cap in caps])
        if below:
            axes.tick_params(labelbottom=False)
            lower = sheet.axes(left, bottom, width, below - 0.25)
            _differences(lower, [row for row in rows if row.case.world_size == size], caps, standings, digits)
            if column:
                lower.tick_params(labelleft=False)
            else:
                lower.set_ylabel("longer than\nfastest other, %")
        else:
            axes.set_xlabel("bucket cap")
        axes.grid(visible=True, axis="y", color="white" if over else style.GRID)
        if column:
            axes.tick_params(labelleft=False)
        else:
            axes.set_ylabel(f"step time, ms{' (log scale)' if decades else ''}")


def _differences(
    axes: Axes,
    rows: Sequence[Row],
    caps: Sequence[float | str | None],
    standings: Mapping[str, Standing],
    digits: int,
) -> None:
    from ddpbench.report.draw.canvas import mark
    from ddpbench.report.draw.lines import text_width_in

    every = [longer for one in standings.values() if (longer := _longer(one)) is not None]
    most = 1.25 * max(abs(end) for one in every for end in (one.low or 0.0, one.high or 0.0, one.value))
    for row in rows:
        longer = _longer(standings.get(row.case_id))
        if longer is None:
            continue
        place = caps.index(row.case.bucket_cap_mb)
        look = style.look(row.case)
        title = f"{row.name}: {longer} % against the fastest other"
        describe_points(mark(axes, place, longer, (), look, hollow=row.emulated, aside=0.2), "", title)
        words = f"{'+' * (longer.value > 0)}{longer.rounded(digits)[0]} %"
        room = (len(caps) - 0.4 - place) / len(caps) * axes.bbox.width / axes.figure.dpi
        right = text_width_in(words, style.NOTE_PT) + 9 / 72 <= room
        axes.annotate(
            words,
            (place, longer.value),
            xytext=(9, 0) if right else (8, 8),
            textcoords="offset points",
            ha="left" if right else "right",
            va="center" if right else "bottom",
            fontsize=style.NOTE_PT,
        )
    axes.axhline(0, color=style.MUTED, linewidth=1.0, linestyle=":", zorder=1)
    axes.set_xlim(-0.6, len(caps) - 0.4)
    axes.set_ylim(-most, most)
    axes.set_xticks(range(len(caps)), [cap_words(cap) for cap in caps])
    axes.set_xlabel("bucket cap")
    axes.grid(visible=True, axis="y")


def _point(axes: Axes, row: Row, *, place: float, launches: Sequence[float], verdict: str) -> None:
    from ddpbench.report.draw.canvas import mark

    estimate = row.step_time_s.scaled(1e3) if row.ok and row.step_time_s is not None else None
    if estimate is None:
        axes.text(
            place,
            0.02,
            row.status,
            transform=axes.get_xaxis_transform(),
            ha="center",
            va="bottom",
            fontsize=style.NOTE_PT,
            rotation=90,
        )
        return
    times = [1e3 * value for value in launches]
    low, high = axes.get_xlim()
    drawn = mark(
        axes,
        place,
        estimate,
        times,
        style.look(row.case),
        hollow=row.emulated,
        aside=min(0.2, _ASIDE_IN * axes.figure.dpi * (high - low) / axes.bbox.width),
    )
    describe_points(drawn, "", f"{row.name}: {estimate} ms per step")
    label = estimate.number + (f"\n{verdict}" if verdict in (BEST, AS_GOOD, CANNOT_TELL) else "")
    highest = max([estimate.high or estimate.value, *times])
    axes.annotate(
        label,
        (place, highest),
        xytext=(0, 4),
        textcoords="offset points",
        ha="center",
        va="bottom",
        fontsize=style.NOTE_PT,
        fontweight="bold" if verdict == BEST else "normal",
        linespacing=1.1,
        bbox={
            "boxstyle": "square,pad=0.2",
            "facecolor": "none",
            "edgecolor": style.INK if verdict in (BEST, AS_GOOD) else "none",
            "linestyle": "-" if verdict == BEST else "--",
            "linewidth": 0.7,
        },
    )
