"""Draw the cost of failures: for each kind of failure, a bar divided into parts."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from ddpbench.features.recovery.report.costs import PARTS, FailureCosts
from ddpbench.report.captions import alike_setting, captioned, label_of
from ddpbench.report.draw import style
from ddpbench.report.draw.lines import height_in, in_lines, text_width_in
from ddpbench.report.draw.rows import NAMES_IN, axis_end, block, over_bar
from ddpbench.report.figure_texts import first_short
from ddpbench.report.parts import Cell, Column, Picture, Table

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from ddpbench.report.draw.sheet import Sheet

_FILLS = (
    style.Fill("detection", "#C4502F"),
    style.Fill("stopping ranks", "#F2C3B2", hatch="////", edge="#A14326"),
    style.Fill("rendezvous", "#1C4670"),
    style.Fill("starting ranks", "#6696C5"),
    style.Fill("process groups", style.GROUND, hatch="xxxx", edge=style.MUTED),
    style.Fill("restoring", "#009E73"),
    style.Fill("recomputing", "#EBD68B", hatch="\\\\\\\\", edge="#8A7228"),
)
_PHONE_IN, _TOLD_IN = style.NARROW_WIDTH_IN - 0.3, 0.8
"""On a narrow page, in inches: the length of the longest bar, and the room for the time next to it."""
_MUCH_LONGER = 2.5
_PITCH_IN, _NARROW_PITCH_IN, _AXIS_IN, _LEGEND_IN = 0.42, 0.52, 0.62, 0.55


def _groups(costs: Sequence[FailureCosts]) -> list[list[FailureCosts]]:
    """Group the costs to be drawn at one scale, lowest first; a much higher cost starts a group."""
    groups = [[costs[0]]]
    for before, cost in itertools.pairwise(costs):
        if sum(cost.parts) > _MUCH_LONGER * sum(before.parts):
            groups.append([])
        groups[-1].append(cost)
    return groups


def parts_picture(costs: Sequence[FailureCosts]) -> Picture:
    """Return the figure of the parts of each measured recovery, with the lowest cost first."""
    groups = _groups(costs)
    heading = _heading(costs)
    caption = captioned(
        alike_setting((cost.row for cost in costs), but=("recovery",)),
        [
            "From the failure until the interrupted step is repeated: each part is its median over launches.",
            "A part ends when the last agent or rank has ended it.",
            (
                "Detection lasts until torchrun's last agent has noticed the failure (agents look ten times per "
                "second). Starting ranks is"
            ),
            "new processes, imports, data and model. Restoring is reading the snapshot and making the replica.",
            *(["Much longer ones have a separate scale, below."] if len(groups) > 1 else []),
        ],
    )
    height = _LEGEND_IN + sum(_AXIS_IN + _pitch_in(groups) * len(group) for group in groups)
    narrow = 1.15 + sum(_AXIS_IN + _narrow_pitch_in(groups) * len(group) for group in groups)
    return Picture(
        file_name="recovery",
        heading=heading,
        caption=caption,
        alt=f"Horizontal stacked bars of the time that a failure costs, s, by part and by what fails. {heading}.",
        table=_table(costs),
        width_in=style.FULL_WIDTH_IN,
        height_in=max(2.4, height),
        paint=partial(_paint, groups=groups),
        narrow=partial(_paint_narrow, groups=groups),
        narrow_in=(style.NARROW_WIDTH_IN, narrow),
        label=label_of(cost.row for cost in costs),
        missing={},
    )


def _heading(costs: Sequence[FailureCosts]) -> str:
    first, last = costs[0], costs[-1]
    assert first.found.total is not None
    assert last.found.total is not None
    if last is first:
        cost = f"A failure costs {' s '.join(filter(None, first.found.total.texts()))}"
        return first_short(f"{cost} ({first.name})", cost)
    least, most = first.found.total.number, last.found.total.number
    return first_short(
        f"A failure costs from {least} s ({first.name}) to {most} s ({last.name})",
        f"A failure costs from {least} s ({first.name}) to {most} s",
        f"A failure costs from {least} to {most} s",
    )


def _table(costs: Sequence[FailureCosts]) -> Table:
    return Table(
        caption="Parts of a recovery, s",
        columns=(
            Column("What fails"),
            Column("Recovery, s", number=True),
            *(Column(f"{title}, s", number=True) for title in PARTS.values()),
        ),
        rows=tuple(
            (
                Cell(text=cost.name),
                Cell.estimate(cost.found.total),
                *(Cell(text=f"{part:.2f}", key=part, number=True) for part in cost.parts),
            )
            for cost in costs
        ),
    )


def _legend(sheet: Sheet, columns: int) -> None:
    from matplotlib.patches import Patch

    handles = [Patch(facecolor=fill.colour, label=fill.name, **fill.outline) for fill in _FILLS]
    sheet.legend(handles, columns=columns)


def _name(cost: FailureCosts) -> str:
    return in_lines(cost.name, NAMES_IN, style.TICK_PT)


def _narrow_name(cost: FailureCosts) -> str:
    return in_lines(cost.name, _PHONE_IN - _TOLD_IN, style.NOTE_PT)


def _pitch_in(groups: Sequence[Sequence[FailureCosts]]) -> float:
    names = [_name(cost) for group in groups for cost in group]
    return max(_PITCH_IN, height_in(names, style.TICK_PT) + 0.06)


def _narrow_pitch_in(groups: Sequence[Sequence[FailureCosts]]) -> float:
    names = [_narrow_name(cost) for group in groups for cost in group]
    return max(_NARROW_PITCH_IN, height_in(names, style.NOTE_PT) + 0.25)


def _paint(sheet: Sheet, *, groups: Sequence[Sequence[FailureCosts]]) -> None:
    left = 0.3 + max(text_width_in(_name(cost), style.TICK_PT) for group in groups for cost in group)
    top = sheet.height_in - _LEGEND_IN
    for index, group in enumerate(groups):
        height = _pitch_in(groups) * len(group)
        axes = sheet.axes(left, top - height, sheet.width_in - left - 0.95, height)
        _bars(axes, group, 0.5, above=0.0)
        axes.set_yticks(range(len(group)), [_name(cost) for cost in group])
        for place, cost in enumerate(group):
            assert cost.found.total is not None
            axes.annotate(
                f"{cost.found.total.number} s",
                (1.01, place),
                xycoords=("axes fraction", "data"),
                fontsize=style.NOTE_PT,
                va="center",
                annotation_clip=False,
            )
        axes.set_xlabel("s" if index == len(groups) - 1 else "")
        top -= height + _AXIS_IN
    _legend(sheet, len(_FILLS))


def _paint_narrow(sheet: Sheet, *, groups: Sequence[Sequence[FailureCosts]]) -> None:
    top = sheet.height_in - 1.1
    pitch = _narrow_pitch_in(groups)
    scale = _NARROW_PITCH_IN / pitch
    for index, group in enumerate(groups):
        height = pitch * len(group)
        axes = sheet.axes(0.12, top - height, _PHONE_IN, height)
        _bars(axes, group, 0.32 * scale, above=0.44 - 0.16 * scale)
        for place, cost in enumerate(group):
            assert cost.found.total is not None
            over_bar(axes, place + 0.44 - 0.36 * scale, _narrow_name(cost), f"{cost.found.total.number} s")
        axes.set_yticks([])
        axes.set_xlabel("s" if index == len(groups) - 1 else "")
        axes.locator_params(axis="x", nbins=6)
        top -= height + _AXIS_IN
    _legend(sheet, 2)


def _bars(axes: Axes, group: Sequence[FailureCosts], height: float, *, above: float) -> None:
    axes.set_xlim(0, 1.02 * axis_end(max(sum(cost.parts) for cost in group)))
    axes.set_ylim(len(group) - 0.5, -0.5)
    for place, cost in enumerate(group):
        at = 0.0
        for fill, part in zip(_FILLS, cost.parts, strict=True):
            title = f"{cost.name}: {fill.name} {part:.2f} s"
            block(axes, fill, (at, at + part), centre=place + above, height=height, title=title)
            at += part
    axes.tick_params(axis="y", length=0)
    axes.grid(visible=True, axis="x")
    axes.spines["left"].set_visible(False)
