"""The trend of a series of step times, as used both during a rank's warm-up and in the analysis.

A straight line is fitted to the logarithms of the medians of equal batches (least squares). Medians are robust against
slow steps, and batches reduce the correlation between neighbours (batch means: Law & Kelton, "Simulation Modeling and
Analysis", ch. 9).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

BATCHES = 8
"""Number of batches into which a series is cut; a series of fewer steps is cut into single steps."""
TOLERANCE = 0.03
"""Largest change of the logarithm, from beginning to end, with which a series counts as steady."""
T_995 = {1: 63.657, 2: 9.925, 3: 5.841, 4: 4.604, 5: 4.032, 6: 3.707}
"""The 99.5 % quantile of Student's t by degrees of freedom, for two-sided tests at 1 %."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TrendChange:
    """The change of a series from beginning to end, as the logarithm of the ratio: `log` -0.1 is a fall by 9.5 %."""

    log: float
    standard_error: float
    df: int
    steps: int

    @property
    def found(self) -> bool:
        """Return whether the series changed by more than `TOLERANCE` and by more than noise explains (at 1 %)."""
        return abs(self.log) > max(TOLERANCE, T_995[self.df] * self.standard_error)

    @property
    def excluded(self) -> bool:
        """Return whether a change of more than `TOLERANCE` is ruled out (at 1 %)."""
        return abs(self.log) + T_995[self.df] * self.standard_error <= TOLERANCE


def change_of(times: Sequence[float]) -> TrendChange | None:
    """Return the change of a series of step times; None for fewer than three, or for one that is not positive."""
    count = min(BATCHES, len(times))
    if count < 3 or min(times) <= 0:
        return None
    edges = [len(times) * number // count for number in range(count + 1)]
    ys = [math.log(statistics.median(times[edges[k] : edges[k + 1]])) for k in range(count)]
    xs = [(edges[k] + edges[k + 1]) / 2 / len(times) for k in range(count)]
    mean_x, mean_y = math.fsum(xs) / count, math.fsum(ys) / count
    spread = math.fsum((x - mean_x) ** 2 for x in xs)
    slope = math.fsum((x - mean_x) * (y - mean_y) for x, y in zip(xs, ys, strict=True)) / spread
    left = math.fsum((y - mean_y - slope * (x - mean_x)) ** 2 for x, y in zip(xs, ys, strict=True))
    error = math.sqrt(left / (count - 2) / spread)
    return TrendChange(log=slope, standard_error=error, df=count - 2, steps=len(times))
