"""Draw the figure of the best snapshot period: time lost to failures and snapshots against time between snapshots."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from ddpbench.analysis.goodput import best, daly, ettr, words, young
from ddpbench.features.recovery.report.costs import FailureCosts
from ddpbench.report.captions import label_of
from ddpbench.report.draw import style
from ddpbench.report.draw.marks import describe
from ddpbench.report.parts import Cell, Column, Picture, Table
from ddpbench.report.words import number

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from ddpbench.report.draw.sheet import Sheet

MTBF_S = {"1 h": 3_600.0, "6 h": 21_600.0, "1 day": 86_400.0, "1 week": 604_800.0}
"""Mean times between failures that are shown, seconds. A real job's depends on its nodes, which the reader knows."""
_LINES = (("#D55E00", "o"), ("#0072B2", "s"), ("#009E73", "^"), ("#000000", "D"))
_POINTS = 121


def goodput_picture(cost: FailureCosts) -> Picture:
    """Return the figure of the best snapshot period, given the measured costs of a failure and a snapshot."""
    assert cost.found.snapshot_mean_s is not None
    assert cost.found.restored_mean_s is not None
    snapshot_s, restored_s = cost.found.snapshot_mean_s, cost.found.restored_mean_s
    period, lost = words(snapshot_s, restored_s, MTBF_S["1 day"])
    heading = f"With a failure a day, a snapshot every {period} is best: {lost} is lost"
    caption = (
        "Share of wall time that does not train, by the training between two snapshots. Markers: the exact optimum. "
        f"A snapshot takes {number(1e3 * snapshot_s)} ms, and training continues {number(restored_s)} s after a "
        f"failure ({cost.name}), means over the launches here. Failures come at random (Poisson), also in snapshots "
        "and recoveries, and cost what was trained since the last snapshot. Table: Young (1974), Daly (2006)."
    )
    return Picture(
        file_name="snapshot-period",
        heading=heading,
        caption=caption,
        alt=(
            "Line chart of time lost, %, against the period between snapshots, s, by mean time between failures. "
            f"{heading}."
        ),
        table=_table(cost),
        width_in=style.SMALL_WIDTH_IN,
        height_in=3.6,
        paint=partial(_paint, cost=cost),
        narrow=partial(_paint, cost=cost),
        narrow_in=(style.NARROW_WIDTH_IN, 3.4),
        label=label_of([cost.row]),
        missing={},
    )


def _table(cost: FailureCosts) -> Table:
    assert cost.found.snapshot_mean_s is not None
    assert cost.found.restored_mean_s is not None
    snapshot_s, restored_s = cost.found.snapshot_mean_s, cost.found.restored_mean_s
    rows = []
    for name, mtbf_s in MTBF_S.items():
        period = best(snapshot_s, mtbf_s)
        periods = (young(snapshot_s, mtbf_s), daly(snapshot_s, mtbf_s), period)
        rows.append(
            (
                Cell(text=name, key=mtbf_s),
                *(Cell(text=number(each), key=each, number=True) for each in periods),
                Cell.count(max(1, round(period / cost.step_mean_s))),
                Cell(text=_kept(ettr(period, snapshot_s, restored_s, mtbf_s)), number=True),
                Cell(
                    text=_kept(
                        ettr(cost.row.case.snapshot_every * cost.step_mean_s, snapshot_s, restored_s, mtbf_s)
                    ),
                    number=True,
                ),
            )
        )
    return Table(
        caption="Best period between snapshots, and the share of time that trains (ETTR)",
        columns=(
            Column("Mean time between failures"),
            Column("Young, s", number=True),
            Column("Daly, s", number=True),
            Column("Exact, s", number=True),
            Column("Exact, steps", number=True),
            Column("ETTR then", number=True),
            Column(f"ETTR at one in {cost.row.case.snapshot_every:,} steps", number=True),
        ),
        rows=tuple(rows),
    )


def _kept(share: float) -> str:
    return f"{100 * share:.2f} %"


def _paint(sheet: Sheet, *, cost: FailureCosts) -> None:
    from matplotlib.ticker import FuncFormatter, NullLocator

    phone = sheet.width_in <= style.NARROW_WIDTH_IN
    left = 0.72 if phone else 0.8
    axes = sheet.axes(left, 0.55, sheet.width_in - left - 0.2, sheet.height_in - (1.15 if phone else 0.95))
    _lines(axes, cost)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("training between two snapshots, s (log)")
    axes.set_ylabel("time lost, % (log)")
    axes.grid(visible=True)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_minor_locator(NullLocator())
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    handles, _ = axes.get_legend_handles_labels()
    sheet.legend(handles, columns=2 if phone else 4)


def _lines(axes: Axes, cost: FailureCosts) -> None:
    assert cost.found.snapshot_mean_s is not None
    assert cost.found.restored_mean_s is not None
    snapshot_s, restored_s = cost.found.snapshot_mean_s, cost.found.restored_mean_s
    start = best(snapshot_s, min(MTBF_S.values())) / 20
    end = best(snapshot_s, max(MTBF_S.values())) * 20
    periods = [start * (end / start) ** (index / (_POINTS - 1)) for index in range(_POINTS)]
    for (name, mtbf_s), (colour, marker) in zip(MTBF_S.items(), _LINES, strict=True):
        lost = [100 * (1 - ettr(period, snapshot_s, restored_s, mtbf_s)) for period in periods]
        axes.plot(periods, lost, color=colour, linewidth=1.2, zorder=3)
        period = best(snapshot_s, mtbf_s)
        least = 100 * (1 - ettr(period, snapshot_s, restored_s, mtbf_s))
        (best_period,) = axes.plot(
            [period],
            [least],
            marker,
            color=colour,
            markersize=5,
            zorder=4,
            label=f"a failure every {name}",
        )
        describe(
            best_period,
            "",
            f"a failure every {name}: {least:.2g} % lost with a snapshot every {number(period)} s",
        )
