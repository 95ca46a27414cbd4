"""One sentence on all claims: it names them by verdict as far as there is room, and then counts them."""

from __future__ import annotations

import pytest

from ddpbench.analysis.findings.all_claims import claims_answer
from ddpbench.analysis.findings.answer import answer_of
from ddpbench.analysis.summary import ClaimVerdict, Decided, Finding

HOLDS: ClaimVerdict = "holds"
PART: ClaimVerdict = "holds in part"
NOT: ClaimVerdict = "does not hold"
OPEN: ClaimVerdict = "cannot tell"


def decided(says: str, verdict: ClaimVerdict) -> Decided:
    return Decided(
        says=says,
        source="",
        kind="faster",
        margin=0.0,
        of="step time",
        verdict=verdict,
        pairs=(),
        comparisons=0,
    )


def finding(says: str) -> Finding:
    return Finding(
        kind="claim", text=f"On {says}.", evidence="claims", verdict="holds", cases=(f"{says}-a", "base")
    )


def text(*told: tuple[str, ClaimVerdict]) -> str:
    found = claims_answer([decided(*one) for one in told], [finding(says) for says, _ in told])
    assert found is not None
    return found.text


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        ([("a wins", HOLDS), ("b wins", HOLDS)], "Here it holds that a wins and that b wins."),
        (
            [("a wins", NOT), ("b wins", OPEN), ("c wins", HOLDS), ("d wins", PART)],
            "Here it holds that c wins; in part that d wins; not that a wins; it cannot be told whether b wins.",
        ),
        (
            [("a wins", PART), ("b wins", PART), ("c wins", NOT)],
            "Here it holds in part that a wins and that b wins; not that c wins.",
        ),
        ([("a wins", NOT), ("b wins", NOT)], "Here it does not hold that a wins and that b wins."),
        (
            [("a wins", OPEN), ("b wins", OPEN), ("c wins", OPEN)],
            "It cannot be told here whether a wins, whether b wins and whether c wins.",
        ),
    ],
)
def test_claims_are_told_by_verdict(told: list[tuple[str, ClaimVerdict]], expected: str) -> None:
    assert text(*told) == expected


LONG = "this one of the two is a good deal faster than the other"


def test_what_does_not_fit_is_counted() -> None:
    """Thirty words at most: of each verdict fewer are named, alike, and none where even one of each is too long."""
    assert text(*[(LONG, HOLDS)] * 4) == f"Here it holds that {LONG} and 3 more."
    assert text((LONG, HOLDS), (LONG, HOLDS), ("it is", NOT)) == (
        f"Here it holds that {LONG} and one more; not that it is."
    )
    told = [(LONG, HOLDS), (LONG, HOLDS), (LONG, PART), (LONG, NOT), (LONG, OPEN), (LONG, OPEN)]
    assert text(*told) == ("Of 6 claims 2 hold here, 1 holds in part, 1 does not hold, 2 cannot be told.")


def test_one_claim_is_answered_by_its_own_finding() -> None:
    own = finding("a wins")
    assert claims_answer([decided("a wins", HOLDS)], [own]) is own
    assert claims_answer([], []) is None


def test_several_are_about_all_their_cases() -> None:
    found = claims_answer([decided("a", HOLDS), decided("b", HOLDS)], [finding("a"), finding("b")])
    assert found is not None
    assert found.cases == ("a-a", "base", "b-a")


def test_claims_are_the_answer_and_come_before_any_other() -> None:
    asked = Finding(kind="precision", text="bf16 is faster.", evidence="precision", verdict="faster")
    links = Finding(kind="links", text="So it is.", evidence="links", verdict="faster")
    claimed = finding("a wins")
    assert answer_of([], [asked], claimed) == (claimed, asked)
    assert answer_of([], [asked, links], claimed) == (claimed, links)
    assert answer_of([], [], claimed) == (claimed,)
