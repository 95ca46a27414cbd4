"""Sentences on whether training waits for its input, as `analysis/inputs.py` defines it; three at most."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ddpbench.analysis.findings.compared import name_of
from ddpbench.analysis.inputs import InputCase, InputGroup, input_groups
from ddpbench.analysis.read.launches import CaseRun
from ddpbench.analysis.shares import percent_of, share_of_step
from ddpbench.analysis.statistics.stats import MIN_ROUNDS, Interval
from ddpbench.analysis.summary import Finding
from ddpbench.spec import labels

MOST = 3


def input_findings(cases: Sequence[CaseRun]) -> tuple[Finding, ...]:
    """Groups that have a twin with its data in memory first, those with the most ranks before others.

    Cases without cores of their own make no sentence.
    """
    groups = input_groups([run for run in cases if not run.planned.oversubscribed])
    paired = [group for group in groups if group.memory is not None and group.loaded]
    paired.sort(key=lambda group: (not group.bound, -_world(group)))
    found = [_sentence(group) for group in paired]
    alone = [member for group in groups if group.memory is None for member in group.loaded]
    return tuple([*found, *_without_twins(alone)][:MOST])


def _world(group: InputGroup) -> int:
    return group.members[0].run.case.world_size


def _sentence(group: InputGroup) -> Finding:
    who = _who(group.members[0].run)
    judged = [member for member in group.loaded if member.judged is not None]
    decided = [member for member in judged if member.verdict != "too few"]
    if not decided:
        text = f"{who}: not enough launches to tell whether training waits for its input (under {MIN_ROUNDS} rounds)."
        return Finding(kind="inputs", text=text, evidence="inputs", verdict="too few")
    end = _end(decided)
    ids = tuple(member.run.case_id for member in (*decided, group.memory) if member is not None)
    if group.bound:
        return Finding(
            kind="inputs",
            text=f"{who}, is {_bound(group)} {end}.",
            evidence="inputs",
            verdict="slower",
            cases=ids,
        )
    farthest = max(decided, key=lambda member: member.ratio.value if member.ratio is not None else 0.0)
    gap = f"{_signed(farthest.ratio)} {_how(farthest)}"
    if all(member.verdict == "not input-bound" for member in decided):
        text = f"{who}, is not input-bound: against data in memory its step time differs by {gap}"
        if len(decided) > 1:
            text += f", and by no more {_listed([member for member in decided if member is not farthest])}"
        return Finding(
            kind="inputs", text=f"{text} {end}.", evidence="inputs", verdict="equivalent", cases=ids
        )
    text = f"{who}: this sweep cannot tell whether training waits for its input; against data in memory the step time"
    return Finding(
        kind="inputs",
        text=f"{text} differs by {gap} {end}.",
        evidence="inputs",
        verdict="unresolved",
        cases=ids,
    )


def _bound(group: InputGroup) -> str:
    first, *others = group.bound
    text = f"input-bound {_how(first)}: a step takes {_longer(first.ratio)} longer than with data in memory"
    if first.waited_share is not None and first.ratio is not None:
        waited = f"{_waited(first)} of it is spent waiting for data"
        hidden = first.waited_share < (1 - 1 / first.ratio.value) / 2
        text += f", though only {waited}: loading slows the step itself" if hidden else f", and {waited}"
    text += f"; so it is {_listed(others)}" if others else ""
    mend = group.fixed_by
    if mend is not None:
        return f"{text}; {_workers(mend)} fix{'es' if mend.run.case.loader_workers == 1 else ''} it"
    if len(group.loaded) == 1:
        return f"{text}; other numbers of loader workers were not run"
    least = min(group.loaded, key=lambda member: member.ratio.value if member.ratio is not None else 1e9)
    return (
        f"{text}; no number of workers run here fixes it (least: {_longer(least.ratio)} longer {_how(least)})"
    )


def _without_twins(members: Sequence[InputCase]) -> Iterable[Finding]:
    looks = [member for member in members if member.verdict == "looks input-bound"]
    if not looks:
        return
    names = labels(member.run.case for member in members)
    worst = max(looks, key=lambda member: member.waited_share or 0.0)
    verb = "looks" if len(looks) == 1 else "look"
    text = (
        f"{len(looks)} of {len(members)} case{'s' if len(members) != 1 else ''} {verb} input-bound: up to "
        f"{_waited(worst)} of a step is spent waiting for data ({names[worst.run.case_id]}; "
        'instrumented steps). Only the same case with data = "memory" beside it can tell.'
    )
    yield Finding(kind="inputs", text=text, evidence="inputs", verdict="note", cases=(worst.run.case_id,))


def _waited(member: InputCase) -> str:
    return percent_of(share_of_step(member.run.parts, "data")) if member.run.parts is not None else "0 %"


def _who(run: CaseRun) -> str:
    world = run.case.world_size
    name = name_of(run)
    return f"{name[:1].upper()}{name[1:]} at {world} rank{'s' if world != 1 else ''}, {run.case.workload}"


def _workers(member: InputCase) -> str:
    count = member.run.case.loader_workers
    return f"{count} loader worker{'s' if count != 1 else ''}"


def _how(member: InputCase) -> str:
    return f"with {_workers(member)}" if member.run.case.loader_workers else "without loader workers"


def _listed(members: Sequence[InputCase]) -> str:
    counts = [str(member.run.case.loader_workers) for member in members]
    words = counts[0] if len(counts) == 1 else f"{', '.join(counts[:-1])} and {counts[-1]}"
    return f"with {words}"


def _end(decided: Sequence[InputCase]) -> str:
    rounds = min(member.judged.rounds for member in decided if member.judged is not None)
    corrected = f"; corrected for {len(decided)} comparisons" if len(decided) > 1 else ""
    return f"({rounds} launches each{corrected})"


def _longer(ratio: Interval | None) -> str:
    return _percent(ratio, "")


def _signed(ratio: Interval | None) -> str:
    return _percent(ratio, "+")


def _percent(ratio: Interval | None, sign: str) -> str:
    """Return a ratio of step times as `34.3 % [31.0, 37.7]`."""
    if ratio is None:
        return "an unknown share"
    values = [100 * (value - 1) for value in (ratio.value, ratio.low, ratio.high) if value is not None]
    text = f"{values[0]:{sign}.1f} %"
    if len(values) == 3:
        text += f" [{values[1]:{sign}.1f}, {values[2]:{sign}.1f}]"
    return text.replace("-", "\N{MINUS SIGN}")
