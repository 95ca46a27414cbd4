"""Large runs are read by two processes: parsing records is most of an analysis' time, and needs one core."""

from __future__ import annotations

import gc
from dataclasses import replace

from ddpbench.analysis.launches import CaseRun, judged, read_cases
from ddpbench.beside import Beside, second_core, serve
from ddpbench.records import RunDir
from ddpbench.records.plan import StoredPlan

WORTH_SHARING = 100
"""Fewer cases are read here: a second process takes most of a second to start."""


def read_cases_of(run: RunDir, plan: StoredPlan) -> list[CaseRun]:
    """`read_cases`, by two processes where that is worth it. What fails in the other one is read here.

    Raises:
        IdentityError: a case's contents do not give the id that the plan names.
    """
    if len(plan.cases) < WORTH_SHARING or not second_core():
        return read_cases(run, plan)
    half = len(plan.cases) // 2
    theirs = _part(plan, half, None)
    with Beside("ddpbench.analysis.reading") as beside:
        beside.ask((run, theirs))
        found = read_cases(run, _part(plan, 0, half))
        answer: list[CaseRun] | None = beside.answer()
    return judged(found + (read_cases(run, theirs) if answer is None else answer))


def _part(plan: StoredPlan, start: int, end: int | None) -> StoredPlan:
    return replace(plan, cases=plan.cases[start:end], ids=plan.ids[start:end])


if __name__ == "__main__":
    gc.disable()
    serve(lambda question: read_cases(*question))
