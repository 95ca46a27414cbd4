"""The breakdown figure, with stacked bars of the parts of a step, and overlapped communication beneath the bars."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from ddpbench.analysis.invariants.checked import Checked
from ddpbench.analysis.results import ByPart, StepParts
from ddpbench.analysis.sentences import headline
from ddpbench.analysis.statistics.estimands import MEDIAN, MEDIAN_INTERVALS
from ddpbench.report.captions import (
    MARK,
    MARKED,
    STAR,
    alike_setting,
    captioned,
    grey_ground,
    label_of,
    not_shown,
    unlike_timed,
)
from ddpbench.report.draw import style
from ddpbench.report.draw.rows import axis_end, block, over_bar
from ddpbench.report.figure_texts import first_short
from ddpbench.report.parts import Cell, Column, Picture, Section, Table
from ddpbench.report.rows import Row
from ddpbench.report.series import panels_of
from ddpbench.report.words import launches_each, milliseconds, percent, series_of, signed_percent

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from ddpbench.report.draw.sheet import Sheet

MOST_BARS = 14
_PITCH_IN = 0.48
_NARROW_PITCH_IN = 0.7
_BAR, _STRIP, _LIFT, _STRIP_AT = 0.45, 0.16, 0.12, 0.3
"""`_BAR` is the height of a bar, and `_STRIP` the height of the strip beneath the bar. The bar is `_LIFT` above the
middle of the row, and the strip `_STRIP_AT` below. The unit is the height of a row.
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Bar:
    """The parts of one case's step, in seconds, which are drawn as a bar."""

    row: Row
    step: StepParts
    parts: Mapping[str, float]
    """Parts in the order in which they are stacked."""
    apart: bool = False
    """True if instrumented steps are longer or shorter than timed steps, and so do not describe timed steps."""

    @property
    def name(self) -> str:
        """Return the case's name."""
        return self.row.name

    @property
    def exposed_s(self) -> float:
        """Return the exposed communication of a step, seconds."""
        return self.step.parts.exposed_comm.value

    @property
    def overlapped_s(self) -> float:
        """Return the communication of a step that is overlapped with computation, seconds."""
        return self.step.overlapped_comm.value

    @property
    def overhead(self) -> float | None:
        """Return the duration of an instrumented step relative to a timed one, as a ratio minus 1; None if unknown."""
        return self.step.instrumentation_overhead


def section(breakdown: Sequence[StepParts], checks: Checked, rows: Sequence[Row]) -> Section:
    """Return the section on how the time of a step is spent."""
    bars = _bars(breakdown, checks, rows)
    if not bars:
        absent = "No case has instrumented steps: nothing tells what fills a step."
        return Section(anchor="breakdown", title="Where the time goes", question=_QUESTION, absent=absent)
    panels = panels_of(rows)
    panel = max(panels, key=lambda panel: sum(row.case_id in bars for row in panel.rows))
    here = [bars[row.case_id] for row in panel.rows if row.case_id in bars]
    if not here:  # only base cases were instrumented, which do not form a panel
        here = list(bars.values())
    chosen, notes = _choose(here, len(bars))
    missing = {
        row.case_id: f"{row.name} ({row.status if not row.ok else 'no instrumented steps'})"
        for row in panel.rows
        if row.case_id not in bars
    }
    return Section(
        anchor="breakdown",
        title="Where the time goes",
        question=_QUESTION,
        pictures=tuple(
            _picture(panel.name, bars, {} if index else missing, index)
            for index, bars in enumerate(_scales(chosen))
        ),
        notes=(*_apart(bars.values()), *notes),
    )


def _apart(bars: Iterable[Bar]) -> list[str]:
    every = list(bars)
    marked = [bar for bar in every if bar.apart and bar.overhead is not None]
    if not marked:
        return []
    marked.sort(key=lambda bar: -abs(bar.overhead or 0))
    names = every[0].row.names.of(bar.row.case for bar in every)
    cases = [
        f"{names.short(bar.row.case)} ({percent(abs(off))} {'longer' if off > 0 else 'shorter'})"
        for bar in marked[:4]
        if (off := bar.overhead or 0.0)
    ]
    more = [f"{len(marked) - 4} more"] if len(marked) > 4 else []
    text = (
        f"{STAR} marks cases whose instrumented steps take another time than their timed ones: the parts do "
        f"not describe the timed steps. These are {series_of([*cases, *more])}."
    )
    return [text]


_CRUSHED = 4.0
"""A bar is short if the longest bar is more than this many times as long. Short bars may have a separate figure."""
_FEWEST = 2
"""Minimum number of bars in a separate figure."""
_SEEN = 0.001
"""Minimum length of a part that can be seen, as a fraction of the longest bar. The legend leaves shorter parts out."""
_TIGHT = 1.1
"""A part shows its time as text only if the part is at least this many times as wide as the text."""
_QUESTION = "What fills a step?"


def _bars(breakdown: Sequence[StepParts], checks: Checked, rows: Sequence[Row]) -> dict[str, Bar]:
    by_id = {row.case_id: row for row in rows}
    apart = unlike_timed(checks)
    bars: dict[str, Bar] = {}
    for step in breakdown:
        row = by_id.get(step.case_id)
        if row is None or not row.ok:
            continue
        bars[row.case_id] = Bar(
            row=row,
            step=step,
            parts={name: step.parts.by_name[name].value for name in style.PHASES},
            apart=row.case_id in apart,
        )
    return bars


def _choose(bars: Sequence[Bar], of: int) -> tuple[list[Bar], list[str]]:
    """Return at most MOST_BARS bars, in order of step time, and a note if some are left out.

    Cases on separate cores are preferred, then the most ranks. `of` is the number of instrumented cases.
    """
    order = sorted(bars, key=lambda bar: (bar.row.oversubscribed, -bar.row.case.world_size))
    chosen = order[:MOST_BARS]
    notes = []
    if len(chosen) < of:
        notes.append(
            f"{len(chosen)} of {of} instrumented cases are drawn; the data to download have all (report.json, "
            "breakdown)."
        )
    return sorted(chosen, key=lambda bar: bar.step.step_time_s), notes


def _scales(bars: Sequence[Bar]) -> list[Sequence[Bar]]:
    short = [bar for bar in bars if bar.step.step_time_s < bars[-1].step.step_time_s / _CRUSHED]
    tall = bars[len(short) :]
    return [tall, short] if len(short) >= _FEWEST and len(tall) >= _FEWEST else [bars]


def _picture(panel: str, bars: Sequence[Bar], missing: Mapping[str, str], index: int = 0) -> Picture:
    heading = headline(_title(bars, "of the shorter steps, " if index else ""))
    overheads = [bar.overhead for bar in bars if bar.overhead is not None]
    marks = [*not_shown(missing), *grey_ground(bar.row for bar in bars)]
    overhead = []
    if overheads:
        least, most = signed_percent(min(overheads)), signed_percent(max(overheads))
        span = least if least == most else f"{least} to {most}"
        overhead.append(f"Length of instrumented steps against timed ones: {span}.")
    if any(bar.apart for bar in bars):
        marks.append(MARKED)
    linked = [bar.row for bar in bars if not bar.row.needs_no_link]
    setting = alike_setting(linked or [bar.row for bar in bars])
    caption = captioned(
        setting,
        [
            f"Parts: {MEDIAN} ({launches_each(bar.step.launches for bar in bars)}), in instrumented steps.",
            *marks,
            *([] if setting else ["Settings differ; see the names."]),
            *([f"All that have buckets: {shared}."] if (shared := _shared_cap(bars)) else []),
            "Each part is of means over ranks and instrumented steps; so is the step at a bar's end, to which the",
            "medians of its parts add up only nearly.",
            *(_meanings(bars) if not index else ["To be read as the figure before, on another scale."]),
            f"Timed: the same case's timed steps, {MEDIAN}; in brackets {MEDIAN_INTERVALS}.",
            *overhead,
        ],
    )
    names = [style.PHASES[name].name for name in style.PHASES if any(bar.parts[name] for bar in bars)]
    return Picture(
        file_name=f"breakdown-{index + 1}" if index else "breakdown",
        heading=heading,
        caption=caption,
        alt=(
            f"Horizontal stacked bars of step time, ms, by part ({series_of(names)}) for "
            f"{len(bars)} cases. {heading}. {_exposed(bars)}"
            f"{f' Not shown: {len(missing)} cases without instrumented steps.' if missing else ''}"
        ),
        table=_table(bars),
        width_in=style.FULL_WIDTH_IN,
        height_in=1.02 + _PITCH_IN * len(bars),
        paint=partial(_paint, bars=bars, labels=_labels(bars)),
        narrow=partial(_paint_narrow, bars=bars, labels=_labels(bars)),
        narrow_in=(
            style.NARROW_WIDTH_IN,
            0.65 + style.LEGEND_LINE_IN * -(-len(_fills(bars)) // 2) + _NARROW_PITCH_IN * len(bars),
        ),
        label=label_of(bar.row for bar in bars),
        group=panel,
        missing=missing,
    )


_MEANINGS = {
    style.PHASES[
        "exposed_wait"
    ]: "Waiting for ranks: a rank's gradients are ready, and another rank's are not yet.",
    style.OVERLAPPED: "Overlapped, beneath a bar: gradients travel while the rank still computes; its length counts, "
    "not its place.",
}


def _meanings(bars: Sequence[Bar]) -> list[str]:
    drawn = _fills(bars)
    return [sentence for fill, sentence in _MEANINGS.items() if fill in drawn]


@dataclass(frozen=True, slots=True)
class _Texts:
    parts: ByPart[str]
    overlapped: str


def _texts(bars: Sequence[Bar]) -> list[_Texts]:
    texts = []
    for row in _table(bars).evenly_rounded().rows:
        *parts, overlapped = (cell.text for cell in row[2 : 3 + len(style.PHASES)])
        texts.append(_Texts(ByPart(**dict(zip(style.PHASES, parts, strict=True))), overlapped))
    return texts


def _title(bars: Sequence[Bar], start: str) -> str:
    fair = [bar for bar in bars if not bar.row.oversubscribed and bar.row.case.world_size > 1]
    if not fair:
        if any(bar.row.oversubscribed for bar in bars):
            return f"{start}every case above one rank ran oversubscribed: none is ranked"
        longest = max(bars, key=lambda bar: bar.step.step_time_s)
        length = milliseconds(longest.step.step_time_s)
        return first_short(
            f"{start}{longest.name}: a step of {length} ms, nothing exchanged",
            f"{start}a step of up to {length} ms, nothing exchanged",
        )
    most = max(fair, key=lambda bar: bar.exposed_s)
    if most.exposed_s <= 0:
        return f"{start}no communication is exposed in any of {len(fair)} cases above one rank"
    exposed, length = _texts(bars)[bars.index(most)].parts.exposed_comm, milliseconds(most.step.step_time_s)
    low = most.step.parts.exposed_comm.low
    rivals = [bar.step.parts.exposed_comm for bar in fair if bar is not most and bar.exposed_s > 0]
    decided = not rivals or (
        low is not None and all(one.high is not None and one.high < low for one in rivals)
    )
    which = f"{start}{'most' if decided else 'among the most'} exposed: {most.name}"
    return first_short(
        f"{which}, {exposed} ms of communication in a step of {length} ms",
        f"{which}, {exposed} of {length} ms",
        f"{start}up to {exposed} ms of communication is exposed, in a step of {length} ms",
    )


def _exposed(bars: Sequence[Bar]) -> str:
    most = max(bars, key=lambda bar: bar.exposed_s)
    if most.exposed_s <= 0:
        return ""
    comm, wait = (part.scaled(1e3) for part in (most.step.parts.exposed_comm, most.step.parts.exposed_wait))
    waiting = f" and {wait} ms waiting for ranks" if wait.value > 0 else ""
    return f"Longest: {most.name}, {comm} ms of communication exposed{waiting}."


def _table(bars: Sequence[Bar]) -> Table:
    columns = (
        Column("Case"),
        Column("Step, ms", number=True),
        *(Column(f"{fill.head}, ms", number=True) for fill in style.PHASES.values()),
        Column("Overlapped, ms", number=True),
        Column("Launches", number=True),
        Column("Overhead", number=True),
    )
    rows = tuple(
        (
            Cell(text=bar.name + MARK * bar.apart),
            Cell.ms(bar.step.step_time_s),
            *(Cell.estimate(bar.step.parts.by_name[name].scaled(1e3)) for name in style.PHASES),
            Cell.estimate(bar.step.overlapped_comm.scaled(1e3)),
            Cell.count(bar.step.launches),
            Cell(text="" if bar.overhead is None else percent(bar.overhead), key=bar.overhead, number=True),
        )
        for bar in bars
    )
    return Table(
        caption=f"An instrumented step and its parts, each the {MEDIAN}; in brackets {MEDIAN_INTERVALS}",
        columns=columns,
        rows=rows,
    )


def _labels(bars: Sequence[Bar]) -> list[str]:
    names = bars[0].row.names.of(bar.row.case for bar in bars)
    return [names.short(bar.row.case) + MARK * bar.apart for bar in bars]


def _shared_cap(bars: Sequence[Bar]) -> str:
    caps = {f"{bar.row.bucket_name} buckets" for bar in bars if bar.row.case.bucket_cap_mb is not None}
    return caps.pop() if len(caps) == 1 else ""


def _paint(sheet: Sheet, *, bars: Sequence[Bar], labels: Sequence[str]) -> None:
    import textwrap

    from ddpbench.report.draw.lines import text_width_in

    names = ["\n".join(textwrap.wrap(name, 36)[:3]) for name in labels]
    left = 0.25 + max(text_width_in(name, style.TICK_PT) for name in names)
    axes = sheet.axes(left, 0.5, sheet.width_in - left - 1.85, _PITCH_IN * len(bars) + 0.05)
    longest = _longest_ms(bars)
    axes.set_xlim(0, longest)
    for place, (bar, words) in enumerate(zip(bars, _texts(bars), strict=True)):
        at = _stack(axes, place, bar, words, longest)
        axes.annotate(
            _total(bar),
            (at, place - _LIFT),
            xytext=(5, 0),
            textcoords="offset points",
            fontsize=style.NOTE_PT,
            va="center",
            annotation_clip=False,
            linespacing=1.1,
        )
    axes.set_ylim(len(bars) - 0.45, -0.55)
    axes.set_yticks([place - _LIFT for place in range(len(bars))], names)
    _finish(axes)
    _legend(sheet, bars, columns=5)


def _paint_narrow(sheet: Sheet, *, bars: Sequence[Bar], labels: Sequence[str]) -> None:
    import textwrap

    axes = sheet.axes(0.12, 0.5, sheet.width_in - 0.3, _NARROW_PITCH_IN * len(bars) + 0.05)
    longest = _longest_ms(bars)
    axes.set_xlim(0, longest)
    scale = _PITCH_IN / _NARROW_PITCH_IN
    for place, (bar, words, label) in enumerate(zip(bars, _texts(bars), labels, strict=True)):
        _stack(axes, place, bar, words, longest, scale=scale)
        name = "\n".join(textwrap.wrap(label, 26)[:2])
        ground = style.OVERSUBSCRIBED_GROUND if bar.row.oversubscribed else style.GROUND
        over_bar(axes, place - scale * (_LIFT + _BAR / 2 + 0.06), name, _total(bar), ground=ground)
    axes.set_ylim(len(bars) - 1 + 0.5 * scale, -0.62)
    axes.set_yticks([])
    axes.locator_params(axis="x", nbins=6)
    _finish(axes)
    _legend(sheet, bars, columns=2)


def _longest_ms(bars: Sequence[Bar]) -> float:
    return axis_end(
        max(max(bar.step.step_time_s, sum(max(v, 0) for v in bar.parts.values())) for bar in bars) * 1e3
    )


def _finish(axes: Axes) -> None:
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel("ms per step")
    axes.grid(visible=True, axis="x")
    axes.spines["left"].set_visible(False)


def _stack(axes: Axes, place: float, bar: Bar, words: _Texts, longest: float, *, scale: float = 1.0) -> float:
    """Draw a case's bar and the strip beneath it, both `scale` times as high; return the bar's end along x."""
    from ddpbench.report.draw.lines import text_width_in

    if bar.row.oversubscribed:
        axes.axhspan(place - 0.5, place + 0.5, color=style.OVERSUBSCRIBED_GROUND, linewidth=0, zorder=0)
    centre = place - scale * _LIFT
    per_in = longest / (axes.bbox.width / axes.figure.dpi)
    at = 0.0
    hidden_from = 0.0
    texts = words.parts.by_name
    for name, fill in style.PHASES.items():
        width = bar.parts[name] * 1e3
        if name == "backward":
            hidden_from = at
        if width <= 0:
            continue
        title = f"{bar.name}: {fill.name} {bar.step.parts.by_name[name].scaled(1e3)} ms"
        block(axes, fill, (at, at + width), centre=centre, height=scale * _BAR, title=title)
        if width >= max(0.04 * longest, _TIGHT * per_in * text_width_in(texts[name], style.SMALLEST_PT)):
            boxed = {"boxstyle": "square,pad=0.12", "facecolor": fill.colour, "edgecolor": "none"}
            axes.text(
                at + width / 2,
                centre,
                texts[name],
                ha="center",
                va="center",
                fontsize=style.SMALLEST_PT,
                color=fill.ink,
                bbox=boxed if fill.hatch else None,
                zorder=4,
            )
        at += width
    if bar.overlapped_s > 0:
        width = bar.overlapped_s * 1e3
        strip = place + scale * _STRIP_AT
        block(
            axes,
            style.OVERLAPPED,
            (hidden_from, hidden_from + width),
            centre=strip,
            height=scale * _STRIP,
            title=f"{bar.name}: {style.OVERLAPPED.name} {bar.step.overlapped_comm.scaled(1e3)} ms",
        )
        axes.annotate(
            words.overlapped,
            (min(hidden_from + width, longest), strip),
            xytext=(3, 0),
            textcoords="offset points",
            fontsize=style.SMALLEST_PT,
            va="center",
            annotation_clip=False,
        )
    return at


def _total(bar: Bar) -> str:
    estimate = bar.row.step_time_s.scaled(1e3) if bar.row.step_time_s else None
    timed = f"\ntimed {estimate}" if estimate is not None else ""
    return f"{milliseconds(bar.step.step_time_s)} ms{timed}"


def _legend(sheet: Sheet, bars: Sequence[Bar], *, columns: int) -> None:
    from matplotlib.patches import Patch

    patches = [Patch(facecolor=fill.colour, label=fill.name, **fill.outline) for fill in _fills(bars)]
    sheet.legend(patches, columns=columns)


def _fills(bars: Sequence[Bar]) -> list[style.Fill]:
    least = _SEEN * _longest_ms(bars) / 1e3
    fills = [fill for name, fill in style.PHASES.items() if any(bar.parts[name] > least for bar in bars)]
    return [*fills, *([style.OVERLAPPED] if any(bar.overlapped_s > least for bar in bars) else [])]
