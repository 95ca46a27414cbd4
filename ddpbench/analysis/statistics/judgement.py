"""Verdicts on step times, and their wording in tables, findings, figures and answers."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Literal

from ddpbench.analysis.statistics.interval import Interval
from ddpbench.units import decimals_apart, decimals_borne, format_at_most, format_end, with_minus

MARGIN = 0.02
"""Differences of step time within 2 % are called equivalent."""
MARGIN_WORDS = f"{100 * MARGIN:g} %"
RESOLUTION = 0.001
"""Smallest distance from 1 at which an end of a ratio's interval counts as different from 1.

It is 0.1 %, the step of a percentage with one decimal. So no verdict depends on digits that are not printed. For
example, an interval from just above 0 to 23 % does not show a difference.
"""
RATIO_THRESHOLD = 2.0
"""Smallest ratio of two step times that is printed as a ratio. Smaller ones are printed in per cent."""
Verdict = Literal["faster", "slower", "equivalent", "unresolved", "too few"]
BestVerdict = Literal["best", "as good", "slower", "cannot tell", "too few"]
BEST: Final = "best"
AS_GOOD: Final = "as good"
SLOWER: Final = "slower"
CANNOT_TELL: Final = "cannot tell"
TOO_FEW: Final = "too few"
TOO_FEW_WORDS = "too few rounds"


def above_one(ratio: Interval, least: float = RESOLUTION) -> bool:
    """Return whether a ratio is shown to be above 1.

    The entire interval must be above 1 by more than `least`, a fraction. False if the interval is unknown.
    """
    return ratio.low is not None and ratio.low > 1 + least


def under_one(ratio: Interval, least: float = RESOLUTION) -> bool:
    """Return whether a ratio is shown to be below 1 (`above_one` of its reciprocal)."""
    return ratio.high is not None and ratio.high < 1 / (1 + least)


def percent_of(share: Interval, sign: str = "", *, bare: bool = False) -> str:
    """Return a fraction as text, such as `85 % [78, 92]`, with the digits that its interval supports.

    `sign` is `+` for a difference. An end close to 0 or to the margin is written `11 % [just above 0, 23]`. With
    `bare`, the interval is left out.
    """
    value = 100 * share.value
    ends = [None if end is None else 100 * end for end in (share.low, share.high)]
    digits = decimals_borne(value, *ends, most=1)
    low, high = (None if end is None else _end_in_percent(end, sign, digits) for end in ends)
    text = f"{value:{sign}.{digits}f} %"
    return with_minus(f"{text} [{low}, {high}]" if low and high and not bare else text)


def _end_in_percent(end: float, sign: str, digits: int) -> str:
    margin = math.copysign(100 * MARGIN, end)
    digits = decimals_apart(margin, [end], margin, digits)
    return format_end(end, digits, (0.0, margin), sign)


def longer(ratio: Interval, *, bare: bool = False) -> str:
    """Return the difference of a ratio of step times from 1 in per cent, such as `34 % [31, 38]`.

    With `bare`, the interval is left out.
    """
    return percent_of(_less_one(ratio), bare=bare)


def signed(ratio: Interval) -> str:
    """Return a ratio of step times as a signed difference in per cent, such as `+3 % [−1, +8]`."""
    return percent_of(_less_one(ratio), sign="+")


def _less_one(ratio: Interval) -> Interval:
    low, high = (None if end is None else end - 1 for end in (ratio.low, ratio.high))
    return Interval(ratio.value - 1, low, high)


def plain(interval: Interval, *, bare: bool = False) -> str:
    """Return a value as text with the digits that its interval supports: `15 [14, 16]`, or `15` if `bare`."""
    digits = decimals_borne(interval.value, interval.low, interval.high, nulls=(0.0, 1.0))
    text = f"{interval.value:,.{digits}f}"
    if bare or interval.low is None or interval.high is None:
        return text
    low, high = (format_end(end, digits, (0.0, 1.0)) for end in (interval.low, interval.high))
    return f"{text} [{low}, {high}]"


def takes_longer(ratio: Interval, *, bare: bool = False, than: bool = False) -> str:
    """Say how much longer the longer step takes: `34 % [31, 38] longer`, `3.1 [2.9, 3.3] times as long`.

    With `than`, the other case's name can follow: `34 % longer than`, `3.1 times as long as`.
    """
    if ratio.value >= RATIO_THRESHOLD:
        return f"{plain(ratio, bare=bare)} times as long{' as' if than else ''}"
    return f"{longer(ratio, bare=bare)} longer{' than' if than else ''}"


def is_faster(ratio: Interval, *, bare: bool = False, than: bool = False) -> str:
    """Say how much faster the shorter step is: `34 % [31, 38] faster`.

    `ratio` is the longer step's time divided by the shorter one's.
    """
    if ratio.value >= RATIO_THRESHOLD:
        return f"{plain(ratio, bare=bare)} times as fast{' as' if than else ''}"
    return f"{longer(ratio, bare=bare)} faster{' than' if than else ''}"


def undecided(ratio: Interval, whose: str = "") -> str:
    """Say how much longer or shorter steps may be, from a ratio that is not distinguished from 1.

    `whose` names the case with these steps; if empty, it is the one named first.
    """
    of = f" of {whose}" if whose else ""
    return f"steps{of} may be up to {longer_or_shorter(ratio)}"


def longer_or_shorter(ratio: Interval) -> str:
    """State the largest differences that an interval allows, as in `19 % longer or 14 % shorter`.

    `ratio` is a ratio of step times.
    """
    assert ratio.low is not None
    assert ratio.high is not None
    ends = [f"{format_at_most(ratio.high - 1)} longer" if ratio.high > 1 else ""]
    ends += [f"{format_at_most(1 - ratio.low)} shorter" if ratio.low < 1 else ""]
    return " or ".join(filter(None, ends))


OPEN = "no significant difference"
"""Verdict on two cases that a comparison does not distinguish."""
EQUAL = f"equivalent within {MARGIN_WORDS}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Judgement:
    """Conclusion of a comparison of two cases, A and B.

    `ratio` is A's step time divided by B's, with the interval that decided the verdict (corrected by Bonferroni).
    `small` means that the difference is resolved and entirely inside the margin, `beyond` that it is entirely outside.
    `bound` is the largest difference, as a fraction, that the interval allows. `rounds` is the number of common rounds.
    `comparisons` is the number of comparisons that share the error probability.
    """

    verdict: Verdict
    ratio: Interval
    rounds: int = 0
    small: bool = False
    beyond: bool = False
    bound: float | None = None
    comparisons: int = 1

    @property
    def cell(self) -> str:
        """Return the verdict on A in a few words, for a table or next to a sentence."""
        return CELLS.get(self.verdict, self.verdict)

    @property
    def by(self) -> Interval:
        """Return the longer step's time divided by the shorter one's, which is at least 1."""
        return self.ratio if self.ratio.value >= 1 else self.ratio.reciprocal()

    def phrase(self, *, bare: bool = False) -> str:
        """Return the verdict on A as a phrase, for a figure or a part of a sentence: `31 % [29, 33] faster`."""
        if self.verdict == "faster":
            return is_faster(self.by, bare=bare)
        if self.verdict == "slower":
            return f"{longer(self.by, bare=bare)} slower"
        if self.verdict == "equivalent":
            return EQUAL
        if self.verdict == "unresolved":
            return (
                f"not told apart{f' (up to {format_at_most(self.bound)})' if self.bound is not None else ''}"
            )
        return self.cell

    @property
    def size_tags(self) -> tuple[str, ...]:
        """Return tags that say whether a decided difference is small or may be small."""
        if self.verdict not in ("faster", "slower"):
            return ()
        if self.small:
            return (f"a small difference: within {MARGIN_WORDS}",)
        return () if self.beyond else (f"the difference may be under {MARGIN_WORDS}",)


CELLS = {"unresolved": CANNOT_TELL, "too few": TOO_FEW_WORDS}
"""Words for verdicts in tables, where these differ from the verdicts' names."""


def judged(
    ratio: Interval, rounds: int, *, margin: float = MARGIN, resolution: float = RESOLUTION
) -> Judgement:
    """Judge A compared with B, where `ratio` is A's step time divided by B's.

    The ratio's interval must be from enough rounds. A is faster or slower only if the interval excludes 1 by more than
    the smaller of `resolution` and `margin`.
    """
    if ratio.low is None or ratio.high is None:
        return Judgement(verdict="too few", ratio=ratio, rounds=rounds)
    inside = ratio.low > 1 / (1 + margin) and ratio.high < 1 + margin
    beyond = under_one(ratio, margin) or above_one(ratio, margin)
    least = min(resolution, margin)
    bound = max(ratio.high, 1 / ratio.low) - 1
    verdict: Verdict
    if under_one(ratio, least):
        verdict = "faster"
    elif above_one(ratio, least):
        verdict = "slower"
    else:
        verdict = "equivalent" if inside else "unresolved"
    resolved = verdict in ("faster", "slower")
    return Judgement(
        verdict=verdict,
        ratio=ratio,
        rounds=rounds,
        small=resolved and inside,
        beyond=resolved and beyond,
        bound=bound,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Standing:
    """Comparison of a case with the other cases of its family.

    `against` is the fastest other case by mean time. `ratio` is the case's time divided by that of the best other case;
    each end is the largest of all pairs with this case. `rounds` is the number of rounds behind it.
    """

    verdict: BestVerdict
    against: str
    ratio: Interval
    rounds: int = 0

    @property
    def good(self) -> bool:
        """Return whether the case's verdict is `best` or `as good`."""
        return self.verdict in (BEST, AS_GOOD)

    @property
    def longer(self) -> float:
        """Return the largest fraction by which the case's step may be longer than the best case's step.

        The result is infinite if the interval has no upper end.
        """
        return max(0.0, self.ratio.high - 1) if self.ratio.high is not None else float("inf")

    @property
    def apart(self) -> str:
        """State by how much the steps of the case and of the best other case may differ, as in `5.1 %`.

        Either step may be the longer one. An empty text if the interval lacks an end.
        """
        low, high = self.ratio.low, self.ratio.high
        return format_at_most(max(high, 1 / low) - 1) if low and high is not None else ""

    def cell(self, what: str = "") -> str:
        """Return the verdict in a few words, for a table. `what` names the kind of case, such as `strategy`."""
        of_it = f" {what}" if what else ""
        best = f"the best{of_it}" if what else BEST
        bound = (
            at_most([self]) if self.longer not in (0.0, float("inf")) else ""
        )  # 0 means that the case may itself be the best
        if self.verdict == CANNOT_TELL:
            return f"cannot tell: {fastest_other(self.apart, what)}" if self.apart else f"cannot tell {best}"
        return {
            BEST: f"best{of_it}",
            AS_GOOD: f"as good as {best}{bound and f' ({bound})'}",
            SLOWER: SLOWER,
        }.get(self.verdict, f"{TOO_FEW_WORDS} to compare")

    def phrase(self) -> str:
        """Return the verdict for a point of a figure, such as `37 % longer` or `as good`; empty for too few rounds."""
        if self.verdict == SLOWER:
            return takes_longer(self.ratio, bare=True)
        return "" if self.verdict == TOO_FEW else self.verdict


def fastest_other(apart: str, what: str = "") -> str:
    """Say what the bound `Standing.apart` refers to; `what` names the kind of case."""
    return f"within {apart} of the fastest other{f' {what}' if what else ''}"


def at_most(standings: Iterable[Standing]) -> str:
    """State the largest `longer` of these standings, as in `at most 1.6 % longer`."""
    return f"at most {format_at_most(max(one.longer for one in standings))} longer"
