"""The section on single steps: a strip of step times for each rank, and a table of what fills each rank's step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from ddpbench.analysis.invariants.checked import Checked
from ddpbench.analysis.results import QUANTILES, RankTimes
from ddpbench.analysis.statistics.judgement import MARGIN
from ddpbench.report.captions import (
    MARK,
    MARKED,
    alike_setting,
    captioned,
    label_of,
    marks_of,
    unlike_timed,
)
from ddpbench.report.draw import style
from ddpbench.report.draw.lines import height_in, in_lines, text_width_in
from ddpbench.report.draw.marks import describe
from ddpbench.report.draw.scales import scale, spans_decades
from ddpbench.report.figure_texts import first_short
from ddpbench.report.parts import Cell, Column, Picture, Section, Table
from ddpbench.report.rows import Row
from ddpbench.report.words import milliseconds, percent, ranks, series_of
from ddpbench.strategies.traits import traits_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from ddpbench.report.draw.sheet import Sheet

MOST_ROWS = 18.5
"""Maximum height of all strips together, in heights of one strip. The figure is then at most 450 pixels high."""
_PITCH_IN, _GAP_IN, _HEAD_IN = 0.21, 0.1, 0.22
_ABOVE_IN, _AXIS_IN = 0.08, 0.52
_STRIP = 0.36
"""Half the height of a strip's ticks, as a multiple of the distance between strips."""
_MUTUAL = 0.5
"""Ranks are said to wait for each other if the shortest wait of a rank is more than this fraction of the longest wait.
"""
_FAR = 1.6
"""The axis ends at this many times the longest 95th percentile, although single steps may be longer."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Strips:
    """A case with the step times of its ranks. If the case has many ranks, some are selected (`RankTimes.role`)."""

    row: Row
    name: str
    ranks: tuple[RankTimes, ...]
    apart: bool = False
    """True if instrumented steps are longer or shorter than timed steps, and so do not describe timed steps."""

    @property
    def omitted(self) -> int:
        """Return the number of ranks with timed steps that are not in `ranks`."""
        return self.ranks[0].ranks - len(self.ranks)

    @property
    def known(self) -> tuple[RankTimes, ...]:
        """Return the ranks that have instrumented steps, which show what fills a step."""
        return tuple(one for one in self.ranks if one.step_s is not None)

    @property
    def servers(self) -> tuple[int, ...]:
        """Return the ranks that only serve, and so have no training steps."""
        return self.ranks[0].servers

    @property
    def slowest(self) -> RankTimes:
        """Return the rank whose median step is longest."""
        return max(self.ranks, key=lambda one: one.median_s)


def section(
    times: Sequence[RankTimes], checks: Checked, rows: Sequence[Row], first: Sequence[str] = ()
) -> Section:
    """Return the section on single steps; `first` holds the ids of the cases to draw first."""
    cases = _cases(times, checks, rows)
    drawn = _drawn(cases, first)
    rest = len(cases) - len(drawn)
    notes = (
        [f"{len(drawn)} of {len(cases)} cases are drawn, the answer's first; the data to download have all."]
        if rest
        else []
    )
    return Section(
        anchor="step-times",
        title="Step times",
        question="How much do steps vary, and which rank waits?",
        pictures=(_picture(drawn, cases, _missing(rows, cases)),) if drawn else (),
        notes=tuple(notes),
        absent="" if drawn else "No launch recorded the times of single steps.",
        tables=(_parts_table(drawn),) if any(one.known for one in drawn) else (),
    )


def _cases(times: Sequence[RankTimes], checks: Checked, rows: Sequence[Row]) -> list[Strips]:
    by_case: dict[str, list[RankTimes]] = {}
    for one in times:
        by_case.setdefault(one.case_id, []).append(one)
    apart = unlike_timed(checks)
    return [
        Strips(
            row=row,
            name=row.names.short(row.case),
            ranks=tuple(by_case[row.case_id]),
            apart=row.case_id in apart,
        )
        for row in rows
        if row.ok and row.case_id in by_case
    ]


def _missing(rows: Sequence[Row], cases: Sequence[Strips]) -> Mapping[str, str]:
    there = {one.row.case_id for one in cases}
    return {
        row.case_id: f"{row.name} ({row.status})" for row in rows if not row.ok and row.case_id not in there
    }


def _drawn(cases: Sequence[Strips], first: Sequence[str]) -> list[Strips]:
    """Return the cases that fit, preferring `first`, then separate cores, then more ranks."""
    order = sorted(
        cases,
        key=lambda one: (
            first.index(one.row.case_id) if one.row.case_id in first else len(first),
            one.row.oversubscribed,
            -one.row.case.world_size,
        ),
    )
    kept: list[Strips] = []
    for one in order:
        if kept and sum(map(_rows_taken, (*kept, one))) > MOST_ROWS:
            break
        kept.append(one)
    return kept


def _picture(cases: Sequence[Strips], every_case: Sequence[Strips], missing: Mapping[str, str]) -> Picture:
    heading, named = _title(cases, every_case)
    every = [each for one in cases for each in one.ranks]
    rows = [one.row for one in cases]
    launches = sorted({each.launches for each in every})
    counted = f"{launches[0]}" if len(launches) == 1 else f"{launches[0]} to {launches[-1]}"
    beyond = max(each.quantiles_s[-1] for each in every) * 1e3
    end = _span(cases)[1]
    caption = captioned(
        alike_setting(rows),
        [
            f"Each thin tick: 5 % of a rank's timed steps, of {counted} launches; thick: median; triangle: p95.",
            *_serving(cases),
            *named,
            *marks_of(rows, missing),
            *(
                [f"The axis ends before single steps of up to {milliseconds(beyond / 1e3)} ms."]
                if beyond > end
                else []
            ),
            *_omitted(cases),
            "Ticks are at every fifth percentile of single steps, of all launches together.",
            *_how_waits_are_read(cases),
        ],
    )
    return Picture(
        file_name="step-times",
        heading=heading,
        caption=caption,
        alt=(
            f"Strip plot of single step times, ms, by rank, for {series_of([one.name for one in cases])}. {heading}. "
            f"{_medians(cases)}"
        ),
        table=_table(cases),
        width_in=style.FULL_WIDTH_IN,
        height_in=_ABOVE_IN + _AXIS_IN + _PITCH_IN * sum(map(_rows_taken, cases)),
        paint=partial(_paint, cases=cases),
        narrow=partial(_paint_narrow, cases=cases),
        narrow_in=(
            style.NARROW_WIDTH_IN,
            _AXIS_IN
            + sum(2 * _PITCH_IN * len(one.ranks) + _HEAD_IN * _lines(one) + _GAP_IN for one in cases),
        ),
        label=label_of(rows),
        missing=missing,
    )


def _omitted(cases: Sequence[Strips]) -> list[str]:
    left = [one for one in cases if one.omitted]
    if not left:
        return []
    roles = series_of(list(dict.fromkeys(each.role for one in left for each in one.ranks if each.role)))
    which = series_of([f"{one.omitted} of {one.ranks[0].ranks}" for one in left])
    first = "the first that trains" if any(one.servers for one in left) else "rank 0"
    return [f"Shown of many ranks: {first} and those with {roles}; omitted: {which} ranks."]


def _serving(cases: Sequence[Strips]) -> list[str]:
    return [
        f"Not drawn of {one.name}: {_numbered(one.servers)}, the server, which has no training steps."
        for one in cases
        if one.servers
    ]


def _numbered(numbers: Sequence[int]) -> str:
    return f"rank{'' if len(numbers) == 1 else 's'} {series_of([str(number) for number in numbers])}"


def _how_waits_are_read(cases: Sequence[Strips]) -> list[str]:
    if all(one.servers or len(one.ranks) == 1 for one in cases):
        return []
    return [
        "In synchronous training all ranks' steps are equally long: waiting times tell which rank is slow."
    ]


_Title = tuple[str, Sequence[str]]
"""A title, and a list with a sentence that names the case; the list is empty if the title names the case."""


def _title(cases: Sequence[Strips], every_case: Sequence[Strips]) -> _Title:
    """Return the finding: the longest wait, or else how much steps vary.

    Waits under `MARGIN` of a step, and of cases whose instrumented steps differ from timed ones, are left out.
    """
    fair = [one for one in cases if not one.row.oversubscribed]
    if not any(one.row.case.world_size > 1 for one in fair) and any(one.row.oversubscribed for one in cases):
        drawn = " drawn" if any(_is_fair_above_one(one) for one in every_case) else ""
        return f"Every case{drawn} above one rank ran oversubscribed: none is ranked", ()
    waits = [
        (each.exposed_wait_s, one, each)
        for one in fair
        if traits_of(one.row.case).exchanges and not one.apart
        for each in one.known
        if each.exposed_wait_s is not None and each.exposed_wait_s >= MARGIN * (each.step_s or 0.0) > 0
    ]
    if waits:
        wait_s, case, waiting = max(waits, key=lambda found: found[0])
        return _waiting_title(case, waiting, milliseconds(wait_s), cases)
    largest = max(fair, key=lambda one: one.row.case.world_size)
    spread = largest.slowest
    if spread.p95_s is None:
        return _named_title(
            [f"{largest.name}: too few steps to tell how much they vary"],
            "Too few steps to tell how much they vary",
            largest,
            cases,
        )
    vary = f"vary by {percent(spread.p95_s / spread.median_s - 1)} between median and p95"
    return _named_title([f"Steps of {_called(largest, cases)} {vary}"], f"Steps {vary}", largest, cases)


def _is_fair_above_one(case: Strips) -> bool:
    return case.row.case.world_size > 1 and not case.row.oversubscribed


def _waiting_title(case: Strips, waiting: RankTimes, size: str, cases: Sequence[Strips]) -> _Title:
    waits_s = [each.exposed_wait_s or 0.0 for each in case.known]
    if not case.servers and len(waits_s) > 1 and min(waits_s) > _MUTUAL * max(waits_s):
        each_other = f"wait for each other, up to {size} ms"
        who = f"Ranks of {_called(case, cases)}"
        wholes = (f"{who} {each_other} a step", f"{who} {each_other}")
        return _named_title(wholes, f"Ranks {each_other}", case, cases)
    whom = "the server" if case.servers else "other ranks"
    if case.row.case.world_size == 2 and not case.servers:
        whom = next((f"rank {one.rank}" for one in case.ranks if one is not waiting), whom)
    waits = f"waits {size} ms a step"
    who = f"Rank {waiting.rank} of {_called(case, cases)}"
    wholes = (f"{who} {waits} for {whom}", f"{who} {waits}")
    return _named_title(wholes, f"Rank {waiting.rank} {waits} for {whom}", case, cases)


def _named_title(wholes: Sequence[str], nameless: str, case: Strips, cases: Sequence[Strips]) -> _Title:
    short = first_short(*wholes, nameless)
    if short in wholes or len(cases) == 1:
        return short, ()
    return f"{nameless}: {_strategy_and_ranks(case)}", [f"The title is on {case.name}."]


def _strategy_and_ranks(case: Strips) -> str:
    return f"{case.row.strategy_name} at {ranks(case.row.case.world_size)}"


def _called(case: Strips, cases: Sequence[Strips]) -> str:
    same = {(one.row.strategy_name, one.row.case.world_size) for one in cases if one is not case}
    key = (case.row.strategy_name, case.row.case.world_size)
    return case.name if key in same else _strategy_and_ranks(case)


def _medians(cases: Sequence[Strips]) -> str:
    words = [f"{one.name} {_numbers(one.slowest)}" for one in cases]
    return f"Of each case's slowest rank: {'; '.join(words)}."


def _numbers(each: RankTimes) -> str:
    p95 = "" if each.p95_s is None else f", p95 {milliseconds(each.p95_s)}"
    return f"{milliseconds(each.median_s)}{p95} ms"


def _rank_name(each: RankTimes) -> str:
    return f"rank {each.rank}{f' ({each.role})' if each.role else ''}"


def _table(cases: Sequence[Strips]) -> Table:
    shown = (0, 5, 25, 50, 75, 95, 100)
    columns = (
        Column("Case"),
        Column("Rank"),
        *(Column(f"{_QUANTILE_NAMES.get(each, f'p{each}')}, ms", number=True) for each in shown),
        Column("Steps", number=True),
        Column("Launches", number=True),
    )
    rows = tuple(
        (
            Cell(text=one.name),
            Cell(text=_rank_name(each), key=each.rank),
            *(
                Cell.ms(None if at == 95 else each.quantiles_s[QUANTILES.index(at)])
                if at != 95 or each.p95_s is None
                else Cell.ms(each.p95_s)
                for at in shown
            ),
            Cell.count(each.steps),
            Cell.count(each.launches),
        )
        for one in cases
        for each in one.ranks
    )
    return Table(
        caption="Times of single timed steps by rank, of all launches together", columns=columns, rows=rows
    )


_QUANTILE_NAMES = {0: "Shortest", 50: "Median", 100: "Longest"}


def _parts_table(cases: Sequence[Strips]) -> Table:
    columns = (
        Column("Case"),
        Column("Rank"),
        Column("Step, ms", number=True),
        Column("Compute, ms", number=True),
        Column("Exposed communication, ms", number=True),
        Column("Waiting for ranks, ms", number=True),
        Column("Data wait, ms", number=True),
        Column("Not attributed, ms", number=True),
    )
    rows = tuple(
        (
            Cell(text=one.name + MARK * one.apart),
            Cell(text=_rank_name(each), key=each.rank),
            Cell.ms(each.step_s),
            Cell.ms(each.compute_s),
            Cell.ms(each.exposed_comm_s),
            Cell.ms(each.exposed_wait_s),
            Cell.ms(each.data_s),
            Cell.ms(each.not_attributed_s),
        )
        for one in cases
        for each in one.known
    )
    caption = (
        "What fills each rank's instrumented step: means over steps and launches, which add up to the step"
    )
    return Table(
        caption=" ".join([f"{caption}.", *remarks]) if (remarks := _remarks(cases)) else caption,
        columns=columns,
        rows=rows,
        fold="What fills each rank's step",
    )


def _remarks(cases: Sequence[Strips]) -> list[str]:
    marked = any(one.apart and one.known for one in cases)
    lacking = [
        f"{_numbered([each.rank for each in one.ranks if each not in one.known])} of {one.name}"
        for one in cases
        if len(one.known) < len(one.ranks)
    ]
    return [
        *([MARKED] if marked else []),
        *([f"Without instrumented steps: {series_of(lacking)}."] if lacking else []),
    ]


def _span(cases: Sequence[Strips]) -> tuple[float, float]:
    every = [each for one in cases for each in one.ranks]
    low = min(each.quantiles_s[0] for each in every)
    usual = max(each.quantiles_s[QUANTILES.index(95)] for each in every)
    high = min(max(each.quantiles_s[-1] for each in every), _FAR * usual)
    return 1e3 * low, 1e3 * high


def _beside(one: Strips) -> str:
    return in_lines(one.name, _NAMES_IN, style.TICK_PT)


def _above(one: Strips) -> str:
    return in_lines(one.name, (style.NARROW_WIDTH_IN - 0.3) / 1.1, style.NOTE_PT)


def _lines(one: Strips) -> int:
    return _above(one).count("\n") + 1


def _rows_taken(one: Strips) -> float:
    return max(len(one.ranks), height_in([_beside(one)], style.TICK_PT) / _PITCH_IN) + _GAP_IN / _PITCH_IN


def _strip(axes: Axes, place: float, each: RankTimes, case: Strips, end: float) -> None:
    """Draw a rank's quantiles (one path, to keep pages small), its median and its 95th percentile."""
    look = style.look(case.row.case)
    title = f"{case.name}, {_rank_name(each)}: median {_numbers(each)}"
    xs: list[float] = []
    ys: list[float] = []
    for value in each.quantiles_s:
        if 1e3 * value <= end:
            xs += [1e3 * value, 1e3 * value, float("nan")]
            ys += [place - _STRIP, place + _STRIP, float("nan")]
    axes.plot(xs, ys, "-", color=look.ink, linewidth=0.9, alpha=0.55, zorder=2)
    (median,) = axes.plot(
        [1e3 * each.median_s] * 2,
        [place - 1.15 * _STRIP, place + 1.15 * _STRIP],
        "-",
        color=style.INK,
        linewidth=2.6,
        zorder=4,
    )
    describe(median, "", title)
    if each.p95_s is not None:
        (p95,) = axes.plot(
            [1e3 * each.p95_s],
            [place],
            ">",
            color=look.colour,
            markersize=6,
            markerfacecolor="white" if case.row.emulated else look.colour,
            markeredgecolor=look.ink,
            markeredgewidth=0.9,
            zorder=5,
        )
        describe(p95, "", title)


def _ground(axes: Axes, low: float, high: float, one: Strips) -> None:
    if one.row.oversubscribed:
        axes.axhspan(low, high, color=style.OVERSUBSCRIBED_GROUND, linewidth=0, zorder=0)


def _finish(axes: Axes, cases: Sequence[Strips], top: float) -> None:
    axes.set_ylim(top, 0)
    axes.tick_params(axis="y", length=0)
    scale(axes.xaxis, *_span(cases))
    axes.set_xlabel(f"ms per step{' (log scale)' if spans_decades(*_span(cases)) else ''}")
    axes.grid(visible=True, axis="x")
    axes.spines["left"].set_visible(False)


def _paint(sheet: Sheet, *, cases: Sequence[Strips]) -> None:
    names = [_beside(one) for one in cases]
    words = [_rank_name(each) for one in cases for each in one.ranks]
    rank_in = max(text_width_in(word, style.NOTE_PT) for word in words)
    left = 0.35 + max(text_width_in(name, style.TICK_PT) for name in names) + rank_in
    axes = sheet.axes(left, _AXIS_IN, sheet.width_in - left - 1.75, sheet.height_in - _ABOVE_IN - _AXIS_IN)
    end = _span(cases)[1]
    at = 0.0
    per_in = 1 / (sheet.width_in - left - 1.75)
    for one, name in zip(cases, names, strict=True):
        high = _rows_taken(one)
        _ground(axes, at, at + high, one)
        axes.text(
            -(rank_in + 0.2) * per_in,
            at + high / 2,
            name,
            transform=axes.get_yaxis_transform(),
            ha="right",
            va="center",
            fontsize=style.TICK_PT,
        )
        for number, each in enumerate(one.ranks):
            place = at + high / 2 + number - (len(one.ranks) - 1) / 2
            labels = ((-0.08 * per_in, "right", _rank_name(each)), (1 + 0.1 * per_in, "left", _numbers(each)))
            for x, side, text in labels:
                axes.text(
                    x,
                    place,
                    text,
                    transform=axes.get_yaxis_transform(),
                    ha=side,
                    va="center",
                    fontsize=style.NOTE_PT,
                    color=style.MUTED if side == "right" else style.INK,
                )
            _strip(axes, place, each, one, end)
        at += high
    axes.set_yticks([])
    _finish(axes, cases, at)


_NAMES_IN = 2.2


def _paint_narrow(sheet: Sheet, *, cases: Sequence[Strips]) -> None:
    axes = sheet.axes(0.14, _AXIS_IN, sheet.width_in - 0.32, sheet.height_in - _AXIS_IN)
    end = _span(cases)[1]
    at, gap, head = 0.0, _GAP_IN / _PITCH_IN, _HEAD_IN / _PITCH_IN
    for one in cases:
        high = 2 * len(one.ranks) + head * _lines(one) + gap
        _ground(axes, at, at + high, one)
        where = axes.get_yaxis_transform()
        axes.text(
            0, at + 0.1, _above(one), transform=where, va="top", fontsize=style.NOTE_PT, fontweight="bold"
        )
        at += head * _lines(one)
        for each in one.ranks:
            for x, side, text in (
                (0.0, "left", _rank_name(each)),
                (1.0, "right", f"median {_numbers(each)}"),
            ):
                axes.text(
                    x,
                    at + 0.5,
                    text,
                    transform=where,
                    ha=side,
                    va="center",
                    fontsize=style.NOTE_PT,
                    bbox={"boxstyle": "square,pad=0.05", "facecolor": style.GROUND, "edgecolor": "none"}
                    if not one.row.oversubscribed
                    else None,
                    zorder=3,
                )
            _strip(axes, at + 1.5, each, one, end)
            at += 2
        at += gap
    axes.set_yticks([])
    _finish(axes, cases, at)
