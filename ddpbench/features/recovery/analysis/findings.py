"""Findings of a sweep with planned failures: how many failures training recovered from, and how long this takes."""

from __future__ import annotations

from collections.abc import Sequence

from ddpbench.analysis.finding import Finding
from ddpbench.analysis.findings.wording import fitting, launch_tags
from ddpbench.analysis.goodput import words
from ddpbench.analysis.read.launches import CaseRun
from ddpbench.analysis.recovery import RecoveryCost
from ddpbench.analysis.sentences import capital, sentence
from ddpbench.analysis.statistics.judgement import plain
from ddpbench.naming import Namer, workload_of
from ddpbench.spec import grouping
from ddpbench.spec.grouping import RECOVERIES
from ddpbench.units import counted, format_seconds

DAY_S = 86_400.0
"""The mean time between failures that findings assume, in seconds; a real job's depends on its nodes."""


def _costs(cases: Sequence[CaseRun]) -> list[tuple[CaseRun, RecoveryCost]]:
    costs: list[tuple[CaseRun, RecoveryCost]] = []
    for run in cases:
        cost = run.recovery
        if cost is not None and cost.failures:
            costs.append((run, cost))
    return costs


_SETTINGS = ("workload", "strategy", "world_size")
"""Settings that distinguish cases with the same kind of failure."""


def recovery_findings(cases: Sequence[CaseRun]) -> tuple[Finding, ...]:
    """Return a finding for each case in which the cost of a failure was measured, with the lowest cost first."""
    able = [
        (run, cost) for run, cost in _costs(cases) if cost.total is not None and cost.restored is not None
    ]
    kinds = [run.case.recovery for run, _ in able]
    names = Namer(run.case for run, _ in able)
    by_cost: list[tuple[float, Finding]] = []
    for run, cost in able:
        assert cost.total is not None
        assert cost.restored is not None
        what = capital(RECOVERIES[run.case.recovery])
        if kinds.count(run.case.recovery) > 1:
            what = f"{what}, {', '.join(names.apart(run.case, _SETTINGS))}"
        pause = f"training continues after {plain(cost.restored)} s"
        whole = f"has made up for what was lost after {plain(cost.total)} s"
        joined = f", and pauses for {plain(cost.joined)} s as it returns" if cost.joined is not None else ""
        text = fitting([f"{what}: {pause}, {whole}{joined}", f"{what}: {pause}{joined}", f"{what}: {pause}"])
        finding = Finding(
            kind="recovery",
            text=sentence(text),
            tags=(*_setting_tags(run), *launch_tags(cost.failures)),
            evidence="recovery",
            verdict="note",
            cases=(run.case_id,),
        )
        by_cost.append((cost.total.value, finding))
    return tuple(finding for _, finding in sorted(by_cost, key=lambda one: one[0]))


def snapshot_finding(cases: Sequence[CaseRun]) -> Finding | None:
    """Return a finding about the best snapshot period at one failure a day; None if snapshots were not measured."""
    able = [
        (run, cost)
        for run, cost in _costs(cases)
        if cost.restored_mean_s is not None and cost.snapshot_mean_s is not None
    ]
    if not able:
        return None
    run, cost = next((one for one in able if one[0].case.recovery == "SIGKILL"), able[0])
    worst, dearest = max(able, key=lambda one: one[1].restored_mean_s or 0.0)
    assert cost.restored_mean_s is not None
    assert cost.snapshot_mean_s is not None
    assert dearest.restored_mean_s is not None
    period, lost = words(cost.snapshot_mean_s, cost.restored_mean_s, DAY_S)
    _, most = words(cost.snapshot_mean_s, dearest.restored_mean_s, DAY_S)
    took = format_seconds(float(f"{cost.snapshot_mean_s:.2g}"))
    text = (
        f"With a failure a day, a snapshot (mean: {took}) every {period} is best: {lost} of the time is lost"
    )
    kind = f" ({RECOVERIES[run.case.recovery]})"
    more = f", {most} ({RECOVERIES[worst.case.recovery]})" if worst is not run else ""
    return Finding(
        kind="recovery",
        text=sentence(fitting([f"{text}{kind}{more}", f"{text}{kind}", text])),
        tags=(workload_of(run.case), *_setting_tags(run), *launch_tags(cost.failures)),
        evidence="recovery",
        verdict="note",
        cases=(run.case_id,),
    )


def recovery_answer(cases: Sequence[CaseRun]) -> list[Finding]:
    """Return findings about the cost of failures and the best snapshot period; empty if no failure happened."""
    found = recovery_finding(cases)
    saving = snapshot_finding(cases) if found is not None else None
    return [one for one in (found, saving) if one is not None]


def recovery_finding(cases: Sequence[CaseRun]) -> Finding | None:
    """Return a finding about the cheapest and the most expensive failure; None if no failure happened."""
    costs = _costs(cases)
    if not costs:
        return None
    failures, recoveries = (
        sum(getattr(cost, name) for _, cost in costs) for name in ("failures", "recoveries")
    )
    wrong = sum(cost.lost + cost.repeated for _, cost in costs)
    counts = (
        f"{recoveries} of {counted(failures, 'failure')} recovered from and "
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
        texts = [f"{counts}: when {', '.join(spans)}"]
        if last is not first:
            ends = [
                f"{value.value:.3g} s ({RECOVERIES[one.case.recovery]})"
                for one, value in ((first, least.total), (last, most.total))
            ]
            texts.append(f"{counts}; a failure costs from {ends[0]} to {ends[1]}")
        texts += [f"{counts}: when {spans[0]}", counts]
    run = timed[0][0] if timed else costs[0][0]
    return Finding(
        kind="answer",
        text=sentence(fitting(texts)),
        tags=(
            workload_of(run.case),
            *_setting_tags(run),
            *launch_tags(min(cost.failures for _, cost in costs)),
        ),
        evidence="recovery",
        verdict="note",
        cases=tuple(one.case_id for one, _ in costs),
    )


def _setting_tags(run: CaseRun) -> list[str]:
    return [words for words in grouping.qualifiers(run.case) if words != RECOVERIES[run.case.recovery]]
