"""Sentences on training to a loss, such as on cases that are fastest per sample but do not reach the loss first."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from functools import partial

from ddpbench.analysis.finding import Finding
from ddpbench.analysis.findings.families import Families
from ddpbench.analysis.findings.groups import grouped
from ddpbench.analysis.findings.wording import launch_tags, name_of
from ddpbench.analysis.judging import speedup_over
from ddpbench.analysis.names import Names
from ddpbench.analysis.read.launches import CaseRun
from ddpbench.analysis.sentences import sentence
from ddpbench.analysis.statistics.interval import Interval
from ddpbench.analysis.statistics.judgement import Judgement, plain
from ddpbench.analysis.statistics.stats import MIN_ROUNDS, Comparison, compare, judge_all, step_time
from ddpbench.analysis.time_to_loss import against_base, cost_of, loss_curves_of, to_loss
from ddpbench.naming import ranks_of, workload_of
from ddpbench.spec import grouping
from ddpbench.spec.grouping import GroupKey
from ddpbench.strategies.traits import traits_of
from ddpbench.units import format_number

EVIDENCE = "time-to-loss"
MOST_LISTED = 3
"""Largest number of cases to list by name if cases missed the loss."""


def loss_findings(cases: Sequence[CaseRun]) -> tuple[Finding, ...]:
    """Return at most two findings on training to a loss: on a pair whose order differs, and on a speed-up."""
    able = [run for run in cases if run.status == "ok" and not run.oversubscribed and loss_curves_of(run)]
    groups = sorted(grouped(able, _data).values(), key=lambda group: -len(group))
    found = [
        finding
        for make in (partial(_disagreement, families=Families(cases)), _speedup)
        if (finding := next(filter(None, map(make, groups)), None)) is not None
    ]
    return tuple(found)


def _data(run: CaseRun) -> GroupKey:
    return (
        *grouping.deciding("loss", run.case),
        loss_curves_of(run)[0].target,
        run.case.baseline().global_batch,
    )


def _disagreement(group: Sequence[CaseRun], families: Families) -> Finding | None:
    """Return a finding on two cases of which the faster per sample reaches the loss later."""
    comparisons: dict[str, Comparison] = {}
    pairs: dict[str, tuple[CaseRun, CaseRun]] = {}
    known: dict[str, Judgement] = {}
    for a, b in itertools.combinations([run for run in group if to_loss(run)], 2):
        if len({a.case.fabric, b.case.fabric} - {""}) > 1:
            continue
        rate, loss = compare(a.timings, b.timings), compare(to_loss(a), to_loss(b))
        if rate is not None and loss is not None:
            name = f"{a.case_id} {b.case_id}"
            pairs[name] = (a, b)
            comparisons |= {f"rate {name}": rate, f"loss {name}": loss}
            found = a.claimed.get(b.case_id) or families.judge(a, b)
            if found is not None and found.verdict != "too few":
                known[f"rate {name}"] = found
    judged = {
        **judge_all({name: one for name, one in comparisons.items() if name not in known}),
        **known,
    }
    crossed = [
        name
        for name in pairs
        if {judged[f"rate {name}"].verdict, judged[f"loss {name}"].verdict} == {"faster", "slower"}
    ]
    if not crossed:
        return None

    def gap(name: str) -> float:
        return min(abs(comparisons[f"{what} {name}"].log) for what in ("rate", "loss"))

    name = max(crossed, key=gap)
    quick, soon = pairs[name]
    rate, loss = comparisons[f"rate {name}"], comparisons[f"loss {name}"]
    more, longer, corrected = _intervals(quick, soon, judged[f"rate {name}"], judged[f"loss {name}"])
    if judged[f"rate {name}"].verdict == "slower":
        quick, soon = soon, quick
        more, longer = more.reciprocal(), longer.reciprocal()
    text = (
        f"{_who(quick, soon)} trains {plain(more)} times as many samples/s as {_who(soon, quick)}, but takes "
        f"{plain(longer)} times as long to a loss of {loss_curves_of(quick)[0].target:g}"
    )
    return Finding(
        kind="loss",
        text=sentence(text),
        tags=(
            *_samples(quick, soon),
            workload_of(quick.case),
            *launch_tags(min(rate.rounds, loss.rounds), corrected),
        ),
        evidence=EVIDENCE,
        verdict="slower",
        cases=(quick.case_id, soon.case_id),
    )


def _intervals(a: CaseRun, b: CaseRun, rate: Judgement, loss: Judgement) -> tuple[Interval, Interval, int]:
    """Return A/B of samples/s and of time to the loss, with the intervals of the report's tables."""
    for run, base in ((a, b), (b, a)):
        if run.baseline_id == base.case_id:
            faster, sooner = speedup_over(run, base), against_base(run, base)
            if faster is not None and sooner is not None:
                more, longer = faster[0], sooner.time_ratio()
                return (more, longer, 1) if run is a else (more.reciprocal(), longer.reciprocal(), 1)
    return rate.ratio.reciprocal(), loss.ratio, loss.comparisons


def _speedup(group: Sequence[CaseRun]) -> Finding | None:
    by_id = {run.case_id: run for run in group}
    found: list[tuple[float, CaseRun, Interval, Comparison]] = []
    for run in group:
        baseline = by_id.get(run.baseline_id)
        if baseline is None or baseline is run or not traits_of(run.case).exchanges:
            continue
        faster, sooner = speedup_over(run, baseline), against_base(run, baseline)
        if faster is not None and sooner is not None:
            apart = abs(math.log(faster[0].value) + sooner.log)
            found.append((apart, run, faster[0], sooner))
    if not found:
        return None
    _, run, rate, loss = max(found, key=lambda one: one[0])
    cost = cost_of(run)
    assert cost is not None
    assert cost.time_s is not None
    baseline = by_id[run.baseline_id]
    few = ("too few rounds",) if loss.rounds < MIN_ROUNDS else ()
    turn = "and" if few or not _apart(rate, loss.rate_ratio()) else "but"
    text = (
        f"{_who(run, baseline)} is {plain(rate)} times as fast as {name_of(baseline, run)} per sample, "
        f"{turn} {plain(loss.rate_ratio())} times as fast to loss {cost.target:g}"
    )
    times = f"{plain(cost.time_s)} s instead of {plain(step_time(to_loss(baseline)))} s"
    return Finding(
        kind="loss",
        text=sentence(text),
        tags=(times, *_samples(run, baseline), workload_of(run.case), *launch_tags(loss.rounds), *few),
        evidence=EVIDENCE,
        verdict="note",
        cases=(run.case_id, baseline.case_id),
    )


def _apart(a: Interval, b: Interval) -> bool:
    """Return whether the intervals do not overlap. This is stricter than a difference that excludes 0."""
    if a.low is None or a.high is None or b.low is None or b.high is None:
        return False
    return a.high < b.low or b.high < a.low


def _who(run: CaseRun, other: CaseRun) -> str:
    return f"{name_of(run, other)} at {ranks_of(run.case)}{_batch(run, other)}"


def _batch(run: CaseRun, other: CaseRun) -> str:
    alike = (run.case.world_size, name_of(run, other)) == (other.case.world_size, name_of(other, run))
    return f" with {run.case.global_batch:,} samples per step" if alike else ""


def _samples(run: CaseRun, other: CaseRun) -> tuple[str, ...]:
    counts = list(dict.fromkeys(f"{one.case.global_batch:,}" for one in (run, other)))
    return (f"{' and '.join(counts)} samples per step",)


def loss_sentences(cases: Sequence[CaseRun], names: Names) -> Iterable[str]:
    """Yield a sentence that names the cases that missed the loss in any launch, and says how close they came."""
    short = [run for run in cases if loss_curves_of(run) and not to_loss(run)]
    if not short:
        return
    shortfalls = []
    for run in short[:MOST_LISTED]:
        curves, cost = loss_curves_of(run), cost_of(run)
        reached = sum(curve.steps is not None for curve in curves)
        steps = max(len(curve.losses) for curve in curves)
        lowest = format_number(cost.lowest) if cost is not None and cost.lowest is not None else "none"
        shortfalls.append(
            f"{names.of(run)}: {reached} of {len(curves)} launches did, lowest mean loss {lowest} in up to "
            f"{steps:,} steps"
        )
    more = f"; and {len(short) - MOST_LISTED} more" if len(short) > MOST_LISTED else ""
    target = loss_curves_of(short[0])[0].target
    yield (
        f"{names.not_reached(short)} the loss of {target:g} in every launch ({'; '.join(shortfalls)}{more}): no time "
        "to it is shown, for the other launches' would be too short. budget.until_steps and budget.until_s give more."
    )
