"""Large runs are read by two processes, and once: parsing records is most of an analysis' time, and needs one core."""

from __future__ import annotations

import itertools
from dataclasses import replace

from ddpbench.analysis.read.cases import judged, read_unjudged
from ddpbench.analysis.read.kept import Kept
from ddpbench.analysis.read.launches import CaseRun
from ddpbench.helper_process import Beside, Dealt, second_core
from ddpbench.records import RunDir
from ddpbench.records.plan import StoredPlan
from ddpbench.telling import Told, to_nobody

WORTH_SHARING = 100
"""Fewer cases are read here, and anew each time: a second process takes most of a second to start."""
_AT_ONCE = 25
"""Cases: the other process is done a fraction of a second after this one."""


def read_cases_of(
    run: RunDir, plan: StoredPlan, beside: Beside | None = None, told: Told = to_nobody
) -> list[CaseRun]:
    """`read_cases`, of many cases what was kept of them, or by two processes. What fails in the other is read here.

    `beside` is a second process that is there already; without one it is started, and ended.
    """
    if len(plan.cases) < WORTH_SHARING:
        return judged(read_unjudged(run, plan, told))
    kept = Kept(run, plan)
    found = kept.cases()
    if found is None:
        found = judged(_read_all(run, plan, beside, told))
        kept.keep(found)
    return found


def _read_all(run: RunDir, plan: StoredPlan, beside: Beside | None, told: Told) -> list[CaseRun]:
    if not second_core():
        return read_unjudged(run, plan, told)
    if beside is None:
        with Beside(__name__) as started:
            return _read_both(run, plan, started, told)
    return _read_both(run, plan, beside, told)


def _read_both(run: RunDir, plan: StoredPlan, beside: Beside, told: Told) -> list[CaseRun]:
    starts = range(0, len(plan.cases), _AT_ONCE)
    parts = Dealt(_read, [(run, _part(plan, start, start + _AT_ONCE)) for start in starts], beside)
    found = parts.answers(lambda done: told("reading cases", done * _AT_ONCE, len(plan.cases)))
    return list(itertools.chain.from_iterable(found))


def _read(question: tuple[RunDir, StoredPlan]) -> list[CaseRun]:
    return read_unjudged(*question)


def _part(plan: StoredPlan, start: int, end: int) -> StoredPlan:
    return replace(plan, cases=plan.cases[start:end], ids=plan.ids[start:end])
