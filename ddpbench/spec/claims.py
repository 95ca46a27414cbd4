"""Claims that an experiment is to decide: how a file states them, and which pairs of cases decide each of them.

A claim compares two selections of cases. Two cases, one of each selection, form a pair if they have the same values of
all axes. Keys that both selections name may differ. A key that only one selection names applies to both.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, Field, field_serializer

from ddpbench.errors import Problem, nearest
from ddpbench.spec import limits
from ddpbench.text_safety import shortened
from ddpbench.units import Unit, series_of

if TYPE_CHECKING:
    from ddpbench.spec.case import PlannedCase

MOST_WORDS = 12
"""Most words of a claim, because a report states it in one sentence with the verdict and the numbers."""
SIDES = ("faster", "than", "cases", "as_fast_as")
Of = Literal["throughput", "step time"]
ClaimKind = Literal["faster", "as fast"]
YesOrNo = Literal["yes", "no"]
_CLOSEST = 60
"""Most combinations per side that are compared to find the two closest to a pair, for an error message."""


def _few_words(text: str) -> str:
    bare = text.strip().rstrip(".")
    if not 0 < len(bare.split()) <= MOST_WORDS or "\n" in bare:
        raise ValueError(f"must be one line of 1 to {MOST_WORDS} words")
    if ";" in bare or bare.endswith("?"):  # reports use the claim as a statement within a sentence
        raise ValueError("must be one statement, without a semicolon or a question mark")
    return bare


def _one_line(text: str) -> str:
    if "\n" in text.strip():
        raise ValueError("must be one line")
    return text.strip()


def _no_bare_per_cent(value: object) -> object:
    """Refuse a percentage that lacks its sign.

    Raises:
        ValueError: the number is 1 or more.
    """
    if isinstance(value, int | float) and not isinstance(value, bool) and value >= 1:
        raise ValueError(f'must be a fraction: write "{value:g} %", or {value / 100:g}')
    return value


_PER_CENT = Unit("1", type="number or percentage")
_Selection = dict[str, list[Any]]
_Number = Annotated[int, limits.CLAIM_NUMBER, Unit("1")]
VERDICTS = ("holds in part", "holds", "does not hold", "cannot tell", "no run kept")
"""The verdicts that an earlier run may have."""


class Earlier(BaseModel, extra="forbid", frozen=True):
    """An entry of `[[claims.history]]`: an earlier claim or run, and its verdict."""

    number: _Number
    """Number of the claim then."""
    says: Annotated[str, AfterValidator(_few_words)]
    """Wording then."""
    settings: Annotated[str, AfterValidator(_one_line)]
    """Settings that have changed since."""
    run: Annotated[str, Field(pattern="^([0-9a-f]{12})?$")] = ""
    """The run's id, from its plan.json. Empty: no run was kept."""
    commit: Annotated[str, Field(pattern="^([0-9a-f]{7,40})?$")] = ""
    """Commit that contains the run, or the experiment file if no run was kept."""
    date: Annotated[str, Field(pattern=r"^\d{4}-\d\d-\d\d$")]
    """Day of the run, or of the wording if no run was kept."""
    verdict: Annotated[str, Field(pattern=f"^({'|'.join(VERDICTS)})(: .+)?$")]
    """Verdict, with its numbers after a colon."""
    why: Annotated[str, AfterValidator(_one_line)] = ""
    """Why the claim was changed or judged again after this."""


class Claim(BaseModel, extra="forbid", frozen=True):
    """An entry of `[[claims]]`: either `faster` and `than`, or `cases`, `as_fast_as` and `within`."""

    says: Annotated[str, AfterValidator(_few_words)]
    """The claim in your own words, 12 at most, without a semicolon."""
    number: _Number | None = None
    """Number of the claim, unique in the file. A changed claim needs a new one."""
    source: Annotated[str, AfterValidator(_one_line)] = ""
    """Title of the publication or page that makes the claim."""
    answers: YesOrNo | None = None
    """Answer to `question` if the claim holds. If the claim is refuted for any pair, the answer is the opposite."""
    faster: _Selection | None = None
    """Cases claimed to be faster, as values of settings. A key may list several."""
    than: _Selection | None = None
    """Cases to compare with. A pair differs only in the keys that both tables name."""
    by: Annotated[float, limits.CLAIMED_LEAD, BeforeValidator(_no_bare_per_cent), _PER_CENT] | None = None
    """Minimum lead: how much longer the other step takes. Unset: any lead."""
    cases: _Selection | None = None
    """Cases claimed to be as fast as others."""
    as_fast_as: _Selection | None = None
    """The other cases, paired as for `than`."""
    within: Annotated[float, limits.CLAIMED_MARGIN, BeforeValidator(_no_bare_per_cent), _PER_CENT] | None = (
        None
    )
    """Largest difference at which two cases count as equally fast."""
    of: Of | None = None
    """Quantity to compare. Required if the two sides' steps have different numbers of samples."""
    history: list[Earlier] = []
    """Earlier wordings and runs with their verdicts, oldest first."""

    @field_serializer("by", "within")
    def _as_per_cent(self, value: float | None) -> str | None:
        return None if value is None else f"{100 * value:.12g} %"

    @property
    def sides(self) -> tuple[tuple[str, _Selection], tuple[str, _Selection]]:
        """Return the key and the selection of each side. The side that the claim is about comes first."""
        if self.faster is not None:
            return ("faster", self.faster), ("than", self.than or {})
        return ("cases", self.cases or {}), ("as_fast_as", self.as_fast_as or {})


def malformed(claim: Mapping[str, Any], path: str) -> list[Problem]:
    """Return problems for keys of a claim that are missing or that exclude each other."""
    problems: list[tuple[str, str]] = []
    if "says" not in claim:
        problems.append(("says", f"is missing: say in {MOST_WORDS} words or fewer what is claimed"))
    ordered, equal = [key for key in ("faster", "than") if key in claim], ["cases", "as_fast_as"]
    if ordered:
        problems += [
            (
                key,
                "belongs to a claim of equality, with cases and as_fast_as: leave it out, or faster and than",
            )
            for key in (*equal, "within")
            if key in claim
        ]
        problems += [
            (key, "is missing: give the cases to compare with") for key in ("than",) if key not in claim
        ]
        problems += [
            (key, "is missing: give the cases that are faster") for key in ("faster",) if key not in claim
        ]
    elif any(key in claim for key in equal):
        problems += [
            (key, "is missing: a claim of equality needs cases, as_fast_as and within")
            for key in equal
            if key not in claim
        ]
        if "within" not in claim:
            problems.append(
                (
                    "within",
                    ('is missing: give the largest difference at which the cases are as fast, such as "3 %"'),
                )
            )
        if "by" in claim:
            problems.append(("by", "belongs to faster and than; a claim of equality has within"))
    else:
        problems.append(
            (
                "",
                "needs faster and than, or cases, as_fast_as and within",
            )
        )
    return [Problem(path=f"{path}.{key}" if key else path, message=message) for key, message in problems]


def numbered_twice(claims: Sequence[Any]) -> Iterator[Problem]:
    """Yield a problem for each claim that repeats the number of an earlier claim in the file."""
    first: dict[int, int] = {}
    for index, claim in enumerate(claims):
        number = claim.get("number") if isinstance(claim, Mapping) else None
        if not isinstance(number, int):
            continue
        if number in first:
            message = f"is {number}, the number of claims[{first[number]}]: give each its own"
            yield Problem(path=f"claims[{index}].number", message=message)
        first.setdefault(number, index)


@dataclass(frozen=True, kw_only=True, slots=True)
class Past:
    """An entry of a claim's history as stored in a run's plan; see `Earlier`."""

    number: int
    says: str
    settings: str
    run: str = ""
    commit: str = ""
    date: str
    verdict: str
    why: str = ""

    @property
    def head(self) -> str:
        """Return the verdict without its numbers."""
        return self.verdict.partition(":")[0]

    @property
    def numbers(self) -> str:
        """Return the numbers of the verdict; empty for a verdict without numbers."""
        return self.verdict.partition(": ")[2]


@dataclass(frozen=True, kw_only=True, slots=True)
class JudgedAgain(Past):
    """The entry of a claim's history for the run that is being read. It has the verdict that earlier rules gave."""


def past(history: Sequence[Earlier]) -> tuple[Past, ...]:
    """Return a claim's history in the form stored in a run's plan."""
    return tuple(Past(**one.model_dump()) for one in history)


@dataclass(frozen=True, kw_only=True, slots=True)
class PlannedClaim:
    """A claim as stored in a run's plan, with the pairs of cases that decide it."""

    says: str
    number: int | None = None
    history: tuple[Past, ...] = ()
    """Earlier wordings and runs, oldest first."""
    source: str = ""
    answers: YesOrNo | None = None
    """Answer to the experiment's question if the claim holds; None if the claim does not answer it by yes or no."""
    kind: ClaimKind
    margin: float = 0.0
    """Smallest lead for `faster`, or largest difference for `as fast`, as a fraction of a step's time."""
    of: Of = "throughput"
    pairs: tuple[tuple[str, str], ...]
    """Ids of the case that the claim is about, and of the case that it is compared with."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AnsweredLater(PlannedClaim):
    """A claim of a run whose `answers` was added to the shipped experiment after the run."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Matched:
    pairs: tuple[tuple[str, str], ...]
    sides: tuple[Sequence[Mapping[str, Any]], Sequence[Mapping[str, Any]]]
    """Combinations of settings that each side selects."""
    same: bool
    """True if the two sides select the same case for some combination of axis values."""


def planned_claims(
    claims: Sequence[Claim], axes: Collection[str], entries: Sequence[PlannedCase]
) -> tuple[PlannedClaim, ...]:
    """Return the claims as a run's plan stores them, each with the pairs of cases that decide it."""
    return tuple(
        PlannedClaim(
            says=claim.says,
            number=claim.number,
            history=past(claim.history),
            source=claim.source,
            answers=claim.answers,
            kind="faster" if claim.faster is not None else "as fast",
            margin=(claim.by if claim.faster is not None else claim.within) or 0.0,
            of=claim.of or "throughput",
            pairs=_matched(claim, axes, entries).pairs,
        )
        for claim in claims
    )


def undecidable(
    claims: Sequence[Claim], axes: Collection[str], entries: Sequence[PlannedCase]
) -> Iterator[Problem]:
    """Yield a problem for each claim that no measurement of these cases can decide."""
    batches = {entry.case.case_id: entry.case.global_batch for entry in entries}
    every = [setting for entry in entries for setting in entry.combinations]
    for index, claim in enumerate(claims):
        path = f"claims[{index}]"
        matched = _matched(claim, axes, entries)
        empty = [
            _selects_nothing(f"{path}.{name}", selection, every)
            for (name, selection), selected in zip(claim.sides, matched.sides, strict=True)
            if not selected
        ]
        yield from empty
        if empty:
            continue
        if not matched.pairs:
            yield _without_partner(path, claim, axes, matched)
        if len(matched.pairs) > limits.MAX_PAIRS:
            message = f"makes {len(matched.pairs):,} pairs of cases; must be {limits.MAX_PAIRS:,} at most: select fewer"
            yield Problem(path=path, message=message)
        if claim.of is None:
            unlike = ((batches[a], batches[b]) for a, b in matched.pairs if batches[a] != batches[b])
            if sizes := next(unlike, None):
                yield Problem(
                    path=f"{path}.of",
                    message=f"is missing: steps of the two sides take {sizes[0]:,} and {sizes[1]:,} samples; set of = "
                    '"throughput" or "step time"',
                )


def selects(selection: Mapping[str, Sequence[Any]], setting: Mapping[str, Any]) -> bool:
    """Return whether a combination of settings has, for each key of the selection, one of the listed values."""
    return all(key in setting and setting[key] in values for key, values in selection.items())


def _matched(claim: Claim, axes: Collection[str], entries: Sequence[PlannedCase]) -> _Matched:
    (_, about), (_, other) = claim.sides
    free = about.keys() & other.keys()
    mine, others = (
        [(s, e.case.case_id) for e in entries for s in e.combinations if selects(side, s)]
        for side in (about, other)
    )
    partners: dict[str, list[str]] = {}
    for setting, case_id in others:
        partners.setdefault(_rest(setting, axes, free), []).append(case_id)
    pairs = [
        (case_id, partner)
        for setting, case_id in mine
        for partner in partners.get(_rest(setting, axes, free), ())
    ]
    return _Matched(
        pairs=tuple(dict.fromkeys((a, b) for a, b in pairs if a != b)),
        sides=([setting for setting, _ in mine], [setting for setting, _ in others]),
        same=any(a == b for a, b in pairs),
    )


def _rest(setting: Mapping[str, Any], axes: Collection[str], free: Collection[str]) -> str:
    """Return the values of all but `free` axes as a text, equal for combinations that form a pair."""
    return repr([setting.get(axis) for axis in axes if axis not in free])


def _selects_nothing(
    path: str, selection: Mapping[str, Sequence[Any]], every: Sequence[Mapping[str, Any]]
) -> Problem:
    for key, values in selection.items():
        known = list({repr(setting[key]): setting[key] for setting in every if key in setting}.values())
        if not known:
            return Problem(
                path=f"{path}.{key}", message="is not set by any case: make it an axis, or leave it out"
            )
        if not any(value in known for value in values):
            given = series_of([shortened(value) for value in values], "or")
            advice = nearest(str(values[0]) if values else "", map(str, known))
            return Problem(path=f"{path}.{key}", message=f"selects no case: none has {given}; {advice}")
    return Problem(
        path=path,
        message="selects no case: no combination has all of these, or those that have them are excluded",
    )


def _without_partner(path: str, claim: Claim, axes: Collection[str], matched: _Matched) -> Problem:
    (name, about), (other, _) = claim.sides
    free = claim.sides[0][1].keys() & claim.sides[1][1].keys()
    where = f"{path}.{other}"
    if not free:
        message = (
            f"shares no key with {name}: both must name the setting in which their cases "
            f"differ, such as {_named(about)}"
        )
        return Problem(path=where, message=message)
    if matched.same:
        message = f"selects the same cases as {name}: give {_named(free)} another value"
        return Problem(path=where, message=message)
    apart = min(
        (
            [axis for axis in axes if axis not in free and mine.get(axis) != its.get(axis)]
            for mine in matched.sides[0][:_CLOSEST]
            for its in matched.sides[1][:_CLOSEST]
        ),
        key=len,
    )
    message = (
        f"no case here equals a case of {name} in everything except {_named(free)}: the closest also differ in "
        f"{_named(apart)}, which both sides may name"
    )
    return Problem(path=where, message=message)


def _named(keys: Collection[str]) -> str:
    return series_of(sorted(keys))
