"""The answer of a sweep in which something fails: how many failures were recovered from, and how long that takes."""

from __future__ import annotations

from collections.abc import Sequence

from ddpbench.analysis.findings.wording import fitting, launch_tags, plain, sentence
from ddpbench.analysis.read.launches import CaseRun
from ddpbench.analysis.recovery import RecoveryCost, recovery_cost
from ddpbench.analysis.summary import Finding
from ddpbench.spec import grouping
from ddpbench.spec.grouping import RECOVERIES
from ddpbench.units import counted


def recovery_finding(cases: Sequence[CaseRun]) -> Finding | None:
    """Return what failures cost, from the cheapest to the dearest; None where none was planned, or none came."""
    costs: list[tuple[CaseRun, RecoveryCost]] = []
    for run in cases:
        cost = recovery_cost([one.recovered for one in run.good if one.recovered is not None])
        if cost is not None and cost.failures:
            costs.append((run, cost))
    if not costs:
        return None
    failures, recoveries = (
        sum(getattr(cost, name) for _, cost in costs) for name in ("failures", "recoveries")
    )
    wrong = sum(cost.lost + cost.repeated for _, cost in costs)
    counts = (
        f"{recoveries} of {counted(failures, 'failure')} recovered from, "
        f"{'no sample' if not wrong else counted(wrong, 'sample')} lost or repeated"
    )
    timed = sorted(
        ((run, cost.total.value, cost) for run, cost in costs if cost.total is not None),
        key=lambda one: one[1],
    )
    texts = [counts]
    if timed:
        (first, _, least), (last, _, most) = timed[0], timed[-1]
        assert least.total is not None
        assert most.total is not None
        spans = [f"{RECOVERIES[first.case.recovery]}, {plain(least.total)} s of training are gone"]
        spans += (
            [f"when {RECOVERIES[last.case.recovery]}, {plain(most.total)} s"] if last is not first else []
        )
        texts = [f"when {', '.join(spans)}; {counts}", f"when {spans[0]}; {counts}", counts]
    run = timed[0][0] if timed else costs[0][0]
    return Finding(
        kind="answer",
        text=sentence(fitting(texts)),
        tags=(run.case.workload, *_told(run), *launch_tags(min(cost.failures for _, cost in costs))),
        evidence="recovery",
        verdict="note",
        cases=tuple(one.case_id for one, _ in costs),
    )


def _told(run: CaseRun) -> list[str]:
    return [words for words in grouping.told(run.case) if words != RECOVERIES[run.case.recovery]]
