"""A sentence on the gain from autocast, from groups of cases that differ only in precision."""

from __future__ import annotations

from collections.abc import Sequence

from ddpbench.analysis.finding import Finding
from ddpbench.analysis.findings.wording import launch_tags, name_of
from ddpbench.analysis.precisions import PrecisionGroup, precision_groups
from ddpbench.analysis.read.launches import CaseRun
from ddpbench.analysis.sentences import sentence
from ddpbench.analysis.statistics.stats import MIN_ROUNDS
from ddpbench.naming import ranks_of, workload_of


def precision_findings(cases: Sequence[CaseRun]) -> tuple[Finding, ...]:
    """Return at most one finding, on the group with the most ranks. Groups that exchange gradients are preferred.

    Only groups with separate cores for each rank are considered.
    """
    groups = [group for group in precision_groups(cases) if not group.full.oversubscribed]
    if not groups:
        return ()
    chosen = max(groups, key=lambda group: (bool(group.full.case.algorithm), group.full.case.world_size))
    return (_sentence(chosen),)


def _sentence(group: PrecisionGroup) -> Finding:
    case = group.full.case
    who = f"{name_of(group.full)} at {ranks_of(case)}", [workload_of(case)]
    decided = [(run, judged) for run, judged in group.others if judged.verdict != "too few"]
    if not decided:
        text = sentence(*who, f": not enough launches to compare precisions (under {MIN_ROUNDS} rounds)")
        return Finding(kind="precision", text=text, evidence="precision", verdict="too few")
    parts = [f"{run.case.precision} is {judged.phrase()}" for run, judged in decided]
    sizes = [f"{run.case.precision}: {size}" for run, judged in decided for size in judged.size_tags]
    rounds = min(judged.rounds for _, judged in decided)
    verdicts = {judged.verdict for _, judged in decided}
    return Finding(
        kind="precision",
        text=sentence(*who, f", against full precision: {', and '.join(parts)}"),
        tags=(*sizes, *launch_tags(rounds, max(judged.comparisons for _, judged in decided))),
        evidence="precision",
        verdict=verdicts.pop() if len(verdicts) == 1 else "note",
        cases=(*(run.case_id for run, _ in decided), group.full.case_id),
        ratio=decided[0][1].ratio if len(decided) == 1 else None,
    )
