"""The figure of a comparison, with each case's launches in both runs and the ratio of their step times."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from ddpbench.analysis.regression import Change, Changes
from ddpbench.analysis.regression.wording import value_words
from ddpbench.report.draw import style
from ddpbench.report.draw.lines import text_width_in
from ddpbench.report.draw.marks import describe
from ddpbench.report.parts import Cell, Column, Picture, Table

if TYPE_CHECKING:
    from ddpbench.report.draw.sheet import Sheet

MOST_ROWS = 24
_PITCH_IN, _AXIS_IN, _LEGEND_IN = 0.46, 0.5, 0.35
_BASE, _NEW = "#6B7280", "#0072B2"


def launches_picture(changes: Changes, heading: str) -> Picture | None:
    """Return the figure of both runs' launches by case; None if no case has launches in both."""
    able = [one for one in changes.changes if one.base_launches and one.new_launches]
    if not able:
        return None
    able.sort(key=lambda one: -abs((one.ratio.value if one.ratio else 1.0) - 1))
    drawn = able[:MOST_ROWS]
    more = (
        f" Not drawn: {len(able) - len(drawn)} more cases, which changed least."
        if len(able) > len(drawn)
        else ""
    )
    return Picture(
        file_name="comparison",
        heading=heading,
        caption=(
            "Each dot is a launch: its step time, over the geometric mean of the base's. The bar is the interval of "
            f"the change that the verdict is taken from.{more}"
        ),
        alt=f"Dot plot of step time over the base's geometric mean, by case and side. {heading}",
        table=_table(able),
        width_in=style.FULL_WIDTH_IN,
        height_in=_LEGEND_IN + _AXIS_IN + _PITCH_IN * len(drawn) + 0.1,
        paint=partial(_paint, drawn=drawn),
        missing={},
    )


def _table(changes: Sequence[Change]) -> Table:
    return Table(
        caption="Step times of launches, ms",
        columns=(Column("Case"), Column("Base"), Column("New")),
        rows=tuple(
            (
                Cell(text=one.label),
                Cell(text=", ".join(f"{1e3 * value:.4g}" for value in one.base_launches)),
                Cell(text=", ".join(f"{1e3 * value:.4g}" for value in one.new_launches)),
            )
            for one in changes
        ),
    )


def _paint(sheet: Sheet, *, drawn: Sequence[Change]) -> None:
    from matplotlib.lines import Line2D

    left = 0.3 + min(3.4, max(text_width_in(one.label, style.TICK_PT) for one in drawn))
    right = 1.9
    height = _PITCH_IN * len(drawn)
    axes = sheet.axes(left, _AXIS_IN, sheet.width_in - left - right, height)
    axes.set_ylim(len(drawn) - 0.5, -0.5)
    axes.axvline(1.0, color=style.MUTED, linewidth=0.8, linestyle=":", zorder=1)
    for place, one in enumerate(drawn):
        mean = math.exp(math.fsum(map(math.log, one.base_launches)) / len(one.base_launches))
        for side, values, aside, colour in (
            ("base", one.base_launches, -0.2, _BASE),
            ("new", one.new_launches, 0.2, _NEW),
        ):
            ratios = [value / mean for value in values]
            (dots,) = axes.plot(
                ratios, [place + aside] * len(ratios), ".", color=colour, markersize=5, alpha=0.7, zorder=3
            )
            describe(dots, "", *(f"{one.label}, {side}: {1e3 * value:.4g} ms" for value in values))
        ratio = one.ratio
        if ratio is not None and ratio.low is not None and ratio.high is not None:
            axes.plot([ratio.low, ratio.high], [place, place], "-", color=_NEW, linewidth=1.4, zorder=2)
            (sign,) = axes.plot([ratio.value], [place], "|", color=_NEW, markersize=8, zorder=4)
            describe(sign, "", f"{one.label}: {value_words(ratio)}, {one.verdict}")
        words = f"{value_words(ratio)}\n{one.verdict}" if ratio is not None else one.verdict
        axes.annotate(
            words,
            (1.02, place),
            xycoords=("axes fraction", "data"),
            fontsize=style.NOTE_PT,
            va="center",
            annotation_clip=False,
        )
    axes.set_yticks(range(len(drawn)), [_short(one.label) for one in drawn])
    axes.set_xlabel("step time over the base's geometric mean")
    axes.tick_params(axis="y", length=0)
    axes.grid(visible=True, axis="x")
    handles = [
        Line2D([], [], marker=".", linestyle="", color=colour, label=label)
        for colour, label in ((_BASE, "launches of the base"), (_NEW, "of the new run"))
    ]
    handles.append(Line2D([], [], color=_NEW, label="interval of the ratio"))
    sheet.legend(handles, columns=3)


def _short(label: str) -> str:
    return label if len(label) <= 52 else f"{label[:50]}\N{HORIZONTAL ELLIPSIS}"
