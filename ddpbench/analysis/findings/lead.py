"""Sentences on DDP's lead over training with a master: how much is due to the ring, and how much to overlap."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from ddpbench.analysis.finding import Finding
from ddpbench.analysis.findings.families import Families
from ddpbench.analysis.findings.groups import grouped, measured
from ddpbench.analysis.findings.wording import launch_tags
from ddpbench.analysis.read.launches import CaseRun
from ddpbench.analysis.sentences import sentence
from ddpbench.analysis.statistics.correlation import widened
from ddpbench.analysis.statistics.interval import Interval
from ddpbench.analysis.statistics.judgement import Judgement, above_one, percent_of, plain
from ddpbench.analysis.statistics.stats import MIN_ROUNDS, by_pair, rounds_of_all, share
from ddpbench.naming import ranks_of, workload_of
from ddpbench.spec import grouping
from ddpbench.spec.grouping import virtual_words
from ddpbench.strategies.traits import traits_of

MOST = 2
_RINGS = ("all_reduce", "ring")
_LEAST = 1.02
"""Smallest lead, a ratio of step times, that is divided into parts; the parts of a smaller lead would be noise."""
WIDEST = 0.3
"""Largest width of a share's interval. A share with a wider interval is not stated."""
_Pair = tuple[tuple[str, str], tuple[str, str]]
"""Algorithm and schedule of two cases, the slower first."""


def lead_findings(cases: Sequence[CaseRun]) -> tuple[Finding, ...]:
    """Return at most `MOST` findings on DDP's lead over a master, at the largest number of ranks.

    Of several networks, those with the largest and the smallest lead are described. Four cases are compared within
    rounds: ring or master, with or without overlap (the master's may be missing).
    """
    families = Families(cases)
    able = [
        run
        for run in measured(cases)
        if run.case.world_size > 1 and not run.oversubscribed and _whole_and_in_step(run)
    ]
    found: list[tuple[int, float, Finding]] = []
    for members in grouped(able, _shared).values():
        # From DDP's bucket caps and options, only the first is used; a master has neither.
        of_ddp = [run for run in members if traits_of(run.case).role == "reference"]
        chosen_kind = next((_settings(run) for run in of_ddp), None)
        alike = [
            run for run in members if traits_of(run.case).role != "reference" or _settings(run) == chosen_kind
        ]
        of_lead = [
            run for run in alike if traits_of(run.case).role == "reference" or _kind(run)[0] == "master"
        ]
        by = {_kind(run): run for run in reversed(of_lead)}
        rings = (
            _RINGS if members[0].case.backend == "gloo" else _RINGS[1:]
        )  # the all-reduce of other backends may be a tree
        ring = next(
            (name for name in rings if (name, "overlapped") in by and (name, "after_backward") in by), ""
        )
        if ring and ("master", "after_backward") in by and (lead := _lead(by, ring, families)) is not None:
            found.append((members[0].case.world_size, *lead))
    most = max((world for world, _, _ in found), default=0)
    there = sorted((lead, number) for number, (world, lead, _) in enumerate(found) if world == most)
    chosen = dict.fromkeys(number for _, number in (there[-1:] + there[:1])[:MOST])
    return tuple(found[number][2] for number in chosen)


def _shared(run: CaseRun) -> tuple[Any, ...]:
    return (
        *grouping.panel(run.case),
        run.case.world_size,
        run.case.nodes,
        run.case.backend,
        run.case.replicate,
    )


def _settings(run: CaseRun) -> tuple[Any, ...]:
    return run.case.bucket_cap_mb, run.case.options_json


def _whole_and_in_step(run: CaseRun) -> bool:
    """Return whether each rank is a process with the whole model, and all ranks make the same update."""
    traits = traits_of(run.case)
    return traits.whole_state and not traits.one_process and traits.promise == "gradients"


def _kind(run: CaseRun) -> tuple[str, str]:
    return run.case.algorithm, run.case.schedule


def _lead(by: dict[tuple[str, str], CaseRun], ring: str, families: Families) -> tuple[float, Finding] | None:
    def against(a: tuple[str, str], b: tuple[str, str]) -> Judgement | None:
        return families.judge(by[a], by[b]) if a in by and b in by else None

    ddp, late = (ring, "overlapped"), (ring, "after_backward")
    master, early = ("master", "after_backward"), ("master", "overlapped")
    lead, what, when = against(master, ddp), against(master, late), against(late, ddp)
    if lead is None or what is None or when is None or not all(one.rounds for one in (lead, what, when)):
        return None
    interval = lead.ratio
    if interval.value < _LEAST or not above_one(interval):
        return None
    case = by[ddp].case
    links = virtual_words(case)
    text = f", a master after backward takes {plain(interval)} times DDP's step"
    parts = [
        f"a ring after backward makes {plain(what.ratio)} of it",
        f"overlap {plain(when.ratio)}",
    ]
    enough = all(one.rounds >= MIN_ROUNDS for one in (lead, what, when))
    if enough and _gains(what) and _gains(when):
        # The ring's part is from master to ring, both after backward. If overlap is counted first, both are overlapped.
        text += f": {_shares(by, (master, late), (master, ddp))}"
        first = against(master, early)
        rest = against(early, ddp)
        if first is not None and rest is not None and _gains(first) and _gains(rest):
            parts.append(f"overlap first, the master overlapped: {_shares(by, (early, ddp), (master, ddp))}")
    few = () if enough else ("too few rounds to share it out",)
    return interval.value, Finding(
        kind="lead",
        text=sentence(f"at {ranks_of(case)}", [workload_of(case)], text),
        tags=(*links, *parts, *launch_tags(lead.rounds), *few),
        evidence="strategies",
        verdict="slower" if enough else "too few",
        cases=(by[master].case_id, by[ddp].case_id),
        ratio=interval,
    )


def _gains(part: Judgement) -> bool:
    return part.rounds > 0 and above_one(part.ratio)


def _shares(by: Mapping[tuple[str, str], CaseRun], ring: _Pair, lead: _Pair) -> str:
    launches = {kind: by_pair(by[kind].timings) for kind in (*ring, *lead)}
    rounds = rounds_of_all(list(launches.values()))

    def logs(pair: _Pair) -> list[float]:
        a, b = (launches[kind] for kind in pair)
        return [math.log(a[number].compared_s / b[number].compared_s) for number in rounds]

    if len(rounds) < MIN_ROUNDS:
        return "the ring's part of the lead cannot be told, for too few rounds have all of these"
    part = share(logs(ring), logs(lead), wider=widened([launches[lead[0]][number] for number in rounds]))
    if part.low is None or part.high is None or part.high - part.low > WIDEST:
        bounds = "" if part.low is None or part.high is None else f" ({percent_of(part)})"
        return f"how much of the lead is the ring cannot be told{bounds}"
    rest = Interval(value=1 - part.value, low=1 - part.high, high=1 - part.low)
    return f"{percent_of(part)} of the lead is the ring, {percent_of(rest)} overlap"
