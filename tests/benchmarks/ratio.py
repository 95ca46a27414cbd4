"""A paired ratio with its interval, printed, and checked against its bounds."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations_with_replacement

from scipy.special import stdtrit


@dataclass(frozen=True, slots=True)
class Ratio:
    """The geometric mean of pairwise ratios and its 95 % t-interval on the logarithm."""

    value: float
    low: float
    high: float
    pairs: int

    @property
    def half_width(self) -> float:
        """Half the interval's width, relative to the value."""
        return (self.high - self.low) / 2 / self.value

    def __str__(self) -> str:
        return f"{self.value:.4f} [{self.low:.4f}, {self.high:.4f}] ({self.pairs} pairs)"


def paired_ratio(pairs: Sequence[tuple[float, float]]) -> Ratio:
    """Return the ratio of the first of each pair to the second."""
    logs = [math.log(first / second) for first, second in pairs]
    mean = statistics.fmean(logs)
    spread = statistics.stdev(logs) / math.sqrt(len(logs)) if len(logs) > 1 else math.inf
    half = float(stdtrit(len(logs) - 1, 0.975)) * spread if len(logs) > 1 else math.inf
    return Ratio(math.exp(mean), math.exp(mean - half), math.exp(mean + half), len(logs))


def middle_ratio(pairs: Sequence[tuple[float, float]]) -> float:
    """Return the middle of the pairs' ratios on the logarithm: their pseudo-median (Hodges and Lehmann, 1963).

    It is the median of all means of two ratios, including each with itself. It is nearly as precise as the mean if
    noise is normal, and moves less by bursts that hit either side equally often. A difference in only a few blocks of
    one side is mostly left out.
    """
    logs = [math.log(first / second) for first, second in pairs]
    means = [(one + other) / 2 for one, other in combinations_with_replacement(logs, 2)]
    return math.exp(statistics.median(means))
