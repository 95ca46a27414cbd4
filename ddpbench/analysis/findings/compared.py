"""Compare a run's cases, paired within rounds, and make at most seven sentences from the comparisons.

A difference of x % always means that the slower case's step takes x % longer. `families.py` gives verdicts and
intervals. The pairs are chosen before the data are seen.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from ddpbench.analysis.finding import Finding, FindingKind
from ddpbench.analysis.findings.families import Families
from ddpbench.analysis.findings.groups import compared_panels, grouped, reference_of
from ddpbench.analysis.findings.wording import (
    conditions,
    fitting,
    launch_tags,
    listed_apart,
    mostly_disturbed,
    name_of,
    one_bucket,
    undecided_all,
)
from ddpbench.analysis.invariants.steps import instrumented_over_timed
from ddpbench.analysis.judging import speedup_over
from ddpbench.analysis.read.launches import CaseRun
from ddpbench.analysis.sentences import sentence
from ddpbench.analysis.shares import share_of_step
from ddpbench.analysis.statistics.judgement import (
    OPEN,
    RATIO_THRESHOLD,
    Judgement,
    is_faster,
    percent_of,
    plain,
    signed,
    takes_longer,
    undecided,
)
from ddpbench.analysis.statistics.stats import MIN_ROUNDS, samples_rate
from ddpbench.naming import Namer, layout_of, ranks_of, workload_of
from ddpbench.spec import Case, grouping
from ddpbench.spec.grouping import PANEL, GroupKey, cap_order, cap_words
from ddpbench.strategies.traits import traits_of
from ddpbench.units import counted, format_two_digits, series_of

MOST_FINDINGS = 7


@dataclass(frozen=True, kw_only=True, slots=True)
class _Pair:
    a: CaseRun
    b: CaseRun
    evidence: Literal["buckets", "layouts", "strategies"]
    judged: Judgement
    family: tuple[CaseRun, ...]
    """All cases of the panel at the same number of ranks; the names of `a` and `b` must be distinct among them."""
    corrected: int
    """Number of comparisons for which the interval is corrected (`Families.comparisons`)."""

    @property
    def name(self) -> str:
        return f"{self.a.case_id} against {self.b.case_id}"

    @property
    def kind(self) -> FindingKind:
        return "bound" if not traits_of(self.a.case).exchanges else self.evidence


def findings(cases: Sequence[CaseRun], most: int = MOST_FINDINGS) -> tuple[Finding, ...]:
    """Return at most `most` findings on cases with separate cores for each rank, the most telling first.

    `most` must be at least 3, because the speed-up of the first group of comparable cases and the parts of its step are
    always included.
    """
    ordered = compared_panels(cases)
    families = Families(cases)
    own_pairs = [_pairs(members, families) for members in ordered]
    judged = {pair.name: pair.judged for pairs in own_pairs for pair in pairs}
    decided = {name: one for name, one in judged.items() if one.verdict != "too few"}
    apart = _Apart.between(ordered)
    compared: list[_Decision] = []
    notes: list[list[Finding]] = []
    for members, pairs in zip(ordered, own_pairs, strict=True):
        own = [pair for pair in pairs if pair.name in decided]
        compared += [(pair, decided[pair.name]) for pair in own]
        notes.append(list(_notes(members, apart)))
    missing = len(judged) - len(decided)
    room = most - (len(notes[0]) if notes else 0) - bool(missing)
    alone, together = _open_together(compared)
    decisions = [
        _sentence_on_all(together[pair.name], apart) if pair.name in together else _sentence(pair, one, apart)
        for pair, one in _most_telling(alone, room)
    ]
    result = [*decisions, *(note for found in notes for note in found)]
    if missing:
        rounds = max(one.rounds for one in judged.values() if one.verdict == "too few")
        many = f"{missing} pair{'s' if missing != 1 else ''} of cases"
        text = (
            f"Not enough launches to compare {many}: at most {counted(rounds, 'round')} of both in one session, and "
            f"under {MIN_ROUNDS} is too few rounds. Resume the sweep, or make a new one with budget.rounds_max = "
            f"{MIN_ROUNDS} or more"
        )
        if not rounds:
            text = (
                f"Not compared: {many} that share no rounds, as after a merge or a resume: drift would pass for a "
                "difference. Run both in one sweep"
            )
        few = Finding(kind="uncompared", text=sentence(text), evidence="summary", verdict="too few")
        result.insert(0 if not decided else most - 1, few)
    return tuple(result[:most])


@dataclass(frozen=True, slots=True)
class _Apart:
    fields: tuple[str, ...]
    names: Namer

    @classmethod
    def between(cls, groups: Sequence[Sequence[CaseRun]]) -> _Apart:
        cases = [members[-1].case for members in groups]  # the first may be one that needs no link
        fields = [name for name in PANEL if name != "workload"]  # every sentence names the workload
        return cls(tuple(grouping.differing(cases, fields)), Namer(cases))

    def of(self, case: Case) -> list[str]:
        return self.names.apart(case, self.fields)


_DECIDED = ("faster", "slower", "equivalent")


def decided_first(unordered: Sequence[Finding]) -> tuple[Finding, ...]:
    """Return decided findings, then notes, then undecided ones, each kind in the given order.

    A remark on too few rounds comes first if nothing was decided.
    """
    decided = any(one.verdict in _DECIDED for one in unordered)
    ranks = {"note": 1, "unresolved": 2, "too few": 2 if decided else -1}
    return tuple(sorted(unordered, key=lambda one: ranks.get(one.verdict, 0)))


_Decision = tuple[_Pair, Judgement]
_PLACES: dict[FindingKind, int] = {"strategies": 0, "layouts": 0, "bound": 1, "buckets": 2}


def _sorted(compared: Sequence[_Decision]) -> list[_Decision]:
    """Sort the comparisons: decided before undecided, then strategies, upper bounds, buckets."""

    fastest: dict[GroupKey, float] = {}
    for pair, judged in compared:
        key = _of_strategy(pair)
        fastest[key] = min(fastest.get(key, math.inf), judged.ratio.value)

    def place(one: _Decision) -> tuple[bool, int, bool, bool]:
        pair, judged = one
        # a strategy's fastest variant comes first: a slower one would make the strategy look worse than it is
        behind = judged.ratio.value > fastest[_of_strategy(pair)]
        return (
            judged.verdict not in _DECIDED,
            _PLACES[pair.kind],
            judged.verdict == "equivalent",
            behind and pair.kind == "strategies",
        )

    return sorted(compared, key=place)


def _open_together(compared: Sequence[_Decision]) -> tuple[list[_Decision], dict[str, list[_Decision]]]:
    """Return the comparisons that begin a sentence, and the further ones of each sentence by the first pair's name.

    Those of one sentence compute with one library, because the answer counts only wrappers that compute with torch.
    """
    open_: dict[tuple[str, str], list[_Decision]] = {}
    for pair, judged in compared:
        if (
            pair.kind == "strategies"
            and judged.verdict == "unresolved"
            and pair.a.case.nodes == pair.b.case.nodes
        ):
            key = (pair.b.case_id, traits_of(pair.a.case).engine)
            open_.setdefault(key, []).append((pair, judged))
    together = {group[0][0].name: group for group in open_.values() if len(group) > 1}
    others = {pair.name for group in together.values() for pair, _ in group[1:]}
    return [one for one in compared if one[0].name not in others], together


def _of_strategy(pair: _Pair) -> GroupKey:
    return (*grouping.panel(pair.b.case), pair.a.case.strategy, pair.kind)


def _most_telling(compared: Sequence[_Decision], room: int) -> list[_Decision]:
    """Return the first `room` comparisons. The last one gives way to one about buckets, unless only it is decided."""
    ordered = _sorted(compared)
    chosen = ordered[:room]
    first = next((one for one in ordered if one[0].kind == "buckets"), None)
    if first is None or room < 2 or first in chosen:
        return chosen
    if first[1].verdict in _DECIDED or chosen[-1][1].verdict not in _DECIDED:
        chosen[-1] = first
    return _sorted(chosen)


def _pairs(members: Sequence[CaseRun], families: Families) -> list[_Pair]:
    reference = reference_of(members)
    world = reference.case.world_size
    found: list[_Pair] = []
    others: list[tuple[CaseRun, Literal["buckets", "layouts", "strategies"]]]
    family = [run for run in members if run.case.world_size == world]
    variants = grouped(family, lambda run: grouping.variant(run.case))
    for key, group in variants.items():
        if key == grouping.variant(reference.case):
            nodes, cap = reference.case.nodes, reference.case.bucket_cap_mb
            others = [(run, "buckets") for run in group if run is not reference and run.case.nodes == nodes]
            others += [
                (run, "layouts") for run in group if run.case.nodes != nodes and run.case.bucket_cap_mb == cap
            ]
        elif traits_of(group[0].case).role == "base":
            others = []
        else:
            alike = [run for run in group if run.case.nodes == reference.case.nodes] or group
            others = [(min(alike, key=lambda run: cap_order(run.case.bucket_cap_mb)), "strategies")]
        for run, evidence in others:
            judged = families.judge(run, reference)
            if judged is not None:
                found.append(
                    _Pair(
                        a=run,
                        b=reference,
                        evidence=evidence,
                        judged=judged,
                        family=tuple(family),
                        corrected=families.comparisons(run, reference),
                    )
                )
    return found


def _sentence(pair: _Pair, judged: Judgement, apart: _Apart) -> Finding:
    a, b, ratio = pair.a, pair.b, judged.ratio
    verdict = judged.verdict
    alike = a.case.nodes == b.case.nodes  # else the names give the layouts
    place, said = _place(b, apart, pair.family if alike else ())  # a may be independent ranks, without links
    first, second, verb = name_of(a, b, pair.family), name_of(b, a, pair.family), "is"
    caps = pair.evidence == "buckets"
    if caps:
        who, (first, second), verb = first, (f"{_cap(run)} buckets" for run in (a, b)), "are"
    by, rest = judged.by, ""
    if verdict == "faster" and traits_of(a.case).role == "bound":
        gap = takes_longer(by, than=True)
        text = f"a step of {second} takes {gap} one of independent ranks, which exchange nothing,"
        a, b, ratio, verdict = b, a, ratio.reciprocal(), "slower"
    elif verdict in ("faster", "slower"):
        if verdict == "slower" and (
            by.value >= RATIO_THRESHOLD or pair.evidence in ("strategies", "layouts")
        ):
            first, second, verdict = second, first, "faster"  # the faster one comes first
            a, b, ratio = b, a, ratio.reciprocal()
        ahead = is_faster(by, than=True) if verdict == "faster" else f"{judged.phrase()} than"
        text = f"{first} {verb} {ahead} {second}"
    elif verdict == "equivalent":
        text = f"{first} and {second} are {judged.phrase()}"
        rest = f": step times differ by {signed(ratio)}"
    else:
        text, rest = f"{first} against {second}", f": {OPEN}; {undecided(ratio)}"
    return Finding(
        kind=pair.kind,
        text=sentence(f"{who} at {place}", said, f": {text}{rest}")
        if caps
        else sentence(f"{text} at {place}", said, rest),
        tags=(
            *_labels(b, apart),
            *conditions((a, b)),
            *judged.size_tags,
            *launch_tags(judged.rounds, pair.corrected),
        ),
        evidence=pair.evidence,
        verdict=verdict,
        cases=(a.case_id, b.case_id),
        ratio=ratio,
    )


def _sentence_on_all(group: Sequence[_Decision], apart: _Apart) -> Finding:
    pairs, judged = [pair for pair, _ in group], [one for _, one in group]
    b, family, others = pairs[0].b, pairs[0].family, [pair.a for pair in pairs]
    names = [name_of(run, b, family) for run in others]
    reference = name_of(b, others[0], family)
    ratios = tuple(one.ratio for one in judged)
    place, said = _place(b, apart, family)
    verdict = f": {OPEN}; {undecided_all(ratios)}"
    all_of_them = conditions([*others, b])
    # if only some of the cases were disturbed, the tag names them
    alone = [] if mostly_disturbed([*others, b]) else zip(names, others, strict=True)
    disturbed = [
        words for name, run in alone for words in mostly_disturbed((run, b), f"{name} and {reference}")
    ]
    corrected = max(pair.corrected for pair in pairs)
    rounds = sorted({one.rounds for one in judged})
    each, *more = launch_tags(rounds[-1], corrected)
    texts = [
        sentence(f"{one} against {reference} at {place}", said, verdict)
        for one in (series_of(names), listed_apart([name] for name in names), counted(len(names), "other"))
    ]
    text = fitting(texts)
    return Finding(
        kind="strategies",
        text=text,
        tags=(
            *([series_of(names)] if text == texts[-1] else ()),
            *_labels(b, apart),
            *all_of_them,
            *disturbed,
            f"{rounds[0]} to {each}" if len(rounds) > 1 else each,
            *more,
        ),
        evidence="strategies",
        verdict="unresolved",
        cases=(*(run.case_id for run in others), b.case_id),
        ratios=ratios,
    )


def _notes(members: Sequence[CaseRun], apart: _Apart) -> Iterable[Finding]:
    run = reference_of(members)
    family = [one for one in members if one.case.world_size == run.case.world_size]
    place, said = _place(run, apart, family)
    name = f"{name_of(run, family=family)} at {place}"
    base = next((other for other in members if other.case_id == run.baseline_id), None)
    gain = speedup_over(run, base) if base is not None else None
    if base is not None and gain is not None:
        speedup, rounds = gain
        efficiency = plain(speedup.scaled(1 / run.case.world_size))
        gained = f": speed-up {plain(speedup)}, efficiency {efficiency} over one rank"
        rate = f" at {plain(samples_rate(base.timings))} samples/s"
        few = () if rounds >= MIN_ROUNDS else ("too few rounds",)
        yield Finding(
            kind="speed-up",
            text=fitting(sentence(name, said, end) for end in (gained + rate, gained)),
            tags=(*_labels(run, apart), *conditions((run, base)), *launch_tags(rounds), *few),
            evidence="scaling",
            verdict="note",
            cases=(run.case_id, base.case_id),
        )
    parts = run.parts
    if parts is not None and parts.has_transfers and parts.step_s > 0:
        exposed, wait = (percent_of(share_of_step(parts, one)) for one in ("exposed_comm", "exposed_wait"))
        # With one bucket it is known beforehand that nothing can be hidden.
        hidden = None if one_bucket(run) else parts.overlap_interval()
        overlap = f"; overlap hides {percent_of(hidden)} of communication" if hidden is not None else ""
        text = f": {exposed} of a step is exposed communication, {wait} waiting for ranks{overlap}"
        yield Finding(
            kind="parts",
            text=sentence(name, said, text),
            tags=(
                *_labels(run, apart),
                *conditions((run,)),
                *one_bucket(run),
                "means over ranks, medians over launches",
                f"instrumented steps of {counted(parts.launches, 'launch', 'launches')}{_unlike_timed(run)}",
            ),
            evidence="breakdown",
            verdict="note",
            cases=(run.case_id,),
        )


def _unlike_timed(run: CaseRun) -> str:
    found = instrumented_over_timed(run)
    if found is None or found.holds:
        return ""
    off = found.seen - 1
    return f", {format_two_digits(100 * abs(off))} % {'longer' if off > 0 else 'shorter'} than timed ones: see Validity"


def _place(run: CaseRun, apart: _Apart, family: Sequence[CaseRun] = ()) -> tuple[str, list[str]]:
    case = run.case
    ranks = ranks_of(case)
    if len({one.case.nodes for one in family if traits_of(one.case).exchanges}) > 1:
        ranks += f" ({layout_of(case)})"
    return ranks, [workload_of(case), *apart.of(case)]


def _labels(run: CaseRun, apart: _Apart) -> tuple[str, ...]:
    said = apart.of(run.case)
    return tuple(word for word in grouping.qualifiers(run.case) if word not in said)


def _cap(run: CaseRun) -> str:
    return cap_words(run.case.bucket_cap_mb) or "default"
