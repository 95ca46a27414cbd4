"""The figure on scaling laws, with measured efficiency, the laws fitted to it, and how well they fit."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from ddpbench.analysis.invariants.checked import IMPOSSIBLE
from ddpbench.analysis.scaling.fits import Fit
from ddpbench.analysis.scaling.model import EXTRAPOLATION, LAW_NAMES, Law
from ddpbench.analysis.sentences import Sentence, capital
from ddpbench.analysis.statistics.interval import Interval
from ddpbench.naming import Namer
from ddpbench.report.captions import captioned, label_of
from ddpbench.report.draw import style
from ddpbench.report.draw.canvas import error_bars
from ddpbench.report.draw.marks import describe, describe_points
from ddpbench.report.drawn import split
from ddpbench.report.figure_texts import first_short
from ddpbench.report.parts import Cell, Column, Picture, Section, Table
from ddpbench.report.rows import Row
from ddpbench.report.words import launches_each, not_drawn, percent, ranks, series_of
from ddpbench.spec.grouping import PANEL
from ddpbench.strategies.traits import traits_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from ddpbench.analysis.scaling.curves import CurveLaws
    from ddpbench.report.draw.sheet import Sheet

MOST_CURVES = 3
"""Maximum number of curves in one figure."""
_COLOURS: dict[Law, str] = {"amdahl": style.OUTLINE, "gustafson": style.OUTLINE, "usl": "#A14326"}
_SHORT: dict[Law, str] = {"amdahl": "Amdahl", "gustafson": "Gustafson", "usl": "USL"}
_SYMBOLS = {"s": "s", "alpha": "α", "beta": "β"}
_MEANINGS = {
    "s": "serial fraction s",
    "alpha": "contention α",
    "beta": "coherency β",
    "gamma": "rate of one rank γ, samples/s",
}


def section(laws: Sequence[CurveLaws], rows: Sequence[Row]) -> Section:
    """Return the section on scaling laws, with a figure for each of the first groups of comparable curves."""
    wrong = {row.case_id for row in rows if row.status == IMPOSSIBLE}
    fitted: dict[int, list[CurveLaws]] = {}
    for curve in laws:
        if curve.laws.fits and wrong.isdisjoint(curve.case_ids.values()):
            fitted.setdefault(curve.panel, []).append(curve)
    groups = [
        sorted(group, key=lambda curve: not traits_of(curve.case).exchanges) for group in fitted.values()
    ]
    drawn, others = split(groups)
    names = Namer(group[0].case for group in groups)
    emulated = {row.case_id for row in rows if row.emulated}
    by_id = {row.case_id: row for row in rows}
    notes = [_note(curve) for group in drawn for curve in group[:MOST_CURVES]]
    refused = [reason for group in drawn for curve in group for reason in curve.laws.refused]
    rest = [group[0].setting for group in others]
    return Section(
        anchor="laws",
        title="Scaling laws",
        question="Which law does the curve follow, where does it bend, and what is worth measuring next?",
        pictures=tuple(
            replace(
                _picture(group, index, emulated, ", ".join(names.apart(group[0].case, PANEL))),
                label=_label(group, by_id),
            )
            for index, group in enumerate(drawn)
        ),
        notes=(*notes, *dict.fromkeys(refused), *not_drawn(rest)),
        absent="" if drawn else _why_absent(laws),
    )


def _why_absent(laws: Sequence[CurveLaws]) -> str:
    curves = sorted(laws, key=lambda curve: not traits_of(curve.case).exchanges)
    if not curves:
        return (
            "No case of several ranks has separate cores and a base case in the same rounds, so there is nothing to "
            "fit a law to. Sweep a strategy over three world sizes or more, such as 1, 2 and 4 ranks, on a machine "
            "with a core or GPU for each."
        )
    curve = curves[0]
    words = [f"No law is fitted. {capital(curve.name)}, {curve.setting}: {curve.laws.absent}."]
    return " ".join([*words, *_next(curve)])


def _next(curve: CurveLaws) -> list[str]:
    following = curve.laws.next
    if following is None:
        return []
    here = "" if following.here else ", on a machine or allocation with more devices than this one"
    return [f"Most worth measuring next: {ranks(following.world_size)}{here}; {following.reason}."]


def _note(curve: CurveLaws) -> Sentence:
    laws = curve.laws
    words: list[str] = [laws.knee_words] if laws.knee_words else []
    for fit in laws.fits:
        if fit.rejected:  # its parameters describe nothing
            words += [
                f"{capital(LAW_NAMES[fit.law])} {fit.verdict}.",
                *(fit.remarks if fit.impossible else ()),
            ]
            continue
        parameters = series_of(
            [f"{_MEANINGS[name]} {value}" for name, value in fit.parameters.items() if name in _SYMBOLS]
        )
        words.append(f"{capital(LAW_NAMES[fit.law])} ({parameters}) {fit.verdict}.")
        words += fit.remarks
    words += [text for text in (laws.trend, laws.peak_words) if text]
    return captioned(curve.shared, [*words, *_next(curve)], name=curve.name)


def _label(group: Sequence[CurveLaws], by_id: Mapping[str, Row]) -> tuple[str, ...]:
    ids = [case_id for curve in group for case_id in curve.case_ids.values()]
    return label_of([by_id[case_id] for case_id in ids if case_id in by_id])


_ABOUT_LINES = (
    "Lines are laws fitted to the points: solid within the measured range, dashed where they are extrapolated, up to",
    f"{EXTRAPOLATION} times the largest measured world size. Parameters have 95 % intervals from leaving out one round",
    "at a time.",
)


def _picture(group: Sequence[CurveLaws], index: int, emulated: set[str], panel: str) -> Picture:
    curves = list(group[:MOST_CURVES])
    heading = _title(curves)
    names = series_of([curve.name for curve in curves])
    left_out = [curve.name for curve in group[MOST_CURVES:]]
    fewest = launches_each(point.rounds for curve in curves for point in curve.laws.points)
    hollow = any(case_id in emulated for curve in curves for case_id in curve.case_ids.values())
    dashed = "; dashed: extrapolated" if any(map(_drawn, curves)) else ""
    caption = captioned(
        curves[0].shared,
        [
            f"Whiskers: 95 % t-intervals over launches ({fewest}); dotted: ideal{dashed}.",
            *_hidden(curves),
            *([f"Not drawn: {series_of(left_out)}."] if left_out else []),
            *(["Hollow markers: emulated or dilated."] if hollow else []),
            "Points are efficiencies over the base case, paired within rounds. The base case, single at 1 rank, is the",
            "point at 1.",
            *(_ABOUT_LINES if dashed else []),
            *([_HELD] if any(fit.coherency_held for curve in curves for fit in _drawn(curve)) else []),
            *(
                ["Laws that do not hold are not drawn."]
                if any(fit.rejected for curve in curves for fit in curve.laws.fits)
                else []
            ),
        ],
    )
    alt = (
        f"{'Line chart' if len(curves) == 1 else f'{len(curves)} line charts'} of efficiency (no unit) against number "
        f"of ranks for {names}, with the laws fitted to each. {heading}."
    )
    return Picture(
        file_name="laws" if index == 0 else f"laws-{index + 1}",
        heading=heading,
        caption=caption,
        alt=alt,
        table=_table(group),
        width_in=style.FULL_WIDTH_IN if len(curves) > 1 else style.SMALL_WIDTH_IN,
        height_in=4.1,
        paint=partial(_paint, curves=curves, emulated=emulated),
        narrow=partial(_paint, curves=curves, emulated=emulated, stacked=True),
        narrow_in=(style.NARROW_WIDTH_IN, 3.9 * len(curves)),
        group=panel,
        missing={},
    )


def _fitting(curves: Sequence[CurveLaws]) -> list[Fit | None]:
    return [
        next((fit for fit in curve.laws.fits if fit.goodness == "within error" and not fit.rejected), None)
        for curve in curves
    ]


def _hidden(curves: Sequence[CurveLaws]) -> list[str]:
    fits = [fit for fit in _fitting(curves) if fit is not None]
    hidden = max((fit.unseen or 0.0 for fit in fits), default=0.0)
    return [f"A misfit of up to {percent(hidden)} would go unseen."] if fits else []


def _title(curves: Sequence[CurveLaws]) -> str:
    fitting = _fitting(curves)
    within = "within the measurement's error"
    if len(curves) == 1:
        (curve,) = curves
        if fitting[0] is not None:
            law = LAW_NAMES[fitting[0].law]
            return first_short(f"{curve.name} follows {law} {within}", f"Scaling follows {law} {within}")
        missed = [LAW_NAMES[law] for law in _missed(curve)]
        if not missed:
            return first_short(
                f"{curve.name} has too few points or rounds to judge a law by",
                "Too few points or rounds to judge a law by",
            )
        which = series_of(missed, "or")
        # A law may match the points and still be impossible.
        if any(fit.goodness == "within error" for fit in curve.laws.fits):
            return first_short(f"{curve.name} does not follow {which}", f"Scaling does not follow {which}")
        return first_short(
            f"{curve.name} does not follow {which} {within}",
            f"Scaling does not follow {which} {within}",
            f"No law fits {within}",
        )
    if all(len(_missed(curve)) == len(curve.laws.fits) for curve in curves):
        names = series_of([curve.name for curve in curves])
        return first_short(
            f"No law fits {within}: {names}", f"No law fits any of {len(curves)} curves {within}"
        )
    words = [
        f"{curve.name} {_without(curve) if fit is None else _SHORT[fit.law]}"
        for curve, fit in zip(curves, fitting, strict=True)
    ]
    return first_short(
        f"Laws that hold {within}: {', '.join(words)}",
        f"{sum(map(bool, fitting))} of {len(curves)} curves follow a law {within}",
    )


def _missed(curve: CurveLaws) -> list[Law]:
    return [fit.law for fit in curve.laws.fits if fit.rejected and fit.goodness != "undetermined"]


def _drawn(curve: CurveLaws) -> list[Fit]:
    return [fit for fit in curve.laws.fits if not fit.rejected]


def _without(curve: CurveLaws) -> str:
    missed = _missed(curve)
    if not missed:
        return "not judged"
    return (
        "none" if len(missed) == len(curve.laws.fits) else f"not {series_of([_SHORT[law] for law in missed])}"
    )


def _table(group: Sequence[CurveLaws]) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for curve in group:
        fraction = (
            "Karp-Flatt serial fraction" if curve.laws.scaling == "strong" else "Serial fraction (Gustafson)"
        )
        for fit in curve.laws.fits:
            law = capital(LAW_NAMES[fit.law])
            is_useful = fit.r_squared is not None and fit.r_squared > 0  # below 0 the law is worse than none
            squared = f"; R² {fit.r_squared:.4f}" if is_useful else ""
            rows += [
                _line(curve, f"{law}: {_MEANINGS[name]}", None, value, f"{fit.verdict}{squared}")
                for name, value in fit.parameters.items()
                if not fit.rejected
            ]
        for point in curve.laws.points:
            rows += [
                _line(curve, "Speed-up", point.world_size, point.speedup, ""),
                _line(curve, fraction, point.world_size, point.serial_fraction, ""),
                _line(curve, "Brought by an added rank, ranks", point.world_size, point.marginal, ""),
            ]
        rows += [
            _line(
                curve,
                f"{capital(LAW_NAMES[fit.law])}: off by, %",
                size,
                _scaled(residual),
                fit.judged if fit.rejected else "",
            )
            for fit in curve.laws.fits
            for size, residual in fit.residuals.items()
        ]
    columns = (
        Column("Curve"),
        Column("Quantity"),
        Column("Ranks", number=True),
        Column("Value", number=True),
        Column("Notes"),
    )
    return Table(
        mixed=True,caption=f"Laws fitted, and the points they are fitted to ({group[0].setting})", columns=columns,
                 rows=tuple(rows))  # fmt: skip


def _scaled(interval: Interval) -> Interval:
    """Convert a fraction to per cent; the rounding error of an exact fit becomes 0."""

    def cent(value: float | None) -> float | None:
        return None if value is None else 0.0 if abs(value) < 1e-9 else 100 * value

    return Interval(value=cent(interval.value) or 0.0, low=cent(interval.low), high=cent(interval.high))


def _line(curve: CurveLaws, what: str, size: int | None, value: Interval, note: str) -> tuple[Cell, ...]:
    return (
        Cell(text=curve.name),
        Cell(text=what),
        Cell(text="", number=True) if size is None else Cell.count(size),
        Cell.estimate(value),
        Cell(text=note),
    )


def _paint(sheet: Sheet, *, curves: Sequence[CurveLaws], emulated: set[str], stacked: bool = False) -> None:
    across = 1 if stacked else len(curves)
    each = (sheet.width_in - 0.55) / across
    high = sheet.height_in * across / len(curves)
    top = max(1.1, *(1.08 * e.high for curve in curves for e in _efficiencies(curve) if e.high))
    for index, curve in enumerate(curves):
        column, lines_below = (0, len(curves) - 1 - index) if stacked else (index, 0)
        left, bottom = 0.55 + column * each, lines_below * high
        axes = sheet.axes(left, bottom + 1.32, each - 1.0, high - 1.65)
        _paint_curve(axes, curve, hollow=any(case_id in emulated for case_id in curve.case_ids.values()))
        axes.set_ylim(0, top)
        axes.set_title(curve.name if len(curve.name) < 34 else f"{curve.name[:32]}…")
        axes.set_xlabel("ranks")
        if column == 0:
            axes.set_ylabel("efficiency")
        axes.grid(visible=True, axis="y")
        _label_lines(axes, _drawn(curve), top)
        for number, (text, colour) in enumerate(_texts(curve)):
            sheet.text(
                left,
                bottom + 0.66 - 0.17 * number,
                text,
                fontsize=style.SMALLEST_PT,
                color=colour,
                va="bottom",
            )


def _efficiencies(curve: CurveLaws) -> list[Interval]:
    return [point.speedup.scaled(1 / point.world_size) for point in curve.laws.points]


def _paint_curve(axes: Axes, curve: CurveLaws, *, hollow: bool) -> None:
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    largest = curve.laws.points[-1].world_size
    axes.set_xscale("log", base=2)
    axes.axhline(1, linestyle=":", color=style.MUTED, linewidth=1.2, zorder=1)
    for fit in _drawn(curve):
        for beyond in (False, True):
            part = [(n, s / n) for n, s in fit.line if (n >= largest if beyond else n <= largest)]
            (line,) = axes.plot(
                [n for n, _ in part],
                [e for _, e in part],
                linestyle=(0, (4, 2.5)) if beyond else "-",
                color=_COLOURS[fit.law],
                linewidth=1.3,
                zorder=2,
            )
            describe(line, _SHORT[fit.law], f"{_SHORT[fit.law]}, {_MARKS[fit.goodness]}")
    look = style.look(curve.case, curve.variant)
    base = style.base_look()
    axes.plot([1], [1], base.marker, color=base.colour, markersize=6, zorder=3)
    estimates = _efficiencies(curve)
    drawn = axes.errorbar(
        [point.world_size for point in curve.laws.points],
        [e.value for e in estimates],
        yerr=error_bars(estimates),
        fmt=look.marker,
        color=look.colour,
        markersize=6,
        markerfacecolor="white" if hollow else look.colour,
        markeredgecolor=look.outline or look.colour,
        markeredgewidth=0.8,
        elinewidth=1.2,
        capsize=2.5,
        zorder=4,
    )
    pairs = zip(curve.laws.points, estimates, strict=True)
    titles = (f"{curve.name}, {ranks(point.world_size)}: efficiency {e}" for point, e in pairs)
    describe_points(drawn, "", *titles)
    axes.set_xlim(0.85, EXTRAPOLATION * largest)
    exponents = range(math.floor(math.log2(EXTRAPOLATION * largest)) + 1)
    every = max(1, math.ceil(len(exponents) / 6))
    axes.xaxis.set_major_locator(FixedLocator([2.0**k for k in exponents[::every]]))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    axes.xaxis.set_minor_locator(NullLocator())


def _label_lines(axes: Axes, fits: Sequence[Fit], top: float) -> None:
    from ddpbench.report.draw.canvas import spread

    ends = [(fit.law, fit.line[-1][1] / fit.line[-1][0] / top) for fit in fits if fit.line]
    places = spread([place for _, place in ends], gap=0.075, low=0.02, high=0.98)
    for (law, _), place in zip(ends, places, strict=True):
        label = axes.text(
            1.02,
            place,
            _SHORT[law],
            transform=axes.transAxes,
            fontsize=style.NOTE_PT,
            color=_COLOURS[law],
            va="center",
        )
        describe(label, _SHORT[law])


_HELD = "Where coherency β is held at 0, the other intervals take it to be 0: they are narrower than without that."


_AT_ONE = 0.005
"""Largest distance from 1 at which a line still appears to start at 1."""
_MARKS = {"within error": "fits", "undetermined": "not judged"}


def _texts(curve: CurveLaws) -> list[tuple[str, str]]:
    lines: list[tuple[str, str]] = []
    for fit in curve.laws.fits:
        if fit.rejected:
            lines.append((f"{_SHORT[fit.law]}: {fit.judged}", _COLOURS[fit.law]))
            continue
        shown = [(name, value) for name, value in fit.parameters.items() if name in _SYMBOLS]
        for index, (name, value) in enumerate(shown):
            head = f"{_SHORT[fit.law]} ({_MARKS[fit.goodness]}): " if index == 0 else ""
            held = " (held)" if name == "beta" and fit.coherency_held else ""
            lines.append((f"{head}{_SYMBOLS[name]} = {value}{held}", _COLOURS[fit.law]))
        if "gamma" in fit.parameters and fit.line and abs((start := fit.line[0][1]) - 1) >= _AT_ONE:
            lines.append((f"1 rank fitted too: {start:.2f} of the base case", _COLOURS[fit.law]))
    return lines
