"""What a run shows: comparisons paired within rounds, and at most seven sentences made from them.

Cases are compared that differ in nothing but strategy, bucket cap, or how their ranks stand on nodes. A
difference of x % always means that the slower one's step takes x % longer. Verdicts come from intervals
corrected for the number of comparisons (Holm), of pairs that are chosen before the data are seen; how cases stand to
the fastest of their group is `statistics/best.py`'s (Hsu, Tukey). Oversubscribed cases are compared with each other
but make no sentence.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import pandas as pd

from ddpbench.analysis.inputs import input_groups
from ddpbench.analysis.precisions import precision_groups
from ddpbench.analysis.read.launches import CaseRun
from ddpbench.analysis.shares import percent_of, share_of_step
from ddpbench.analysis.statistics.best import standings
from ddpbench.analysis.statistics.stats import (
    MARGIN,
    MIN_ROUNDS,
    Comparison,
    Interval,
    Judgement,
    compare,
    judge_all,
    samples_rate,
)
from ddpbench.analysis.summary import Finding, FindingKind
from ddpbench.records import Compared
from ddpbench.spec import Case, grouping
from ddpbench.spec.grouping import FACETS, PANEL, VARIANT, cap_order, cap_words
from ddpbench.strategies.traits import traits_of
from ddpbench.units import counted

MOST_FINDINGS = 7
MOST_PANELS = 3
"""Sentences are made of this many groups of comparable cases, the largest first."""
RATIO_THRESHOLD = 2.0
"""Steps of which one takes at least so many times as long as the other are told so, and not in per cent."""
INEXACT: frozenset[Compared] = frozenset(
    {
        "sums of gradients, with what is kept",
        "parameters, averaged",
        "parameters, updates in the server's order",
    }
)
"""What is compared of a strategy that is inexact by design."""
COMPARISON_COLUMNS = ("topic", "case_id", "best_case_id", "ratio", "ratio_ci_low", "ratio_ci_high", "verdict")


@dataclass(frozen=True, kw_only=True, slots=True)
class _Pair:
    """Two cases to be told apart, and where the evidence stands."""

    a: CaseRun
    b: CaseRun
    evidence: Literal["buckets", "layouts", "strategies"]
    comparison: Comparison

    @property
    def name(self) -> str:
        return f"{self.a.case_id} against {self.b.case_id}"

    @property
    def kind(self) -> FindingKind:
        """What is compared: of the strategies those that exchange nothing are a bound."""
        return "bound" if not traits_of(self.a.case).exchanges else self.evidence


def panels(cases: Iterable[CaseRun]) -> list[list[CaseRun]]:
    """Groups of comparable cases. What uses no link of its own is in the group of every fabric.

    That is a single rank, and independent ranks: on any fabric they would train as they do without.
    """
    every = list(cases)
    groups = grouped(every, lambda run: grouping.panel(run.case))
    free = [run for run in every if not run.case.fabric and _needs_no_link(run)]
    taken: set[str] = set()
    found: dict[tuple[Any, ...], list[CaseRun]] = {}
    for key, members in groups.items():
        joined = [one for one in free if members[0].case.fabric and _same_but_links(one, members[0])]
        taken |= {one.case_id for one in joined}
        found[key] = [*joined, *members]
    return [members for members in found.values() if not taken.issuperset(run.case_id for run in members)]


def _needs_no_link(run: CaseRun) -> bool:
    return run.case.world_size == 1 or not traits_of(run.case).exchanges


def _same_but_links(run: CaseRun, other: CaseRun) -> bool:
    return grouping.panel(run.case, but=("fabric",)) == grouping.panel(other.case, but=("fabric",))


def layouts_of(cases: Iterable[CaseRun]) -> dict[str, int]:
    """Return the number of nodes of each case whose strategy ran some number of ranks in several layouts; else 0."""
    found: dict[str, int] = {}
    for members in grouped(
        cases, lambda run: (grouping.panel(run.case), grouping.variant(run.case))
    ).values():
        shapes = {(run.case.world_size, run.case.nodes) for run in members}
        several = len(shapes) > len({world for world, _ in shapes})
        found |= {run.case_id: run.case.nodes if several else 0 for run in members}
    return found


def comparisons_table(cases: Sequence[CaseRun]) -> pd.DataFrame:
    """Every case held against the best of the others of its group, for groups of two or more (`statistics/best.py`).

    `buckets`: one strategy's bucket caps at one number of ranks. `strategies`: the strategies that
    aggregate, at one number of ranks, at DDP's default cap (or the smallest there is). `layouts`: one strategy's
    layouts of a number of ranks on nodes. Where there are several, the other topics keep to one. `ranks`: all cases
    of a panel that aggregate, at one number of ranks with cores of their own. `ratio` is a case's step time
    over that of the fastest of the others, `best_case_id`; its ends and the verdict hold for the group.

    `data`: a case held against the same with its batches in memory, which stands in the best's place; `precision`:
    one under autocast against the same in full precision, likewise. Their verdicts are `judge_all`'s.
    """
    rows: list[dict[str, Any]] = []
    for topic, groups in (
        ("buckets", _bucket_groups(cases)),
        ("strategies", _strategy_groups(cases)),
        ("layouts", _layout_groups(cases)),
        ("ranks", _rank_groups(cases)),
    ):
        for group in groups:
            for case_id, one in standings({run.case_id: run.timings for run in group}).items():
                rows.append(_compared(topic, case_id, one.against, one.ratio, one.verdict))
    for member in itertools.chain.from_iterable(group.members for group in input_groups(cases)):
        if member.judged is not None and member.twin is not None:
            ids = (member.run.case_id, member.twin.case_id)
            rows.append(_compared("data", *ids, member.judged.ratio, member.judged.verdict))
    for held in precision_groups(cases):
        for run, judged in held.others:
            ids = (run.case_id, held.full.case_id)
            rows.append(_compared("precision", *ids, judged.ratio, judged.verdict))
    frame = pd.DataFrame(rows, columns=list(COMPARISON_COLUMNS))
    return frame.astype(dict.fromkeys(("ratio", "ratio_ci_low", "ratio_ci_high"), "float64"))


def _compared(topic: str, case_id: str, other: str, ratio: Interval, verdict: str) -> dict[str, Any]:
    values = (topic, case_id, other, ratio.value, ratio.low, ratio.high, verdict)
    return dict(zip(COMPARISON_COLUMNS, values, strict=True))


def _measured(cases: Iterable[CaseRun]) -> list[CaseRun]:
    return [run for run in cases if run.status == "ok" and run.timings]


def grouped(cases: Iterable[CaseRun], key: Any) -> dict[tuple[Any, ...], list[CaseRun]]:
    """Return the cases in groups of equal keys, in order of their first member."""
    groups: dict[tuple[Any, ...], list[CaseRun]] = {}
    for run in cases:
        groups.setdefault(key(run), []).append(run)
    return groups


def _bucket_groups(cases: Sequence[CaseRun]) -> list[list[CaseRun]]:
    with_caps = [run for run in _measured(cases) if run.case.bucket_cap_mb is not None]
    nodes = layouts_of(with_caps)

    def key(run: CaseRun) -> tuple[Any, ...]:
        return (grouping.panel(run.case), grouping.variant(run.case), run.case.world_size, nodes[run.case_id])

    return [group for group in grouped(with_caps, key).values() if len(group) > 1]


def _layout_groups(cases: Sequence[CaseRun]) -> list[list[CaseRun]]:
    def key(run: CaseRun) -> tuple[Any, ...]:
        return (
            grouping.panel(run.case),
            grouping.variant(run.case),
            run.case.world_size,
            run.case.bucket_cap_mb,
        )

    return [group for group in grouped(_measured(cases), key).values() if len(group) > 1]


def _strategy_groups(cases: Sequence[CaseRun]) -> list[list[CaseRun]]:
    able = [run for run in _measured(cases) if traits_of(run.case).exchanges]
    nodes = layouts_of(able)
    shared = any(nodes.values())  # then strategies are compared in the same layout

    def at(run: CaseRun) -> tuple[Any, ...]:
        return (grouping.panel(run.case), run.case.world_size, run.case.nodes if shared else 0)

    variants = grouped(able, lambda run: (*at(run), grouping.variant(run.case)))
    chosen = [min(group, key=lambda run: cap_order(run.case.bucket_cap_mb)) for group in variants.values()]
    groups = grouped(chosen, at)
    return [group for group in groups.values() if len(group) > 1]


def _rank_groups(cases: Sequence[CaseRun]) -> list[list[CaseRun]]:
    able = [run for run in _measured(cases) if _exchanges(run) and not run.planned.oversubscribed]
    groups = grouped(able, lambda run: (grouping.panel(run.case), run.case.world_size))
    return [group for group in groups.values() if len(group) > 1]


def compared_panels(cases: Sequence[CaseRun]) -> list[list[CaseRun]]:
    """Return the largest groups of comparable cases in which some exchange gradients on cores of their own."""
    fair = [run for run in _measured(cases) if not run.planned.oversubscribed]
    ordered = sorted(panels(fair), key=lambda members: -len(members))
    return [members for members in ordered if any(_exchanges(run) for run in members)][:MOST_PANELS]


def findings(cases: Sequence[CaseRun], most: int = MOST_FINDINGS) -> tuple[Finding, ...]:
    """At most `most` sentences on the cases that had cores of their own, the widest comparisons first.

    `most` is three or more: the first group's speed-up and the parts of its step are always told.
    """
    ordered = compared_panels(cases)
    pairs: dict[str, _Pair] = {}
    for members in ordered:
        for pair in _pairs(members):
            pairs.setdefault(pair.name, pair)
    judged = judge_all({name: pair.comparison for name, pair in pairs.items()})
    decided = {name: one for name, one in judged.items() if one.verdict != "too few"}
    apart = _Apart.between(ordered)
    compared: list[_Decision] = []
    notes: list[list[Finding]] = []
    for members in ordered:
        own = [pair for pair in _pairs(members) if pair.name in decided]
        compared += [(pair, decided[pair.name]) for pair in own]
        notes.append(list(_notes(members, apart)))
    missing = len(judged) - len(decided)
    room = most - (len(notes[0]) if notes else 0) - bool(missing)
    told = [_sentence(pair, one, len(decided), apart) for pair, one in _most_telling(compared, room)]
    result = [*told, *(note for found in notes for note in found)]
    if missing:
        rounds = max(one.rounds for one in judged.values() if one.verdict == "too few")
        many = f"{missing} pair{'s' if missing != 1 else ''} of cases"
        text = (
            f"Not enough launches to compare {many}: at most "
            f"{rounds} round{'s' if rounds != 1 else ''} that one session ran of both, and under {MIN_ROUNDS} is too "
            "few rounds. Resume the sweep to add some."
        )
        if not rounds:
            text = (
                f"Not compared: {many} that share no rounds, as where runs are merged or a sweep was resumed; drift "
                "and unlike nodes would pass for a difference. A sweep that has both tells them apart."
            )
        few = Finding(kind="uncompared", text=text, evidence="summary", verdict="too few")
        result.insert(0 if not decided else most - 1, few)
    return tuple(result[:most])


@dataclass(frozen=True, slots=True)
class _Apart:
    """What tells the panels that sentences are made of from each other: fields, and one case of each."""

    fields: tuple[str, ...]
    cases: tuple[Case, ...]

    @classmethod
    def between(cls, groups: Sequence[Sequence[CaseRun]]) -> _Apart:
        cases = tuple(members[-1].case for members in groups)  # the first may be one that needs no link
        return cls(tuple(grouping.differing(cases, PANEL)), cases)


def _exchanges(run: CaseRun) -> bool:
    return traits_of(run.case).exchanges and run.case.world_size > 1


_DECIDED = ("faster", "slower", "equivalent")


def decided_first(found: Sequence[Finding]) -> tuple[Finding, ...]:
    """Return what was decided, then notes, then what was not; of each kind in the order given.

    Where nothing was decided, too few rounds are said first: nothing after them is sure.
    """
    decided = any(one.verdict in _DECIDED for one in found)
    ranks = {"note": 1, "unresolved": 2, "too few": 2 if decided else -1}
    return tuple(sorted(found, key=lambda one: ranks.get(one.verdict, 0)))


_Decision = tuple[_Pair, Judgement]
_PLACES: dict[FindingKind, int] = {"strategies": 0, "layouts": 0, "bound": 1, "buckets": 2}


def _sorted(compared: Sequence[_Decision]) -> list[_Decision]:
    """Return what is decided before what is not; of each strategies before the upper bound before buckets."""

    def place(one: _Decision) -> tuple[bool, int, bool]:
        pair, judged = one
        return (judged.verdict not in _DECIDED, _PLACES[pair.kind], judged.verdict == "equivalent")

    return sorted(compared, key=place)


def _most_telling(compared: Sequence[_Decision], room: int) -> list[_Decision]:
    """The first of them in order; the last place is for buckets, but an undecided one displaces no decided one."""
    ordered = _sorted(compared)
    chosen = ordered[:room]
    first = next((one for one in ordered if one[0].kind == "buckets"), None)
    if first is None or room < 2 or first in chosen:
        return chosen
    if first[1].verdict in _DECIDED or chosen[-1][1].verdict not in _DECIDED:
        chosen[-1] = first
    return _sorted(chosen)


def _largest(members: Sequence[CaseRun]) -> int:
    return max(run.case.world_size for run in members if _exchanges(run))


def reference_of(members: Sequence[CaseRun]) -> CaseRun:
    """Return what others are held against: DDP at the largest world size, at its default cap where that was run.

    Without DDP it is the first strategy of the plan that aggregates; a choice by speed would favour luck.
    """
    world = _largest(members)
    able = [run for run in members if _exchanges(run) and run.case.world_size == world]
    ddp = [run for run in able if traits_of(run.case).role == "reference"] or able
    chosen = [run for run in ddp if grouping.variant(run.case) == grouping.variant(ddp[0].case)]
    return min(chosen, key=lambda run: cap_order(run.case.bucket_cap_mb))


def _pairs(members: Sequence[CaseRun]) -> list[_Pair]:
    """Return the panel's comparisons at its largest world size.

    Strategies with DDP, DDP's caps with its default, DDP's layouts on nodes with the first of the plan.
    """
    reference = reference_of(members)
    world = reference.case.world_size
    found: list[_Pair] = []
    others: list[tuple[CaseRun, Literal["buckets", "layouts", "strategies"]]]
    variants = grouped(
        (run for run in members if run.case.world_size == world), lambda run: grouping.variant(run.case)
    )
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
            comparison = compare(run.timings, reference.timings)
            if comparison is not None:
                found.append(_Pair(a=run, b=reference, evidence=evidence, comparison=comparison))
    return found


def _sentence(pair: _Pair, judged: Judgement, comparisons: int, apart: _Apart) -> Finding:
    a, b, ratio = pair.a, pair.b, judged.ratio
    verdict = judged.verdict
    name_a, name_b = name_of(a, b), name_of(b, a)
    if pair.evidence == "buckets":
        start = f"{name_a} at {_place(b, apart)}: "
        first, second, verb = f"{_cap(a)} buckets", f"{_cap(b)} buckets", "are"
        end = ""
    else:
        start, first, second, verb = "", name_a, name_b, "is"
        end = f" at {_place(b, apart)}"  # of b, for independent ranks use no links
    corrected = f"; corrected for {comparisons} comparisons" if comparisons > 1 else ""
    launches = f"({judged.rounds} launches each{corrected})"
    margin = f"{100 * MARGIN:g} %"
    size = ""
    if judged.small:
        size = f": measurable, but small (within {margin})"
    elif not judged.beyond:
        size = f": measurable, though perhaps within {margin}"
    slower_by = ratio if ratio.value >= 1 else _inverse(ratio)
    many = slower_by.value >= RATIO_THRESHOLD
    gap = f"takes {plain(slower_by)} times as long as" if many else f"takes {_longer(slower_by)} longer than"
    ahead = (
        f"{verb} {plain(slower_by)} times as fast as" if many else f"{verb} {_longer(slower_by)} faster than"
    )
    behind = f"{verb} {_longer(slower_by)} slower than"
    if verdict == "faster" and traits_of(a.case).role == "bound":
        text = (
            f"A step of {second} {gap} one of independent ranks, which exchange nothing,"
            f"{end}{size} {launches}"
        )
        a, b, ratio, verdict = b, a, _inverse(ratio), "slower"
    elif verdict in ("faster", "slower"):
        if verdict == "slower" and (many or pair.evidence in ("strategies", "layouts")):
            first, second, verdict = second, first, "faster"  # what is faster stands first
            a, b, ratio = b, a, _inverse(ratio)
        text = f"{start}{first} {ahead if verdict == 'faster' else behind} {second}{end}{size} {launches}"
    elif verdict == "equivalent":
        text = (
            f"{start}{first} and {second} are equivalent within {margin}{end}: step times differ by "
            f"{_signed(ratio)} {launches}"
        )
    else:
        text = (
            f"{start}{first} against {second}{end}: no significant difference; this sweep cannot rule out "
            f"up to {100 * (judged.bound or 0):.1f} % {launches}"
        )
    return Finding(
        kind=pair.kind,
        text=f"{_capital(text)}.",
        evidence=pair.evidence,
        verdict=verdict,
        cases=(a.case_id, b.case_id),
        ratio=ratio,
    )


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _notes(members: Sequence[CaseRun], apart: _Apart) -> Iterable[Finding]:
    """Speed-up and efficiency of the reference, and what its step is made of."""
    run = reference_of(members)
    world = run.case.world_size
    base = next((other for other in members if other.case_id == run.baseline_id), None)
    name = f"{name_of(run)} at {_place(run, apart)}"
    if (
        base is not None
        and (comparison := compare(run.timings, base.timings)) is not None
        and comparison.paired
    ):
        speedup = comparison.rate_ratio()
        efficiency = Interval(
            value=speedup.value / world,
            low=None if speedup.low is None else speedup.low / world,
            high=None if speedup.high is None else speedup.high / world,
        )
        rate = samples_rate(base.timings)
        few = "; too few rounds" if comparison.rounds < MIN_ROUNDS else ""
        text = (
            f"{name}: speed-up {plain(speedup)} and efficiency {plain(efficiency)} over single at 1 rank, which "
            f"trains {plain(rate)} samples/s ({comparison.rounds} launches each{few})."
        )
        yield Finding(
            kind="speed-up",
            text=_capital(text),
            evidence="scaling",
            verdict="note",
            cases=(run.case_id, base.case_id),
        )
    parts = run.parts
    if parts is not None and parts.has_transfers and parts.step_s > 0:
        exposed, wait = (percent_of(share_of_step(parts, one), 1) for one in ("exposed_comm", "exposed_wait"))
        hidden = parts.overlap_interval()
        overlap = (
            f"; {percent_of(hidden)} of communication is hidden behind computation"
            if hidden is not None
            else ""
        )
        text = (
            f"{name}: {exposed} of a step is associated with exposed communication and {wait} with "
            f"waiting for other ranks{overlap} (instrumented steps of {parts.launches} launches)."
        )
        yield Finding(
            kind="parts", text=_capital(text), evidence="breakdown", verdict="note", cases=(run.case_id,)
        )


def takes_another_path(run: CaseRun) -> bool:
    """Return whether its parameters are not known to be synchronous training's: by what its strategy promises.

    Of a strategy that is not known here what was proved of it decides.
    """
    traits = traits_of(run.case)
    if traits.promise is not None or run.proof is None:
        return not traits.exact
    return any(proof.compared in INEXACT for proof in run.proof.proofs)


def name_of(run: CaseRun, other: CaseRun | None = None) -> str:
    """Return a strategy as a sentence names it, with what tells it from another case of the same strategy."""
    case = run.case
    told_apart = [traits_of(case).spoken]
    if other is not None and takes_another_path(run) and not takes_another_path(other):
        told_apart.append("(another path of training)")
    if other is not None and other.case.strategy == case.strategy:
        names = [name for name in VARIANT if name in grouping.differing((case, other.case))]
        told_apart += grouping.words(case, names, (case, other.case))
        if case.nodes != other.case.nodes:
            told_apart.append(f"{case.nodes} x {case.ranks_per_node}")
    return " ".join(told_apart)


def _place(run: CaseRun, apart: _Apart) -> str:
    """Ranks and workload, what must always be told, and what tells the panel from the run's others."""
    case = run.case
    names = [name for name in PANEL if name in apart.fields or FACETS[name].told(case)]
    more = grouping.words(case, [name for name in names if name != "workload"], apart.cases)
    return ", ".join([_ranks(run), case.workload, *more])


def _cap(run: CaseRun) -> str:
    return cap_words(run.case.bucket_cap_mb) or "default"


def _ranks(run: CaseRun) -> str:
    return counted(run.case.world_size, "rank")


def labels_of(run: CaseRun) -> str:
    """Return what must stand beside a case's numbers, to be put after a sentence's other words."""
    return "".join(f", {word}" for word in grouping.told(run.case))


def _inverse(ratio: Interval) -> Interval:
    return Interval(
        value=1 / ratio.value,
        low=None if ratio.high is None else 1 / ratio.high,
        high=None if ratio.low is None else 1 / ratio.low,
    )


def _longer(ratio: Interval) -> str:
    """Return a ratio of step times as `34.3 % [31.0, 37.7]`."""
    values = [100 * (value - 1) for value in (ratio.value, ratio.low, ratio.high) if value is not None]
    text = f"{values[0]:.1f} %"
    return f"{text} [{values[1]:.1f}, {values[2]:.1f}]" if len(values) == 3 else text


def _signed(ratio: Interval) -> str:
    values = [100 * (value - 1) for value in (ratio.value, ratio.low, ratio.high) if value is not None]
    text = f"{values[0]:+.1f} %"
    if len(values) == 3:
        text += f" [{values[1]:+.1f}, {values[2]:+.1f}]"
    return text.replace("-", "\N{MINUS SIGN}")


def plain(interval: Interval) -> str:
    """Return a number with three significant digits, and its interval to the same decimals."""
    digits = 3 if abs(interval.value) < 1 else 2 if abs(interval.value) < 100 else 0
    text = f"{interval.value:,.{digits}f}"
    if interval.low is None or interval.high is None:
        return text
    return f"{text} [{interval.low:,.{digits}f}, {interval.high:,.{digits}f}]"
