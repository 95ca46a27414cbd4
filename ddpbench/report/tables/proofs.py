"""What was proved of the cases before they were timed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from ddpbench.analysis.summary import RunSummary
from ddpbench.records import was_made
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
        worst = max(
            records,
            key=lambda record: (not record["passed"], was_made(record["tolerance"]), _error(record["error"])),
        )
        failed = sum(not record["passed"] for record in records)
        made = [record for record in records if was_made(record["tolerance"])]
        lines.append(
            (
                Cell(text=strategy),
                Cell(text=compared),
                Cell(text=dtype),
                _number(worst["error"] if made else None),
                _number(worst["tolerance"] if made else None),
                Cell.count(len(made)),
                Cell(text=_verdict(failed, len(made), len(records)), strong=failed > 0),
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
    """Return one line on what was proved: how many comparisons, how many were left out or did not pass."""
    frame = summary.proofs
    if frame.empty:
        return ""
    made = frame[[was_made(each) for each in frame["tolerance"]]]
    failed = int((~made["passed"].astype(bool)).sum())
    left_out = len(frame) - len(made)
    if made.empty:
        return f"Proved before timing: nothing; {_comparisons(frame)} {_NOT_MADE}"
    share = f"{failed:,} of " if failed else "all "
    found = f"{share if len(made) > 1 else ''}{_comparisons(made)} {'failed' if failed else 'passed'}"
    rest = f"; {counted(left_out, 'other')} {_NOT_MADE}" if left_out else ""
    return f"Proved before timing: {found}{rest}"


_NOT_MADE = "could not be made, for the reasons in the notes"


def _comparisons(frame: pd.DataFrame) -> str:
    cases = counted(frame["case_id"].nunique(), "case")
    return f"{counted(len(frame), 'comparison')} of {cases} with one process"


def _verdict(failed: int, made: int, count: int) -> str:
    if failed:
        return f"{failed} failed"
    if not made:
        return "not compared"
    return "all passed" if made == count else f"all passed; {count - made} not compared"


def _number(value: Any) -> Cell:
    """Return a cell with a number; an empty one for None."""
    if value is None:
        return Cell(text="", number=True)
    return Cell(text=_scientific(value), key=_error(value), number=True)


def _error(value: Any) -> float:
    return float("inf") if pd.isna(value) else float(value)


def _scientific(value: Any) -> str:
    if pd.isna(value):
        return "not a number"
    return "0" if value == 0 else f"{float(value):.1e}"
