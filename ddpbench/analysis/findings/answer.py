"""The answer to an experiment's question, in one or two sentences from the decided comparisons."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from types import MappingProxyType

from ddpbench.analysis.checkpoints import SMALL_SHARE, checkpoint_costs
from ddpbench.analysis.finding import Finding, FindingKind
from ddpbench.analysis.findings.below_one import all_below_one
from ddpbench.analysis.findings.choice import Choice, choices_of, planned_panels
from ddpbench.analysis.findings.first_to_loss import first_to_loss
from ddpbench.analysis.findings.groups import exchanges_gradients, reference_of
from ddpbench.analysis.findings.growth import growth_finding
from ddpbench.analysis.findings.wording import (
    called,
    conditions,
    fitting,
    launch_tags,
    listed,
    listed_apart,
    mostly_disturbed,
    name_of,
    one_bucket,
    tied_words,
)
from ddpbench.analysis.findings.wrappers import wrappers_finding
from ddpbench.analysis.invariants.checked import Violation
from ddpbench.analysis.read.launches import CaseRun
from ddpbench.analysis.sentences import sentence
from ddpbench.analysis.statistics.interval import Interval
from ddpbench.analysis.statistics.judgement import (
    MARGIN_WORDS,
    RATIO_THRESHOLD,
    Judgement,
    fastest_other,
    plain,
    takes_longer,
)
from ddpbench.analysis.statistics.narrowing import rounds_for
from ddpbench.analysis.statistics.stats import MIN_ROUNDS
from ddpbench.analysis.statistics.tails import missed_words
from ddpbench.installed import with_features
from ddpbench.naming import Namer, layout_in_words, layout_of, ranks_of, workload_of
from ddpbench.spec import Case, grouping
from ddpbench.spec.grouping import PANEL, SCALE, VARIANT, Label
from ddpbench.strategies.traits import traits_of
from ddpbench.units import counted, format_at_least, format_two_digits_down

ASKED: tuple[FindingKind, ...] = ("loss", "lead", "links", "inputs", "precision", "threads")
"""Kinds of findings that answer a sweep's question, the most informative first."""
_PLURALS = {"workload": "workloads", "fabric": "links", "precision": "precisions", "scaling": "scalings"}
"""Plural noun for panels that differ in one field. For all other fields it is `settings`."""


def answer_of(
    cases: Sequence[CaseRun],
    findings: Sequence[Finding],
    claimed: Finding | None = None,
    withheld: Mapping[str, Violation] = MappingProxyType({}),
) -> tuple[Finding, ...]:
    """Return the answer in one or two findings. Without an answer, return one finding that says why.

    Args:
        cases: a run's cases.
        findings: the run's findings; one of them may become the second sentence.
        claimed: the finding on the experiment's claims, if it has any.
        withheld: violations by the ids of cases whose numbers must be wrong. No answer compares these cases.
    """
    usable = [run for run in cases if run.case_id not in withheld]
    doubtful = {grouping.panel(run.case) for run in cases if run.case_id in withheld}
    choices = [one for one in choices_of(cases) if grouping.panel(one.chosen.case) not in doubtful]
    panels = planned_panels(cases)
    found = None if withheld else first_to_loss(cases)
    if found is None:
        found = _to_use(choices, panels)
    chosen = {one.chosen.case_id for one in choices}
    asked = sorted(
        (one for one in findings if one.kind in ASKED and one.verdict in ("faster", "slower", "equivalent")),
        key=lambda one: (ASKED.index(one.kind), not chosen.intersection(one.cases)),
    )[:1]
    ranked = found is not None and (
        found.evidence == "time-to-loss" or any(len(one.ranked) > 1 for one in choices)
    )
    answers = [*([found] if found else []), *asked] if ranked else [*asked, *([found] if found else [])]
    saved = _checkpoint(usable)
    answers = [saved, *answers][:2] if saved is not None else answers
    for answer in with_features("answer", {}).values():  # the rest concerns training without failures
        answers = answer(usable) or answers
    wrapped = wrappers_finding(usable)
    answers = [wrapped] if wrapped is not None else answers
    growth = growth_finding(usable)
    answers = [growth, *answers][:2] if growth is not None else answers
    if claimed is not None:
        if not answers and claimed.verdict == "unresolved":
            answers = [_none(cases, panels, withheld)]  # says why nothing is decided, and what to do
        answers = [claimed, *answers[: claimed.kind not in ASKED]]
    return _with_below_one(answers or [_none(cases, panels, withheld)], usable)


def _with_below_one(answers: Sequence[Finding], cases: Sequence[CaseRun]) -> tuple[Finding, ...]:
    first, *others = answers
    below = all_below_one(cases)
    said = any(words in one.line for one in answers for words in ("stay on one", "slower than one rank"))
    if below is None or said:
        return tuple(answers)
    return (replace(first, tags=(below.tag, *first.tags)), *others)


def _to_use(choices: Sequence[Choice], panels: Sequence[Case]) -> Finding | None:
    if all(len(one.ranked) == 1 for one in choices):
        choices = [one for one in choices if one.gain is not None]
    if not choices:
        return None
    several = len(panels) > 1
    places = _Places(choices, panels)
    text = _over_panels(choices, places) if several else _in_one(choices[0])
    rounds = min(one.rounds for one in choices)
    ranked = [run for one in choices for run in one.ranked]
    return Finding(
        kind="answer",
        text=sentence(text),
        tags=(
            *places.labels(choices),
            *_undecided_at_most(choices, places, text),
            *(mostly := mostly_disturbed(ranked)),
            *_limits(choices, places),
            *(one for one in conditions(ranked) if one not in mostly),
            *(one_bucket(choices[0].chosen) if len(choices) == 1 else ()),
            *launch_tags(rounds),
            *([missed_words(rounds, "launches")] if any(len(one.ranked) > 1 for one in choices) else ()),
        ),
        evidence="scaling",
        verdict="faster" if _all_best(choices) else "note",
        cases=tuple(dict.fromkeys(one.chosen.case_id for one in choices)),
    )


class _Places:
    def __init__(self, choices: Sequence[Choice], cases: Sequence[Case]) -> None:
        differing = grouping.differing(cases, PANEL)
        alone = [
            name
            for name in differing
            if len({grouping.panel_value(case, name) for case in cases}) == len(cases)
        ]
        self.fields = alone[:1] or differing
        self._names = Namer(cases)
        self.total = len(cases)
        self.family = [run for one in choices for run in one.ranked]
        judged = {grouping.panel(one.chosen.case) for one in choices}
        self.missing = [case for case in cases if grouping.panel(case) not in judged]
        self.noun = _PLURALS.get(self.fields[0], "settings") if len(self.fields) == 1 else "settings"

    def words(self, choice: Choice) -> list[str]:
        return self._names.apart(choice.chosen.case, self.fields)

    def name(self, choice: Choice) -> str:
        return called(choice.chosen, self.family)

    def where(self, choice: Choice) -> str:
        return f" ({', '.join(self.words(choice))})" if self.total > 1 else ""

    def not_judged(self) -> str:
        return listed_apart(self._names.apart(case, self.fields) for case in self.missing)

    def count(self, count: int) -> str:
        if count < self.total:
            return f"{count} of {self.total} {self.noun}"
        return f"both {self.noun}" if count == 2 else f"all {count} {self.noun}"

    def labels(self, choices: Sequence[Choice]) -> list[Label]:
        said = {word for one in choices for word in self._names.apart(one.chosen.case, self.fields)}
        every = list(dict.fromkeys(word for one in choices for word in grouping.qualifiers(one.chosen.case)))
        return [word for word in every if word not in said] + (
            [Label("emulated links")]
            if any(one.chosen.case.fabric for one in choices) and "fabric" in self.fields
            else []
        )


def _in_one(choice: Choice) -> str:
    name, ranks = called(choice.chosen, choice.ranked), counted(choice.world, "rank")
    gain = f"{_gain(ranks, name, plain(choice.gain), [choice])}" if choice.gain is not None else ""
    if choice.loses:
        return f"{gain}: stay on one"
    if len(choice.ranked) == 1:
        return gain
    start = gain or f"{ranks} train fastest with {name}"
    names = Namer(run.case for run in choice.ranked)
    spoken = names.spoken_strategy(choice.chosen.case)
    strategies = {run.case.strategy for run in choice.tied}
    if strategies == {choice.chosen.case.strategy}:
        family = (choice.chosen, *choice.tied)
        kinds = [", ".join(names.details(run.case, (*VARIANT, *SCALE))) or spoken for run in family]
        one = choice.chosen.case
        first = ", ".join(
            layout_in_words(one) if word == layout_of(one) else word
            for word in names.details(one, (*VARIANT, *SCALE))
        )
        start = (
            _gain(ranks, spoken, plain(choice.gain), [choice])
            if choice.gain is not None
            else f"{ranks} train fastest with {spoken}"
        )
        every = listed([first or spoken, *kinds[1:]])
        apart, count = _apart_by(choice), f"{len(kinds)} kinds of it"
        ends = [
            *tied_words(choice.ties, apart, f" between {every}", f": {every}"),
            f"{[*tied_words(choice.ties, apart)][-1]}: {every}",
            *tied_words(choice.ties, apart, f" between {count}", f": {count}"),
        ]
        return fitting(f"{start}; {end}" for end in ends)
    if choice.tied:
        return fitting(_tied(choice, name, ranks, gain, strategies))
    return fitting(f"{start}; {rest}" for rest in _rest(choice))


def _gain(ranks: str, name: str, gain: str, choices: Sequence[Choice]) -> str:
    """Compare the ranks with one rank of torch, even if the chosen case has another framework."""
    one = "one rank" if _all_torch(choices) else "one rank in torch"
    return f"{ranks} with {name} train {gain} times as fast as {one}"


def _all_torch(choices: Sequence[Choice]) -> bool:
    return all(traits_of(one.chosen.case).engine == "torch" for one in choices)


def _tied(choice: Choice, name: str, ranks: str, gain: str, strategies: Collection[str]) -> Iterator[str]:
    names = [listed([called(run, choice.ranked) for run in choice.tied]), counted(len(choice.tied), "other")]
    if choice.chosen is reference_of(choice.ranked) and any(
        one.verdict != "equivalent" for one in choice.ties
    ):
        other = "strategy" if choice.chosen.case.strategy not in strategies else "other case"
        shown = f"no {other} is shown to be faster"
        start = f"{gain}; {shown}" if gain else f"{shown} than {name} at {ranks}"
        if apart := _apart_by(choice):
            yield f"{start}: {name} is {fastest_other(apart)}"
            yield f"{start} (up to {apart})"
        yield start
        return
    start = gain or f"no strategy is shown to be faster than {name} at {ranks}"
    for which in names:
        ties = tied_words(choice.ties, _apart_by(choice), f" from {which}", f" to {which}")
        yield from (f"{start}; {tie}" for tie in ties)


def _apart_by(choice: Choice) -> str:
    """Return the bound on the chosen case's difference from the fastest other, as the case's row of a table has it."""
    return choice.standing.apart if choice.standing is not None else ""


def _rest(choice: Choice) -> list[str]:
    others = choice.behind
    if len(others) == 1:
        run, ratio = others[0]
        less = ", slower than one rank" if run in choice.below_base else ""
        end = f"a step takes {takes_longer(ratio, bare=True)}{less}"
        return [f"with {called(run, choice.ranked)} {end}", f"with the other {end}"]
    # The statement on all of them uses the intervals' ends, not estimates.
    least = min(ratio.value if ratio.low is None else ratio.low for _, ratio in others)
    if least >= RATIO_THRESHOLD:
        bound = f"{format_two_digits_down(least)} times as long"
    else:
        bound = f"{format_at_least(least - 1)} longer"
    return [f"steps of the other {len(others)} take at least {bound}"]


def _over_panels(choices: Sequence[Choice], places: _Places) -> str:
    groups = _grouped(choices, places)
    if len(groups) == 1:
        ((name, world),) = groups
        return _alike(name, world, choices, places)
    if not any(_apart(one, other, places) for one, other in combinations(choices, 2)):
        return _not_shown_to_depend(choices, places)
    return fitting(f"it depends: {text}" for text in _uses(groups, places))


def _uses(groups: Mapping[tuple[str, int], Sequence[Choice]], places: _Places) -> Iterator[str]:
    worlds = {world for name, world in groups if name != "one rank"}
    ranks = f"at {counted(next(iter(worlds)), 'rank')} " if len(worlds) == 1 else ""
    same = bool(ranks)
    for short in (False, True):
        parts = [_part(key, members, places, short=short, same=same) for key, members in groups.items()]
        yield f"{ranks}use {'; '.join(parts)}"


def _grouped(choices: Sequence[Choice], places: _Places) -> dict[tuple[str, int], list[Choice]]:
    groups: dict[tuple[str, int], list[Choice]] = {}
    for one in choices:
        key = ("one rank", 1) if one.loses else (places.name(one), one.world)
        groups.setdefault(key, []).append(one)
    return groups


def _not_shown_to_depend(choices: Sequence[Choice], places: _Places) -> str:
    decided = [one for one in choices if one.best or one.loses]
    head = f"{len(decided)} of {places.total} {places.noun} {'is' if len(decided) == 1 else 'are'} decided"
    return (
        fitting(f"{head}: {text}" for text in _uses(_grouped(decided, places), places)) if decided else head
    )


def _apart(one: Choice, other: Choice, places: _Places) -> bool:
    mine, theirs = (_may_be_best(choice, places) for choice in (one, other))
    return theirs <= _not_best(one, places) and mine <= _not_best(other, places)


def _may_be_best(choice: Choice, places: _Places) -> set[tuple[str, int]]:
    if choice.loses:
        return {("one rank", 1)}
    return {(called(run, places.family), choice.world) for run in (choice.chosen, *choice.tied)}


def _not_best(choice: Choice, places: _Places) -> set[tuple[str, int]]:
    best = () if choice.loses else (choice.chosen, *choice.tied)
    unsure = choice.tied if choice.loses else ()
    found = {
        (called(run, places.family), choice.world)
        for run in choice.ranked
        if run not in best and run not in unsure
    }
    return found | ({("one rank", 1)} if choice.gains else set())


def _part(
    key: tuple[str, int], members: Sequence[Choice], places: _Places, *, short: bool, same: bool
) -> str:
    name, world = key
    where = (
        f"on {places.count(len(members))}"
        if short
        else f"for {listed_apart(places.words(one) for one in members)}"
    )
    at = "" if same or name == "one rank" else f" at {counted(world, 'rank')}"
    return f"{name}{at} {where}"


def _alike(name: str, world: int, choices: Sequence[Choice], places: _Places) -> str:
    where = places.count(len(choices))
    gains = [one.gain for one in choices if one.gain is not None]
    gains = gains if len(gains) == len(choices) else []
    ordered = sorted(gains, key=lambda gain: gain.value)
    span = " to ".join(dict.fromkeys(plain(end, bare=True) for end in (*ordered[:1], *ordered[-1:])))
    if name == "one rank":
        ranks = " or ".join(dict.fromkeys(counted(one.world, "rank") for one in choices))
        one_rank = "one rank" if _all_torch(choices) else "one rank in torch"
        return f"{ranks} train {span} times as fast as {one_rank} on {where}: stay on one"
    ranks = counted(world, "rank")
    gain = _gain(ranks, name, span, choices) if gains else f"{ranks} train fastest with {name}"
    if all(len(one.ranked) == 1 for one in choices):
        return f"{gain} on {where}"
    rest = "the others are slower" if _all_best(choices) else "not all others are shown to be slower"
    return f"{gain} on {where}; {rest}"


def _all_best(choices: Sequence[Choice]) -> bool:
    several = [one.best for one in choices if len(one.ranked) > 1]
    return bool(several) and all(several)


def _limits(choices: Sequence[Choice], places: _Places) -> list[str]:
    return [
        *_slower_than_one_rank(choices, places),
        *_not_decided(choices, places),
        *_not_faster(choices, places),
        *_slower_worlds(choices, places),
        *_not_compared(choices, places),
        *_not_ranked(choices, places),
        *([f"not judged: {places.not_judged()}"] if places.missing else ()),
    ]


def _undecided_at_most(choices: Sequence[Choice], places: _Places, text: str) -> Iterator[str]:
    unsure = [
        (one, standing)
        for one in choices
        if (standing := one.standing) is not None and standing.apart and standing.longer
    ]
    if not unsure:
        return
    worst, standing = max(unsure, key=lambda one: one[1].longer)
    if not any(f"{words} {standing.apart}" in text for words in ("within", "up to")):
        other = f"{fastest_other(standing.apart)}'s{places.where(worst)}"
        yield f"the step of {places.name(worst)} is {other}"
    if worst.doubt is not None:
        yield _undecided(worst.doubt[1])
        reasons = {_named_as(one) for one in choices if one.tied}
        yield from reasons if len(reasons) == 1 else ()


def _slower_than_one_rank(choices: Sequence[Choice], places: _Places) -> Iterator[str]:
    found = []
    for one in choices:
        if one.below_base and (len(choices) > 1 or one.tied or len(one.behind) > 1) and not one.loses:
            where = f" for {', '.join(places.words(one))}" if places.total > 1 else ""
            found.append(f"{listed([called(run, one.ranked) for run in one.below_base])}{where}")
    if found:
        yield f"slower than one rank: {' and '.join(found)}"


def _not_decided(choices: Sequence[Choice], places: _Places) -> Iterator[str]:
    unsure = [one for one in choices if one.tied]
    if places.total > 1 and unsure and len(unsure) < len(choices):
        yield f"not decided for {listed_apart(places.words(one) for one in unsure)}"


def _not_faster(choices: Sequence[Choice], places: _Places) -> Iterator[str]:
    flat = [one for one in choices if one.gain is not None and not one.gains and not one.loses]
    if flat:
        where = f" for {listed_apart(places.words(one) for one in flat)}" if places.total > 1 else ""
        yield f"not shown to be faster than one rank{where}"


def _slower_worlds(choices: Sequence[Choice], places: _Places) -> Iterator[str]:
    for one in choices:
        if one.slower_worlds:
            worlds = listed([str(world) for world in one.slower_worlds])
            yield f"{worlds} ranks are slower{places.where(one)}"


def _not_compared(choices: Sequence[Choice], places: _Places) -> Iterator[str]:
    for one in choices:
        for run in one.alone:
            name = called(run, [*places.family, run])
            yield f"not compared: {name} at {ranks_of(run.case)}{places.where(one)}"
    if places.total > 1 and (without := [one for one in choices if one.gain is None]):
        yield f"no base case: {listed_apart(places.words(one) for one in without)}"


def _not_ranked(choices: Sequence[Choice], places: _Places) -> Iterator[str]:
    unranked: dict[str, list[str]] = {}
    for one in choices:
        for run, why in one.unranked:
            unranked.setdefault(why, []).append(f"{called(run, [*places.family, run])}{places.where(one)}")
    for why, names in unranked.items():
        yield f"not ranked: {listed(list(dict.fromkeys(names)))} ({why})"


def _named_as(choice: Choice) -> str:
    if choice.chosen is reference_of(choice.ranked):
        return "named as the reference: nothing is shown to be faster"
    return "named as the fastest of those that cannot be told apart, by its mean"


def _undecided(doubt: Judgement) -> str:
    """State the number of rounds needed to decide a comparison, if further rounds scatter like the measured ones."""
    needed = rounds_for(doubt.ratio, doubt.rounds)
    assert needed is not None
    digits = 1 - math.floor(math.log10(needed))
    rounds = f"{round(needed, digits):,.0f} rounds"
    return f"±{MARGIN_WORDS} would take about {rounds}, of which {doubt.rounds} were made"


_BY = {"plain": "by rank 0", "dcp": "by all ranks"}


def _checkpoint(cases: Sequence[CaseRun]) -> Finding | None:
    able = [
        run
        for run in cases
        if run.status == "ok"
        and not run.oversubscribed
        and any(one.checkpoints for one in run.good)
        and (run.case.world_size == 1 or traits_of(run.case).exchanges)
    ]
    if not able:
        return None
    run = max(able, key=lambda one: (one.case.world_size, traits_of(one.case).role == "reference"))
    costs = checkpoint_costs(run.case_id, [one.checkpoints for one in run.good], run.timings)
    steps = " and ".join(f"{cost.steps_for_small_share:,}" for cost in costs)
    who = (
        f"{100 * SMALL_SHARE:g} % of the time pays for a checkpoint of {name_of(run)} at {ranks_of(run.case)}"
    )
    times = [
        [cost.cost.scaled(1e3) for cost in costs],
        [Interval(value=1e3 * cost.cost.value) for cost in costs],
    ]
    text = fitting(
        f"{who} every {steps} steps: it takes "
        + ", ".join(f"{plain(time)} ms {_BY[cost.method]}" for time, cost in zip(found, costs, strict=True))
        for found in times
    )
    return Finding(
        kind="answer",
        text=sentence(text),
        tags=(workload_of(run.case), *grouping.qualifiers(run.case), *launch_tags(costs[0].launches)),
        evidence="checkpoints",
        verdict="note",
        cases=(run.case_id,),
    )


def _none(
    cases: Sequence[CaseRun], panels: Sequence[Case], withheld: Mapping[str, Violation] = MappingProxyType({})
) -> Finding:
    if withheld:
        first, *others = withheld.values()
        more = (f"so it is for {counted(len(others), 'more case', 'more cases')}",) if others else ()
        return Finding(
            kind="answer",
            text=sentence(f"no answer: {first.why_withheld}"),
            tags=(*more, "repeat on a quiet machine"),
            evidence="summary",
            verdict="unresolved",
            cases=(first.case_id,),
        )
    several = [run for run in cases if run.case.world_size > 1 and run.status == "ok" and run.timings]
    rounds = max((len(run.timings) for run in several), default=0)
    if not several:
        why = "no case of several ranks was measured"
    elif not panels:
        why = "no case aggregates"
    elif all(run.oversubscribed for run in several if exchanges_gradients(run)):
        why = "no case that aggregates had separate cores"
    elif rounds < MIN_ROUNDS:
        why = (
            f"under {MIN_ROUNDS} rounds are too few to tell cases apart: resume the sweep if it has rounds "
            f"left, or give a new one budget.rounds_max = {MIN_ROUNDS} or more"
        )
    else:
        why = "at no number of ranks were two cases measured in the same rounds that can be ranked"
    return Finding(kind="answer", text=sentence(f"no answer: {why}"), evidence="summary", verdict="too few")
