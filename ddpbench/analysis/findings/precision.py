"""The sentence on what autocast buys, from groups of cases that differ in nothing but precision."""

from __future__ import annotations

from collections.abc import Sequence

from ddpbench.analysis.findings.compared import name_of
from ddpbench.analysis.precisions import PrecisionGroup, precision_groups
from ddpbench.analysis.read.launches import CaseRun
from ddpbench.analysis.statistics.stats import MARGIN, MIN_ROUNDS, Interval, Judgement
from ddpbench.analysis.summary import Finding


def precision_findings(cases: Sequence[CaseRun]) -> tuple[Finding, ...]:
    """One sentence, on the group with the most ranks of those with cores of their own and gradients to exchange."""
    groups = precision_groups([run for run in cases if not run.planned.oversubscribed])
    if not groups:
        return ()
    chosen = max(groups, key=lambda group: (bool(group.full.case.algorithm), group.full.case.world_size))
    return (_sentence(chosen),)


def _sentence(group: PrecisionGroup) -> Finding:
    case = group.full.case
    name = name_of(group.full)
    ranks = f"{case.world_size} rank{'s' if case.world_size != 1 else ''}"
    who = f"{name[:1].upper()}{name[1:]} at {ranks}, {case.workload}"
    decided = [(run, judged) for run, judged in group.others if judged.verdict != "too few"]
    if not decided:
        text = f"{who}: not enough launches to compare precisions (under {MIN_ROUNDS} rounds)."
        return Finding(kind="precision", text=text, evidence="precision", verdict="too few")
    parts = [f"{run.case.precision} {_words(judged)}" for run, judged in decided]
    corrected = f"; corrected for {len(decided)} comparisons" if len(decided) > 1 else ""
    rounds = min(judged.rounds for _, judged in decided)
    text = f"{who}, against full precision: {', and '.join(parts)} ({rounds} launches each{corrected})."
    verdicts = {judged.verdict for _, judged in decided}
    return Finding(
        kind="precision",
        text=text,
        evidence="precision",
        verdict=verdicts.pop() if len(verdicts) == 1 else "note",
        cases=(*(run.case_id for run, _ in decided), group.full.case_id),
        ratio=decided[0][1].ratio if len(decided) == 1 else None,
    )


def _words(judged: Judgement) -> str:
    ratio = judged.ratio
    if judged.verdict == "faster":
        return f"is {_percent(_inverse(ratio))} faster{_size(judged)}"
    if judged.verdict == "slower":
        return f"is {_percent(ratio)} slower{_size(judged)}"
    if judged.verdict == "equivalent":
        return f"is equivalent within {100 * MARGIN:g} %"
    return f"shows no significant difference (up to {100 * (judged.bound or 0):.1f} % cannot be ruled out)"


def _size(judged: Judgement) -> str:
    if judged.small:
        return " (measurable, but small)"
    return "" if judged.beyond else f" (measurable, though perhaps within {100 * MARGIN:g} %)"


def _inverse(ratio: Interval) -> Interval:
    assert ratio.low is not None
    assert ratio.high is not None
    return Interval(value=1 / ratio.value, low=1 / ratio.high, high=1 / ratio.low)


def _percent(ratio: Interval) -> str:
    values = [100 * (value - 1) for value in (ratio.value, ratio.low, ratio.high) if value is not None]
    return f"{values[0]:.1f} % [{values[1]:.1f}, {values[2]:.1f}]"
