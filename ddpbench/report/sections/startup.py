"""The section on the time to start ranks, by launcher and number of ranks, for runs with several launchers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple
from typing import TYPE_CHECKING

from ddpbench.naming import Namer
from ddpbench.report.parts import Cell, Column, Section, Table
from ddpbench.spec.grouping import launcher_name

if TYPE_CHECKING:
    from ddpbench.analysis.startup import TypicalStart
    from ddpbench.report.rows import Row

_PARTS = ("Process", "Imports", "Data and model", "Rendezvous", "First step")
"""Parts of start-up, in their order."""


def section(rows: Sequence[Row]) -> Section | None:
    """Return the section on start-up time, which is a table; None for a single launcher, or if not recorded."""
    if len({row.case.launcher for row in rows}) < 2:
        return None
    starts = [(row, row.start) for row in rows if row.start is not None]
    if not starts:
        return None
    starts.sort(key=lambda one: (one[0].case.strategy, one[0].case.world_size, one[1].total.value))
    names = Namer(row.case for row, _ in starts)
    table = Table(
        caption=(
            "Start-up, s: from the moment at which a launch is asked for to the end of its last rank's first step, "
            "median over launches with its 95 % interval, and the medians of its parts for that rank. A fork server "
            "has imported torch before: once a round, and each launch has the share in the last column."
        ),
        columns=(
            Column("Case"),
            Column("Started by"),
            Column("Start-up, s", number=True),
            *(Column(f"{title}, s", number=True) for title in _PARTS),
            Column("Server's share, s", number=True),
        ),
        rows=tuple(_cells(names.spoken(row.case), row, start) for row, start in starts),
        fold="Start-up times",
    )
    return Section(
        anchor="start-up",
        title="Start-up",
        question="What does it take until the first step is made?",
        tables=(table,),
    )


def _cells(name: str, row: Row, start: TypicalStart) -> tuple[Cell, ...]:
    share = row.server_share_s or 0.0
    return (
        Cell(text=name),
        Cell(text=launcher_name(row.case)),
        Cell.estimate(start.total),
        *(Cell(text=f"{part:.2f}", key=part, number=True) for part in astuple(start.parts)),
        Cell(text=f"{share:.2f}" if share else "", key=share, number=True),
    )
