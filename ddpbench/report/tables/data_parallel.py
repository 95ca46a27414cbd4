"""The section on the phases of DataParallel's step, and the table of all phases that strategies record."""

from __future__ import annotations

from collections.abc import Sequence

from ddpbench.analysis.results import StrategyPhase
from ddpbench.naming import Namer
from ddpbench.report.parts import Cell, Column, Section, Table
from ddpbench.report.rows import Row
from ddpbench.spec import Case
from ddpbench.strategies.traits import traits_of


def is_data_parallel(case: Case) -> bool:
    """Return whether a case's strategy runs torch replicas in threads of one process, as `DataParallel` does."""
    traits = traits_of(case)
    return traits.one_process and traits.engine == "torch"


def data_parallel_section(phases: Sequence[StrategyPhase], all_rows: Sequence[Row]) -> Section | None:
    """Return the section on the phases of DataParallel's step; None if no strategy recorded phases.

    If only other strategies did, it has only a title.
    """
    anchor, title = "data-parallel", "DataParallel's phases"
    rows = [row for row in all_rows if is_data_parallel(row.case)]
    if not rows and phases:
        return Section(anchor=anchor, title="Phases that strategies note themselves")
    if not rows:
        return None
    notes: tuple[str, ...] = ()
    if any(row.case.device == "cpu" for row in rows):
        notes = (
            (
                "What was measured is a threaded equivalent of torch.nn.DataParallel, which on a CPU would call the "
                "bare module: one process, a thread for each replica, and the same phases."
            ),
        )
    absent = ""
    if not phases:
        absent = "No data_parallel case has instrumented steps: its phases are not known."
    return Section(anchor=anchor, title=title, notes=notes, absent=absent)


def phases_table(phases: Sequence[StrategyPhase], rows: Sequence[Row]) -> Table | None:
    """Return a table of each phase's median time, in order, for up to eight cases; None without phases."""
    if not phases:
        return None
    by_id = {row.case_id: row for row in rows}
    every = dict.fromkeys(one.case_id for one in phases)
    cases = [case for case in every if case in by_id][:8]
    names = by_id[cases[0]].names.of(by_id[case].case for case in cases) if cases else Namer(())
    spans = list(dict.fromkeys(one.span for one in sorted(phases, key=lambda one: one.order)))
    medians = {(one.case_id, one.span): one.median_s for one in phases}
    left = len(every) - len(cases)
    more = f" {left} further cases are in the embedded JSON." if left else ""
    return Table(
        caption=f"Time of each phase of an instrumented step, ms, median over launches.{more}",
        columns=(
            Column("Phase"),
            *(Column(f"{names.short(by_id[case].case)}, ms", number=True) for case in cases),
        ),
        rows=tuple(
            (Cell(text=span), *(Cell.ms(medians.get((case, span))) for case in cases)) for span in spans
        ),
        sortable=False,
        fold="Time of each phase",
    )
