"""Slow-downs that hit only some of the rounds: the one owner of what few rounds can show of them.

A slow-down that hits a share p of rounds has hit none of n with probability (1 - p)^n: of every tenth round none of
five, 59 times in 100. What was not seen is in no interval and no mean. So

- `missed_share` is said with verdicts: up to 1 - 0.05^(1/n) of all rounds may be slow though none of n is (95 %
  confidence; Hanley & Lippman-Hand, JAMA 249 (1983), who give 3/n);
- a comparison that adds rounds until it can tell finds nothing only from `ROUNDS_TO_SEE` rounds on;
- where the interval is not the mean's, the mean has to agree with the verdict, and so it has with one more round as
  far off as the furthest (`agrees`): a comparison that looks after every round would else stop at a lucky one.
  A sweep's intervals are the mean's. A round far off makes them so wide that they show nothing, and need no such check.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

from ddpbench.analysis.statistics.stats import ALPHA
from ddpbench.units import format_at_most

SEEN_SHARE = 0.2
"""Before sides are called equivalent, a slow-down of this share is to be seen with probability `1 - ALPHA`."""
ROUNDS_TO_SEE = math.ceil(math.log(ALPHA) / math.log1p(-SEEN_SHARE))
"""14 rounds have a slow one with that probability."""


def missed_share(rounds: int) -> float:
    """Return the largest share of all rounds that may be slow where none of `rounds` is, with 95 % confidence."""
    return 1 - math.pow(ALPHA, 1 / max(rounds, 1))


def missed_words(count: int, noun: Literal["rounds", "launches"]) -> str:
    """Return what this number of rounds or launches may not show, for a sentence or a bracket."""
    return f"a slow-down of up to {format_at_most(missed_share(count))} of {noun} may not have been seen"


def mean_and_one_more(logs: Sequence[float]) -> tuple[float, float]:
    """Return the mean of values and of one more, as far off as the furthest: below them, and above them."""
    total, count = math.fsum(logs), len(logs) + 1
    return (total + min(logs)) / count, (total + max(logs)) / count


def agrees(verdict: Literal["faster", "slower", "equivalent"], logs: Sequence[float], margin: float) -> bool:
    """Return whether the mean of log ratios says what a verdict on the typical one does, as with one more far off."""
    low, high = mean_and_one_more(logs)
    limit = math.log1p(margin)
    return {"equivalent": -limit < low and high < limit, "faster": high < 0, "slower": low > 0}[verdict]
