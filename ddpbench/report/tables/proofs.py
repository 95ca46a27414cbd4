"""What was proved of the cases before they were timed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from ddpbench.analysis.summary import RunSummary
from ddpbench.report.parts import Cell, Column, Table
from ddpbench.report.rows import Row
from ddpbench.units import counted


def proofs_table(summary: RunSummary, rows: Sequence[Row]) -> Table | None:
    """Return the worst error of each comparison by strategy, what was allowed, and how many cases were held to it."""
    frame = summary.proofs
    if frame.empty:
        return None
    names = {row.case_id: row.strategy_name for row in rows}
    groups: dict[tuple[str, str, str], list[Mapping[Any, Any]]] = {}
    for record in frame.to_dict("records"):
        key = (names.get(str(record["case_id"]), str(record["case_id"])), record["compared"], record["dtype"])
        groups.setdefault(key, []).append(record)
    lines = []
    for (strategy, compared, dtype), records in groups.items():
        worst = max(records, key=lambda record: (not record["passed"], _error(record["error"])))
        failed = sum(not record["passed"] for record in records)
        lines.append(
            (
                Cell(text=strategy),
                Cell(text=compared),
                Cell(text=dtype),
                Cell(text=_scientific(worst["error"]), key=_error(worst["error"]), number=True),
                Cell(text=_scientific(worst["tolerance"]), key=float(worst["tolerance"]), number=True),
                Cell.count(len(records)),
                Cell(text=f"{failed} failed" if failed else "all passed", strong=failed > 0),
                Cell(text="; ".join(dict.fromkeys(str(r["note"]) for r in records if r["note"]))),
            )
        )
    columns = (
        Column("Strategy"),
        Column("Compared with one process"),
        Column("Type"),
        Column("Worst relative error", number=True),
        Column("Allowed", number=True),
        Column("Comparisons", number=True),
        Column("Verdict"),
        Column("Note"),
    )
    return Table(caption="Proofs, done before anything was timed", columns=columns, rows=tuple(lines))


def proofs_line(summary: RunSummary) -> str:
    """Return one line on what was proved: how many comparisons, and which strategies did not pass."""
    frame = summary.proofs
    if frame.empty:
        return ""
    failed = frame[~frame["passed"].astype(bool)]
    cases = counted(frame["case_id"].nunique(), "case")
    if failed.empty:
        return f"Proved before timing: all {len(frame):,} comparisons of {cases} with one process passed"
    return f"Proved before timing: {len(failed):,} of {len(frame):,} comparisons of {cases} with one process failed"


def _error(value: Any) -> float:
    return float("inf") if pd.isna(value) else float(value)


def _scientific(value: Any) -> str:
    if pd.isna(value):
        return "not a number"
    return "0" if value == 0 else f"{float(value):.1e}"
