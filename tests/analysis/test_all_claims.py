"""The sentence on all claims: it names them by verdict as far as there is room, and then counts them."""

from __future__ import annotations

import itertools
import re
from dataclasses import replace

import pytest

from ddpbench.analysis.finding import Finding
from ddpbench.analysis.findings.all_claims import claims_answer
from ddpbench.analysis.findings.answer import answer_of
from ddpbench.analysis.sentences import Sentence
from ddpbench.analysis.summary import ClaimVerdict, DecidedClaim

HOLDS: ClaimVerdict = "holds"
PART: ClaimVerdict = "holds in part"
NOT: ClaimVerdict = "does not hold"
OPEN: ClaimVerdict = "cannot tell"


def decided(says: str, verdict: ClaimVerdict) -> DecidedClaim:
    return DecidedClaim(
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
        kind="claim",
        text=Sentence(f"On {says}"),
        evidence="claims",
        verdict="holds",
        cases=(f"{says}-a", "base"),
    )


def text(*claims: tuple[str, ClaimVerdict]) -> str:
    found = claims_answer([decided(*one) for one in claims], [finding(says) for says, _ in claims])
    assert found is not None
    return found.text


@pytest.mark.parametrize(
    ("claims", "expected"),
    [
        ([("a wins", HOLDS), ("b wins", HOLDS)], "2 of 2 claims hold: that a wins and that b wins."),
        (
            [("a wins", NOT), ("b wins", OPEN), ("c wins", HOLDS), ("d wins", PART)],
            "1 of 4 claims holds: that c wins; in part that d wins; not that a wins; it cannot be told whether b wins.",
        ),
        (
            [("a wins", PART), ("b wins", PART), ("c wins", NOT)],
            "0 of 3 claims hold: in part that a wins and that b wins; not that c wins.",
        ),
        ([("a wins", NOT), ("b wins", NOT)], "0 of 2 claims hold: not that a wins nor that b wins."),
        (
            [("a wins", HOLDS), ("b wins", NOT), ("c wins", NOT), ("d wins", NOT)],
            "1 of 4 claims holds: that a wins; not that b wins, nor that c wins nor that d wins.",
        ),
        (
            [("a wins", OPEN), ("b wins", OPEN), ("c wins", OPEN)],
            "0 of 3 claims hold: it cannot be told whether a wins, whether b wins or whether c wins.",
        ),
        ([("a wins", HOLDS), ("a wins", HOLDS)], "2 of 2 claims hold: that a wins."),
        ([("a wins", HOLDS), ("a wins", NOT)], "1 of 2 claims holds: 1 does not hold."),
        (
            [("a wins", HOLDS), ("a wins", HOLDS), ("a wins", NOT), ("b wins", HOLDS)],
            "3 of 4 claims hold: 1 does not hold.",
        ),
    ],
)
def test_claims_are_told_by_verdict(claims: list[tuple[str, ClaimVerdict]], expected: str) -> None:
    assert text(*claims) == expected


LONG = "this one of the two is a good deal faster than the other"


def test_what_does_not_fit_is_counted() -> None:
    """At thirty words fewer claims of each verdict are named, equally many; then only some verdicts; then no claim."""
    others = [f"{LONG} {number}" for number in range(4)]
    assert text(*((one, HOLDS) for one in others)) == f"4 of 4 claims hold: that {others[0]}; 3 more hold."
    assert text((LONG, HOLDS), (others[0], HOLDS), ("it is", NOT)) == (
        f"2 of 3 claims hold: that {LONG}; not that it is; 1 more holds."
    )
    six = [f"{LONG}-{number}" for number in range(6)]
    claims = [*zip(six, (HOLDS, HOLDS, PART, NOT, OPEN, OPEN), strict=True)]
    assert text(*claims) == (
        f"2 of 6 claims hold: not that {six[3]}; 1 more holds in part, 2 cannot be told."
    )
    claims = [(six[0], PART), ("b is faster than a is", NOT), (six[1], OPEN)]
    assert text(*claims) == (
        "0 of 3 claims hold: not that b is faster than a is; 1 more holds in part, 1 cannot be told."
    )
    longer = f"{LONG} and than any of the others that there may be among many more of them"
    assert text((longer, HOLDS), (longer, NOT), (longer, OPEN), (f"{longer}, too", OPEN)) == (
        "1 of 4 claims holds: 1 does not hold, 2 cannot be told."
    )


@pytest.mark.parametrize("words", [1, 6, 12])
def test_any_mix_of_verdicts_is_told_in_thirty_words(words: int) -> None:
    for count in range(2, 6):
        for verdicts in itertools.combinations_with_replacement((HOLDS, PART, NOT, OPEN), count):
            says = [" ".join([f"w{number}", *["w"] * (words - 1)]) for number in range(count)]
            found = text(*zip(says, verdicts, strict=True))
            assert len(found.split()) <= 30
            numbers = [
                int(word) for word in re.findall(r"(?<!\w)\d+(?= (?:more )?(?:hold|do|cannot))", found)
            ]
            named = [one for one in says if f" {one}" in found]
            holding = verdicts.count(HOLDS)
            that_hold = [one for one in named if verdicts[says.index(one)] == HOLDS]
            assert found.startswith(f"{holding} of {count} claims hold"), found
            assert sum(numbers) + len(named) == count - (0 if that_hold else holding), found


def test_tags_tell_what_qualifies_all_and_whether_any_is_emulated() -> None:
    both = [decided("a wins", HOLDS), decided("b wins", NOT)]
    tags: list[tuple[str, ...]] = [
        (
            "claimed in X",
            "shrunk /40",
            "emulated 1 Gbit/s link",
            "5 launches each",
            "corrected for 3 comparisons",
        ),
        ("claimed in X", "shrunk /40", "intervals allow for shared cores", "5 launches each"),
    ]
    found = claims_answer(both, [replace(finding("a"), tags=own) for own in tags])
    assert found is not None
    assert found.tags == (
        "shrunk /40",
        "5 launches each",
        "some links are emulated",
        "some intervals allow for shared cores",
    )
    own = {tag for each in tags for tag in each}
    assert own.intersection(found.tags) == {
        "shrunk /40",
        "5 launches each",
    }  # a page shows these of all claims once
    found = claims_answer(both, [replace(finding("a"), tags=tags[0])] * 2)
    assert found is not None
    assert found.tags == ("shrunk /40", "emulated 1 Gbit/s link", "5 launches each")


@pytest.mark.parametrize(("changed", "sentence"), [(1, "1 of 2"), (2, "all")])
def test_the_answer_says_how_many_claims_had_an_earlier_verdict(changed: int, sentence: str) -> None:
    tags = [("earlier verdict: holds, then reworded",)] * changed + [()] * (2 - changed)
    both = [decided("a wins", HOLDS), decided("b wins", NOT)]
    found = claims_answer(both, [replace(finding("a"), tags=own) for own in tags])
    assert found is not None
    assert found.tags == (f"{sentence} claims had an earlier verdict",)


def test_undecided_claims_come_with_the_reason() -> None:
    found = claims_answer([decided("a", OPEN), decided("b", OPEN)], [finding("a"), finding("b")])
    assert found is not None
    assert found.verdict == "unresolved"
    assert found.badge == "cannot tell"
    first, reason = answer_of([], [], found)
    assert first is found
    assert reason.text == "No answer: no case of several ranks was measured."
    assert answer_of([], [], replace(found, verdict="note")) == (replace(found, verdict="note"),)


def test_one_claim_is_answered_by_its_own_finding() -> None:
    own = finding("a wins")
    assert claims_answer([decided("a wins", HOLDS)], [own]) is own
    assert claims_answer([], []) is None


def test_several_are_about_all_their_cases() -> None:
    found = claims_answer([decided("a", HOLDS), decided("b", HOLDS)], [finding("a"), finding("b")])
    assert found is not None
    assert found.cases == ("a-a", "base", "b-a")


def test_claims_are_the_answer_and_come_before_any_other() -> None:
    asked = Finding(kind="precision", text=Sentence("bf16 is faster"), evidence="precision", verdict="faster")
    links = Finding(kind="links", text=Sentence("So it is"), evidence="links", verdict="faster")
    claimed = finding("a wins")
    assert answer_of([], [asked], claimed) == (claimed, asked)
    assert answer_of([], [asked, links], claimed) == (claimed, links)
    assert answer_of([], [], claimed) == (claimed,)
