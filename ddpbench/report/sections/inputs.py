"""The figure on input data, which shows whether training waits for data, and how many loader workers are enough."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from ddpbench.analysis.results import InputResult
from ddpbench.analysis.sentences import capital
from ddpbench.analysis.statistics.estimands import MEDIAN, MEDIAN_INTERVALS
from ddpbench.analysis.statistics.interval import Interval
from ddpbench.analysis.statistics.judgement import CELLS, signed, takes_longer
from ddpbench.report.captions import alike_setting, captioned, grey_ground, label_of
from ddpbench.report.draw import style
from ddpbench.report.draw.lines import in_lines
from ddpbench.report.draw.rows import axis_end, block, over_bar, whiskers
from ddpbench.report.figure_texts import first_short
from ddpbench.report.parts import Cell, Column, Picture, Section, Table
from ddpbench.report.rows import Row
from ddpbench.report.words import launches_each, milliseconds, percent, series_of
from ddpbench.spec.grouping import loading

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from ddpbench.report.draw.sheet import Sheet

MOST_GROUPS = 4
_PITCH_IN, _LEFT_IN = 0.32, 1.45
_NARROW_PITCH_IN, _NARROW_HEAD_IN = 0.54, 0.36
"""Heights of a bar with the words above it, and of a group's name, on a phone, inches."""
_QUESTION = "Is training waiting for its input, and how many loader workers are enough?"


@dataclass(frozen=True, kw_only=True, slots=True)
class InputBar:
    """The step time with one data setting. `ratio` is this time divided by the step time with data in memory."""

    row: Row
    waited_s: float | None
    waited_share: float | None
    ratio: Interval | None
    verdict: str

    @property
    def cell(self) -> str:
        """Return the verdict as text for a table."""
        return CELLS.get(self.verdict, self.verdict)


def section(inputs: Sequence[InputResult], rows: Sequence[Row]) -> Section:
    """Return the section on input data, with a figure if a case was run with several data settings, else a sentence."""
    groups = _groups(inputs, rows)
    several = [group for group in groups if len(group) > 1]
    # cases that are not oversubscribed first, then the most ranks
    several.sort(key=lambda group: (group[0].row.oversubscribed, -len(group), -group[0].row.case.world_size))
    common: dict[str, Any] = {"anchor": "inputs", "title": "Input data", "question": _QUESTION}
    if not several:
        return Section(**common, absent=_waited_sentence([bar for group in groups for bar in group]))
    left = [_name(group) for group in several[MOST_GROUPS:]]
    notes = (f"Not drawn: {'; '.join(left)}; the summary table has them.",) if left else ()
    return Section(**common, pictures=(_picture(several[:MOST_GROUPS]),), notes=notes)


def _groups(inputs: Sequence[InputResult], rows: Sequence[Row]) -> list[list[InputBar]]:
    by_id = {row.case_id: row for row in rows if row.ok and row.step_time_s is not None}
    groups: dict[int, list[InputBar]] = {}
    for one in inputs:
        if (row := by_id.get(one.case_id)) is None:
            continue
        bar = InputBar(
            row=row,
            waited_s=one.waited_s,
            waited_share=one.waited_share,
            ratio=None if one.ratio is None else one.ratio,
            verdict=one.verdict,
        )
        groups.setdefault(one.group, []).append(bar)
    return list(groups.values())


def _waited_sentence(bars: Sequence[InputBar]) -> str:
    known = [(bar.waited_share, bar) for bar in bars if bar.waited_share is not None]
    advice = 'To be sure, run axes.data = ["memory", "loader"].'
    if not known:
        return f"No case has instrumented steps that tell how long a step waits for data. {advice}"
    most, worst = max(known, key=lambda pair: pair[0])
    looks = sum(bar.verdict == "looks input-bound" for _, bar in known)
    verdict = f"{looks} of {len(known)} cases look input-bound" if looks else "no case looks input-bound"
    return (
        f"At most {percent(most)} of a step is spent waiting for data ({worst.row.name}, {loading(worst.row.case)}; "
        f"instrumented steps): {verdict}. Every case was run with one data setting only. {advice}"
    )


def _name(group: Sequence[InputBar]) -> str:
    row = group[0].row
    return f"{row.name}, {row.workload_name}"


def _source(bar: InputBar) -> str:
    return "memory" if bar.row.case.data == "memory" else loading(bar.row.case)


def _title(groups: Sequence[Sequence[InputBar]]) -> str:
    verdicts = _verdicts(groups[0])
    return first_short(
        *(
            f"{start}: {verdict}"
            for start in (_name(groups[0]), groups[0][0].row.name)
            for verdict in verdicts
        ),
        *(capital(verdict) for verdict in verdicts),
    )


def _details(groups: Sequence[Sequence[InputBar]]) -> str:
    bound = [bar for bar in groups[0] if bar.verdict == "input-bound" and bar.ratio is not None]
    return "".join(
        f" With {_source(bar)} a step takes {takes_longer(bar.ratio, than=True)} with data in memory."
        for bar in bound
        if bar.ratio is not None
    )


def _verdicts(first: Sequence[InputBar]) -> list[str]:
    bound = [bar for bar in first if bar.verdict in ("input-bound", "looks input-bound")]
    bound.sort(key=lambda bar: bar.ratio.value if bar.ratio is not None else bar.waited_share or 0.0)
    if bound:
        worst = bound[-1]
        if worst.ratio is not None:
            size = f"steps take {takes_longer(worst.ratio, bare=True)}"
        else:
            size = f"{percent(worst.waited_share or 0.0)} of a step waits"
        verb = "" if worst.ratio is not None else "looks "
        return [f"{verb}input-bound with {_source(worst)}; {size}", f"{verb}input-bound; {size}"]
    decided = [bar for bar in first if bar.verdict == "not input-bound"]
    if decided and len(decided) == sum(bar.ratio is not None for bar in first):
        return [
            f"not input-bound with {series_of([_source(bar) for bar in decided], 'or')}",
            "not input-bound",
        ]
    if any(bar.verdict == "too few" for bar in first):
        return ["too few rounds to tell whether training waits for its input"]
    if any(bar.verdict == "unresolved" for bar in first):
        return ["this sweep cannot tell whether training waits for its input"]
    return ["does not look input-bound"]


def _picture(groups: Sequence[Sequence[InputBar]]) -> Picture:
    bars = [bar for group in groups for bar in group]
    heading = _title(groups)
    marks = []
    if any(bar.verdict == "memory" for bar in bars):
        marks.append(
            "Dotted line: the step with data in memory; percentages: against it, paired by round and corrected "
            "for the number of all such comparisons of the sweep."
        )
    marks = [*grey_ground(bar.row for bar in bars), *marks]
    caption = captioned(
        alike_setting((group[0].row for group in groups), but=("data",)),
        [
            f"Bars: timed step, {MEDIAN} ({launches_each(bar.row.launches for bar in bars)}); whiskers:",
            f"{MEDIAN_INTERVALS}.",
            *marks,
            "The first part is what a step waits for a batch, from instrumented steps.",
        ],
    )
    return Picture(
        file_name="inputs",
        heading=heading,
        caption=caption,
        alt=(
            "Horizontal bars of step time, ms, by source of data and number of loader workers, with the part spent "
            f"waiting for data, for {series_of([_name(group) for group in groups])}. {heading}.{_details(groups)}"
        ),
        table=_table(groups),
        width_in=style.FULL_WIDTH_IN,
        height_in=0.95 + _PITCH_IN * (len(bars) + sum(_head_rows(group) for group in groups)),
        paint=partial(_paint, groups=groups),
        narrow=partial(_paint_narrow, groups=groups),
        narrow_in=(
            style.NARROW_WIDTH_IN,
            1.05 + _NARROW_PITCH_IN * len(bars) + sum(_narrow_head_in(group) for group in groups),
        ),
        label=label_of(bar.row for bar in bars),
        missing={},
    )


def _table(groups: Sequence[Sequence[InputBar]]) -> Table:
    columns = (
        Column("Case"),
        Column("Data"),
        Column("Step, ms", number=True),
        Column("Waits for data, ms", number=True),
        Column("Share waited", number=True),
        Column("Against memory"),
        Column("Verdict"),
        Column("Launches", number=True),
    )
    rows = tuple(
        (
            Cell(text=_name(group)),
            Cell(
                text=_source(bar),
                key=-1.0 if bar.row.case.data == "memory" else float(bar.row.case.loader_workers),
            ),
            Cell.estimate(bar.row.step_time_s.scaled(1e3) if bar.row.step_time_s else None),
            Cell.ms(bar.waited_s),
            Cell(
                text="" if bar.waited_share is None else percent(bar.waited_share),
                key=bar.waited_share,
                number=True,
            ),
            Cell(
                text="" if bar.ratio is None else signed(bar.ratio),
                key=bar.ratio.value if bar.ratio is not None else 1.0,
            ),
            Cell(text="the reference" if bar.verdict == "memory" else bar.cell),
            Cell.count(bar.row.launches),
        )
        for group in groups
        for bar in group
    )
    return Table(caption="Step time by source of data", columns=columns, rows=rows)


def _paint(sheet: Sheet, *, groups: Sequence[Sequence[InputBar]]) -> None:
    right = 2.75
    axes = sheet.axes(_LEFT_IN, 0.5, sheet.width_in - _LEFT_IN - right, sheet.height_in - 0.85)
    axes.set_xlim(0, _longest_ms(groups) * 1.03)
    ticks: list[tuple[float, str]] = []
    place = 0.0
    for group in groups:
        head = place + 0.1
        more = _head_rows(group) - 1.2
        _head(axes, head + more / 2, _in_lines(group, style.FULL_WIDTH_IN - _LEFT_IN), 2)
        place += 1 + more
        first = place
        for bar in group:
            _bar(axes, place, bar, height=0.6)
            axes.annotate(
                _step_words(bar),
                (1.01, place),
                xycoords=("axes fraction", "data"),
                fontsize=style.SMALLEST_PT,
                va="center",
                annotation_clip=False,
                linespacing=1.05,
            )
            ticks.append((place, _source(bar)))
            place += 1
        _grounds(axes, group, (head - 0.6, place - 0.5), (first - 0.5, place - 0.45))
        place += 0.2
    axes.set_ylim(place - 0.45, -0.45)
    axes.set_yticks([at for at, _ in ticks], [name for _, name in ticks])
    _finish(sheet, axes, groups, columns=3)


def _paint_narrow(sheet: Sheet, *, groups: Sequence[Sequence[InputBar]]) -> None:
    """Paint the layout for a phone, with a bar's words above it; the unit along y is an inch."""
    height = sheet.height_in - 0.5 - 0.5
    axes = sheet.axes(0.12, 0.5, sheet.width_in - 0.3, height)
    axes.set_xlim(0, _longest_ms(groups) * 1.03)
    axes.set_ylim(height, 0)
    at = 0.0
    for group in groups:
        head = at
        ground = style.OVERSUBSCRIBED_GROUND if group[0].row.oversubscribed else style.GROUND
        high = _narrow_head_in(group)
        _head(axes, at + 0.2 + (high - _NARROW_HEAD_IN) / 2, _in_lines(group, style.NARROW_WIDTH_IN), 0)
        at += high
        first = at
        for bar in group:
            _bar(axes, at + 0.4, bar, height=0.2)
            over_bar(axes, at + 0.28, _source(bar), _step_words(bar), ground=ground)
            at += _NARROW_PITCH_IN
        _grounds(axes, group, (head, at), (first + 0.25, at))
    axes.set_yticks([])
    axes.locator_params(axis="x", nbins=6)
    _finish(sheet, axes, groups, columns=2)


def _longest_ms(groups: Sequence[Sequence[InputBar]]) -> float:
    """Return the end of the axis (ms): the longest whisker, but at most twice the longest bar."""
    steps = [bar.row.step_time_s for group in groups for bar in group if bar.row.step_time_s is not None]
    longest = min(max(step.high or step.value for step in steps), 2 * max(step.value for step in steps))
    return axis_end(longest * 1e3)


def _in_lines(group: Sequence[InputBar], room_in: float) -> str:
    return in_lines(_name(group), (room_in - 0.25) / 1.1, style.LABEL_PT)


def _head_rows(group: Sequence[InputBar]) -> float:
    """Return the height of a group's name. The unit is the height of a bar's row."""
    return 1.2 + 0.5 * _in_lines(group, style.FULL_WIDTH_IN - _LEFT_IN).count("\n")


def _narrow_head_in(group: Sequence[InputBar]) -> float:
    return _NARROW_HEAD_IN + 0.15 * _in_lines(group, style.NARROW_WIDTH_IN).count("\n")


def _head(axes: Axes, place: float, name: str, aside: float) -> None:
    axes.annotate(
        name,
        (0, place),
        xycoords=("axes fraction", "data"),
        xytext=(aside, 0),
        textcoords="offset points",
        va="center",
        fontsize=style.LABEL_PT,
        fontweight="bold",
    )


def _grounds(
    axes: Axes, group: Sequence[InputBar], over: tuple[float, float], bars: tuple[float, float]
) -> None:
    if group[0].row.oversubscribed:
        axes.axhspan(*over, color=style.OVERSUBSCRIBED_GROUND, linewidth=0, zorder=0)
    memory = next((bar.row.step_time_s for bar in group if bar.verdict == "memory"), None)
    if memory is not None:
        axes.plot([memory.value * 1e3] * 2, bars, ":", color=style.INK, linewidth=1.1, zorder=2.5)


def _finish(sheet: Sheet, axes: Axes, groups: Sequence[Sequence[InputBar]], *, columns: int) -> None:
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel("ms per step")
    axes.grid(visible=True, axis="x")
    axes.spines["left"].set_visible(False)
    _legend(sheet, [bar for group in groups for bar in group], columns)


_REST = style.PHASES["backward"]
_WAITED = style.PHASES["data"]
_WAITS, _RESTS = "waiting for data", "the rest of the step"


def _bar(axes: Axes, place: float, bar: InputBar, *, height: float) -> None:
    step = bar.row.step_time_s
    assert step is not None
    step = step.scaled(1e3)
    waited = min((bar.waited_s or 0.0) * 1e3, step.value)
    name = f"{_name([bar])}, {_source(bar)}"
    for fill, at, width, series, title in (
        (_WAITED, 0.0, waited, _WAITS, f"{name}: waits {milliseconds(bar.waited_s or 0.0)} ms for data"),
        (_REST, waited, step.value - waited, _RESTS, f"{name}: a step of {step} ms"),
    ):
        if width > 0:
            block(axes, fill, (at, at + width), centre=place, height=height, title=title, series=series)
    whiskers(axes, place, step)


def _step_words(bar: InputBar) -> str:
    """Return the step time and its wait for data, and on a second line the comparison with data in memory."""
    step = bar.row.step_time_s
    assert step is not None
    gap = "" if bar.ratio is None else signed(bar.ratio)
    against = "" if bar.verdict == "memory" else ", ".join(filter(None, [gap, bar.cell]))
    waits = f"waits {milliseconds(bar.waited_s)}" if bar.waited_s is not None else ""
    first = ", ".join(word for word in (f"{milliseconds(step.value)} ms", waits) if word)
    return f"{first}\n{against}" if against else first


def _legend(sheet: Sheet, bars: Sequence[InputBar], columns: int) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    waited = any(bar.waited_s for bar in bars)
    handles: list[Any] = [
        Patch(facecolor=fill.colour, label=name, **fill.outline)
        for fill, name in ((_WAITED, _WAITS), (_REST, _RESTS))
        if waited or fill is _REST
    ]
    if any(bar.verdict == "memory" for bar in bars):
        handles.append(Line2D([], [], linestyle=":", color=style.INK, linewidth=1.1, label="data in memory"))
    sheet.legend(handles, columns=columns)
