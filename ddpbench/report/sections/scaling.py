"""The figure on scaling, with speed-up on the left and efficiency on the right."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING

from ddpbench.analysis.statistics.interval import Interval
from ddpbench.analysis.summary import DecidedClaim
from ddpbench.naming import Namer
from ddpbench.report.captions import (
    captioned,
    claimed_speedups,
    fullest,
    label_of,
    marks_of,
    not_shown,
    setting_of,
)
from ddpbench.report.draw import style
from ddpbench.report.draw.canvas import error_bars
from ddpbench.report.draw.lines import legend_lines
from ddpbench.report.draw.marks import describe, describe_points
from ddpbench.report.draw.scales import log_ticks
from ddpbench.report.drawn import split
from ddpbench.report.figure_texts import first_short
from ddpbench.report.parts import Cell, Column, Picture, Section, Table
from ddpbench.report.rows import Row
from ddpbench.report.series import Panel, Series, panels_of
from ddpbench.report.words import not_drawn, ranks, rounds_each, series_of, valued
from ddpbench.spec.grouping import launcher_name
from ddpbench.strategies.traits import traits_of
from ddpbench.units import format_two_digits

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from ddpbench.report.draw.sheet import Sheet


def section(claims: Sequence[DecidedClaim], rows: Sequence[Row]) -> Section:
    """Return the section on scaling, with a figure for each of the first groups of comparable cases."""
    by_id = {row.case_id: row for row in rows}
    panels = panels_of(rows)
    drawable = [panel for panel in panels if _can_draw(panel)]
    drawn, rest = split(drawable)
    absent = ""
    if not drawable:
        absent = _why_absent(rows)
    return Section(
        anchor="scaling",
        title="Scaling",
        question="How much of ideal survives when ranks are added?",
        pictures=tuple(_picture(panel, index, by_id, claims) for index, panel in enumerate(drawn)),
        notes=not_drawn([panel.name for panel in rest]),
        absent=absent,
    )


def _has(row: Row) -> bool:
    return row.ok and row.speedup is not None and row.efficiency is not None


def _can_draw(panel: Panel) -> bool:
    sizes = {row.case.world_size for row in panel.rows if _has(row)}
    return len(sizes) > 1 and bool(_series(panel)[0])


def _series(panel: Panel) -> tuple[list[Series], list[str]]:
    """Return a panel's series, and sentences on what is left out. The base case is the point (1, 1)."""
    # cases without a base case do not take the places of others
    kept = tuple(row for row in panel.rows if not row.ok or row.speedup is not None)
    series, notes = replace(panel, rows=kept).of_strategies()
    drawn = [item for item in series if item.traits.role != "base" and any(_has(row) for row in item.rows)]
    return drawn, notes


def _why_absent(rows: Sequence[Row]) -> str:
    sizes = sorted({row.case.world_size for row in rows})
    if len(sizes) == 1:
        return f"This sweep has one world size ({ranks(sizes[0])}), so no scaling can be shown."
    if not any(_has(row) for row in rows):
        return (
            "No case has a speed-up: it needs an ok launch of the case and of its base case in the same "
            "round. See Failures and exclusions."
        )
    return "No group of comparable cases has a speed-up at two or more world sizes."


def _picture(panel: Panel, index: int, by_id: Mapping[str, Row], claims: Sequence[DecidedClaim]) -> Picture:
    series, notes = _series(panel)
    shown = [row for item in series for row in item.rows if _has(row)]
    missing = {
        row.case_id: f"{row.name} ({row.status})" for item in series for row in item.rows if not _has(row)
    }
    heading = _title(panel, series)
    base_text = _base_text(shown, by_id)
    marks = marks_of(shown, missing, ground=panel.rows)
    caption = captioned(
        setting_of(fullest(shown)),
        [
            f"Whiskers: 95 % t-intervals ({rounds_each(r.speedup_rounds for r in shown)}); dotted: ideal.",
            *marks,
            *([base_text] if base_text else []),
            *notes,
            *_without_base(panel, by_id),
            *claimed_speedups(claims, shown),
            "Points are ratios to the base case within rounds; an interval is of each pair alone and includes the base",
            "case's own uncertainty. Lines only guide the eye and bridge no missing point.",
        ],
    )
    gap = "".join(f" {one}" for one in not_shown(missing))
    alt = (
        f"Two line charts of speed-up and efficiency (no unit) against number of ranks "
        f"for {series_of([item.name for item in series])}. {heading}. {_efficiencies(panel, series)}{gap}"
    )
    return Picture(
        file_name="scaling" if index == 0 else f"scaling-{index + 1}",
        heading=heading,
        caption=caption,
        alt=alt,
        table=_table(panel, series),
        width_in=style.FULL_WIDTH_IN,
        height_in=4.4,
        paint=partial(_paint, series=series, panel=panel),
        narrow=partial(_paint_narrow, series=series, panel=panel),
        narrow_in=(style.NARROW_WIDTH_IN, 5.9 + style.LEGEND_LINE_IN * _legend_lines(series)),
        label=label_of(shown),
        group=panel.name,
        missing=missing,
    )


def _base_text(shown: Sequence[Row], by_id: Mapping[str, Row]) -> str:
    over: dict[str, list[str]] = {}
    for row in shown:
        over.setdefault(row.baseline_case_id, []).append(row.strategy_name)
    bases = {base: by_id[base] for base in over if base in by_id and by_id[base].samples_per_s is not None}
    if not bases or len(bases) < len(over):
        return ""
    names = Namer(base.case for base in bases.values())
    words = [
        f"{names.spoken(row.case) if len(bases) > 1 else row.name}, {row.samples_per_s} samples/s"
        + (f" (of {series_of(list(dict.fromkeys(over[base])))})" if len(bases) > 1 else "")
        for base, row in bases.items()
    ]
    return f"Base case{'s' if len(bases) > 1 else ''}: {'; '.join(words)}."


def _without_base(panel: Panel, by_id: Mapping[str, Row]) -> list[str]:
    lacking: dict[str, list[str]] = {}
    for row in panel.rows:
        if row.ok and row.speedup is None and row.baseline_case_id not in ("", *by_id):
            lacking.setdefault(launcher_name(row.case), []).append(row.strategy_name)
    foreign = list(
        dict.fromkeys(
            row.strategy_name for row in panel.rows if row.ok and traits_of(row.case).engine != "torch"
        )
    )
    which = "their base cases are" if len(foreign) > 1 else "its base case is"
    return [
        *(
            f"No speed-up of {series_of(list(dict.fromkeys(names)))}: {launcher} started no base case in this run."
            for launcher, names in lacking.items()
        ),
        *([f"No speed-up of {series_of(foreign)}: {which} torch's."] if foreign else []),
    ]


def _eligible(panel: Panel, series: Sequence[Series]) -> list[tuple[Series, Row]]:
    eligible = [
        (item, row)
        for item in series
        if item.traits.exchanges
        for row in item.rows
        if _has(row) and row.case.world_size > 1 and row.case.world_size not in panel.oversubscribed_sizes
    ]
    most = max((row.case.world_size for _, row in eligible), default=0)
    return [pair for pair in eligible if pair[1].case.world_size == most]


def _title(panel: Panel, series: Sequence[Series]) -> str:
    eligible = _eligible(panel, series)
    if not eligible:
        if panel.oversubscribed_sizes:
            return "Every case above one rank ran oversubscribed: none is ranked"
        return "What ranks cost that exchange nothing"
    found = sorted(
        ((row.speedup, item.name) for item, row in eligible if row.speedup),
        key=lambda pair: -pair[0].value,
    )
    where = f"At {ranks(eligible[0][1].case.world_size)}"
    (best, fast), (least, slow) = found[0], found[-1]

    def times(speedup: Interval) -> str:
        return format_two_digits(speedup.value)

    if len(found) == 1:
        return first_short(
            f"{where} {fast} trains {times(best)} times as fast as one rank",
            f"{where} training is {times(best)} times as fast as with one rank",
        )
    listed = series_of([valued(name, times(speedup)) for speedup, name in found])
    return first_short(
        *(
            [f"{where} {fast} trains {times(best)} times as fast as one rank, {slow} {times(least)} times"]
            if len(found) == 2
            else []
        ),
        *([f"{where}, times as fast as one rank: {listed}"] if len(found) <= _MOST_MARKED else []),
        f"{where} training is {times(least)} ({slow}) to {times(best)} ({fast}) times as fast as one rank",
        f"{where} training is {times(least)} to {times(best)} times as fast as with one rank",
    )


_MOST_MARKED = 4
"""Maximum number of speed-ups in a title."""


def _efficiencies(panel: Panel, series: Sequence[Series]) -> str:
    eligible = _eligible(panel, series)
    if not eligible:
        return ""
    most = eligible[0][1].case.world_size
    best = sorted(
        ((item.name, row.efficiency) for item, row in eligible if row.efficiency),
        key=lambda pair: -pair[1].value,
    )
    listed = series_of([valued(name, estimate) for name, estimate in best[:3]])
    more = f" ({len(best) - 3} more beneath)" if len(best) > 3 else ""
    return f"Efficiency at {ranks(most)}: {listed}{more}."


def _table(panel: Panel, series: Sequence[Series]) -> Table:
    rows = tuple(
        (
            Cell(text=item.name),
            Cell.count(row.case.world_size),
            Cell.estimate(row.speedup if row.ok else None),
            Cell.estimate(row.efficiency if row.ok else None),
            Cell.count(row.speedup_rounds),
            Cell(text=row.badges),
        )
        for item in series
        for row in item.rows
    )
    columns = (
        Column("Series"),
        Column("Ranks", number=True),
        Column("Speed-up", number=True),
        Column("Efficiency", number=True),
        Column("Rounds of both", number=True),
        Column("Notes"),
    )
    name = f" ({panel.name})" if panel.name else ""
    return Table(caption=f"Speed-up and efficiency by number of ranks{name}", columns=columns, rows=rows)


def _paint(sheet: Sheet, *, series: Sequence[Series], panel: Panel) -> None:
    left = sheet.axes(0.5, 0.55, 3.7, 3.5)
    right = sheet.axes(4.75, 0.55, 2.85, 3.5)
    _label_ends(right, _paint_panels(left, right, series, panel))


def _paint_narrow(sheet: Sheet, *, series: Sequence[Series], panel: Panel) -> None:
    from matplotlib.lines import Line2D

    above = style.LEGEND_LINE_IN * _legend_lines(series)
    height = (sheet.height_in - above - 2.0) / 2
    width = sheet.width_in - 0.65
    left = sheet.axes(0.5, 1.5 + height, width, height)
    right = sheet.axes(0.5, 0.5, width, height)
    ends = _paint_panels(left, right, series, panel)
    if not ends:
        return
    most = max(size for *_, size in ends)
    title = Line2D([], [], linestyle="none", label=f"Efficiency at {ranks(int(most))}:")
    handles = [
        Line2D(
            [],
            [],
            linestyle="none",
            color=item.look.colour,
            marker=item.look.marker,
            markersize=5.5,
            markerfacecolor="white" if any(row.emulated for row in item.rows) else item.look.colour,
            markeredgecolor=item.look.outline or item.look.colour,
            label=_name_with_value(f"{item.name}{'' if size == most else f', {ranks(int(size))}'}", estimate),
        )
        for item, _, estimate, size in ends
    ]
    names = {str(handle.get_label()): item.name for handle, (item, *_) in zip(handles, ends, strict=True)}
    sheet.legend([title, *handles], columns=1, length=1.0, series=names)


_LEGEND_CHARACTERS = 50


def _legend_lines(series: Sequence[Series]) -> int:
    return 1 + legend_lines(f"{item.name}: 0.999" for item in series)


def _name_with_value(name: str, estimate: Interval) -> str:
    whole = f"{name}: {estimate}"
    return whole if len(whole) <= _LEGEND_CHARACTERS else f"{name}: {estimate.number}"


def _paint_panels(
    left: Axes, right: Axes, series: Sequence[Series], panel: Panel
) -> list[tuple[Series, float, Interval, float]]:
    sizes = panel.world_sizes
    _paint_speedup(left, series, sizes, panel.oversubscribed_sizes)
    ends = _paint_efficiency(right, series, sizes, panel.oversubscribed_sizes)
    for axes in (left, right):
        axes.set_xlabel("ranks")
        axes.grid(visible=True, axis="y")
    left.set_title("Speed-up over the base case (log scales)")
    right.set_title("Efficiency (ideal is 1)")
    return ends


def _plot(
    axes: Axes,
    xs: Sequence[float],
    item: Series,
    estimates: Sequence[Interval | None],
    sizes: Sequence[int],
    what: str,
) -> None:
    look = item.look
    ys = [e.value if e else math.nan for e in estimates]
    (line,) = axes.plot(xs, ys, color=look.ink, linewidth=0.9, zorder=2)
    describe(line, item.name)
    emulated = any(row.emulated for row in item.rows)
    drawn = axes.errorbar(
        xs,
        ys,
        yerr=error_bars(estimates),
        fmt=look.marker,
        color=look.colour,
        ecolor=look.ink,
        markersize=6,
        markerfacecolor="white" if emulated else look.colour,
        markeredgecolor=look.outline or look.colour,
        markeredgewidth=0.8,
        elinewidth=1.2,
        capsize=2.5,
        zorder=3,
    )
    titles = (f"{item.name}, {ranks(n)}: {what} {e}" for n, e in zip(sizes, estimates, strict=True) if e)
    describe_points(drawn, item.name, *titles)


def _on_grid(
    item: Series, sizes: Sequence[int], value: Callable[[Row], Interval | None]
) -> list[Interval | None]:
    by_size = {row.case.world_size: value(row) for row in item.rows if _has(row)}
    return [by_size.get(size) for size in sizes]


_APART = 0.05
"""Distance along x, in octaves (factors of two), between points that would otherwise hide each other. It is small, so
that points do not seem to leave the ideal line.
"""


def _overlap(lines: Sequence[Sequence[Interval | None]]) -> bool:
    for column in zip(*lines, strict=True):
        known = [(e.low or e.value, e.high or e.value) for e in column if e]
        for low, high in known:
            if sum(one <= high and other >= low for one, other in known) > 2:
                return True
    return False


_LEAST_HALF = -2
"""An axis of speed-ups has its ticks at powers of two if the smallest of these powers has at least this exponent.
Otherwise `log_ticks` chooses the ticks.
"""


def _paint_speedup(
    axes: Axes, series: Sequence[Series], sizes: Sequence[int], oversubscribed: Sequence[int]
) -> None:
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    values: list[float] = [1.0, float(sizes[-1])]
    apart = _APART if _overlap([_on_grid(item, sizes, lambda row: row.speedup) for item in series]) else 0.0
    for index, item in enumerate(series):
        estimates = _on_grid(item, sizes, lambda row: row.speedup)
        shift = 2 ** (apart * (index - (len(series) - 1) / 2))
        _plot(axes, [size * shift for size in sizes], item, estimates, sizes, "speed-up")
        values += [bound for e in estimates if e for bound in (e.value, e.low, e.high) if bound and bound > 0]
    low, high = min(values) / 1.2, max(values) * 1.3
    axes.plot([low, high], [low, high], ":", color=style.MUTED, linewidth=1.2, zorder=1)
    middle = math.sqrt(sizes[0] * sizes[-1])
    axes.annotate(
        "ideal",
        (middle, middle),
        xytext=(-4, 1),
        textcoords="offset points",
        ha="right",
        va="bottom",
        fontsize=style.NOTE_PT,
        color=style.MUTED,
    )
    for first, last in _runs(sizes, oversubscribed):
        axes.axvspan(first / 1.3, last * 1.3, color=style.OVERSUBSCRIBED_GROUND, linewidth=0, zorder=0)
    axes.set_xlim(sizes[0] / 1.25, sizes[-1] * 1.35)
    axes.set_ylim(low, high)
    axes.xaxis.set_major_locator(FixedLocator([float(size) for size in _thinned(sizes)]))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    exponents = range(math.ceil(math.log2(low)), math.floor(math.log2(high)) + 1)
    height_in = axes.bbox.height / axes.figure.dpi
    rounded = exponents[0] >= _LEAST_HALF  # labels of smaller powers of two would have many digits
    ticks = [2.0**each for each in exponents] if rounded else log_ticks(low, high, height_in, along=False)
    axes.yaxis.set_major_locator(FixedLocator(ticks))
    axes.yaxis.set_major_formatter(
        FuncFormatter(lambda value, _: f"{value:,g}" if value >= 1 else f"{value:.2g}")
    )
    axes.xaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_minor_locator(NullLocator())


def _runs(sizes: Sequence[int], oversubscribed: Sequence[int]) -> list[tuple[int, int]]:
    runs: list[tuple[int, int]] = []
    for before, size in zip((0, *sizes), sizes, strict=False):
        if size in oversubscribed:
            joined = bool(runs) and runs[-1][1] == before
            runs[-1:] = [(runs[-1][0], size)] if joined else [*runs[-1:], (size, size)]
    return runs


def _thinned(sizes: Sequence[int]) -> list[int]:
    if len(sizes) <= 8:
        return list(sizes)
    return [size for size in sizes if size & (size - 1) == 0] or list(sizes[:: len(sizes) // 8 + 1])


def _paint_efficiency(
    axes: Axes, series: Sequence[Series], sizes: Sequence[int], oversubscribed: Sequence[int]
) -> list[tuple[Series, float, Interval, float]]:
    logs = [math.log2(size) for size in sizes]
    gaps = [after - before for before, after in pairwise(logs)] or [1.0]
    step = min(0.09, 0.5 * min(gaps) / max(len(series), 1))
    top = 1.05
    ends: list[tuple[Series, float, Interval, float]] = []
    for index, item in enumerate(series):
        shift = (index - (len(series) - 1) / 2) * step
        estimates = _on_grid(item, sizes, lambda row: row.efficiency)
        xs = [log + shift for log in logs]
        _plot(axes, xs, item, estimates, sizes, "efficiency")
        top = max([top, *(1.05 * (e.high or e.value) for e in estimates if e)])
        # a series is labelled at its last point that is not oversubscribed, if it has one
        spoken = [i for i, e in enumerate(estimates) if e]
        fair = [i for i in spoken if sizes[i] not in oversubscribed]
        last = max(fair or spoken, default=None)
        if last is not None:
            estimate = estimates[last]
            assert estimate is not None
            ends.append((item, xs[last], estimate, sizes[last]))
    axes.axhline(1, linestyle=":", color=style.MUTED, linewidth=1.2, zorder=1)
    half = 0.4 * min(gaps)
    # at the bottom of the axes, or beneath the ideal line if points are at the bottom
    lows = [
        e.low or e.value for item in series for e in _on_grid(item, sizes, lambda row: row.efficiency) if e
    ]
    place = 0.02 if min(lows, default=1.0) > 0.08 * top else 0.88
    for first, last in _runs(sizes, oversubscribed):
        start, end = math.log2(first) - half, math.log2(last) + half
        axes.axvspan(start, end, color=style.OVERSUBSCRIBED_GROUND, linewidth=0, zorder=0)
        axes.text(
            (start + end) / 2,
            place,
            "oversubscribed",
            transform=axes.get_xaxis_transform(),
            ha="center",
            va="bottom",
            fontsize=style.SMALLEST_PT,
            color=style.INK,
        )
    axes.set_xlim(logs[0] - 0.4, logs[-1] + 0.5)
    axes.set_ylim(0, top)
    shown = _thinned(sizes)
    axes.set_xticks([math.log2(size) for size in shown], [str(size) for size in shown])
    return ends


def _in_lines(item: Series) -> str:
    """Split a long name into strategy and variant; a line that is still too long loses its middle."""
    variant = item.words
    if len(item.name) <= 26 or not variant:
        return _middle_out(item.name)
    return f"{_middle_out(item.rows[0].strategy_name)}\n{_middle_out(variant)}"


def _middle_out(words: str) -> str:
    return words if len(words) <= 26 else f"{words[:11]}…{words[-14:]}"


def _label_ends(axes: Axes, ends: Sequence[tuple[Series, float, Interval, float]]) -> None:
    from ddpbench.report.draw.canvas import spread

    if not ends:
        return
    top = axes.get_ylim()[1]
    most = max(size for *_, size in ends)
    axes.text(
        1.09,
        1.025,
        f"at {ranks(int(most))}",
        transform=axes.transAxes,
        fontsize=style.LABEL_PT,
        fontweight="bold",
    )
    names = [_in_lines(item) for item, *_ in ends]
    low, high = 0.04, 0.97
    gap = min(0.16 if any("\n" in name for name in names) else 0.115, (high - low) / max(len(ends) - 1, 1))
    places = spread([estimate.value / top for _, _, estimate, _ in ends], gap=gap, low=low, high=high)
    for (item, x, estimate, size), name, place in zip(ends, names, places, strict=True):
        look = item.look
        leader = axes.annotate(
            "",
            xy=(x, estimate.value),
            xytext=(1.03, place),
            textcoords="axes fraction",
            arrowprops={
                "arrowstyle": "-",
                "color": look.ink,
                "linewidth": 0.6,
                "alpha": 0.6,
                "shrinkA": 0,
                "shrinkB": 4,
            },
        )
        (sign,) = axes.plot(
            [1.05],
            [place],
            look.marker,
            transform=axes.transAxes,
            clip_on=False,
            color=look.colour,
            markeredgecolor=look.outline or look.colour,
            markerfacecolor="white" if any(row.emulated for row in item.rows) else look.colour,
            markersize=5.5,
        )
        at = "" if size == most else f"{', ' if len(name) < 17 else chr(10)}{ranks(int(size))}"
        label = axes.text(
            1.09,
            place,
            f"{name}{at}\n{estimate}",
            transform=axes.transAxes,
            va="center",
            fontsize=style.NOTE_PT,
            linespacing=1.15,
        )
        for artist in (leader.arrow_patch, sign, label):
            if artist is not None:
                describe(artist, item.name)
