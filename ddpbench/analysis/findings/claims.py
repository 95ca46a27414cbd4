"""Decide an experiment's claims, and make a sentence on each claim.

A claim is decided by pairs of cases, compared within rounds. The pairs were named before any measurement
(`spec/claims.py`), so the 5 % are divided among the pairs of all claims (Bonferroni). A report uses these intervals for
all statements on such a pair (`judged_by_claims`). To test a claimed lead, the faster case's time is multiplied by 1
plus the lead.

- `faster` holds if the interval is on the claimed side of the lead, and does not hold if it is on the other side. A
  claim without a lead also does not hold if the interval includes 1 and is entirely within the general margin.
- `as fast` holds if the interval is within the claimed margin, and does not hold if it is outside the margin.

For ranks that share cores, intervals are widened by the largest possible wait (`CaseRun.shared_cores_share`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from types import MappingProxyType
from typing import Any

from ddpbench.analysis.finding import Finding
from ddpbench.analysis.findings.wording import (
    FULL_SHARE,
    MOST_SHARED,
    busy_share,
    conditions,
    fitting,
    launch_tags,
    listed,
    takes_another_path,
)
from ddpbench.analysis.invariants.checked import Violation
from ddpbench.analysis.names import Names
from ddpbench.analysis.read.launches import CaseRun
from ddpbench.analysis.sentences import sentence
from ddpbench.analysis.statistics.interval import Interval
from ddpbench.analysis.statistics.judgement import (
    EQUAL,
    MARGIN,
    RATIO_THRESHOLD,
    Judgement,
    above_one,
    is_faster,
    judged,
    longer,
    plain,
    signed,
    takes_longer,
    undecided,
    under_one,
)
from ddpbench.analysis.statistics.stats import ALPHA, MIN_ROUNDS, Comparison, compare
from ddpbench.analysis.statistics.timings import Timing
from ddpbench.analysis.summary import ClaimVerdict, DecidedClaim, HeldPair, PairVerdict
from ddpbench.naming import Namer, ranks_of
from ddpbench.spec import Case, grouping
from ddpbench.spec.claims import AnsweredLater, JudgedAgain, Of, Past, PlannedClaim
from ddpbench.spec.grouping import PANEL, SCALE, VARIANT
from ddpbench.units import counted

_Pair = tuple[CaseRun, CaseRun]
_Reason = tuple[str, str]
"""Reason why two cases are not compared, and its details."""
_HEADS: Mapping[ClaimVerdict, str] = {
    "holds": "holds here",
    "does not hold": "does not hold here",
    "holds in part": "holds in part",
    "cannot tell": "cannot tell",
}
SHARED_CORES = "intervals allow for shared cores"
"""Tag of claims about cases whose ranks shared cores."""
_STATUSES = {"unfinished": "has too few rounds", "oom": "ran out of memory", "ok": "has no numbers"}
_FOLLOWING = ("algorithm", "schedule", "options_json", "backend", "bucket_cap_mb", "env_json")
"""Settings that need no mention if the strategies differ, because they follow from the strategy."""


def decided_claims(
    claims: Sequence[PlannedClaim],
    cases: Sequence[CaseRun],
    withheld: Mapping[str, Violation] = MappingProxyType({}),
) -> tuple[DecidedClaim, ...]:
    """Decide a run's claims, and return them with their verdicts, in the given order.

    `withheld` maps case ids to violations. A pair with such a case gets the verdict `cannot tell`.
    """
    by_id, names = {run.case_id: run for run in cases}, Names(cases)
    pairs = [[(by_id[a], by_id[b]) for a, b in claim.pairs] for claim in claims]
    unable = [[_unable(pair, names) or _withheld(pair, withheld) for pair in own] for own in pairs]
    compared = [
        [None if why else _compared(*pair, of=claim.of) for pair, why in zip(own, whys, strict=True)]
        for claim, own, whys in zip(claims, pairs, unable, strict=True)
    ]
    family = {
        (frozenset((a.case_id, b.case_id)), claim.of)
        for claim, own, found in zip(claims, pairs, compared, strict=True)
        for (a, b), one in zip(own, found, strict=True)
        if _enough(one)
    }
    return tuple(
        _decided(*one, names=names, count=len(family))
        for one in zip(claims, pairs, unable, compared, strict=True)
    )


def judged_by_claims(cases: Sequence[CaseRun], claims: Sequence[DecidedClaim]) -> list[CaseRun]:
    """Return the cases with the claims' judgements stored in them, for the pairs that claims name.

    All statements of a report on such a pair use this judgement. A claim on step time is also used for throughput if
    both cases have equally many samples per step.
    """
    found: dict[str, dict[str, Judgement]] = {}
    batches = {run.case_id: run.case.global_batch for run in cases}
    for claim in claims:
        for held in claim.pairs:
            alike = claim.of == "throughput" or batches[held.a] == batches[held.b]
            if held.ratio is not None and alike:
                for one, other, ratio in (
                    (held.a, held.b, held.ratio),
                    (held.b, held.a, held.ratio.reciprocal()),
                ):
                    judgement = replace(judged(ratio, held.rounds), comparisons=claim.comparisons)
                    found.setdefault(one, {})[other] = judgement
    return [replace(run, claimed=found.get(run.case_id, {})) for run in cases] if found else list(cases)


def _decided(
    claim: PlannedClaim,
    pairs: Sequence[_Pair],
    unable: Sequence[_Reason | None],
    compared: Sequence[Comparison | None],
    *,
    names: Names,
    count: int,
) -> DecidedClaim:
    place = _placing(pairs)
    held = tuple(
        HeldPair(
            a=pair[0].case_id,
            b=pair[1].case_id,
            a_name=names.of(pair[0]),
            b_name=names.of(pair[1]),
            place=place(pair),
            **_judgement(claim, pair, comparison, why, alpha=ALPHA / max(1, count)),
        )
        for pair, why, comparison in zip(pairs, unable, compared, strict=True)
    )
    verdict = _verdict(held)
    return DecidedClaim(
        says=claim.says,
        number=claim.number,
        history=_before(claim.history, verdict, held),
        source=claim.source,
        answers=claim.answers,
        answered_later=isinstance(claim, AnsweredLater),
        kind=claim.kind,
        margin=claim.margin,
        of=claim.of,
        verdict=verdict,
        pairs=held,
        comparisons=count,
    )


def _before(history: Sequence[Past], verdict: ClaimVerdict, held: Sequence[HeldPair]) -> tuple[Past, ...]:
    return tuple(
        one for one in history if not isinstance(one, JudgedAgain) or _says_otherwise(one, verdict, held)
    )


def _says_otherwise(past: Past, verdict: ClaimVerdict, held: Sequence[HeldPair]) -> bool:
    """Return whether the verdict changed. Two "holds in part" differ if only one has refuted, or undecided, pairs."""
    if past.head != verdict or verdict != "holds in part":
        return past.head != verdict
    then = (" not " in past.verdict, "cannot tell" in past.verdict)
    return then != tuple(
        any(pair.verdict == word for pair in held) for word in ("does not hold", "cannot tell")
    )


def _runs_of(pairs: Sequence[_Pair]) -> list[CaseRun]:
    return list({run.case_id: run for pair in pairs for run in pair}.values())


def _unable(pair: _Pair, names: Names) -> _Reason | None:
    for run in pair:
        if run.planned.skip_reason is not None:
            return f"{names.of(run)} was skipped", run.planned.skip_reason
        if run.status != "ok" or not run.timings:
            status = _STATUSES.get(run.status, run.status)
            return f"{names.of(run)} {status}", run.error
        shared = run.shared_cores_share
        if shared is None or shared >= MOST_SHARED:
            return f"{names.of(run)} has more threads than cores", ""
        if (share := busy_share(run)) > FULL_SHARE:
            pace = f"took {100 * share:.0f} % of this machine's cores, so that these set its pace"
            return f"{names.of(run)} {pace}", ""
    return None


def _withheld(pair: _Pair, withheld: Mapping[str, Violation]) -> _Reason | None:
    broken = next((withheld[run.case_id] for run in pair if run.case_id in withheld), None)
    return None if broken is None else (broken.wrong, broken.broken.text)


def _compared(a: CaseRun, b: CaseRun, *, of: Of) -> Comparison | None:
    mine, other = (
        run.timings if of == "throughput" else [_per_step(one) for one in run.timings] for run in (a, b)
    )
    return compare(mine, other)


def _per_step(timing: Timing) -> Timing:
    return replace(timing, samples=timing.steps)


def _enough(comparison: Comparison | None) -> bool:
    return comparison is not None and comparison.paired and comparison.rounds >= MIN_ROUNDS


def _allowing(ratio: Interval, pair: _Pair) -> Interval:
    """Widen the ratio of step times to allow for waiting if a case shares cores."""
    if ratio.low is None or ratio.high is None:
        return ratio
    mine, other = (1 - (run.shared_cores_share or 0.0) for run in pair)
    return replace(ratio, low=ratio.low * mine, high=ratio.high / other)


def step_ratio(a: CaseRun, b: CaseRun, comparisons: int) -> Interval | None:
    """Return A's step time divided by B's, with the interval that a claim on the two would have.

    The interval is corrected for `comparisons`. None if the two cases cannot decide a claim.
    """
    found = None if _unable((a, b), Names((a, b))) else _compared(a, b, of="step time")
    if found is None or not _enough(found):
        return None
    return _allowing(found.time_ratio(ALPHA / comparisons), (a, b))


def _judgement(
    claim: PlannedClaim, pair: _Pair, comparison: Comparison | None, unable: _Reason | None, *, alpha: float
) -> dict[str, Any]:
    if comparison is None or not _enough(comparison):
        rounds = comparison.rounds if comparison is not None and comparison.paired else 0
        why = (
            f"{counted(rounds, 'round')} of both in one session, and under {MIN_ROUNDS} is too few"
            if rounds
            else "the two share no rounds, as after a merge"
        )
        briefly, details = unable or (why, "")
        reason = f"{briefly}: {details}" if details else briefly
        return {"verdict": "cannot tell", "reason": reason, "briefly": briefly, "rounds": rounds}
    ratio = _allowing(comparison.time_ratio(alpha), pair)
    lead = 1 + claim.margin if claim.kind == "faster" else 1.0
    margin = claim.margin if claim.kind == "as fast" else MARGIN
    found = judged(ratio.scaled(lead), comparison.rounds, margin=margin)
    return {
        "verdict": _of_faster(found, claim.margin) if claim.kind == "faster" else _of_equal(found),
        "reason": "",
        "ratio": ratio,
        "rounds": comparison.rounds,
    }


def _of_faster(judgement: Judgement, lead: float) -> PairVerdict:
    if judgement.verdict == "faster":
        return "holds"
    refuted = judgement.verdict == "slower" or (judgement.verdict == "equivalent" and not lead)
    return "does not hold" if refuted else "cannot tell"


def _of_equal(judgement: Judgement) -> PairVerdict:
    if judgement.verdict == "equivalent" or judgement.small:
        return "holds"
    return "does not hold" if judgement.beyond else "cannot tell"


def _verdict(held: Sequence[HeldPair]) -> ClaimVerdict:
    found = {one.verdict for one in held}
    if found == {"holds"}:
        return "holds"
    if "holds" in found:
        return "holds in part"
    return "does not hold" if "does not hold" in found else "cannot tell"


def _placing(pairs: Sequence[_Pair]) -> Callable[[_Pair], str]:
    sides = [_side_words([pair[side].case for pair in pairs]) for side in (0, 1)]

    def place(pair: _Pair) -> str:
        words: dict[str, None] = {}
        ranks: dict[str, None] = {}
        for words_of, run in zip(sides, pair, strict=True):
            own, count = words_of(run.case)
            words |= dict.fromkeys(own)
            ranks |= dict.fromkeys(count)
        at, listing = " against ".join(ranks), ", ".join(words)
        return f"{listing} at {at}" if listing and at else listing or at

    return place


def _side_words(every: Sequence[Case]) -> Callable[[Case], tuple[list[str], list[str]]]:
    fields = grouping.differing(every, (*VARIANT, *SCALE, *PANEL))
    strategies, sizes = "strategy" in fields, "world_size" in fields
    names = Namer(every)
    if strategies:
        fields = [name for name in fields if name not in ("strategy", *_FOLLOWING)]
    if sizes:
        fields = [name for name in fields if name not in ("world_size", "nodes", "ranks_per_node")]

    def words(case: Case) -> tuple[list[str], list[str]]:
        name = [names.spoken_strategy(case)] if strategies else []
        return [*name, *names.apart(case, fields)], [ranks_of(case)] if sizes else []

    return words


def claim_findings(claims: Sequence[DecidedClaim], cases: Sequence[CaseRun]) -> tuple[Finding, ...]:
    """Return a finding on each claim, whose sentence begins with the verdict."""
    by_id, names = {run.case_id: run for run in cases}, Names(cases)
    return tuple(_finding(one, by_id, names) for one in claims)


def _finding(one: DecidedClaim, by_id: Mapping[str, CaseRun], names: Names) -> Finding:
    pairs = [(by_id[held.a], by_id[held.b]) for held in one.pairs]
    runs = _runs_of(pairs)
    start = f"{_HEADS[one.verdict]}: {one.says}"
    compared = [held for held in one.pairs if held.rounds]
    shared = any(by_id[case].shared_cores_share for held in compared for case in (held.a, held.b))
    text = fitting([*(f"{start}; {detail}" for detail in _details(one, pairs, names)), start])
    alone = one.pairs[0] if len(one.pairs) == 1 else None
    return Finding(
        kind="claim",
        text=sentence(text),
        tags=(
            *([f"claimed in {one.source}"] if one.source else []),
            *([history] if (history := earlier(one)) else []),
            *([f'{ADDED} "{one.answers}" was added after the run'] if one.answered_later else []),
            *_labels(runs),
            *conditions([run for run in runs if run.timings]),
            *([SHARED_CORES] if shared else []),
            *_paths(pairs, names),
            *(_size(alone) if alone is not None and one.kind == "faster" and not one.margin else ()),
            *(launch_tags(min(held.rounds for held in compared), one.comparisons) if compared else ()),
        ),
        evidence="claims",
        verdict="unresolved" if one.verdict == "cannot tell" else one.verdict,
        cases=tuple(run.case_id for run in runs),
        ratio=alone.ratio if alone is not None else None,
    )


ADDED = "its answer"
"""Beginning of the tag of a claim whose answer to the question was added after the run."""
EARLIER = "earlier verdict"
"""Beginning of the tag with a claim's earlier verdicts."""


def earlier(one: DecidedClaim) -> str:
    """Describe a claim's earlier verdicts and its changes since then; empty if there were none."""
    tried = [entry for entry in one.history if entry.run]
    if not tried:
        return ""
    heads = list(dict.fromkeys(entry.head for entry in tried))
    wordings = _changes([*(entry.says for entry in tried), one.says])
    numbers = _changes([*(entry.number for entry in tried), one.number])
    then = "reworded" if wordings else "changed" if numbers else "measured again"
    if isinstance(tried[-1], JudgedAgain):
        then, wordings, numbers = "judged again", 0, 0
    often = wordings or numbers
    times = "" if often < 2 else " twice" if often == 2 else f" {often} times"
    return f"{EARLIER}{'s' if len(heads) > 1 else ''}: {', '.join(heads)}, then {then}{times}"


def _changes(values: Sequence[object]) -> int:
    return sum(a != b for a, b in pairwise(values))


def _size(held: HeldPair) -> tuple[str, ...]:
    if held.ratio is None or held.verdict == "cannot tell":
        return ()
    return judged(held.ratio, held.rounds).size_tags


def _labels(runs: Sequence[CaseRun]) -> list[str]:
    facets = [grouping.qualifiers(run.case) for run in runs]
    linked = {run.case.fabric for run in runs if run.case.fabric}
    words = dict.fromkeys(
        word
        for run, own in zip(runs, facets, strict=True)
        for word in own
        if len(linked) < 2 or word != grouping.FACETS["fabric"].word(run.case)
    )
    shared = [word for word in words if all(word in own for own in facets)]
    varied = [word for word in words if word not in shared]
    kept = [*shared, *(varied if len(varied) < 2 else [])]
    return [*(["emulated links"] if len(linked) > 1 else []), *kept]


def _paths(pairs: Sequence[_Pair], names: Names) -> list[str]:
    apart = [
        names.names.spoken_strategy(run.case)
        for pair in pairs
        if len({takes_another_path(run) for run in pair}) > 1
        for run in pair
        if takes_another_path(run)
    ]
    return [f"{name}: another path of training" for name in dict.fromkeys(apart)]


def _details(claim: DecidedClaim, pairs: Sequence[_Pair], names: Names) -> Iterator[str]:
    if not claim.pairs:
        yield "no two cases of this run are its two sides"
        return
    words = _Words(claim, rates=any(a.case.global_batch != b.case.global_batch for a, b in pairs))
    if len(claim.pairs) == 1:
        yield from words.of_one(claim.pairs[0], pairs[0], names)
    elif claim.verdict == "cannot tell":
        yield from words.undecided()
    elif len({held.verdict for held in claim.pairs}) > 1:
        yield from words.in_part()
    else:
        yield from words.in_all()


class _Words:
    """Texts about a claim's pairs; with `rates` in samples/s, because the sides differ in samples per step."""

    def __init__(self, one: DecidedClaim, *, rates: bool) -> None:
        self._one = one
        self._steps = one.of == "step time"
        self._rates = rates and not self._steps
        self._holding, self._failing, self._open = (
            [held for held in one.pairs if held.verdict == verdict]
            for verdict in ("holds", "does not hold", "cannot tell")
        )

    def of_one(self, held: HeldPair, pair: _Pair, names: Names) -> Iterator[str]:
        if held.ratio is None:
            yield held.briefly
            return
        a, b = pair
        mine, other, end = names.of(a), names.of(b), ""
        if a.case.world_size == b.case.world_size:
            mine, other = (names.names.variant(run.case) for run in pair)
            end = f" at {ranks_of(a.case)}"
        if held.verdict == "cannot tell":
            yield f"{mine} against {other}{end}: {self._undecided(held.ratio, named=True)}"
            yield self._undecided(held.ratio)
            return
        yield self._sides(held, mine, other, end)
        yield self._sides(held, mine, other, "")
        yield self._sides(held, *_distinct_words(pair), "")
        yield self._short(held)

    def in_part(self) -> Iterator[str]:
        counts = f"in {len(self._holding)} of {len(self._one.pairs)} comparisons"
        best, worst = self._best(), self._worst()
        opened = [f"cannot tell for {_places(self._open)}"] if self._open else []
        failed = f"not for {_places(self._failing)}"
        if self._holding:
            refuted = [[f"{failed} ({worst})"], [failed]] if self._failing else [[]]
            for against in refuted:
                yield ", ".join([f"{best} for {_places(self._holding)}", *against, *opened])
                yield ", ".join([f"{counts}, {best}", *against, *opened])
        else:
            yield ", ".join([f"{failed} ({worst})", *opened])
            yield ", ".join([failed, *opened])
        against = [f"not in {len(self._failing)} ({worst})"] if self._failing else []
        opened = [f"cannot tell in {len(self._open)}"] if self._open else []
        yield ", ".join([f"{counts}{f', {best}' if self._holding else ''}", *against, *opened])
        yield f"{counts}{f', {best}' if self._holding else ''}"
        yield counts

    def _best(self) -> str:
        if not self._holding:
            return ""
        several = "up to " if len(self._holding) > 1 and self._one.kind == "faster" else ""
        return f"{several}{self._short(self._extremes(self._holding)[0])}"

    def _worst(self) -> str:
        several = "worst: " if len(self._failing) > 1 else ""
        return (
            f"{several}{''.join(self._in_parts(self._extremes(self._failing)[-1]))}" if self._failing else ""
        )

    def in_all(self) -> Iterator[str]:
        count = len(self._one.pairs)
        start = "in both comparisons" if count == 2 else f"in all {count} comparisons"
        if self._failing:
            start = "in neither comparison" if count == 2 else f"in none of {count} comparisons"
        most, *_, least = self._extremes(self._holding or self._failing)
        (whose, first), (again, last) = self._in_parts(least), self._in_parts(most)
        last = last if whose == again else f"{again}{last}"
        end = self._allowed(most)
        yield f"{start}, {whose}{first} ({least.place}) to {last} ({most.place}){end}"
        yield f"{start}, {whose}{first} to {last}{end}"
        yield start

    def undecided(self) -> Iterator[str]:
        open_still = [held for held in self._open if held.ratio is not None]
        count = len(self._one.pairs)
        if not open_still:
            yield f"of {count} comparisons none was made: {self._open[0].briefly}"
            yield f"of {count} comparisons none was made"
            return
        widest = max(open_still, key=lambda held: _width(_ratio(held)))
        doubt = self._undecided(_ratio(widest))
        start = f"{count} comparisons decide nothing"
        yield f"{start}; for {widest.place} {doubt}"
        yield f"{start}; {doubt}"

    def _extremes(self, held: Sequence[HeldPair]) -> list[HeldPair]:
        if self._one.kind == "faster":
            return sorted(held, key=lambda one: _ratio(one).value)
        return sorted(held, key=lambda one: abs(math.log(_ratio(one).value)))

    def _sides(self, held: HeldPair, mine: str, other: str, end: str) -> str:
        ratio, claimed = _ratio(held), self._one.margin
        if self._rates:
            return f"{mine} trains {plain(ratio.reciprocal())} times the samples/s of {other}{end}{self._allowed(held)}"
        if self._equal(held):
            apart = f"step times differ by {signed(ratio)}"
            if self._one.kind == "faster" and claimed:
                return f"{mine} against {other}{end}: {apart}, not {_per_cent(claimed)}"
            if claimed:
                return f"{mine} against {other}{end}: {self._within(ratio)}"
            return f"{mine} and {other} are {EQUAL}{end}: {apart}"
        ahead = ratio.value < 1
        by = ratio.reciprocal() if ahead else ratio
        fast, slow = (mine, other) if ahead else (other, mine)
        missed = self._allowed(held)
        if ahead and self._one.kind == "faster" and claimed and held.verdict == "does not hold":
            many = by.value >= RATIO_THRESHOLD
            missed = f", not {1 + claimed:g} times" if many else f", not {_per_cent(claimed)}"
        if self._steps:
            return f"a step of {slow} takes {takes_longer(by, than=True)} one of {fast}{end}{missed}"
        return f"{fast} is {is_faster(by, than=True)} {slow}{end}{missed}"

    def _short(self, held: HeldPair) -> str:
        if self._one.kind == "as fast" and self._equal(held) and not self._rates:
            return self._within(_ratio(held))
        return f"{''.join(self._in_parts(held))}{self._allowed(held)}"

    def _in_parts(self, held: HeldPair) -> tuple[str, str]:
        ratio = _ratio(held)
        if self._rates:
            return "", f"{plain(ratio.reciprocal())} times the samples/s"
        if self._equal(held):
            return "step times differ by ", signed(ratio)
        ahead = ratio.value < 1
        by = ratio.reciprocal() if ahead else ratio
        if self._steps:
            whose = "the other's step is " if ahead else "its step is "
            return whose, takes_longer(by)
        if ahead:
            return "", is_faster(by)
        if by.value >= RATIO_THRESHOLD:
            return "", f"{plain(ratio.reciprocal())} times as fast"
        return "its step takes ", takes_longer(by)

    def _within(self, ratio: Interval) -> str:
        apart = f"step times differ by {signed(ratio)}"
        if above_one(ratio):
            apart = f"its step is {longer(ratio)} longer"
        elif under_one(ratio):
            apart = f"its step is {longer(ratio.reciprocal())} shorter"
        return f"{apart}, {self._bound('inside')}"

    def _bound(self, where: str) -> str:
        return f"{where} the {_per_cent(self._one.margin)} allowed"

    def _allowed(self, held: HeldPair) -> str:
        if self._one.kind != "as fast" or not self._one.margin:
            return ""
        return f", {self._bound('inside' if held.verdict == 'holds' else 'beyond')}"

    def _equal(self, held: HeldPair) -> bool:
        if held.verdict == "holds":
            return self._one.kind == "as fast"
        ratio = _ratio(held)
        return not (above_one(ratio) or under_one(ratio))

    def _undecided(self, ratio: Interval, *, named: bool = False) -> str:
        if self._rates:
            return f"{plain(ratio.reciprocal())} times the samples/s"
        if self._one.margin:
            return f"step times differ by {signed(ratio)}, which leaves {_per_cent(self._one.margin)} open"
        return undecided(ratio, "" if named else "what is to be faster")


def _distinct_words(pair: _Pair) -> tuple[str, str]:
    names = Namer(run.case for run in pair)
    first, second = (
        ", ".join(names.apart(run.case, (*VARIANT, *SCALE, *PANEL))) or names.spoken_strategy(run.case)
        for run in pair
    )
    return first, second


def _per_cent(fraction: float) -> str:
    return f"{100 * fraction:g} %"


def _ratio(held: HeldPair) -> Interval:
    assert held.ratio is not None
    return held.ratio


def _width(ratio: Interval) -> float:
    return (ratio.high or math.inf) / (ratio.low or 1.0)


def _places(held: Sequence[HeldPair]) -> str:
    return listed(list(dict.fromkeys(one.place for one in held)))
