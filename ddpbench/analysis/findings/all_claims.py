"""One sentence on all claims of an experiment: what its sweep was to decide is the answer to its question."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from ddpbench.analysis.findings.wording import fitting, sentence
from ddpbench.analysis.summary import ClaimVerdict, Decided, Finding

_HEADS: Mapping[ClaimVerdict, tuple[str, str]] = {
    "holds": ("here it holds that", "it holds that"),
    "holds in part": ("here it holds in part that", "in part that"),
    "does not hold": ("here it does not hold that", "not that"),
    "cannot tell": ("it cannot be told here whether", "it cannot be told whether"),
}
"""How each begins the sentence, and how it goes on with one."""
_COUNTED: Mapping[ClaimVerdict, tuple[str, str]] = {
    "holds": ("holds", "hold"),
    "holds in part": ("holds in part", "hold in part"),
    "does not hold": ("does not hold", "do not hold"),
    "cannot tell": ("cannot be told", "cannot be told"),
}


def claims_answer(claims: Sequence[Decided], findings: Sequence[Finding]) -> Finding | None:
    """Return what holds of an experiment's claims and what does not; of a single one, its own finding. None: no claims.

    Args:
        claims: in the experiment's order.
        findings: one on each, in the same order.
    """
    if not claims:
        return None
    if len(claims) == 1:
        return findings[0]
    cases = dict.fromkeys(case for one in findings for case in one.cases)
    return Finding(
        kind="answer",
        text=sentence(fitting(_texts(claims))),
        evidence="claims",
        verdict="note",
        cases=tuple(cases),
    )


def _texts(claims: Sequence[Decided]) -> Iterator[str]:
    """Yield it in ever fewer words: with fewer claims of each verdict, and with none."""
    by_verdict = {verdict: [one.says for one in claims if one.verdict == verdict] for verdict in _HEADS}
    found = [(verdict, says) for verdict, says in by_verdict.items() if says]
    for most in range(max(len(says) for _, says in found), 0, -1):
        yield "; ".join(
            f"{_HEADS[verdict][number > 0]} {_in_a_row(says, most, _HEADS[verdict][0].split()[-1])}"
            for number, (verdict, says) in enumerate(found)
        )
    first, *more = [f"{len(says)} {_COUNTED[verdict][len(says) > 1]}" for verdict, says in found]
    yield f"of {len(claims)} claims {', '.join([f'{first} here', *more])}"


def _in_a_row(says: Sequence[str], most: int, word: str) -> str:
    """Return the first claims, `word` before each further one, and how many more there are."""
    first, *further = says[:most]
    parts = [first, *(f"{word} {one}" for one in further)]
    left = len(says) - most
    if left > 0:
        parts.append("one more" if left == 1 else f"{left} more")
    return " and ".join([", ".join(parts[:-1]), parts[-1]] if len(parts) > 1 else parts)
