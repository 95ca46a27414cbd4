"""What starting ranks takes, by launcher and number of ranks. Only where several launchers were used."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pandas as pd

from ddpbench.analysis.names import names_of
from ddpbench.analysis.statistics.interval import Interval
from ddpbench.report.parts import Cell, Column, Section, Table
from ddpbench.spec.grouping import launcher_name

if TYPE_CHECKING:
    from ddpbench.analysis.summary import RunSummary
    from ddpbench.report.rows import Row
    from ddpbench.spec import Case

_PARTS = {
    "startup_process_s": "Process",
    "startup_imports_s": "Imports",
    "startup_model_s": "Data and model",
    "startup_meeting_s": "Rendezvous",
    "startup_first_step_s": "First step",
}


def section(summary: RunSummary, rows: Sequence[Row]) -> Section | None:
    """Return a table without a figure; None with one launcher, or where no launch told its start."""
    if len({row.case.launcher for row in rows}) < 2:
        return None
    records: dict[str, dict[str, Any]] = {
        str(record["case_id"]): {str(name): value for name, value in record.items()}
        for record in summary.cases.to_dict("records")
    }
    told = [row for row in rows if not pd.isna(records[row.case_id]["startup_s"])]
    if not told:
        return None
    told.sort(key=lambda row: (row.case.strategy, row.case.world_size, records[row.case_id]["startup_s"]))
    names = names_of([row.case for row in told])
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
            *(Column(f"{title}, s", number=True) for title in _PARTS.values()),
            Column("Server's share, s", number=True),
        ),
        rows=tuple(_cells(names[row.case_id], row.case, records[row.case_id]) for row in told),
    )
    return Section(
        anchor="start-up",
        title="Start-up",
        question="What does it take until the first step is made?",
        tables=(table,),
    )


def _cells(name: str, case: Case, record: dict[str, Any]) -> tuple[Cell, ...]:
    low, high = record["startup_ci_low_s"], record["startup_ci_high_s"]
    value = float(record["startup_s"])
    estimate = Interval(value) if pd.isna(low) else Interval(value, float(low), float(high))
    share = record["server_share_s"]
    return (
        Cell(text=name),
        Cell(text=launcher_name(case)),
        Cell.estimate(estimate),
        *(Cell(text=f"{record[part]:.2f}", key=float(record[part]), number=True) for part in _PARTS),
        Cell(text=f"{share:.2f}" if share else "", key=float(share), number=True),
    )
