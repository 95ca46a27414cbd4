"""Make at most three sentences that say whether training waits for its input, as defined in `analysis/inputs.py`."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Literal

from ddpbench.analysis.finding import Finding
from ddpbench.analysis.findings.wording import fitting, launch_tags, listed, name_of
from ddpbench.analysis.inputs import InputCase, InputGroup, input_groups
from ddpbench.analysis.judging import judge_pairs
from ddpbench.analysis.read.launches import CaseRun
from ddpbench.analysis.sentences import Sentence, sentence
from ddpbench.analysis.shares import share_of_step
from ddpbench.analysis.statistics.interval import Interval
from ddpbench.analysis.statistics.judgement import is_faster, percent_of, signed, takes_longer
from ddpbench.analysis.statistics.stats import MIN_ROUNDS, shows_less
from ddpbench.naming import Namer, ranks_of, workload_of
from ddpbench.spec import grouping
from ddpbench.strategies.traits import traits_of
from ddpbench.units import counted

MOST = 3


def input_findings(cases: Sequence[CaseRun]) -> tuple[Finding, ...]:
    """Return at most `MOST` findings that say whether cases wait for input.

    A group that has a case with its data in memory gets one finding; all others share the last. Input-bound groups come
    first, by how much loading lengthens a step, then the others by ranks. Cases that share cores are judged, but have
    no finding.
    """
    groups = _fair(cases)
    paired = [group for group in groups if group.memory is not None and group.loaded]
    paired.sort(key=lambda group: (not group.bound, -_strength(group), -_world(group)))
    found = [_sentence(group) for group in paired]
    alone = [member for group in groups if group.memory is None for member in group.loaded]
    return tuple([*found, *_without_twins(alone)][:MOST])


def inputs_answer(cases: Sequence[CaseRun], counted: Sequence[str] = ()) -> Finding | None:
    """Return the finding on the group of cases that waits longest for its input; None if no group is input-bound.

    The sentence begins with `it depends` only if another group is shown not to be input-bound. Tags name the groups for
    which the sentence has no room.

    Args:
        cases: the run's cases.
        counted: tags to put after those on the other groups.
    """
    groups = _paired(cases)
    bound = [group for group in groups if group.bound]
    if not bound:
        return None
    group = max(bound, key=_strength)
    first = group.bound[0]
    run = first.run
    spared = [one for one in groups if _not_bound(one)]
    unsure = [one for one in groups if not one.bound and one not in spared]
    names = Namer(member.run.case for one in groups for member in one.members)
    who = f"{names.workload(run.case)} ({_strategy(run, names)})"
    taken = f"{_how(first)} a step of {who} takes {_longer(first.ratio)} from memory"
    if not spared:
        taken = (
            f"{_longer(first.ratio, than=False)}: a step of {who} {_how(first)}, compared with data in memory"
        )
    head, waiting = f"{'it depends: ' if spared else ''}{taken}", {_workload(one) for one in bound}
    apart = _listed_groups(spared, names, waiting)
    ends = [f"; {apart} {'is' if len(spared) == 1 else 'are'} not input-bound", ""] if spared else [""]
    text = fitting(f"{head}{fixed}{end}" for end in ends for fixed in (*_fixed(group), ""))
    judged = [member.judged for member in group.loaded if member.judged is not None]
    return Finding(
        kind="inputs",
        text=sentence(text),
        tags=(
            *grouping.qualifiers(run.case),
            *([f"not input-bound: {apart}"] if spared and apart not in text else []),
            *([f"undecided: {_listed_groups(unsure, names, waiting)}"] if unsure else []),
            *counted,
            *_about_bound(group),
            *launch_tags(min(one.rounds for one in judged), max(one.comparisons for one in judged)),
        ),
        evidence="inputs",
        verdict="slower",
        cases=tuple(member.run.case_id for member in group.members),
        ratio=first.ratio,
    )


def _not_bound(group: InputGroup) -> bool:
    return all(member.verdict == "not input-bound" for member in group.loaded)


def _workload(group: InputGroup) -> str:
    return group.members[0].run.case.workload


def _strategy(run: CaseRun, names: Namer) -> str:
    alone = traits_of(run.case).role == "base"
    return f"{names.spoken_strategy(run.case)}{'' if alone else f' at {ranks_of(run.case)}'}"


def _listed_groups(groups: Sequence[InputGroup], names: Namer, waiting: Collection[str]) -> str:
    found: dict[str, None] = {}
    for one in groups:
        run = one.members[0].run
        more = f" ({_strategy(run, names)})" if _workload(one) in waiting else ""
        found[f"{names.workload(run.case)}{more}"] = None
    return listed(list(found))


def _paired(cases: Sequence[CaseRun]) -> list[InputGroup]:
    return [group for group in _fair(cases) if group.memory is not None and group.loaded]


def _fair(cases: Sequence[CaseRun]) -> list[InputGroup]:
    return [
        InputGroup(members=fair)
        for group in input_groups(cases)
        if (fair := tuple(member for member in group.members if not member.run.oversubscribed))
    ]


def _strength(group: InputGroup) -> float:
    """Return a lower bound of the factor by which loading lengthens a step; 1 if none is shown."""
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
        verdict, more = "slower", tuple(_about_bound(group))
        end = fitting((f", is {text}" for text in _bound(group)), also=len(_said(run, "").split()))
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


def _bound(group: InputGroup) -> Iterator[str]:
    first = group.bound[0]
    text = f"input-bound {_how(first)}: a step takes {_longer(first.ratio)} from memory"
    yield from (f"{text}{end}" for end in _fixed(group))


def _fixed(group: InputGroup) -> tuple[str, ...]:
    first, fixing = group.bound[0], group.fixed_by
    if fixing is not None:
        return (f"; {_workers(fixing)} fix{'es' if fixing.run.case.loader_workers == 1 else ''} it",)
    if len(group.loaded) == 1:
        return ("",)
    unsure = [member for member in group.loaded if member not in group.bound]
    if any(member.run.case.loader_workers > first.run.case.loader_workers for member in unsure):
        return ("; whether more workers fix it is open",)
    if unsure:
        return (f"; {_how(unsure[0])} this is open",)
    return _not_sufficing(first, [member for member in group.bound if member is not first])


def _not_sufficing(first: InputCase, others: Sequence[InputCase]) -> tuple[str, ...]:
    found = judge_pairs({member.run.case_id: (member.run, first.run) for member in others})
    judged = [(member, found[member.run.case_id]) for member in others if member.run.case_id in found]
    faster = [(member, one) for member, one in judged if one.verdict == "faster"]
    single = [member.run.case.loader_workers for member in others] == [1]
    who, does = f"{_numbers(others)} loader worker{'' if single else 's'}", "does" if single else "do"
    if faster:
        member, one = max(faster, key=lambda pair: pair[1].by.value)
        where = "" if len(others) == 1 else f" {_how(member)}"
        if len(faster) < len(others):
            short = f"; {who} do not suffice, but {_numbers([other for other, _ in faster])} help"
        else:
            short = f"; {who} help{'s' if single else ''}, but {does} not suffice"
        return f"; {who} {does} not suffice, but it is {is_faster(one.by)}{where}", short
    if any(one.verdict in ("unresolved", "too few") for _, one in judged):
        return (f"; {who} {does} not suffice; whether {'it helps' if single else 'they help'} is open",)
    return (f"; {who} {does} not suffice and {does} not help",)


def _about_bound(group: InputGroup) -> Iterable[str]:
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
    counts = [str(member.run.case.loader_workers) for member in members]
    return counts[0] if len(counts) == 1 else f"{', '.join(counts[:-1])} and {counts[-1]}"


def _longer(ratio: Interval | None, *, than: bool = True) -> str:
    if ratio is None:
        return f"an unknown share longer{' than' if than else ''}"
    return takes_longer(ratio, than=than)


def _signed(ratio: Interval | None) -> str:
    return "an unknown share" if ratio is None else signed(ratio)
