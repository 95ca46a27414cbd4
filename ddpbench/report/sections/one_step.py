"""The picture of one step: two lanes a rank on one clock. Why is communication exposed?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from ddpbench.analysis.steps.one_step import Lane, OneStep, Transfer
from ddpbench.analysis.summary import RunSummary
from ddpbench.report.captions import label_of, setting_of
from ddpbench.report.draw import style
from ddpbench.report.parts import Cell, Column, Picture, Section, Table
from ddpbench.report.rows import Row
from ddpbench.report.words import milliseconds, series_of
from ddpbench.units import counted, format_bytes

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from ddpbench.report.draw.canvas import Sheet

MOST_ROWS = 4
"""Transfers under way at once are drawn beneath each other, up to so many."""
_LEFT_IN, _RIGHT_IN = 1.05, 0.2
_ABOVE_IN, _COMPUTE_IN, _TRANSFER_IN, _GAP_IN = 0.46, 0.24, 0.19, 0.2
_SYNCHRONIZE = "synchronize"
_PARTS: Mapping[str, str] = {
    "forward": "forward",
    "backward": "backward",
    "optimizer": "optimizer",
    "data": "data",
}


def section(summary: RunSummary, rows: Sequence[Row]) -> Section:
    """Return the section on one step, or why there is none to draw."""
    told = summary.one_step
    row = next((row for row in rows if told is not None and row.case_id == told.case_id), None)
    absent = summary.one_step_absent or "No step of this run was instrumented."
    return Section(
        anchor="one-step",
        title="One step",
        question="Why is communication exposed?",
        pictures=() if told is None or row is None else (_picture(told, row),),
        absent=absent if told is None or row is None else "",
    )


def _picture(told: OneStep, row: Row) -> Picture:
    heading = _heading(told, row)
    names = ["forward", "backward", "transfers hidden and exposed", "waits for other ranks"]
    return Picture(
        file_name="one-step",
        heading=heading,
        caption=_caption(told, row),
        alt=(
            f"Timeline of one step, ms, for {counted(len(told.lanes), 'rank')} of {row.name}: {series_of(names)}. "
            f"{heading}."
        ),
        table=_table(told, row),
        width_in=style.FULL_WIDTH_IN,
        height_in=_ABOVE_IN + sum(_height(lane) + _GAP_IN for lane in told.lanes) + 0.85,
        paint=partial(_paint, told=told),
        label=label_of([row]),
        missing={},
    )


def _after_s(told: OneStep) -> float | None:
    """Return how long transfers went on after the slowest backward; None where one of the two is unknown."""
    if told.backward_end_s is None or told.comm_end_s is None:
        return None
    return max(0.0, told.comm_end_s - told.backward_end_s)


def _heading(told: OneStep, row: Row) -> str:
    after = _after_s(told)
    start = f"{row.name}: a step of {milliseconds(told.length_s)} ms"
    if after is None:
        return start
    if after == 0:
        return f"{start}, all transfers done before the slowest backward ends"
    return f"{start}; transfers go on for {milliseconds(after)} ms after the slowest backward"


def _caption(told: OneStep, row: Row) -> str:
    if told.events:
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
    if told.omitted:
        roles = series_of([f"rank {lane.rank} ({lane.role})" for lane in told.lanes if lane.role])
        omitted = (
            f"Shown of {len(told.lanes) + len(told.omitted)} ranks, by how long they computed: {roles}; rank 0 "
            f"always. Omitted: {_listed(told.omitted)}."
        )
    return " ".join(
        word
        for word in (
            f"{row.name}; {setting_of(row)}. Instrumented step {told.step} of launch {told.round + 1}, which has the",
            f"median step of {counted(told.launches, 'launch', 'launches')}; of its {told.steps} instrumented steps",
            f"this one, {milliseconds(told.length_s)} ms on its slowest rank, is nearest to their median,",
            f"{milliseconds(told.median_s)} ms. A rank's upper lane: computation. Its lower lane: transfers, each from",
            "when its bucket is ready (tick), through its queue (thin line) and waiting for other ranks, until its",
            "result is there.",
            clock,
            omitted,
        )
        if word
    )


def _listed(ranks: Sequence[int]) -> str:
    """Ranks, with runs of neighbours drawn together: `1 to 4 and 6`."""
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


def _several(told: OneStep) -> bool:
    """Return whether transfers must be told apart by their operation."""
    return len({transfer.op for lane in told.lanes for transfer in lane.transfers}) > 1


def _table(told: OneStep, row: Row) -> Table:
    lines = []
    for lane in told.lanes:
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
        caption=f"Step {told.step} of launch {told.round + 1}, {row.name}; ms from its earliest start",
        columns=columns,
        rows=tuple(lines),
    )


def _stacked(transfers: Sequence[Transfer]) -> list[int]:
    """For each transfer the row it is drawn in, so that those under way at once do not cover each other."""
    free = [float("-inf")] * MOST_ROWS
    rows = []
    for transfer in transfers:
        row = next((index for index, until in enumerate(free) if until <= transfer.ready_s), MOST_ROWS - 1)
        free[row] = max(free[row], transfer.end_s)
        rows.append(row)
    return rows


def _height(lane: Lane) -> float:
    return _COMPUTE_IN + _TRANSFER_IN * (1 + max(_stacked(lane.transfers), default=0))


def _paint(sheet: Sheet, *, told: OneStep) -> None:
    body = sheet.height_in - 0.85
    width = sheet.width_in - _LEFT_IN - _RIGHT_IN
    axes = sheet.axes(_LEFT_IN, 0.45, width, body)
    end_ms = 1e3 * max([told.length_s, *(until for lane in told.lanes for _, _, until in lane.spans)])
    axes.set_xlim(0, end_ms * 1.005)
    axes.set_ylim(body, 0)
    per_in = end_ms / width
    ticks = []
    at = _ABOVE_IN
    several = _several(told)
    for index, lane in enumerate(told.lanes):
        ticks.append(at + _height(lane) / 2)
        _compute(axes, lane, at, per_in)
        _communicate(axes, lane, at + _COMPUTE_IN, per_in, labels=index == 0, several=several)
        at += _height(lane) + _GAP_IN
    names = [
        f"rank {lane.rank}{f' ({lane.role})' if lane.role else ''}".replace(" (", "\n(")
        for lane in told.lanes
    ]
    axes.set_yticks(ticks, names)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    axes.grid(visible=True, axis="x")
    axes.set_xlabel("ms from the earliest rank's start of the step")
    _mark_end(axes, told, end_ms)
    _legend(sheet, told)


def _compute(axes: Axes, lane: Lane, top: float, per_in: float) -> None:
    for name, start, end in lane.spans:
        if name == _SYNCHRONIZE or end <= start:
            continue
        fill = style.PHASES[_PARTS.get(name, "other_compute")]
        _box(axes, fill, (1e3 * start, 1e3 * end), top, _COMPUTE_IN)
        ground = fill.colour if fill.hatch else None
        when = (1e3 * start, 1e3 * end)
        _inside(axes, [name], when, top + _COMPUTE_IN / 2, per_in=per_in, ground=ground)


def _communicate(axes: Axes, lane: Lane, top: float, per_in: float, *, labels: bool, several: bool) -> None:
    rows = _stacked(lane.transfers)
    for transfer, row in zip(lane.transfers, rows, strict=True):
        y = top + row * _TRANSFER_IN
        times = (transfer.ready_s, transfer.left_s, transfer.begin_s, transfer.end_s)
        ready, left, begin, end = (1e3 * value for value in times)
        if left > ready:  # in its queue: nothing but a line
            axes.plot([ready, left], [y + _TRANSFER_IN / 2] * 2, color=style.MUTED, linewidth=0.8, zorder=2)
        if begin > left:
            _box(axes, style.PHASES["exposed_wait"], (left, begin), y, _TRANSFER_IN)
        _box(axes, style.OVERLAPPED, (begin, end), y, _TRANSFER_IN)
        for start, until in lane.exposed:
            low, high = max(begin, 1e3 * start), min(end, 1e3 * until)
            if high > low:
                _box(axes, style.PHASES["exposed_comm"], (low, high), y, _TRANSFER_IN)
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


def _box(axes: Axes, fill: style.Fill, when: tuple[float, float], top: float, height: float) -> None:
    start, end = when
    axes.barh(
        top + height / 2,
        end - start,
        left=start,
        height=height - 0.015,
        color=fill.colour,
        **fill.outline,
        zorder=2,
    )


def _inside(
    axes: Axes,
    words: Sequence[str],
    when: tuple[float, float],
    y: float,
    *,
    per_in: float,
    ground: str | None,
    left: bool = False,
) -> bool:
    """Writes the first of the words that fits between two times, if one does; a ground keeps hatches off it."""
    from ddpbench.report.draw.canvas import text_width_in

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
        bbox={"boxstyle": "square,pad=0.1", "facecolor": ground, "edgecolor": "none"} if ground else None,
        zorder=6,
    )
    return True


def _mark_end(axes: Axes, told: OneStep, end_ms: float) -> None:
    """The end of the slowest backward across all lanes, and how long transfers go on after it."""
    after = _after_s(told)
    if told.backward_end_s is None or after is None:
        return
    x = 1e3 * told.backward_end_s
    axes.axvline(x, color=style.INK, linewidth=1.0, linestyle=(0, (4, 2)), zorder=4)
    left = x > 0.45 * end_ms
    axes.annotate(
        f"slowest backward ends (rank {told.backward_rank}), {milliseconds(told.backward_end_s)} ms",
        (x, 0.18),
        xytext=(-4 if left else 4, 0),
        textcoords="offset points",
        ha="right" if left else "left",
        va="center",
        fontsize=style.NOTE_PT,
    )
    if after > 0:
        until = x + 1e3 * after
        axes.plot([x, until], [0.33, 0.33], color=style.PHASES["exposed_comm"].colour, linewidth=3, zorder=4)
        beside = until < 0.8 * end_ms
        axes.annotate(
            f"{milliseconds(after)} ms exposed",
            (until if beside else x, 0.33),
            xytext=(4 if beside else -4, 0),
            textcoords="offset points",
            ha="left" if beside else "right",
            va="center",
            fontsize=style.NOTE_PT,
            fontweight="bold",
        )


def _legend(sheet: Sheet, told: OneStep) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    spans = {
        _PARTS.get(name, "other_compute")
        for lane in told.lanes
        for name, _, _ in lane.spans
        if name != _SYNCHRONIZE
    }
    fills = [fill for name, fill in style.PHASES.items() if name in spans]
    transfers = [one for lane in told.lanes for one in lane.transfers]
    if transfers:
        fills.append(style.OVERLAPPED)
    if any(lane.exposed for lane in told.lanes):
        fills.append(style.PHASES["exposed_comm"])
    if any(one.begin_s > one.left_s for one in transfers):
        fills.append(style.PHASES["exposed_wait"])
    handles: list[object] = [Patch(facecolor=fill.colour, label=fill.name, **fill.outline) for fill in fills]
    if transfers:
        tick = Line2D(
            [],
            [],
            color=style.INK,
            marker="|",
            markersize=8,
            markeredgewidth=1.4,
            linestyle="none",
            label="bucket ready",
        )
        handles.append(tick)
    sheet.legend(handles, columns=5)
