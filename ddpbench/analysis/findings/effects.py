"""Effects that decided claims show, in phrases for the answer: `DDP is 32 % [28, 36] faster than master`."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from ddpbench.analysis.findings.claims import step_ratio
from ddpbench.analysis.read.launches import CaseRun
from ddpbench.analysis.statistics.interval import Interval
from ddpbench.analysis.statistics.judgement import (
    RATIO_THRESHOLD,
    above_one,
    is_faster,
    plain,
    takes_longer,
    under_one,
)
from ddpbench.analysis.summary import DecidedClaim, HeldPair
from ddpbench.naming import Namer, layout_of, spelled_out
from ddpbench.spec import Case, grouping
from ddpbench.spec.grouping import PANEL, SCALE, VARIANT
from ddpbench.units import format_at_most

Opening = Literal["yes", "no", "it depends", ""]
_SIZE = ("world_size", "nodes", "ranks_per_node")


@dataclass(frozen=True, kw_only=True, slots=True)
class PairSide:
    """Words for a case of a pair. `spelled` is for its first mention (`naming.spelled_out`)."""

    words: str
    spelled: str
    layout: bool = False
    """True if the words are a layout, such as `1 x 4`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ClaimedEffect:
    """Comparison of the two cases of a pair.

    `common` is the strategy of both cases; empty if their strategies differ. `fast` and `slow` name the cases by their
    strategies or, if these are equal, by their settings. `ratio` is the time of `slow` divided by that of `fast`; for
    the kinds `equal` and `open`, it is the inverse.
    """

    pair: frozenset[str]
    kind: Literal["faster", "growth", "equal", "open"]
    """Kind of the effect.

    - `faster`: `fast` is shown to take less time.
    - `growth`: step times at two numbers of ranks are compared. `slow` has more ranks, even if its steps are shorter.
    - `equal`: the cases are shown to be equal. `fast` is the case that the claim is about.
    - `open`: the cases cannot be distinguished. `fast` is the case that the claim is about.
    """
    ratio: Interval
    fast: PairSide
    slow: PairSide
    common: str = ""
    place: str = ""
    """Words that distinguish the pair from the claim's other pairs; empty if it is the only one."""
    steps: bool = False
    """True if times per step are compared, and false for times per sample."""
    fast_id: str = ""
    """Id of the case that `fast` names."""

    def text(self, before: ClaimedEffect | None = None, *, leading: bool = False) -> str:
        """Return the effect as a phrase.

        Args:
            before: the effect in the preceding phrase, whose words are not repeated.
            leading: whether the phrase begins a sentence that must begin with a number.
        """
        if self.kind == "growth":
            phrase = self._growth(before, leading=leading)
        elif self.kind == "open":
            phrase = f"{self._both} cannot be told apart"
        elif self.kind == "equal":
            phrase = self._equal(before, leading=leading)
        elif self.continues(before):
            return f"{is_faster(self.ratio, than=True)} {self._on(self.slow.words)}"
        elif self.follows(before):
            phrase = f"{self.common} {(takes_longer if self.steps else is_faster)(self.ratio)}"
        elif self.steps:
            slow = f"a step of {self._named(self.slow.words if leading else self.slow.spelled)}"
            phrase = (
                f"{takes_longer(self.ratio)}: {slow}, compared with {self._on(self.fast.spelled)}"
                if leading
                else f"{slow} takes {takes_longer(self.ratio, than=True)} {self._on(self.fast.words)}"
            )
        else:
            phrase = self._faster(leading=leading)
        return f"{phrase} for {self.place}" if self.place else phrase

    def continues(self, before: ClaimedEffect | None) -> bool:
        """Return whether the preceding effect has the same faster case.

        It must compare two strategies: after `FSDP is 2.5 times as fast`, a further slower case would seem to be the
        one that both numbers are about.
        """
        return (
            before is not None
            and before.kind == self.kind == "faster"
            and before.fast_id == self.fast_id != ""
            and not before.common
            and not (before.steps or self.steps or before.place or self.place)
        )

    def _equal(self, before: ClaimedEffect | None, *, leading: bool) -> str:
        low, high = self.ratio.low or 0.0, self.ratio.high or math.inf
        bound = format_at_most(max(high - 1, 1 / low - 1 if low else math.inf))
        if leading:
            return f"{bound} or less separates {self._both}"
        if self.follows(before):
            return f"{self.common} differs by at most {bound}"
        return f"steps of {self._both} differ by at most {bound}"

    def _growth(self, before: ClaimedEffect | None, *, leading: bool) -> str:
        sizes = f"from {self.fast.words} to {self.slow.words}"
        if before is not None and before.kind == "growth":
            where = "" if self.sizes == before.sizes else f" {sizes}"
            return f"{plain(self.ratio)} times with {self.common}{where}"
        if leading:
            return f"{plain(self.ratio)} times as long takes a step with {self.common} {sizes} ranks"
        return f"{sizes} ranks, a step takes {plain(self.ratio)} times as long with {self.common}"

    def _faster(self, *, leading: bool) -> str:
        if leading:
            amount = is_faster(self.ratio, than=True)
            return f"{amount} {self._on(self.slow.spelled)} is {self._named(self.fast.words)}"
        if not self.common:
            return f"{self.fast.spelled} is {is_faster(self.ratio, than=True)} {self.slow.words}"
        joint = "as" if self.ratio.value >= RATIO_THRESHOLD else "than"
        sides = f"{self._on(self.fast.spelled)} {joint} {self._on(self.slow.words)}"
        return f"{self.common} is {is_faster(self.ratio)} {sides}"

    @property
    def sizes(self) -> tuple[str, str]:
        """Return the words for the two cases, which are numbers of ranks if the effect is a growth."""
        return self.fast.words, self.slow.words

    def follows(self, before: ClaimedEffect | None) -> bool:
        """Return whether the preceding effect compares the same two settings of another strategy."""
        if before is None or not self.common or not before.common:
            return False
        mine, others = self.sizes, before.sizes
        if self.kind == "equal":
            return {*mine} == {*others}
        return before.kind == self.kind and before.steps == self.steps and mine == others

    def _on(self, side: str) -> str:
        if not self.common:
            return side
        return f"{'on' if self.fast.layout else 'with'} {side}"

    @property
    def spelled(self) -> str:
        """Return the faster case's name for its first mention."""
        return self._named(self.fast.spelled)

    def _named(self, side: str) -> str:
        return f"{self.common} {self._on(side)}" if self.common else side

    @property
    def _both(self) -> str:
        return self._named(f"{self.fast.spelled} and {self.slow.words}")


def opening_of(claims: Sequence[DecidedClaim]) -> Opening:
    """Return the claims' answer to the experiment's question: yes, no, `it depends` or empty.

    A claim that holds gives its answer, and a refuted claim the opposite. The result is

    - `yes` or `no` if all claims on the question agree;
    - `it depends` if claims, or decided pairs of one claim, disagree;
    - empty otherwise.

    A pair shown to be equal contradicts a claim of kind `faster`.
    """
    asked = [one for one in claims if one.answers is not None]
    found = {_answer(one) for one in asked}
    if found == {True}:
        return "yes"
    if found == {False}:
        return "no"
    equal = {
        frozenset((held.a, held.b))
        for one in claims
        for held in one.pairs
        if one.kind == "as fast" and held.verdict == "holds"
    }
    votes = [_votes(one, equal) for one in asked or claims]
    together = set[bool]().union(*votes) if asked else set[bool]()
    return "it depends" if any(len(one) > 1 for one in (*votes, together)) else ""


def _answer(claim: DecidedClaim) -> bool | None:
    yes = claim.answers == "yes"
    if claim.verdict == "holds":
        return yes
    return not yes if any(held.verdict == "does not hold" for held in claim.pairs) else None


def _votes(claim: DecidedClaim, equal: Collection[frozenset[str]]) -> set[bool]:
    """Return the answers of decided pairs; `equal` holds the pairs that other claims show to be equal."""
    yes = claim.answers != "no"
    found = {
        yes if held.verdict == "holds" else not yes for held in claim.pairs if held.verdict != "cannot tell"
    }
    if claim.verdict == "holds":
        found.add(yes)
    shown_equal = any(
        held.verdict == "cannot tell" and frozenset((held.a, held.b)) in equal for held in claim.pairs
    )
    return found | ({not yes} if shown_equal and claim.kind == "faster" else set())


def effects_of(
    claims: Sequence[DecidedClaim], cases: Sequence[CaseRun], opening: Opening = ""
) -> list[ClaimedEffect]:
    """Return the effects that the claims show, each pair of cases once.

    Effects that answer the question come first. After `no`, the refuting effects come first.
    """
    by_id = {run.case_id: run.case for run in cases}
    claims = [
        replace(one, pairs=tuple(held for held in one.pairs if {held.a, held.b} <= by_id.keys()))
        for one in claims
    ]
    sides = {case_id for claim in claims for held in claim.pairs for case_id in (held.a, held.b)}
    names = Namer(case for case_id, case in by_id.items() if case_id in sides)
    shown: dict[frozenset[str], ClaimedEffect] = {}
    for claim in sorted(claims, key=lambda claim: claim.answers is None):
        for held in _telling(claim, refuting=opening == "no"):
            effect = _effect(claim, held, by_id[held.a], by_id[held.b], names)
            if effect.pair not in shown or shown[effect.pair].kind == "open":
                shown[effect.pair] = effect  # keeps the place of the undecided effect
    decided = any(one.kind != "open" for one in shown.values())
    found = list(shown.values()) if decided else []
    return found if opening == "no" else _joinable(found)


def _joinable(effects: Sequence[ClaimedEffect]) -> list[ClaimedEffect]:
    """Put an effect and its continuation last, so that no third effect seems to continue the first.

    If the continuation compares two settings of one strategy, both come first, then other strategies' like it.
    """
    for first in effects:
        for one in effects:
            if one is not first and one.continues(first):
                others = [other for other in effects if other is not first and other is not one]
                if not one.common:
                    return [*others, first, one]
                alike = [other for other in others if other.follows(one)]
                side = replace(first.fast, words=one.spelled, spelled=one.spelled)
                rest = [other for other in others if other not in alike]
                return [replace(first, fast=side), one, *alike, *rest]
    return list(effects)


def over_equal_sizes(
    effects: Sequence[ClaimedEffect], cases: Sequence[CaseRun], comparisons: int
) -> tuple[list[ClaimedEffect], list[ClaimedEffect]]:
    """Return the effects with two strategies' growth over equal numbers of ranks, and the effect that was replaced.

    If claims are on growth over different numbers of ranks, one strategy's growth is replaced by that over the other's
    numbers, if it was measured there. Its interval is corrected for `comparisons`, those of the claims, and one more.
    """
    growing = [one for one in effects if one.kind == "growth"]
    for one in growing:
        for other in growing:
            known = {own.sizes for own in growing if own.common == one.common}
            if one.common == other.common or other.sizes in known:
                continue
            ends = [_at_size_of(end, one, cases) for end in _ends(other, cases)]
            few, many = ends if len(ends) == 2 else (None, None)
            ratio = step_ratio(many, few, comparisons + 1) if few is not None and many is not None else None
            if few is not None and many is not None and ratio is not None:
                pair = frozenset((few.case_id, many.case_id))
                moved = replace(
                    one, pair=pair, ratio=ratio, fast=other.fast, slow=other.slow, fast_id=few.case_id
                )
                return [moved if own is one else own for own in effects], [one]
    return list(effects), []


def _ends(effect: ClaimedEffect, cases: Sequence[CaseRun]) -> list[CaseRun]:
    """Return the two cases of an effect, the one with fewer ranks first."""
    found = [run for run in cases if run.case_id in effect.pair]
    return sorted(found, key=lambda run: run.case.world_size)


def _at_size_of(end: CaseRun, effect: ClaimedEffect, cases: Sequence[CaseRun]) -> CaseRun | None:
    own = {grouping.alike(run.case, but=_SIZE) for run in _ends(effect, cases)}
    for run in cases:
        same = all(
            grouping.panel_value(run.case, name) == grouping.panel_value(end.case, name) for name in _SIZE
        )
        if same and own == {grouping.alike(run.case, but=_SIZE)}:
            return run
    return None


def _telling(claim: DecidedClaim, *, refuting: bool) -> list[HeldPair]:
    """Return the pair that supports the claim most, then the pair most against it, or else an undecided one.

    With `refuting`, the order is reversed.
    """

    def strength(held: HeldPair) -> float:
        log = math.log(held.ratio.value) if held.ratio is not None else 0.0
        return log if claim.kind == "faster" else abs(log)

    known = [held for held in claim.pairs if held.ratio is not None]
    holding, failing, unsure = (
        sorted((held for held in known if held.verdict == verdict), key=strength)
        for verdict in ("holds", "does not hold", "cannot tell")
    )
    against = failing[-1:] or (unsure[:1] if holding else [])
    return [*against, *holding[:1]] if refuting else [*holding[:1], *against]


def _effect(claim: DecidedClaim, held: HeldPair, a: Case, b: Case, names: Namer) -> ClaimedEffect:
    assert held.ratio is not None
    ratio = held.ratio
    common = names.spoken_strategy(a) if a.strategy == b.strategy else ""
    first, second = _sides(claim, a, b, names)
    steps = claim.of == "step time"
    kind: Literal["faster", "growth", "equal", "open"] = "faster"
    if held.verdict == "cannot tell":
        kind = "open"
    elif (claim.kind == "as fast" and held.verdict == "holds") or not (above_one(ratio) or under_one(ratio)):
        kind = "equal"
    if steps and common and a.world_size != b.world_size and kind != "open":
        kind = "growth"
        first, second = (_side(case, [str(case.world_size)]) for case in (a, b))
        swapped = a.world_size > b.world_size
    else:
        swapped = kind == "faster" and ratio.value > 1
    if not swapped and kind in ("faster", "growth"):
        ratio = ratio.reciprocal()
    place = "" if len(claim.pairs) == 1 or held.place in (common, first.words, second.words) else held.place
    return ClaimedEffect(
        pair=frozenset((held.a, held.b)),
        kind=kind,
        ratio=ratio,
        fast=second if swapped else first,
        slow=first if swapped else second,
        common=common,
        place=place,
        steps=steps,
        fast_id=held.b if swapped else held.a,
    )


def _sides(claim: DecidedClaim, a: Case, b: Case, names: Namer) -> tuple[PairSide, PairSide]:
    if a.strategy == b.strategy:
        apart = Namer([a, b], among=names)
        first, second = (_side(case, apart.apart(case, (*VARIANT, *SCALE, *PANEL))) for case in (a, b))
        return first, second
    several = len(claim.pairs) > 1  # `place` states their settings
    first, second = (
        _side(case, [names.spoken_strategy(case) if several else names.variant(case, VARIANT, layouts=False)])
        for case in (a, b)
    )
    return first, second


def _side(case: Case, words: Sequence[str]) -> PairSide:
    spelled = [spelled_out(case, word) for word in words]
    return PairSide(words=", ".join(words), spelled=", ".join(spelled), layout=[*words] == [layout_of(case)])
