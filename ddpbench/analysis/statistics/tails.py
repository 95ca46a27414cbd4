"""Slow-downs that affect only some rounds, and how well a few rounds can show them. No other module defines this.

A slow-down that affects a share p of rounds affects none of n with probability (1 - p)^n. For example, a slow-down of
one round in ten affects none of five rounds in 59 of 100 cases. An interval or a mean cannot show what did not occur.
So

- `missed_share` accompanies verdicts: up to 1 - 0.05^(1/n) of all rounds may be slow though none of n is (95 %
  confidence; Hanley & Lippman-Hand, JAMA 249 (1983), who give 3/n);
- a comparison of two sides calls them equivalent only from `ROUNDS_TO_SEE` rounds on (two runs: launches per side);
- if the verdict's interval is not that of the mean, the mean has to agree with the verdict. It must still agree if
  `FURTHER` more rounds are added that are as far off as the furthest one (`agrees`). Otherwise a comparison that looks
  after every round would stop at a moment when only few of its rounds were slow.

The intervals of a sweep and of two runs are the mean's. They need no such check, because an outlying round makes them
so wide that they show nothing.

With lower values of the constants, slow rounds were overlooked too often. With higher ones, sides with equal
disturbances are not called equivalent (`python -m tests.simulations rounds-far-off`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

from ddpbench.analysis.statistics.stats import ALPHA
from ddpbench.units import format_at_most

SEEN_SHARE = 0.15
"""Share of slow rounds that must be seen, with probability `1 - ALPHA`, before sides are called equivalent."""
ROUNDS_TO_SEE = math.ceil(math.log(ALPHA) / math.log1p(-SEEN_SHARE))
"""Number of rounds (19) that include a slow one with probability `1 - ALPHA`, if `SEEN_SHARE` of all are slow."""
FURTHER = 2
"""Number of hypothetical rounds, as far off as the furthest, with which the mean must still support the verdict."""


def missed_share(rounds: int) -> float:
    """Return the largest share of all rounds that may be slow although none of `rounds` is, with 95 % confidence."""
    return 1 - math.pow(ALPHA, 1 / max(rounds, 1))


def missed_words(count: int, noun: Literal["rounds", "launches"]) -> str:
    """State the share of all rounds or launches that may be slow although none of the `count` measured ones is."""
    return (
        f"a slow-down that affects up to {format_at_most(missed_share(count))} of {noun} may have been missed"
    )


def mean_and_further(logs: Sequence[float]) -> tuple[float, float]:
    """Return two means of the values together with `FURTHER` hypothetical values.

    All hypothetical values equal the lowest value in the first mean, and the highest in the second.
    """
    total, count = math.fsum(logs), len(logs) + FURTHER
    return (total + FURTHER * min(logs)) / count, (total + FURTHER * max(logs)) / count


def agrees(verdict: Literal["faster", "slower", "equivalent"], logs: Sequence[float], margin: float) -> bool:
    """Return whether the mean of log ratios supports the verdict on the typical ratio.

    It must also do so with `FURTHER` more values at the lowest, or at the highest.
    """
    low, high = mean_and_further(logs)
    limit = math.log1p(margin)
    return {"equivalent": -limit < low and high < limit, "faster": high < 0, "slower": low > 0}[verdict]


def too_few_words(count: int, noun: Literal["rounds", "launches"]) -> str:
    """Return why this number of rounds or launches cannot show equivalence; empty if it can."""
    if count >= ROUNDS_TO_SEE:
        return ""
    alike = "typical rounds are alike" if noun == "rounds" else "both sides are alike"
    return f"{alike}, but {unseen_words(count, noun)}"


def unseen_words(count: int, noun: Literal["rounds", "launches"]) -> str:
    """Say that `count` rounds or launches are too few to include rare slow ones, and how many suffice."""
    # An interleaved comparison adds rounds by itself until there are enough.
    how = "" if noun == "rounds" else f" (set budget.rounds_min, or a test's rounds, to {ROUNDS_TO_SEE})"
    return f"{count} {noun} are too few to see rare slow ones: {ROUNDS_TO_SEE} do{how}"
