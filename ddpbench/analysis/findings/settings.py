"""Sentences on the effect of links and of a replay's options, from cases that differ only in these."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ddpbench.analysis.finding import Finding
from ddpbench.analysis.findings.groups import grouped
from ddpbench.analysis.findings.wording import launch_tags, name_of
from ddpbench.analysis.judging import judge_pairs
from ddpbench.analysis.read.launches import CaseRun
from ddpbench.analysis.sentences import sentence
from ddpbench.analysis.statistics.judgement import OPEN, Judgement, plain, undecided
from ddpbench.naming import Namer, ranks_of, workload_of
from ddpbench.spec import grouping
from ddpbench.spec.grouping import GroupKey, cap_order, virtual_words
from ddpbench.spec.links import links_apart, links_of
from ddpbench.strategies.traits import traits_of

MOST = 2


def setting_findings(cases: Sequence[CaseRun]) -> tuple[Finding, ...]:
    """Return at most `MOST` findings on links and replay options, one per strategy.

    The settings of a group are compared with the plan's first one, at the most ranks, corrected for their number. The
    setting with the largest difference gets the finding. If options vary too, only cases on the same links are
    compared.
    """
    able = [
        run
        for run in cases
        if run.status == "ok"
        and run.timings
        and traits_of(run.case).exchanges
        and run.case.world_size > 1
        and not run.oversubscribed
        and (run.case.fabric or run.case.compute != "real")
    ]
    chosen: dict[str, list[CaseRun]] = {}
    for members in sorted(_groups(able), key=lambda group: (-group[0].case.world_size, _cap(group[0]))):
        chosen.setdefault(name_of(members[0]), members)
    pairs: dict[str, tuple[str, CaseRun, CaseRun]] = {}
    for name, (first, *others) in chosen.items():
        for run in others:
            pairs[run.case_id] = (name, run, first)
    widest: dict[str, tuple[float, str, Judgement]] = {}
    judged = judge_pairs({key: (run, first) for key, (_, run, first) in pairs.items()})
    for key, one in judged.items():
        if one.verdict == "too few":
            continue
        name, gap = pairs[key][0], abs(math.log(one.ratio.value))
        if name not in widest or gap > widest[name][0]:
            widest[name] = (gap, key, one)
    return tuple(_sentence(name, pairs[key][1:], one) for name, (_, key, one) in list(widest.items())[:MOST])


def _cap(run: CaseRun) -> tuple[int, float]:
    return cap_order(run.case.bucket_cap_mb)


def _groups(cases: Sequence[CaseRun]) -> list[list[CaseRun]]:
    def shared(run: CaseRun) -> GroupKey:
        return grouping.alike(run.case, but=("workload_options_json", "fabric"))

    found: list[list[CaseRun]] = []
    for members in grouped(cases, shared).values():
        fabrics = grouped(members, lambda run: (run.case.fabric,))
        options = {run.case.workload_options_json for run in members}
        if len(options) > 1 and len(fabrics) > 1:
            found += [group for group in fabrics.values() if len(group) > 1]
        elif len(members) > 1:
            found.append(members)
    return found


def _sentence(name: str, pair: tuple[CaseRun, CaseRun], judged: Judgement) -> Finding:
    worst, best = pair
    ratio = judged.ratio
    if ratio.value < 1:
        worst, best, ratio = best, worst, ratio.reciprocal()
    labels = virtual_words(worst.case, but=("fabric",))
    if worst.case.fabric == best.case.fabric and worst.case.fabric:
        labels.insert(0, virtual_words(worst.case)[0])
    elif worst.case.fabric or best.case.fabric:
        labels.insert(0, "emulated links")
    who = f"{name} at {ranks_of(worst.case)}"
    text = f": a step takes {plain(ratio)} times as long {_apart(worst, best)}"
    if judged.verdict in ("equivalent", "unresolved"):
        text = f": {OPEN} {_apart(worst, best)}; {undecided(ratio)}"
    verdict = "slower" if judged.verdict in ("slower", "faster") else judged.verdict
    return Finding(
        kind="links",
        text=sentence(who, [workload_of(worst.case)], text),
        tags=(*labels, *judged.size_tags, *launch_tags(judged.rounds, judged.comparisons)),
        evidence="links",
        verdict=verdict,
        cases=(worst.case_id, best.case_id),
        ratio=ratio,
    )


def _apart(worst: CaseRun, best: CaseRun) -> str:
    if worst.case.fabric != best.case.fabric:
        over = [f"over {_links(run, other)}" for run, other in ((worst, best), (best, worst))]
    else:
        over = [f"with {_options(run, other)}" for run, other in ((worst, best), (best, worst))]
    return " as ".join(over)


def _links(run: CaseRun, other: CaseRun) -> str:
    if links_of(run.case.fabric) is None:
        return "the machine's own links"
    return links_apart(run.case.fabric, other.case.fabric)


def _options(run: CaseRun, other: CaseRun) -> str:
    return ", ".join(Namer([run.case, other.case]).apart(run.case, ("workload_options_json",)))
