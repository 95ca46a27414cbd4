"""Read large runs by several processes, because parsing records takes most of an analysis' time."""

from __future__ import annotations

import itertools
from dataclasses import replace

from ddpbench.analysis.read.cases import judged, read_unjudged
from ddpbench.analysis.read.launches import CaseRun
from ddpbench.helper_process import NOBODY, Dealt, Others, start_others
from ddpbench.progress import OnProgress, ignore_progress
from ddpbench.records import RunDir
from ddpbench.records.plan import StoredPlan

WORTH_SHARING = 100
"""Smallest number of cases for which several processes read, because starting one takes most of a second."""
_AT_ONCE = 25
"""Number of cases per request, small enough for all processes to finish within a fraction of a second."""


def read_cases_of(
    run: RunDir, plan: StoredPlan, others: Others = NOBODY, progress: OnProgress = ignore_progress
) -> list[CaseRun]:
    """Read all cases like `read_cases`, but many of them with several processes.

    Processes in `others` are reused, or new ones are started. Cases that fail in one are read here.
    """
    if len(plan.cases) < WORTH_SHARING:
        return judged(read_unjudged(run, plan, progress))
    if others.processes:
        return judged(_read_shared(run, plan, others, progress))
    with start_others(__name__) as started:
        return judged(_read_shared(run, plan, started, progress))


def _read_shared(run: RunDir, plan: StoredPlan, others: Others, progress: OnProgress) -> list[CaseRun]:
    starts = range(0, len(plan.cases), _AT_ONCE)
    parts = Dealt(_read, [(run, _part(plan, start, start + _AT_ONCE)) for start in starts], others)
    found = parts.answers(lambda done: progress("reading cases", done * _AT_ONCE, len(plan.cases)))
    return list(itertools.chain.from_iterable(found))


def _read(question: tuple[RunDir, StoredPlan]) -> list[CaseRun]:
    return read_unjudged(*question)


def _part(plan: StoredPlan, start: int, end: int) -> StoredPlan:
    return replace(plan, cases=plan.cases[start:end], ids=plan.ids[start:end])
