"""Intervals that hold however often they are looked at: what a comparison that may end at any time is judged by.

For n values with mean m, deviation s and t = m sqrt(n) / s, the Bayes factor for an effect of standard deviation c (in
units of the values' own) against none is

    B(n) = (1 + n c^2)^(-1/2) ((1 + t^2/v) / (1 + t^2/(v (1 + n c^2))))^((v + 1)/2),  v = n - 1

(Gonen, Johnson, Lu & Westfall, The American Statistician 59, 2005). Where there is no effect it exceeds 1/alpha at any
n with probability alpha at most, whatever the deviation (Perez-Ortiz, Lardy, de Heide & Grunwald, Annals of Statistics
52, 2024): the means for which it stays below make an interval that is right at all n at once (Lai, 1976).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from ddpbench.analysis.statistics.stats import ALPHA, FEWEST, deviation

EFFECT = 1.0
"""c: the difference, in deviations of single rounds, for which such an interval is narrow soonest."""


def anytime_half_width(values: Sequence[float], alpha: float = ALPHA, effect: float = EFFECT) -> float | None:
    """Return half the interval of a mean that holds at every number of values; None while it has no end.

    Values are taken to be normal and independent; what outliers and drift do to it is simulated in its test.
    """
    factor = half_width_in_deviations(len(values), alpha, effect)
    return None if factor is None else deviation(values) * factor


def half_width_in_deviations(count: int, alpha: float = ALPHA, effect: float = EFFECT) -> float | None:
    """Return half that interval for so many values, in their sample standard deviations; None while it has no end."""
    if count < FEWEST:
        return None
    wide = 1 + count * effect**2
    edge = (math.sqrt(wide) / alpha) ** (2 / count)
    if edge >= wide:
        return None
    return math.sqrt((count - 1) * (edge - 1) / (1 - edge / wide) / count)
