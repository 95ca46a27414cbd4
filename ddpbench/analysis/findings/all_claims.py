"""The answer to an experiment that has claims to decide: the effects that they show, in one sentence."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, combinations

from ddpbench.analysis.finding import Finding
from ddpbench.analysis.findings.below_one import all_below_one
from ddpbench.analysis.findings.claims import ADDED, EARLIER, SHARED_CORES
from ddpbench.analysis.findings.effects import (
    ClaimedEffect,
    Opening,
    effects_of,
    opening_of,
    over_equal_sizes,
)
from ddpbench.analysis.findings.inputs import inputs_answer
from ddpbench.analysis.findings.options import option_answer
from ddpbench.analysis.findings.wording import fitting
from ddpbench.analysis.inputs import input_key
from ddpbench.analysis.read.launches import CaseRun
from ddpbench.analysis.sentences import sentence
from ddpbench.analysis.summary import ClaimVerdict, DecidedClaim
from ddpbench.spec.grouping import Label

_HEADS: Mapping[ClaimVerdict, tuple[str, str, str]] = {
    "holds": ("that", "that", "and that"),
    "holds in part": ("in part that", "that", "and that"),
    "does not hold": ("not that", "nor that", "nor that"),
    "cannot tell": ("it cannot be told whether", "whether", "or whether"),
}
"""Words of each verdict: before its first claim, before a further claim, and before the last claim."""
_TELLING: Sequence[ClaimVerdict] = ("holds", "does not hold", "holds in part", "cannot tell")
"""Order in which verdicts are preferred if a sentence has no room for all of them."""
_COUNTED: Mapping[ClaimVerdict, tuple[str, str]] = {
    "holds": ("holds", "hold"),
    "holds in part": ("holds in part", "hold in part"),
    "does not hold": ("does not hold", "do not hold"),
    "cannot tell": ("cannot be told", "cannot be told"),
}
_OF_ONE_CLAIM = (ADDED, EARLIER, "claimed in", "corrected for", "the difference may")
"""Beginnings of tags that concern a single claim's source, answer or comparisons."""


def claims_answer(
    claims: Sequence[DecidedClaim],
    findings: Sequence[Finding],
    cases: Sequence[CaseRun] = (),
    withheld: Collection[str] = (),
) -> Finding | None:
    """Return the finding that states the effects shown by the claims, tagged with how many claims hold.

    If no claim is decided, the finding has the verdict `unresolved` and lists the open claims. A single claim without
    an effect gives its own finding. None if `claims` is empty.

    Args:
        claims: the claims, in the experiment's order.
        findings: one finding on each claim, in the same order.
        cases: the run's cases.
        withheld: ids of cases whose numbers must be wrong; only claims on other pairs are decided.
    """
    if not claims:
        return None
    usable = [run for run in cases if run.case_id not in withheld]
    opening = opening_of(claims)
    effects, replaced = over_equal_sizes(
        effects_of(claims, usable, opening), usable, max(one.comparisons for one in claims)
    )
    decided = opening in ("yes", "no")
    if effects and not decided and (asked := _on_settings(claims, usable)) is not None:
        more = [
            tag
            for tag in _tags([one.tags for one in findings])
            if tag not in asked.tags and not isinstance(tag, Label)
        ]
        return replace(asked, tags=(*asked.tags, *more))
    if len(claims) == 1 and not effects:
        return findings[0]
    text, tags = fitting(_texts(claims)), _tags([one.tags for one in findings])
    if effects:
        below = all_below_one(usable)
        ends = [f"; {below.clause}", ""] if below is not None else [""]
        text = fitting(
            f"{_joined(opening, effects[:count])}{end}"
            for count in range(len(effects), 0, -1)
            for end in ends
        )
        missing = below is not None and below.clause not in text
        before = [below.tag] if missing and below is not None else []
        tags = chain(before, [one.text() for one in replaced], [_counted(claims)], tags)
    return Finding(
        kind="answer",
        text=sentence(text),
        tags=tuple(tags),
        evidence="claims",
        verdict="unresolved" if all(one.verdict == "cannot tell" for one in claims) else "note",
        cases=tuple(dict.fromkeys(case for one in findings for case in one.cases)),
    )


def _on_settings(claims: Sequence[DecidedClaim], cases: Sequence[CaseRun]) -> Finding | None:
    by_id = {run.case_id: run.case for run in cases}
    pairs = [
        (by_id[held.a], by_id[held.b])
        for claim in claims
        for held in claim.pairs
        if held.a in by_id and held.b in by_id
    ]
    loaders = any(input_key(a) == input_key(b) for a, b in pairs)
    counted = [_counted(claims)]
    found = inputs_answer(cases, counted) if loaders else None
    return found if found is not None else option_answer(cases, claims, counted)


def _joined(opening: Opening, effects: Sequence[ClaimedEffect]) -> str:
    """Join the effects to a sentence: with `and` if two successive effects have the same faster case, else with `;`.

    An effect of another strategy that follows such an effect is put in brackets, because it has neither of its cases.
    """
    first, *others = effects
    text, before = first.text(leading=not opening), effects[0]
    aside = whole = False  # the next effect may be in brackets; it must name both of its cases
    for one in others:
        same = one.continues(before)
        if aside and one.follows(before):
            text += f" ({one.text(before)})"
        else:
            text += f"{' and ' if same else '; '}{one.text(None if whole else before)}"
        aside, whole, before = same and bool(one.common), same or aside, one
    return f"{opening}: {text}" if opening else text


def _counted(claims: Sequence[DecidedClaim]) -> str:
    holding = sum(one.verdict == "holds" for one in claims)
    if len(claims) == 1:
        return f"the claim {_COUNTED[claims[0].verdict][0]}"
    others: dict[ClaimVerdict, int] = {
        verdict: sum(one.verdict == verdict for one in claims) for verdict in _HEADS if verdict != "holds"
    }
    head = f"{holding} of {len(claims)} claims {_COUNTED['holds'][holding != 1]}"
    left = {verdict: count for verdict, count in others.items() if count}
    return ", ".join([head, *([_counts(left)] if left else [])])


def _tags(tags: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield the tags that all claims share, and remarks on tags that only some claims have.

    Remarks are worded unlike tags, because the report removes from each claim the tags that the answer has.
    """
    every = list(dict.fromkeys(tag for own in tags for tag in own if not tag.startswith(_OF_ONE_CLAIM)))
    shared = [tag for tag in every if all(tag in own for own in tags)]
    yield from shared
    if not any(tag.startswith("emulated") for tag in shared) and any(
        tag.startswith("emulated") for tag in every
    ):
        yield "some links are emulated"
    if SHARED_CORES in every and SHARED_CORES not in shared:
        yield f"some {SHARED_CORES}"
    if before := sum(any(tag.startswith(EARLIER) for tag in own) for own in tags):
        which = "all" if before == len(tags) else f"{before} of {len(tags)}"
        yield f"{which} claims had an {EARLIER}"


def _texts(claims: Sequence[DecidedClaim]) -> Iterator[str]:
    holding = sum(one.verdict == "holds" for one in claims)
    head = f"{holding} of {len(claims)} claims {_COUNTED['holds'][holding != 1]}"
    by_verdict = {verdict: [one.says for one in claims if one.verdict == verdict] for verdict in _HEADS}
    found = {verdict: list(dict.fromkeys(says)) for verdict, says in by_verdict.items() if says}
    if len({one.says for one in claims}) == sum(map(len, found.values())):
        for most in range(max(map(len, found.values())), 0, -1):
            yield f"{head}: {_named(found, found, most)}"
        for count in range(len(found) - 1, 0, -1):
            for named in combinations(sorted(found, key=_TELLING.index), count):
                yield f"{head}: {_named(found, [verdict for verdict in found if verdict in named], 1)}"
    others: dict[ClaimVerdict, int] = {
        verdict: len(by_verdict[verdict]) for verdict in found if verdict != "holds"
    }
    yield f"{head}: {_counts(others)}" if others else head


def _named(
    by_verdict: Mapping[ClaimVerdict, Sequence[str]], named: Collection[ClaimVerdict], most: int
) -> str:
    parts: list[str] = []
    for verdict in named:
        first, middle, last = _HEADS[verdict]
        parts.append(f"{first} {_in_a_row(by_verdict[verdict][:most], middle, last)}")
    left = {
        verdict: len(says) - (min(most, len(says)) if verdict in named else 0)
        for verdict, says in by_verdict.items()
    }
    rest = {
        verdict: count
        for verdict, count in left.items()
        if count and (verdict != "holds" or "holds" in named)
    }
    return "; ".join([*parts, *([_counts(rest, more=" more")] if rest else [])])


def _in_a_row(says: Sequence[str], middle: str, last: str) -> str:
    first, *further = says
    return "".join(
        [
            first,
            *(f", {middle} {one}" for one in further[:-1]),
            *(f" {last} {one}" for one in further[-1:]),
        ]
    )


def _counts(counts: Mapping[ClaimVerdict, int], more: str = "") -> str:
    return ", ".join(
        f"{count}{more if not number else ''} {_COUNTED[verdict][count > 1]}"
        for number, (verdict, count) in enumerate(counts.items())
    )
