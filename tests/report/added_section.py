"""The number of launches of each case: a report section that docs/extending.md adds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ddpbench.report.parts import Cell, Column, Section, Table

if TYPE_CHECKING:
    from ddpbench.report.rows import Row


def section(rows: Sequence[Row]) -> Section | None:
    """Return a table, or None if nothing was launched."""
    launched = [row for row in rows if row.launches]
    if not launched:
        return None
    table = Table(
        caption="Launches of each case.",
        columns=(Column("Case"), Column("Launches", number=True)),
        rows=tuple((Cell(text=row.name), Cell.count(row.launches)) for row in launched),
    )
    return Section(
        anchor="launch-counts",
        title="Launches",
        question="How often was each case launched?",
        tables=(table,),
    )
