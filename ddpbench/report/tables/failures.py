"""The table of cases that failed or were left out, with the figures in which they are missing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ddpbench.analysis.summary import CaseFailure
from ddpbench.report.parts import Cell, Column, Table
from ddpbench.report.rows import Row
from ddpbench.report.words import series_of


def failures_table(
    failures: Sequence[CaseFailure], rows: Sequence[Row], affected: Mapping[str, Sequence[int]]
) -> Table | None:
    """Return the table of failures; None if there are none.

    `affected` has the numbers of the figures in which a case is missing, by case id.
    """
    if not failures:
        return None
    status = {row.case_id: row for row in rows}
    lines = []
    for failure in failures:
        row = status.get(failure.case_id)
        if row is not None and row.ok:
            effect = f"one of its launches is left out; {row.launches} remain"
        else:
            figures = affected.get(failure.case_id, ())
            listed = series_of([str(number) for number in figures])
            effect = f"figure{'s' if len(figures) > 1 else ''} {listed}" if figures else "no figure"
        lines.append(
            (
                Cell(text=failure.label, link=f"#case-{failure.case_id}" if row is not None else ""),
                Cell(
                    text="all" if failure.round is None else str(failure.round + 1),
                    key=float(failure.round or -1),
                ),
                Cell(text=failure.status),
                Cell(text=failure.phase),
                Cell(text=failure.reason),
                Cell(text=failure.last_log_line),
                Cell(text=effect),
            )
        )
    columns = ("Configuration", "Round", "Status", "Phase", "Reason", "Last log line", "Missing from")
    return Table(
        caption="Failures and exclusions",
        columns=tuple(Column(title) for title in columns),
        rows=tuple(lines),
    )
