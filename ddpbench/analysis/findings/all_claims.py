"""The answer to an experiment that has claims to decide: one sentence about all its claims."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import combinations

from ddpbench.analysis.finding import Finding
from ddpbench.analysis.findings.claims import EARLIER, SHARED_CORES
from ddpbench.analysis.findings.wording import fitting
from ddpbench.analysis.sentences import sentence
from ddpbench.analysis.summary import ClaimVerdict, DecidedClaim

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
_OF_ONE_CLAIM = (EARLIER, "claimed in", "corrected for", "the difference may")
"""Beginnings of tags that concern a single claim's source or comparisons."""


def claims_answer(claims: Sequence[DecidedClaim], findings: Sequence[Finding]) -> Finding | None:
    """Return a finding that says which claims hold and which do not, or None if `claims` is empty.

    If there is one claim, its finding is returned unchanged. The verdict is `unresolved` if no claim is decided.

    Args:
        claims: the claims, in the experiment's order.
        findings: one finding on each claim, in the same order.
    """
    if not claims:
        return None
    if len(claims) == 1:
        return findings[0]
    return Finding(
        kind="answer",
        text=sentence(fitting(_texts(claims))),
        tags=tuple(_tags([one.tags for one in findings])),
        evidence="claims",
        verdict="unresolved" if all(one.verdict == "cannot tell" for one in claims) else "note",
        cases=tuple(dict.fromkeys(case for one in findings for case in one.cases)),
    )


def _tags(tags: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield the tags that all claims share, and remarks on tags that only some claims have.

    The remarks are on emulated links, shared cores and earlier verdicts. They are worded differently from the claims'
    tags, because the report removes a tag from a claim if the answer has the same tag.
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
    """Yield texts of decreasing length: with fewer claims of each verdict, with fewer verdicts, and with counts alone.

    Claims that are worded alike differ in their cases or margins. If all claims with one wording have the same verdict,
    the wording is given once. Otherwise no claim is named.
    """
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
    """Return a text with up to `most` claims of each verdict in `named`, and the number of claims left out.

    If no claim that holds is named, the claims that hold are not counted here, because the sentence begins with their
    number.
    """
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
    """Join the claims to one text: `a`, `a and that b`, or `a, that b and that c`."""
    first, *further = says
    return "".join(
        [
            first,
            *(f", {middle} {one}" for one in further[:-1]),
            *(f" {last} {one}" for one in further[-1:]),
        ]
    )


def _counts(counts: Mapping[ClaimVerdict, int], more: str = "") -> str:
    """State the number of claims per verdict in words: `1 more holds in part, 2 do not hold`."""
    return ", ".join(
        f"{count}{more if not number else ''} {_COUNTED[verdict][count > 1]}"
        for number, (verdict, count) in enumerate(counts.items())
    )
