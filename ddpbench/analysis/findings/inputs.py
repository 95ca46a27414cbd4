"""Make at most three sentences that say whether training waits for its input, as defined in `analysis/inputs.py`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

from ddpbench.analysis.finding import Finding
from ddpbench.analysis.findings.wording import fitting, launch_tags, listed, name_of
from ddpbench.analysis.inputs import InputCase, InputGroup, input_groups
from ddpbench.analysis.read.launches import CaseRun
from ddpbench.analysis.sentences import Sentence, sentence
from ddpbench.analysis.shares import share_of_step
from ddpbench.analysis.statistics.interval import Interval
from ddpbench.analysis.statistics.judgement import percent_of, signed, takes_longer
from ddpbench.analysis.statistics.stats import MIN_ROUNDS, shows_less
from ddpbench.naming import Namer, ranks_of, workload_of
from ddpbench.spec import grouping
from ddpbench.units import counted

MOST = 3


def input_findings(cases: Sequence[CaseRun]) -> tuple[Finding, ...]:
    """Return at most `MOST` findings that say whether cases wait for input.

    Each group that has a case with its data in memory gets one finding, and all other groups together get one.
    Input-bound groups come first, ordered by how long they wait, then the others, those with the most ranks first.
    Cases without separate cores for each rank are judged with the others, but have no finding.
    """
    groups = _fair(cases)
    paired = [group for group in groups if group.memory is not None and group.loaded]
    paired.sort(key=lambda group: (not group.bound, -_strength(group), -_world(group)))
    found = [_sentence(group) for group in paired]
    alone = [member for group in groups if group.memory is None for member in group.loaded]
    return tuple([*found, *_without_twins(alone)][:MOST])


def inputs_answer(cases: Sequence[CaseRun]) -> Finding | None:
    """Return the finding on the group of cases that waits longest for its input; None if no group is input-bound.

    The groups that are not shown to be input-bound are named beneath it.
    """
    groups = _paired(cases)
    bound = [group for group in groups if group.bound]
    if not bound:
        return None
    group = max(bound, key=_strength)
    first = group.bound[0]
    run, others = first.run, [one for one in groups if not one.bound]
    names = Namer(member.run.case for one in groups for member in one.members)
    waiting = {one.members[0].run.case.workload for one in bound}
    spared = list(
        dict.fromkeys(
            names.workload(one.members[0].run.case)
            for one in others
            if one.members[0].run.case.workload not in waiting
        )
    )
    who = f"{names.workload(run.case)} ({names.spoken_strategy(run.case)} at {ranks_of(run.case)})"
    taken = f"a step of {who} takes {_longer(first.ratio)} from memory"
    if not others:
        taken = f"{_longer(first.ratio)} from memory takes a step of {who}"
    head = f"it depends: {_how(first)} {taken}" if others else f"{taken} {_how(first)}"
    judged = [member.judged for member in group.loaded if member.judged is not None]
    return Finding(
        kind="inputs",
        text=sentence(fitting([f"{head}{_fixed(group)}", head])),
        tags=(
            *grouping.qualifiers(run.case),
            *([f"not shown to be input-bound: {listed(spared)}"] if spared else []),
            *_about_bound(group),
            *launch_tags(min(one.rounds for one in judged), max(one.comparisons for one in judged)),
        ),
        evidence="inputs",
        verdict="slower",
        cases=tuple(member.run.case_id for member in group.members),
        ratio=first.ratio,
    )


def _paired(cases: Sequence[CaseRun]) -> list[InputGroup]:
    """Return the groups, on separate cores, that have both a case with its data in memory and one that loads data."""
    return [group for group in _fair(cases) if group.memory is not None and group.loaded]


def _fair(cases: Sequence[CaseRun]) -> list[InputGroup]:
    return [
        InputGroup(members=fair)
        for group in input_groups(cases)
        if (fair := tuple(member for member in group.members if not member.run.oversubscribed))
    ]


def _strength(group: InputGroup) -> float:
    """Return the factor by which loading lengthens a group's step at least; 1 if no lengthening is shown."""
    ratio = group.bound[0].ratio if group.bound else None
    return ratio.low or 1.0 if ratio is not None else 1.0


def _world(group: InputGroup) -> int:
    return group.members[0].run.case.world_size


def _sentence(group: InputGroup) -> Finding:
    run = group.members[0].run
    decided = [member for member in group.loaded if member.judged is not None and member.verdict != "too few"]
    if not decided:
        end = (
            f": not enough launches to tell whether training waits for its input (under {MIN_ROUNDS} rounds)"
        )
        return Finding(kind="inputs", text=_said(run, end), evidence="inputs", verdict="too few")
    judged = [member.judged for member in decided if member.judged is not None]
    rounds = min(one.rounds for one in judged)
    farthest = max(decided, key=lambda member: member.ratio.value if member.ratio is not None else 0.0)
    gap = f"{_signed(farthest.ratio)} {_how(farthest)}"
    more: tuple[str, ...] = ()
    verdict: Literal["slower", "equivalent", "unresolved"] = "unresolved"
    if group.bound:
        verdict, end, more = "slower", f", is {_bound(group)}", tuple(_about_bound(group))
    elif all(member.verdict == "not input-bound" for member in decided):
        verdict = "equivalent"
        end = f", is not input-bound: its step time differs by {gap} from that from memory"
        if len(decided) > 1:
            more = (f"no more {_listed([member for member in decided if member is not farthest])}",)
    else:
        end = f": cannot be told input-bound or not: its step time differs by {gap} from that from memory"
    return Finding(
        kind="inputs",
        text=_said(run, end),
        tags=(*more, *launch_tags(rounds, max(one.comparisons for one in judged))),
        evidence="inputs",
        verdict=verdict,
        cases=tuple(member.run.case_id for member in (*decided, group.memory) if member is not None),
        ratio=group.bound[0].ratio if group.bound else None,
    )


def _bound(group: InputGroup) -> str:
    first = group.bound[0]
    text = f"input-bound {_how(first)}: a step takes {_longer(first.ratio)} from memory"
    return f"{text}{_fixed(group)}"


def _fixed(group: InputGroup) -> str:
    """Return the end of a sentence on an input-bound group: how many loader workers fix it, as far as is known."""
    first, fixing = group.bound[0], group.fixed_by
    if fixing is not None:
        return f"; {_workers(fixing)} fix{'es' if fixing.run.case.loader_workers == 1 else ''} it"
    if len(group.loaded) == 1:
        return ""
    unsure = [member for member in group.loaded if member not in group.bound]
    if any(member.run.case.loader_workers > first.run.case.loader_workers for member in unsure):
        return "; whether more workers fix it is open"
    if unsure:
        return f"; {_how(unsure[0])} this is open"
    others = [member for member in group.bound if member is not first]
    one = [member.run.case.loader_workers for member in others] == [1]
    return f"; {_numbers(others)} loader worker{'' if one else 's'} do{'es' if one else ''} not fix it"


def _about_bound(group: InputGroup) -> Iterable[str]:
    """Yield tags for an input-bound group: the share of a step spent waiting, and the effect of more workers."""
    first, *others = group.bound
    if first.run.parts is not None and first.ratio is not None and first.ratio.low is not None:
        hidden = shows_less(share_of_step(first.run.parts, "data"), (1 - 1 / first.ratio.low) / 2)
        more = ": loading slows the step itself" if hidden else ""
        what = "waits for data" if first.run.case.loader_workers else "is preparing data"
        yield f"{'only ' if hidden else ''}{_waited(first)} of a step {what}{more}"
    if others and (group.fixed_by is not None or len(group.bound) < len(group.loaded)):
        yield f"also input-bound {_listed(others)}"
    if group.fixed_by is None:
        if len(group.loaded) == 1:
            yield "other numbers of loader workers were not run"
        else:
            least = min(group.loaded, key=lambda one: one.ratio.value if one.ratio is not None else 1e9)
            if least is not first:
                yield f"least: {_signed(least.ratio)} {_how(least)}"


def _without_twins(members: Sequence[InputCase]) -> Iterable[Finding]:
    looks = [member for member in members if member.verdict == "looks input-bound"]
    if not looks:
        return
    names = Namer(member.run.case for member in members)
    worst = max(looks, key=lambda member: member.waited_share or 0.0)
    verb = "looks" if len(looks) == 1 else "look"
    text = (
        f"{len(looks)} of {counted(len(members), 'case')} {verb} input-bound: up to {_waited(worst)} of a step waits "
        'for data; the same case with data = "memory" can tell'
    )
    yield Finding(
        kind="inputs",
        text=sentence(text),
        tags=(names.full(worst.run.case), "instrumented steps"),
        evidence="inputs",
        verdict="note",
        cases=(worst.run.case_id,),
    )


def _waited(member: InputCase) -> str:
    return percent_of(share_of_step(member.run.parts, "data")) if member.run.parts is not None else "0 %"


def _said(run: CaseRun, end: str) -> Sentence:
    return sentence(f"{name_of(run)} at {ranks_of(run.case)}", [workload_of(run.case)], end)


def _workers(member: InputCase) -> str:
    count = member.run.case.loader_workers
    return f"{count} loader worker{'s' if count != 1 else ''}"


def _how(member: InputCase) -> str:
    return f"with {_workers(member)}" if member.run.case.loader_workers else "without loader workers"


def _listed(members: Sequence[InputCase]) -> str:
    return f"with {_numbers(members)}"


def _numbers(members: Sequence[InputCase]) -> str:
    """List the cases' numbers of loader workers in words, such as `1, 2 and 4`."""
    counts = [str(member.run.case.loader_workers) for member in members]
    return counts[0] if len(counts) == 1 else f"{', '.join(counts[:-1])} and {counts[-1]}"


def _longer(ratio: Interval | None) -> str:
    return "an unknown share longer than" if ratio is None else takes_longer(ratio, than=True)


def _signed(ratio: Interval | None) -> str:
    return "an unknown share" if ratio is None else signed(ratio)
