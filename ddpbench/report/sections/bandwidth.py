"""The figure of step time by bandwidth, which shows what a faster link gains and whether it changes the best choice."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from ddpbench.analysis.sentences import capital
from ddpbench.analysis.statistics.estimands import MEDIAN
from ddpbench.analysis.statistics.interval import Interval
from ddpbench.analysis.statistics.judgement import BEST, Standing
from ddpbench.report.captions import captioned, label_but_links, setting_but_links
from ddpbench.report.draw import style
from ddpbench.report.draw.canvas import error_bars
from ddpbench.report.draw.lines import legend_lines
from ddpbench.report.draw.marks import describe, describe_points
from ddpbench.report.figure_texts import first_short
from ddpbench.report.parts import Cell, Column, Picture, Table
from ddpbench.report.rows import Row
from ddpbench.report.series import MOST_SERIES, Series, variant_words
from ddpbench.report.words import launches_each, series_of
from ddpbench.spec import grouping
from ddpbench.spec.grouping import cap_order
from ddpbench.spec.links import but_rate, links_of, short_links
from ddpbench.units import format_bit_rate, format_two_digits, in_prefix

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from ddpbench.report.draw.sheet import Sheet

MIN_RATES = 3
"""Minimum number of bandwidths for a plot over bandwidth. Fewer are drawn as categories."""


_PHONE_PANEL_IN = 3.2


def _rate(row: Row) -> float | None:
    links = links_of(row.case.fabric)
    return links.bandwidth[0] if links is not None and len(links.bandwidth) == 1 else None


def _rates(rows: Sequence[Row]) -> list[float]:
    return sorted({rate for rate in map(_rate, rows) if rate is not None})


def by_rate(rows: Sequence[Row]) -> list[list[Series]]:
    """Return groups of series to plot over bandwidth, with a series for each strategy and bucket cap.

    Each series has three or more bandwidths. Groups with the most cases come first, then those with the most ranks.
    """
    groups: dict[tuple[Any, ...], dict[tuple[Any, ...], list[Row]]] = {}
    for row in rows:
        if _rate(row) is not None and not row.oversubscribed:
            case = row.case
            place = (
                grouping.panel(case, but=("fabric",)),
                case.world_size,
                case.nodes,
                but_rate(case.fabric),
            )
            kind = (grouping.variant(case), case.bucket_cap_mb)
            groups.setdefault(place, {}).setdefault(kind, []).append(row)
    found: list[list[Series]] = []
    for by_variant in groups.values():
        long = {key: members for key, members in by_variant.items() if len(members) >= MIN_RATES}
        if not long:
            continue
        every = [row for members in long.values() for row in members]
        words = variant_words(every, layouts=False)
        strategies = {row.case.strategy for row in every}
        lines = []
        ordered = sorted(long.values(), key=lambda members: cap_order(members[0].case.bucket_cap_mb))
        seen: dict[str, int] = {}
        for members in ordered:
            first = members[0]
            caps = {row.case.bucket_cap_mb for row in every if row.case.strategy == first.case.strategy}
            named = [first.strategy_name] if len(strategies) > 1 or len(caps) == 1 else []
            named += [words[first.case_id]]
            named += [first.bucket_name] if len(caps) > 1 else []
            variant = seen[first.case.strategy] = seen.get(first.case.strategy, -1) + 1
            lines.append(
                Series(
                    name=" ".join(filter(None, named)),
                    strategy=first.case.strategy,
                    variant=variant,
                    rows=tuple(sorted(members, key=lambda row: _rate(row) or 0.0)),
                )
            )
        found.append(lines[:MOST_SERIES])
    found.sort(key=lambda lines: (-sum(len(line.rows) for line in lines), -lines[0].rows[0].case.world_size))
    return found


def name_of(lines: Sequence[Series]) -> str:
    """Describe the settings that all series of a figure share."""
    row = lines[0].rows[0]
    return row.names.short(row.case, (), layouts=False)


def of_caps(lines: Sequence[Series]) -> bool:
    """Return whether all series are of one strategy and differ in the bucket cap."""
    kinds = {(row.case.strategy, *row.variant) for line in lines for row in line.rows}
    return len(kinds) == 1 and lines[0].rows[0].case.bucket_cap_mb is not None


def picture(lines: Sequence[Series], index: int, standings: Mapping[str, Standing]) -> Picture:
    """Return the figure of step time by bandwidth for one group of `by_rate`; `index` counts the figures from 0.

    `standings`, by case id, are from comparisons of cases with the same links.
    """
    shown = [row for line in lines for row in line.rows]
    heading = _title(lines, standings)
    efficient = any(row.efficiency is not None for row in shown)
    each = launches_each(row.launches for row in shown)
    caption = captioned(
        setting_but_links(shown),
        [
            f"Left: step time, {MEDIAN}; whiskers: 95 % intervals over launches ({each}).",
            *(["Square: the shortest step at its bandwidth."] if len(lines) > 1 else []),
            "Hollow markers: emulated links.",
            *(["Right: efficiency over single at one rank, which uses no link."] if efficient else []),
            "Both axes on the left are logarithmic. A marker hides shorter whiskers. Lines only guide the eye.",
        ],
        name=name_of(lines),
    )
    rates = series_of([format_bit_rate(rate) for rate in _rates(shown)])
    return Picture(
        file_name="links" if index == 0 else f"links-{index + 1}",
        heading=heading,
        caption=caption,
        alt=(
            f"Line charts of step time, ms, and efficiency against the bandwidth of each node's link ({rates}) for "
            f"{series_of([line.name for line in lines])}. {heading}."
        ),
        table=_table(lines),
        width_in=style.FULL_WIDTH_IN,
        height_in=4.0,
        paint=partial(_paint, lines=lines),
        narrow=partial(_paint_narrow, lines=lines),
        narrow_in=(
            style.NARROW_WIDTH_IN,
            0.1
            + style.LEGEND_LINE_IN * legend_lines(line.name for line in lines)
            + _PHONE_PANEL_IN * (1 + _efficient(lines)),
        ),
        missing={},
        label=label_but_links(shown[0]),
    )


def _title(lines: Sequence[Series], standings: Mapping[str, Standing]) -> str:
    slow, *_, fast = _rates([row for line in lines for row in line.rows])
    ends = f"at {format_bit_rate(slow)} as at {format_bit_rate(fast)}"
    if len(lines) > 1:
        first, last = (_shown_best(lines, rate, standings) for rate in (fast, slow))
        what = " buckets" if of_caps(lines) else ""
        names = [f"{line.name}{what}" for line in (first, last) if line is not None]
        if len(names) < 2:
            kind = "bucket cap" if what else "case"
            return f"Which {kind} is best is not decided both at {format_bit_rate(fast)} and at {format_bit_rate(slow)}"
        if names[0] != names[1]:
            return first_short(
                f"The best moves from {names[0]} at {format_bit_rate(fast)} to {names[1]} at "
                f"{format_bit_rate(slow)}",
                f"Another case is best at {format_bit_rate(fast)} than at {format_bit_rate(slow)}",
            )
        verb = "are" if what else "is"
        return first_short(
            f"{names[0]} {verb} best at {format_bit_rate(fast)} and at {format_bit_rate(slow)}",
            f"The same case is best at {format_bit_rate(fast)} and at {format_bit_rate(slow)}",
        )
    times = {_rate(row): row.step_time_s.value for row in lines[0].rows if row.step_time_s is not None}
    longer = f"a step takes {format_two_digits(times[slow] / times[fast])} times as long {ends}"
    return first_short(f"{lines[0].name}: {longer}", capital(longer))


def _shown_best(lines: Sequence[Series], rate: float, standings: Mapping[str, Standing]) -> Series | None:
    return next(
        (
            line
            for line in lines
            for row in line.rows
            if _rate(row) == rate and row.case_id in standings and standings[row.case_id].verdict == BEST
        ),
        None,
    )


def _shortest(lines: Sequence[Series], rate: float) -> Series | None:
    at = [
        (row.step_time_s.value, line)
        for line in lines
        for row in line.rows
        if _rate(row) == rate and row.step_time_s is not None
    ]
    return min(at, key=lambda pair: pair[0])[1] if at else None


def _table(lines: Sequence[Series]) -> Table:
    columns = (
        Column("Series"),
        Column("Link"),
        Column("Step, ms", number=True),
        Column("Efficiency", number=True),
        Column("Launches", number=True),
        Column("Notes"),
    )
    rows = tuple(
        (
            Cell(text=line.name),
            Cell(text=short_links(row.case.fabric), key=_rate(row)),
            Cell.estimate(row.step_time_s.scaled(1e3) if row.step_time_s else None),
            Cell.estimate(row.efficiency),
            Cell.count(row.launches),
            Cell(text=row.badges),
        )
        for line in lines
        for row in line.rows
    )
    return Table(
        caption=f"Step time and efficiency by bandwidth of each node's link, {name_of(lines)}",
        columns=columns,
        rows=rows,
    )


def _paint(sheet: Sheet, *, lines: Sequence[Series]) -> None:
    efficient = _efficient(lines)
    height = sheet.height_in - 0.85
    left = sheet.axes(0.75, 0.55, 3.35 if efficient else 6.4, height)
    _paint_step_times(left, lines)
    if not efficient:
        _name_lines(left, lines, _step_ms)
        return
    right = sheet.axes(4.85, 0.55, 3.05, height)
    _paint_efficiencies(right, lines)
    _name_lines(right, lines, lambda row: row.efficiency)


def _paint_narrow(sheet: Sheet, *, lines: Sequence[Series]) -> None:
    from matplotlib.lines import Line2D

    above = 0.1 + style.LEGEND_LINE_IN * legend_lines(line.name for line in lines)
    painters = [_paint_step_times, *([_paint_efficiencies] if _efficient(lines) else [])]
    high = (sheet.height_in - above) / len(painters)
    for index, paint in enumerate(reversed(painters)):
        paint(sheet.axes(0.65, index * high + 0.5, sheet.width_in - 0.8, high - 0.8), lines)
    handles = [
        Line2D(
            [],
            [],
            color=line.look.colour,
            marker=line.look.marker,
            markerfacecolor="white",
            markeredgecolor=line.look.outline or line.look.colour,
            markersize=5.5,
            label=line.name,
        )
        for line in lines
    ]
    sheet.legend(handles, columns=1)


def _efficient(lines: Sequence[Series]) -> bool:
    return any(row.efficiency is not None for line in lines for row in line.rows)


def _paint_step_times(axes: Axes, lines: Sequence[Series]) -> None:
    from ddpbench.report.draw.canvas import decades

    shown = [row for line in lines for row in line.rows]
    axes.set_title("step time")
    axes.set_yscale("log")
    axes.set_xscale("log")
    for line in lines:
        _line(axes, line, _step_ms, " ms")
    _finish_rates(axes, _rates(shown))
    decades(axes, _step_times_ms(shown))
    axes.set_ylabel("ms")
    if len(lines) > 1:
        _mark_shortest(axes, lines, _rates(shown))


def _paint_efficiencies(axes: Axes, lines: Sequence[Series]) -> None:
    shown = [row for line in lines for row in line.rows]
    axes.set_title("efficiency (ideal is 1)")
    axes.set_xscale("log")
    for line in lines:
        _line(axes, line, lambda row: row.efficiency, " efficiency")
    _finish_rates(axes, _rates(shown))
    top = max(row.efficiency.high or row.efficiency.value for row in shown if row.efficiency is not None)
    axes.set_ylim(0, max(1.05, 1.05 * top))
    axes.axhline(1, linestyle=":", color=style.MUTED, linewidth=1.2, zorder=1)


def _finish_rates(axes: Axes, rates: Sequence[float]) -> None:
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    axes.set_xlim(rates[0] / 1.3, rates[-1] * 1.3)
    axes.xaxis.set_major_locator(FixedLocator(rates))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: _short_rate(value)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlabel("each node's link, bit/s")
    axes.grid(visible=True, axis="y")


def _step_times_ms(shown: Sequence[Row]) -> list[float]:
    """Return the step times of all cases and the ends of their intervals, ms."""
    return [
        1e3 * value
        for row in shown
        if row.step_time_s is not None
        for value in (row.step_time_s.value, row.step_time_s.low, row.step_time_s.high)
        if value
    ]


def _mark_shortest(axes: Axes, lines: Sequence[Series], rates: Sequence[float]) -> None:
    for rate in rates:
        best = _shortest(lines, rate)
        row = next(row for row in best.rows if _rate(row) == rate) if best is not None else None
        if row is not None and row.step_time_s is not None:
            axes.plot(
                [rate],
                [1e3 * row.step_time_s.value],
                "s",
                markersize=12,
                markerfacecolor="none",
                markeredgecolor=style.INK,
                markeredgewidth=0.9,
                zorder=4,
            )


def _name_lines(axes: Axes, lines: Sequence[Series], value: _Value) -> None:
    from ddpbench.report.draw.canvas import spread

    ends = [value(line.rows[-1]) for line in lines]
    low, high = axes.get_ylim()
    logarithmic = axes.get_yscale() == "log"

    def share(value: float) -> float:
        if logarithmic:
            return math.log(value / low) / math.log(high / low)
        return (value - low) / (high - low)

    wanted = [share(end.value) if end is not None else 0.0 for end in ends]
    order = sorted(range(len(lines)), key=lambda index: wanted[index])
    places = spread(wanted, gap=0.085, low=0.04, high=0.97)
    for index in order:
        line, place = lines[index], places[index]
        (sign,) = axes.plot(
            [1.05],
            [place],
            line.look.marker,
            transform=axes.transAxes,
            clip_on=False,
            color=line.look.colour,
            markerfacecolor="white",
            markeredgecolor=line.look.outline or line.look.colour,
            markersize=5.5,
        )
        label = axes.text(
            1.09, place, line.name, transform=axes.transAxes, va="center", fontsize=style.NOTE_PT
        )
        for artist in (sign, label):
            describe(artist, line.name)


def _short_rate(rate: float) -> str:
    return "\N{NARROW NO-BREAK SPACE}".join(in_prefix(rate))


_Value = Callable[[Row], Interval | None]


def _step_ms(row: Row) -> Interval | None:
    return None if row.step_time_s is None else row.step_time_s.scaled(1e3)


def _line(axes: Axes, line: Series, value: _Value, unit: str) -> None:
    points = [(rate, own) for row in line.rows if (own := value(row)) is not None and (rate := _rate(row))]
    look = line.look
    xs, values = [rate for rate, _ in points], [value for _, value in points]
    (guide,) = axes.plot(xs, [value.value for value in values], color=look.colour, linewidth=0.9, zorder=2)
    describe(guide, line.name)
    drawn = axes.errorbar(
        xs,
        [value.value for value in values],
        yerr=error_bars(values),
        fmt=look.marker,
        linestyle="none",
        color=look.colour,
        markersize=6,
        markerfacecolor="white",
        markeredgecolor=look.outline or look.colour,
        elinewidth=1.2,
        capsize=2.5,
        zorder=3,
    )
    titles = (f"{line.name}, {format_bit_rate(rate)}: {value}{unit}" for rate, value in points)
    describe_points(drawn, line.name, *titles)
