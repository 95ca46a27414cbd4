"""Results of the proofs, which compare each case with single-process training before the case is timed."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ddpbench.analysis.results import Proved
from ddpbench.records import was_made
from ddpbench.report.parts import Cell, Column, Table
from ddpbench.report.rows import Row
from ddpbench.units import counted


def proofs_table(proofs: Sequence[Proved], rows: Sequence[Row]) -> Table | None:
    """Return a table of the proofs by strategy, with the largest error, its tolerance, and the number of comparisons.

    None if `proofs` is empty.
    """
    if not proofs:
        return None
    names = {row.case_id: row.strategy_name for row in rows}
    groups: dict[tuple[str, str, str], list[Proved]] = {}
    for one in proofs:
        key = (names.get(one.case_id, one.case_id), one.compared, one.dtype)
        groups.setdefault(key, []).append(one)
    lines = []
    for (strategy, compared, dtype), members in groups.items():
        worst = max(members, key=lambda one: (not one.passed, was_made(one.tolerance), _error(one.error)))
        failed = sum(not one.passed for one in members)
        made = [one for one in members if was_made(one.tolerance)]
        lines.append(
            (
                Cell(text=strategy),
                Cell(text=compared),
                Cell(text=dtype),
                _number(worst.error if made else None),
                _number(worst.tolerance if made else None),
                Cell.count(len(made)),
                Cell(text=_verdict(failed, len(made), len(members)), strong=failed > 0),
                Cell(text="; ".join(dict.fromkeys(one.note for one in members if one.note))),
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


def proofs_line(proofs: Sequence[Proved]) -> str:
    """Return a line with the numbers of comparisons that passed, failed or were left out; empty if there are none."""
    if not proofs:
        return ""
    made = [one for one in proofs if was_made(one.tolerance)]
    failed = sum(not one.passed for one in made)
    left_out = len(proofs) - len(made)
    if not made:
        return f"Proved before timing: nothing; {_comparisons(proofs)} {_NOT_MADE}"
    share = f"{failed:,} of " if failed else "all "
    outcome = f"{share if len(made) > 1 else ''}{_comparisons(made)} {'failed' if failed else 'passed'}"
    rest = f"; {counted(left_out, 'other')} {_NOT_MADE}" if left_out else ""
    return f"Proved before timing: {outcome}{rest}"


_NOT_MADE = "could not be made, for the reasons in the notes"


def _comparisons(proofs: Sequence[Proved]) -> str:
    cases = counted(len({one.case_id for one in proofs}), "case")
    return f"{counted(len(proofs), 'comparison')} of {cases} with one process"


def _verdict(failed: int, made: int, count: int) -> str:
    if failed:
        return f"{failed} failed"
    if not made:
        return "not compared"
    return "all passed" if made == count else f"all passed; {count - made} not compared"


def _number(value: float | None) -> Cell:
    if value is None:
        return Cell(text="", number=True)
    return Cell(text=_scientific(value), key=_error(value), number=True)


def _error(value: float) -> float:
    return math.inf if math.isnan(value) else value


def _scientific(value: float) -> str:
    if math.isnan(value):
        return "not a number"
    return "0" if value == 0 else f"{value:.1e}"
