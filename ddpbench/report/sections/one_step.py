"""The timeline of one step, with two lanes per rank, which shows why communication is exposed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from ddpbench.analysis.sentences import capital
from ddpbench.analysis.steps.one_step import Lane, OneStep, Transfer
from ddpbench.analysis.summary import StepResults
from ddpbench.report.captions import captioned, label_of, setting_of
from ddpbench.report.draw import style
from ddpbench.report.draw.rows import block
from ddpbench.report.figure_texts import first_short
from ddpbench.report.parts import Cell, Column, Picture, Section, Table
from ddpbench.report.rows import Row
from ddpbench.report.words import milliseconds, series_of
from ddpbench.units import counted, format_bytes

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from ddpbench.report.draw.sheet import Sheet

MOST_ROWS = 4
"""Maximum number of rows in a lane for concurrent transfers."""
_COMPUTE_IN, _TRANSFER_IN, _BELOW_IN = 0.24, 0.19, 0.45
_SHOWN = 0.004
"""Minimum duration that can be seen in the figure, as a fraction of the step."""
_SYNCHRONIZE = "synchronize"
_PARTS: Mapping[str, str] = {
    "forward": "forward",
    "backward": "backward",
    "optimizer": "optimizer",
    "data": "data",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class _Frame:
    """The room around and between lanes (inches), and the lines of the note on the end of backward."""

    left: float
    right: float
    above: float
    gap: float
    columns: int
    lines: int

    def body_in(self, step: OneStep) -> float:
        return self.above + sum(_height(lane) + self.gap for lane in step.lanes)

    def height_in(self, step: OneStep) -> float:
        rows = -(-len(_keys(step)) // self.columns)
        return _BELOW_IN + self.body_in(step) + 0.06 + style.LEGEND_LINE_IN * rows


_WIDE = _Frame(left=1.85, right=0.2, above=0.46, gap=0.2, columns=5, lines=1)
_NARROW = _Frame(left=0.12, right=0.18, above=0.78, gap=0.3, columns=2, lines=2)


def section(steps: StepResults, rows: Sequence[Row]) -> Section:
    """Return the section on one step, with the reason if no step can be drawn."""
    step = steps.one_step
    row = next((row for row in rows if step is not None and row.case_id == step.case_id), None)
    absent = steps.one_step_absent or "No step of this run was instrumented."
    return Section(
        anchor="one-step",
        title="One step",
        question="Why is communication exposed?",
        pictures=() if step is None or row is None else (_picture(step, row, row.names.short(row.case)),),
        absent=absent if step is None or row is None else "",
    )


def _picture(step: OneStep, row: Row, name: str) -> Picture:
    heading = _title(step, name)
    names = ["forward", "backward", "overlapped and exposed transfers", "waits for other ranks"]
    return Picture(
        file_name="one-step",
        heading=heading,
        caption=_caption(step, row, name),
        alt=(
            f"Timeline of one step, ms, for {counted(len(step.lanes), 'rank')} of {name}: {series_of(names)}. "
            f"{heading}."
        ),
        table=_table(step, row),
        width_in=style.FULL_WIDTH_IN,
        height_in=_WIDE.height_in(step),
        paint=partial(_paint, step=step),
        narrow=partial(_paint_narrow, step=step),
        narrow_in=(style.NARROW_WIDTH_IN, _NARROW.height_in(step)),
        label=label_of([row]),
        group=name,
        missing={},
    )


def _after_s(step: OneStep) -> float | None:
    """Return how long transfers outlast the last backward (seconds); None if either end is unknown."""
    if step.backward_end_s is None or step.comm_end_s is None:
        return None
    return max(0.0, step.comm_end_s - step.backward_end_s)


def _title(step: OneStep, name: str) -> str:
    after = _after_s(step)
    if after is None:
        return first_short(f"{name}: a step of {milliseconds(step.length_s)} ms", "One step")
    what = (
        f"transfers outlast the last backward by {milliseconds(after)} ms"
        if after
        else "all transfers end before the last backward"
    )
    within = f"in a step of {milliseconds(step.length_s)} ms"
    return first_short(f"{name}: {what}, {within}", capital(f"{what}, {within}"))


def _caption(step: OneStep, row: Row, name: str) -> str:
    if step.events:
        clock = (
            "The ranks of this host share its monotonic clock; GPU times are CUDA events placed on it, each rank's "
            "by one event between two readings of the clock, whose distance was not recorded."
        )
    else:
        clock = (
            "All ranks are on one host and read the same monotonic clock: nothing had to be aligned, and there is "
            "no error of alignment."
        )
    omitted = ""
    if step.omitted:
        named = series_of([f"rank {lane.rank} ({lane.role})" for lane in step.lanes if lane.role])
        omitted = (
            f"Shown of {len(step.lanes) + len(step.omitted)} ranks: {named}, and always rank 0 and the one with the "
            f"longest step. Omitted: {_listed(step.omitted)}."
        )
    return captioned(
        setting_of(row),
        [
            *([omitted] if omitted else []),
            f"Instrumented step {step.step} of launch {step.round + 1}, whose",
            f"instrumented steps are the median of {counted(step.launches, 'launch', 'launches')}; of its {step.steps}",
            f"this one, {milliseconds(step.length_s)} ms, is nearest to their median,",
            f"{milliseconds(step.median_s)} ms. A step is as long as its longest rank's.",
            *([f"The last backward is rank {step.backward_rank}'s."] if _after_s(step) is not None else []),
            "A rank's upper lane: computation; white, where it waits for a transfer or works in no part that is",
            "timed. Its lower lane: transfers, each from",
            "when its bucket is ready (tick), through its queue (thin line) and waiting for other ranks, until its",
            "result is there.",
            clock,
        ],
        name=name,
        joint="; ",
    )


def _listed(ranks: Sequence[int]) -> str:
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    words = [f"{run[0]}" if len(run) == 1 else f"{run[0]} to {run[-1]}" for run in runs]
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {series_of(words)}"


def _name(transfer: Transfer, several: bool) -> str:
    return f"{transfer.op} {transfer.bucket}" if several else f"bucket {transfer.bucket}"


def _several(step: OneStep) -> bool:
    return len({transfer.op for lane in step.lanes for transfer in lane.transfers}) > 1


def _table(step: OneStep, row: Row) -> Table:
    lines = []
    for lane in step.lanes:
        start = (Cell.count(lane.rank),)
        lines += [
            (
                *start,
                Cell(text=name),
                Cell(text="", number=True),
                Cell(text="", number=True),
                Cell.ms(a),
                Cell.ms(b),
            )
            for name, a, b in lane.spans
        ]
        lines += [
            (
                *start,
                Cell(text=f"{one.op} of bucket {one.bucket}"),
                Cell(text=format_bytes(one.bytes), key=one.bytes, number=True),
                Cell.ms(one.ready_s),
                Cell.ms(one.begin_s),
                Cell.ms(one.end_s),
            )
            for one in lane.transfers
        ]
    columns = (
        Column("Rank", number=True),
        Column("What"),
        Column("Size", number=True),
        Column("Ready, ms", number=True),
        Column("From, ms", number=True),
        Column("To, ms", number=True),
    )
    return Table(
        caption=f"Step {step.step} of launch {step.round + 1}, {row.name}; ms from its earliest start",
        columns=columns,
        rows=tuple(lines),
    )


def _stacked(transfers: Sequence[Transfer]) -> list[int]:
    free = [float("-inf")] * MOST_ROWS
    rows = []
    for transfer in transfers:
        row = next((index for index, until in enumerate(free) if until <= transfer.ready_s), MOST_ROWS - 1)
        free[row] = max(free[row], transfer.end_s)
        rows.append(row)
    return rows


def _height(lane: Lane) -> float:
    return _COMPUTE_IN + _TRANSFER_IN * (1 + max(_stacked(lane.transfers), default=0))


def _paint(sheet: Sheet, *, step: OneStep) -> None:
    axes, ticks = _lanes(sheet, step, _WIDE)
    axes.set_yticks(ticks, ["\n".join(_rank(lane, step)) for lane in step.lanes])


def _paint_narrow(sheet: Sheet, *, step: OneStep) -> None:
    axes, ticks = _lanes(sheet, step, _NARROW)
    for middle, lane in zip(ticks, step.lanes, strict=True):
        axes.text(
            0.0,
            middle - _height(lane) / 2 - 0.03,
            ", ".join(_rank(lane, step)),
            transform=axes.get_yaxis_transform(),
            va="bottom",
            fontsize=style.NOTE_PT,
            bbox={"boxstyle": "square,pad=0.05", "facecolor": style.GROUND, "edgecolor": "none"},
            zorder=5,
        )
    axes.set_yticks([])
    axes.locator_params(axis="x", nbins=6)


def _rank(lane: Lane, step: OneStep) -> list[str]:
    """Describe a lane; the reason why the rank is shown is omitted if all ranks are."""
    mark = ", longest" if lane.rank == step.slowest and len(step.lanes) > 1 else ""
    return [
        f"rank {lane.rank}{mark}: {milliseconds(lane.length_s)} ms",
        *([lane.role] if lane.role else []),
    ]


def _lanes(sheet: Sheet, step: OneStep, frame: _Frame) -> tuple[Axes, list[float]]:
    body = frame.body_in(step)
    width = sheet.width_in - frame.left - frame.right
    axes = sheet.axes(frame.left, _BELOW_IN, width, body)
    end_ms = 1e3 * max([step.length_s, *(until for lane in step.lanes for _, _, until in lane.spans)])
    axes.set_xlim(0, end_ms * 1.005)
    axes.set_ylim(body, 0)
    per_in = end_ms / width
    middles = []
    at = frame.above
    several = _several(step)
    for index, lane in enumerate(step.lanes):
        middles.append(at + _height(lane) / 2)
        _compute(axes, lane, at, per_in)
        _communicate(axes, lane, at + _COMPUTE_IN, per_in, labels=index == 0, several=several)
        at += _height(lane) + frame.gap
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    axes.grid(visible=True, axis="x")
    axes.set_xlabel("ms from the earliest rank's start of the step")
    _mark_end(axes, step, end_ms, lines=frame.lines)
    _legend(sheet, step, frame.columns)
    return axes, middles


def _compute(axes: Axes, lane: Lane, top: float, per_in: float) -> None:
    for name, start, end in lane.spans:
        if name == _SYNCHRONIZE or end <= start:
            continue
        fill = style.PHASES[_PARTS.get(name, "other_compute")]
        title = f"rank {lane.rank}: {name} {milliseconds(end - start)} ms"
        _box(axes, fill, (1e3 * start, 1e3 * end), top, _COMPUTE_IN, title)
        ground = fill.colour if fill.hatch else None
        when = (1e3 * start, 1e3 * end)
        middle = top + _COMPUTE_IN / 2
        _inside(axes, [name], when, middle, per_in=per_in, ground=ground, colour=fill.ink)


def _communicate(axes: Axes, lane: Lane, top: float, per_in: float, *, labels: bool, several: bool) -> None:
    rows = _stacked(lane.transfers)
    for transfer, row in zip(lane.transfers, rows, strict=True):
        y = top + row * _TRANSFER_IN
        times = (transfer.ready_s, transfer.left_s, transfer.begin_s, transfer.end_s)
        ready, left, begin, end = (1e3 * value for value in times)
        if left > ready:
            _queue(axes, (ready, left), y + _TRANSFER_IN / 2)
        what = f"rank {lane.rank}, {_name(transfer, several)}, {format_bytes(transfer.bytes)}"
        if begin > left:
            title = f"{what}: waits {milliseconds(transfer.begin_s - transfer.left_s)} ms for other ranks"
            _box(axes, style.PHASES["exposed_wait"], (left, begin), y, _TRANSFER_IN, title)
        title = f"{what}: {milliseconds(transfer.end_s - transfer.begin_s)} ms"
        _box(axes, style.OVERLAPPED, (begin, end), y, _TRANSFER_IN, title)
        for start, until in lane.exposed:
            low, high = max(begin, 1e3 * start), min(end, 1e3 * until)
            if high > low:
                title = f"{what}: {milliseconds((high - low) / 1e3)} ms exposed"
                _box(axes, style.PHASES["exposed_comm"], (low, high), y, _TRANSFER_IN, title)
        axes.plot([ready, ready], [y - 0.04, y + _TRANSFER_IN], color=style.INK, linewidth=1.4, zorder=5)
        if labels:
            later = [one.ready_s for one, at in zip(lane.transfers, rows, strict=True) if at == row]
            free = min([1e3 * at for at in later if at > transfer.ready_s], default=axes.get_xlim()[1])
            number, size = _name(transfer, several), format_bytes(transfer.bytes)
            words = [f"{number}, {size}", number, str(transfer.bucket)]
            middle = y + _TRANSFER_IN / 2
            _ = (
                _inside(axes, words[:1], (begin, end), middle, per_in=per_in, ground="white")
                or _inside(axes, words[:2], (end, free), middle, per_in=per_in, ground="white", left=True)
                or _inside(axes, words[1:], (begin, end), middle, per_in=per_in, ground="white")
            )


def _queue(axes: Axes, when: tuple[float, float], y: float) -> None:
    axes.plot(when, [y, y], color=style.MUTED, linewidth=_QUEUE_PT, solid_capstyle="butt", zorder=2)


def _box(
    axes: Axes, fill: style.Fill, when: tuple[float, float], top: float, height: float, title: str
) -> None:
    block(axes, fill, when, centre=top + height / 2, height=height - 0.015, title=title)


def _inside(
    axes: Axes,
    words: Sequence[str],
    when: tuple[float, float],
    y: float,
    *,
    per_in: float,
    ground: str | None,
    left: bool = False,
    colour: str = style.INK,
) -> bool:
    """Write the first text that fits between two times, if any; `ground` colours a box over hatches."""
    from ddpbench.report.draw.lines import text_width_in

    room = (when[1] - when[0]) / per_in
    text = next((word for word in words if text_width_in(word, style.SMALLEST_PT) + 0.06 <= room), "")
    if not text:
        return False
    axes.text(
        when[0] + 0.04 * per_in if left else (when[0] + when[1]) / 2,
        y,
        text,
        ha="left" if left else "center",
        va="center",
        fontsize=style.SMALLEST_PT,
        color=colour,
        bbox={"boxstyle": "square,pad=0.1", "facecolor": ground, "edgecolor": "none"} if ground else None,
        zorder=6,
    )
    return True


def _mark_end(axes: Axes, step: OneStep, end_ms: float, *, lines: int) -> None:
    from ddpbench.report.draw.lines import text_width_in

    after = _after_s(step)
    if step.backward_end_s is None or after is None:
        return
    x = 1e3 * step.backward_end_s
    axes.axvline(x, color=style.INK, linewidth=1.0, linestyle=(0, (4, 2)), zorder=4)
    left = x > 0.45 * end_ms
    axes.annotate(
        f"last backward ends{chr(10) if lines > 1 else ' '}(rank {step.backward_rank}), "
        f"{milliseconds(step.backward_end_s)} ms",
        (x, 0.18 if lines == 1 else 0.22),
        xytext=(-4 if left else 4, 0),
        textcoords="offset points",
        ha="right" if left else "left",
        va="center",
        fontsize=style.NOTE_PT,
    )
    if after > 0:
        until = x + 1e3 * after
        y = 0.33 if lines == 1 else 0.45
        axes.plot([x, until], [y, y], color=style.PHASES["exposed_comm"].colour, linewidth=3, zorder=4)
        words = f"{milliseconds(after)} ms exposed"
        per_in = end_ms / (axes.bbox.width / axes.figure.dpi)
        fits_right = until + per_in * text_width_in(words, style.NOTE_PT + 1) < end_ms
        if not fits_right and x < per_in * text_width_in(words, style.NOTE_PT + 1):  # no room on either side
            y, fits_right, until = y + 0.09, True, x
        axes.annotate(
            words,
            (until if fits_right else x, y),
            xytext=(4 if fits_right else -4, 0),
            textcoords="offset points",
            ha="left" if fits_right else "right",
            va="center",
            fontsize=style.NOTE_PT,
            fontweight="bold",
        )


_READY, _QUEUED = "bucket ready", "in its queue"
_QUEUE_PT = 2.0


def _hidden_s(one: Transfer, lane: Lane) -> float:
    exposed = sum(max(0.0, min(one.end_s, end) - max(one.begin_s, start)) for start, end in lane.exposed)
    return one.end_s - one.begin_s - exposed


def _keys(step: OneStep) -> list[style.Fill | str]:
    spans = {
        _PARTS.get(name, "other_compute")
        for lane in step.lanes
        for name, _, _ in lane.spans
        if name != _SYNCHRONIZE
    }
    keys: list[style.Fill | str] = [fill for name, fill in style.PHASES.items() if name in spans]
    transfers = [one for lane in step.lanes for one in lane.transfers]
    if any(_hidden_s(one, lane) > _SHOWN * step.length_s for lane in step.lanes for one in lane.transfers):
        keys.append(style.OVERLAPPED)
    if any(lane.exposed for lane in step.lanes):
        keys.append(style.PHASES["exposed_comm"])
    if any(one.begin_s - one.left_s > _SHOWN * step.length_s for one in transfers):
        keys.append(style.PHASES["exposed_wait"])
    if transfers:
        keys.append(_READY)
    if any(one.left_s - one.ready_s > _SHOWN * step.length_s for one in transfers):
        keys.append(_QUEUED)
    return keys


def _legend(sheet: Sheet, step: OneStep, columns: int) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    handles: list[object] = []
    for key in _keys(step):
        if isinstance(key, style.Fill):
            handles.append(Patch(facecolor=key.colour, label=key.name, **key.outline))
        elif key == _QUEUED:
            handles.append(Line2D([], [], color=style.MUTED, linewidth=_QUEUE_PT, label=key))
        else:
            handles.append(
                Line2D(
                    [],
                    [],
                    color=style.INK,
                    marker="|",
                    markersize=8,
                    markeredgewidth=1.4,
                    linestyle="none",
                    label=key,
                )
            )
    sheet.legend(handles, columns=columns)
