"""The waterfall of lost efficiency, from the ideal 1 to the measured value, with one bar per loss."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from ddpbench.analysis.results import EfficiencyLoss
from ddpbench.analysis.sentences import capital
from ddpbench.analysis.statistics.estimands import MEDIAN_INTERVALS
from ddpbench.analysis.statistics.interval import Interval
from ddpbench.analysis.statistics.stats import FEWEST_FOR_MEDIAN, MIN_ROUNDS
from ddpbench.analysis.steps.waterfall import LOSSES
from ddpbench.report.captions import captioned, label_of, setting_of
from ddpbench.report.draw import style
from ddpbench.report.draw.rows import block, over_bar
from ddpbench.report.figure_texts import first_short
from ddpbench.report.parts import Cell, Column, Picture, Section, Table
from ddpbench.report.rows import Row
from ddpbench.report.series import panel_by_case, panels_of
from ddpbench.report.words import series_of
from ddpbench.units import counted, with_minus

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from ddpbench.report.draw.sheet import Sheet

MOST_FIGURES = 3
MOST_NOT_ATTRIBUTED = 0.05
"""If a larger fraction of a step than this is unexplained, no main cause is named."""
_MOST_NAMED = 2
_PITCH_IN = 0.27
_NARROW_PITCH_IN, _NARROW_BAR = 0.4, 0.4
"""Height of a row on a phone, inches, and the height of its bar as a fraction of the row's."""
_QUESTION = "Where did efficiency go?"

NAMES: Mapping[str, str] = {
    "contention": "contention",
    "own_computation": "the strategy's own computation",
    "computation": "slower computation",
    "exposed_comm": "exposed communication",
    "waiting": "waiting for ranks",
    "optimizer": "optimizer",
    "data": "data wait",
    "not_attributed": "not attributed",
    "timed": "timed against instrumented steps",
    "rest": "rest: medians do not add up",
}
assert tuple(NAMES) == LOSSES
_ON_PHONE = {"timed against instrumented steps": "timed against instrumented"}
"""Shorter names of losses for a phone, where the full names would leave no room for the numbers."""
_FILLS: Mapping[str, style.Fill] = {
    "contention": style.PHASES["forward"],
    "own_computation": style.PHASES["other_compute"],
    "computation": style.PHASES["backward"],
    "exposed_comm": style.PHASES["exposed_comm"],
    "waiting": style.PHASES["exposed_wait"],
    "optimizer": style.PHASES["optimizer"],
    "data": style.PHASES["data"],
    "not_attributed": style.PHASES["not_attributed"],
    "timed": style.Fill("timed against instrumented steps", style.GROUND, hatch="||||", edge=style.MUTED),
    "rest": style.Fill("rest: medians do not add up", style.GROUND, edge=style.MUTED),
}
_UNEXPLAINED = ("not_attributed", "timed", "rest")
"""Losses that do not explain any efficiency lost."""
_ZERO = style.Fill("interval includes 0", style.GRID, edge=style.MUTED)
_WHOLE = style.Fill("efficiency", style.GROUND, edge=style.OUTLINE)
_IDEAL, _MEASURED = "ideal", "measured"


@dataclass(frozen=True, kw_only=True, slots=True)
class Fall:
    """The losses that lead from the ideal efficiency down to the efficiency measured for one case.

    `rounds` is the number of rounds that have all measurements for the losses.
    """

    row: Row
    name: str
    panel: str
    """Words that distinguish the case's group of comparable cases from others of the run; empty if there is only one.
    """
    base: str
    """The name of the base case."""
    losses: Mapping[str, Interval]
    timed: Interval
    """The loss named `timed`, which is the difference between timed and instrumented steps."""
    efficiency: Interval
    rounds: int
    split: bool
    outrun: bool = False
    """True if independent ranks were slower than this case, so that they are not an upper bound."""

    @property
    def unexplained(self) -> tuple[str, float]:
        """Return the name of the largest loss without an explanation, and its absolute value."""
        known = {
            name: abs(self.losses[name].value) for name in ("not_attributed", "rest") if name in self.losses
        }
        if not _includes_zero(self.timed):  # otherwise it may be chance
            known["timed"] = abs(self.timed.value)
        return max(known.items(), key=lambda one: one[1])

    @property
    def largest(self) -> str:
        """Return the name of the loss with the largest median, among the losses that have an explanation."""
        able = [name for name in self.weighed if name not in _UNEXPLAINED]
        return max(able, key=lambda name: self.weighed[name].value)

    @property
    def weighed(self) -> Mapping[str, Interval]:
        """Return the losses from which the main cause is chosen.

        Contention and own computation are summed if one of them is a gain.
        """
        crowded, own = (self.losses.get(name) for name in ("contention", "own_computation"))
        if crowded is None or own is None or all(one.high is None or one.high >= 0 for one in (crowded, own)):
            return self.losses
        # Both are differences from independent ranks, whose errors cancel in the sum. So the sum of both widths is
        # enough for the sum's interval.
        both = Interval(
            crowded.value + own.value, _added(crowded.low, own.low), _added(crowded.high, own.high)
        )
        rest = {
            name: loss for name, loss in self.losses.items() if name not in ("contention", "own_computation")
        }
        return {"computation": both, **rest}

    @property
    def cause(self) -> str | None:
        """Return the name of the main cause: the largest loss, if it is `named` and has no `rivals`. Otherwise None."""
        return self.largest if self.named and not self.rivals else None

    @property
    def named(self) -> bool:
        """Return whether the largest loss may be named as a cause.

        Its interval must be above 0, rounds must suffice, and little may be unexplained.
        """
        if self.rounds < MIN_ROUNDS or self.unexplained[1] > MOST_NOT_ATTRIBUTED:
            return False
        low = self.weighed[self.largest].low
        return low is not None and low > 0

    @property
    def rivals(self) -> list[str]:
        """Return the names of losses that may exceed `largest`, because their intervals overlap with its interval."""
        low = self.weighed[self.largest].low
        others = [name for name in self.weighed if name not in (self.largest, "not_attributed", "rest")]
        return [name for name in others if low is None or (self.weighed[name].high or 0.0) >= low]

    @property
    def unsure(self) -> list[str]:
        """Return the names of rivals whose intervals are too wide to decide.

        These intervals include 0 and extend above the median of the largest loss.
        """
        most = self.weighed[self.largest].value
        return [
            name
            for name in self.rivals
            if (self.weighed[name].low or 0.0) <= 0 and (self.weighed[name].high or 0.0) > most
        ]


def section(losses: Sequence[EfficiencyLoss], rows: Sequence[Row], first: Sequence[str] = ()) -> Section:
    """Return the section on lost efficiency, with figures for the first cases and a note on the others.

    `first` holds the ids of the answer's cases, whose figures come first.
    """
    falls = sorted(
        _falls(losses, rows),
        key=lambda fall: first.index(fall.row.case_id) if fall.row.case_id in first else len(first),
    )
    absent = ""
    if not falls:
        absent = (
            "No case of several ranks on separate cores has instrumented steps together with its base case: "
            "nothing tells where efficiency went."
        )
    return Section(
        anchor="waterfall",
        title="Lost efficiency",
        question=_QUESTION,
        pictures=tuple(_picture(fall, index) for index, fall in enumerate(falls[:MOST_FIGURES])),
        notes=_left_out(falls[MOST_FIGURES:]),
        absent=absent,
    )


def _left_out(falls: Sequence[Fall]) -> tuple[str, ...]:
    if not falls:
        return ()
    names = "; ".join(f"{fall.name}{f' ({fall.panel})' if fall.panel else ''}" for fall in falls)
    return (f"Not drawn, and in the data to download (report.json, waterfall): {names}.",)


def _falls(losses: Sequence[EfficiencyLoss], rows: Sequence[Row]) -> list[Fall]:
    by_id = {row.case_id: row for row in rows}
    panels = panel_by_case(panels_of(rows))
    by_case: dict[str, list[EfficiencyLoss]] = {}
    for loss in losses:
        by_case.setdefault(loss.case_id, []).append(loss)
    falls: list[Fall] = []
    for case_id, items in by_case.items():
        row = by_id.get(case_id)
        if row is None or not row.ok:
            continue
        losses = [one for one in items if one.item != "efficiency"]
        falls.append(
            Fall(
                row=row,
                name=row.name,
                panel=panels[case_id].name if case_id in panels else "",
                base=by_id[row.baseline_case_id].name
                if row.baseline_case_id in by_id
                else row.baseline_case_id,
                losses={one.item: one.share for one in losses},
                timed=_share(items, "timed"),
                efficiency=_share(items, "efficiency"),
                rounds=min(one.rounds for one in losses),
                split=items[0].split,
                outrun=items[0].outrun,
            )
        )
    return falls


def _share(items: Iterable[EfficiencyLoss], item: str) -> Interval:
    return next(one.share for one in items if one.item == item)


def _added(a: float | None, b: float | None) -> float | None:
    return None if a is None or b is None else a + b


def _includes_zero(loss: Interval) -> bool:
    return loss.low is not None and loss.high is not None and loss.low <= 0 <= loss.high


def _text(loss: Interval) -> str:
    """Return a loss with three decimals, which suffice: less than a thousandth of a step does not matter."""
    return " ".join(filter(None, [_fixed(loss.value), _ends(loss)]))


def _ends(loss: Interval) -> str:
    known = loss.has_ends and not loss.value == loss.low == loss.high == 0
    return f"[{_fixed(loss.low)}, {_fixed(loss.high)}]" if known else ""


def _fixed(value: float | None) -> str:
    if value == 0:
        return "0"
    text = f"{value:.3f}"
    return with_minus(text) if float(text) else "0.000"


def _marks(fall: Fall, index: int) -> list[str]:
    marks = _unsure(fall)
    if fall.split and not index:
        marks.append(
            "Contention: how much longer ranks compute when they run at once and exchange nothing "
            "(strategy independent)"
            f"{', smaller batches included' if fall.row.case.scaling == 'strong' else ''}. The strategy's own "
            "computation: what its forward, backward and copying take beyond that."
        )
    elif not fall.split:
        why = (
            "independent ranks, which tell the two apart, were slower than this case"
            if fall.outrun
            else "without independent ranks at this number of ranks the two cannot be told apart"
        )
        marks.append(
            f"Slower computation holds contention and the strategy's own work: {why}"
            f"{'; smaller batches are in it, too' if fall.row.case.scaling == 'strong' else ''}."
        )
    if fall.unexplained[1] > MOST_NOT_ATTRIBUTED:
        marks.append(
            f"More than {MOST_NOT_ATTRIBUTED:g} is not attributed to anything, is where timed and instrumented steps "
            "do not agree, or is left where medians do not add up: no main cause is named."
        )
    if any(loss.value < 0 for loss in fall.losses.values()):
        marks.append("A negative loss is a gain.")
    if _start(fall) > 0:
        marks.append(f"The axis begins at {_start(fall):g}: the two outer bars are cut off.")
    return marks


def _picture(fall: Fall, index: int) -> Picture:
    heading = _title(fall)
    interval = (
        f"A loss is the median of {counted(fall.rounds, 'round')}, each worked out from its own launches; in brackets "
        f"{MEDIAN_INTERVALS}; grey: the interval includes 0."
        if fall.rounds >= FEWEST_FOR_MEDIAN
        else "Too few rounds with instrumented steps for intervals."
    )
    reading = (
        "To be read as the waterfall before."
        if index
        else f"Ideal is the base case's step ({fall.base}), shared out over the ranks. A loss is what "
        "a part of the step takes beyond that, as a share of the step; the losses and the measured efficiency add "
        "up to 1. Parts are from instrumented steps, the efficiency from timed ones."
    )
    caption = captioned(
        setting_of(fall.row), [interval, *_marks(fall, index), reading], name=fall.name, joint="; "
    )
    return Picture(
        file_name="waterfall" if index == 0 else f"waterfall-{index + 1}",
        heading=heading,
        caption=caption,
        alt=(
            f"Waterfall of efficiency from 1 (ideal) to {fall.efficiency} (measured) for {fall.name}, by loss. "
            f"{heading}. {_named(fall)}"
        ),
        table=_table(fall),
        width_in=style.FULL_WIDTH_IN,
        height_in=0.6 + _PITCH_IN * (len(fall.losses) + 2),
        paint=partial(_paint, fall=fall),
        narrow=partial(_paint_narrow, fall=fall),
        narrow_in=(style.NARROW_WIDTH_IN, 0.5 + _NARROW_PITCH_IN * (len(fall.losses) + 2)),
        label=label_of([fall.row]),
        group=fall.panel,
        missing={},
    )


def _title(fall: Fall) -> str:
    value = fall.efficiency.number
    return first_short(
        *(
            f"{start}; {cause}"
            for start in (f"{fall.name}: efficiency {value}", f"Efficiency {value}")
            for cause in _causes(fall)
        ),
        f"Efficiency {value}",
    )


def _causes(fall: Fall) -> list[str]:
    if fall.rounds < MIN_ROUNDS:
        return ["too few rounds to name a main cause"]
    part, share = fall.unexplained
    if share > MOST_NOT_ATTRIBUTED:
        what = (
            "is not attributed"
            if part == "not_attributed"
            else "is where timed and instrumented steps differ"
            if part == "timed"
            else "is left where medians do not add up"
        )
        return [f"{_fixed(share)} {what}, so no main cause is named", "no main cause is named"]
    if not fall.named:
        return [
            f"its largest loss, {NAMES[fall.largest]}, cannot be distinguished from 0",
            "no loss is shown to differ from 0",
        ]
    if fall.cause is not None:
        name, size = NAMES[fall.cause], _fixed(fall.weighed[fall.cause].value)
        return [f"the largest loss is {name}, {size}", f"largest loss: {name}, {size}"]
    shown = [f"{NAMES[name]}, {_fixed(fall.weighed[name].value)}" for name in _largest(fall)]
    return [
        f"among the largest losses: {series_of(shown)}",
        f"among the largest losses: {shown[0]}",
        f"among others {shown[0]}",
    ]


def _largest(fall: Fall) -> list[str]:
    rivals = sorted(fall.rivals, key=lambda name: -fall.weighed[name].value)
    sure = [name for name in rivals if (fall.weighed[name].low or 0.0) > 0 and name not in _UNEXPLAINED]
    return [fall.largest, *sure][:_MOST_NAMED]


def _unsure(fall: Fall) -> list[str]:
    decided = fall.rounds < MIN_ROUNDS or not fall.named or fall.cause is not None
    if decided or fall.unexplained[1] > MOST_NOT_ATTRIBUTED:
        return []
    wide = ["the gap to timed steps" if name == "timed" else NAMES[name] for name in fall.unsure]
    return [f"{capital(series_of(wide))} may be larger."] if wide else []


def _named(fall: Fall) -> str:
    if fall.rounds < MIN_ROUNDS or not fall.named or fall.unexplained[1] > MOST_NOT_ATTRIBUTED:
        return ""
    names = [fall.cause] if fall.cause is not None else _largest(fall)
    return f"{capital(series_of([f'{NAMES[name]} {_text(fall.weighed[name])}' for name in names]))}."


def _table(fall: Fall) -> Table:
    ends = (("ideal", Interval(1.0)), ("measured", fall.efficiency))
    rows = [(Cell(text=name), Cell(text=""), Cell.estimate(value)) for name, value in ends]
    left = 1.0
    between = []
    for name, loss in fall.losses.items():
        left -= loss.value
        shown = Cell(
            text=_fixed(loss.value),
            under=_ends(loss),
            key=loss.value,
            number=True,
            strong=name == fall.cause,
        )
        between.append((Cell(text=NAMES[name]), shown, Cell(text=_fixed(left), key=left, number=True)))
    return Table(
        caption=f"Losses of efficiency, {fall.name}",
        columns=(Column("From ideal to measured"), Column("Loss", number=True), Column("Left", number=True)),
        rows=(rows[0], *between, rows[1]),
        sortable=False,
    )


def _paint(sheet: Sheet, *, fall: Fall) -> None:
    from ddpbench.report.draw.lines import text_width_in

    names = [_IDEAL, *(NAMES[name] for name in fall.losses), _MEASURED]
    left = 0.3 + max(text_width_in(name, style.TICK_PT) for name in names)
    axes = sheet.axes(left, 0.5, sheet.width_in - left - 2.0, sheet.height_in - 0.6)
    labels = _stairs(axes, fall)
    for place, (_, text, look) in enumerate(labels):
        axes.text(
            1.03,
            place,
            text,
            transform=axes.get_yaxis_transform(),
            fontsize=style.NOTE_PT,
            va="center",
            **look,
        )
    axes.set_yticks(range(len(names)), names)


def _paint_narrow(sheet: Sheet, *, fall: Fall) -> None:
    axes = sheet.axes(0.16, 0.5, sheet.width_in - 0.34, sheet.height_in - 0.5)
    for place, (name, text, look) in enumerate(_stairs(axes, fall, height=_NARROW_BAR)):
        over_bar(axes, place - 0.6 * _NARROW_BAR, _ON_PHONE.get(name, name), text, **look)
    axes.set_ylim(len(fall.losses) + 1.3, -0.75)
    axes.set_yticks([])
    axes.locator_params(axis="x", nbins=6)


def _stairs(axes: Axes, fall: Fall, *, height: float = 0.62) -> list[tuple[str, str, dict[str, Any]]]:
    start = _start(fall)
    at = highest = 1.0
    for loss in fall.losses.values():
        at -= loss.value
        highest = max(highest, at)
    axes.set_xlim(start, highest)

    def bar(place: int, ends: tuple[float, float], fill: style.Fill, title: str) -> None:
        block(axes, fill, ends, centre=place, height=height, title=title, series="")

    bar(0, (start, 1.0), _WHOLE, f"{_IDEAL}: 1")
    labels: list[tuple[str, str, dict[str, Any]]] = [(_IDEAL, "1", {"fontweight": "bold"})]
    at = 1.0
    for place, (name, loss) in enumerate(fall.losses.items(), start=1):
        zero = _includes_zero(loss)
        axes.plot([at, at], [place - 1, place], color=style.MUTED, linewidth=0.7, zorder=1)
        bar(place, (at, at - loss.value), _ZERO if zero else _FILLS[name], f"{NAMES[name]}: {_text(loss)}")
        look = {
            "color": style.MUTED if zero else style.INK,
            "fontweight": "bold" if name == fall.cause else "normal",
        }
        labels.append((NAMES[name], _text(loss), look))
        at -= loss.value
    last = len(labels)
    axes.plot([at, at], [last - 1, last], color=style.MUTED, linewidth=0.7, zorder=1)
    bar(last, (start, fall.efficiency.value), _WHOLE, f"{_MEASURED}: {fall.efficiency}")
    labels.append((_MEASURED, str(fall.efficiency), {"fontweight": "bold"}))
    axes.set_ylim(last + 0.6, -0.6)
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel(
        "efficiency" if start <= 0 else f"efficiency, from {start:g}: only what is lost is shown in full"
    )
    axes.grid(visible=True, axis="x")
    axes.spines["left"].set_visible(False)
    return labels


def _start(fall: Fall) -> float:
    at = lowest = 1.0
    for loss in fall.losses.values():
        at -= loss.value
        lowest = min(lowest, at)
    lowest = min(lowest, fall.efficiency.value)
    start = min(0.9, math.floor(10 * (1 - 2 * (1 - lowest))) / 10)
    return start if start > 0 else min(0.0, lowest)
