"""Intervals of all estimates from a curve, by leaving out one round at a time and estimating everything again.

This is the jackknife (Tukey 1958; Efron & Stein 1981) over rounds, the replicates. If every round has every world size,
it is to first order the t-interval over one fit per round. It is valid if no round has all world sizes, and unlike a
bootstrap over five rounds not too narrow. Rounds with equal world sizes form a stratum; Satterthwaite's formula gives
the degrees of freedom. Correlated rounds widen all intervals (`correlation.py`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from scipy import special

from ddpbench.analysis.scaling.speedups import Array, SpeedupCurve
from ddpbench.analysis.statistics.correlation import widening
from ddpbench.analysis.statistics.interval import Interval
from ddpbench.analysis.statistics.stats import ALPHA
from ddpbench.analysis.statistics.timings import TimingKey


@dataclass(frozen=True, slots=True)
class Estimated:
    """Quantities estimated from all rounds, with standard errors and degrees of freedom (arrays of equal shape)."""

    value: Array
    error: Array
    df: Array

    def interval(self, index: int, alpha: float = ALPHA) -> Interval:
        """Return the t-interval of the quantity at `index`, without ends if the value or its error is not finite."""
        value = float(self.value[index])
        half = float(special.stdtrit(self.df[index], 1 - alpha / 2) * self.error[index])
        if not math.isfinite(value) or not math.isfinite(half):
            return Interval(value=value)
        return Interval.plus_minus(value, half)


def jackknife(
    curve: SpeedupCurve, statistic: Callable[[TimingKey | None], Mapping[str, Array]]
) -> dict[str, Estimated]:
    """Estimate the quantities that `statistic` computes, and their standard errors, by name.

    The argument of `statistic` is a round to leave out, or None.
    """
    whole = statistic(None)
    left = {one: statistic(one) for stratum in curve.strata for one in stratum}
    found: dict[str, Estimated] = {}
    for name, value in whole.items():
        variance, spread = np.zeros_like(value), np.zeros_like(value)
        for stratum in curve.strata:
            count = len(stratum)
            parts = np.array([left[one][name] for one in stratum])
            wider = widening(stratum, curve.correlation) ** 2
            own = wider * (count - 1) / count * ((parts - parts.mean(axis=0)) ** 2).sum(axis=0)
            variance += own
            spread += own**2 / (count - 1)
        least = float(sum(len(stratum) - 1 for stratum in curve.strata))
        df = np.divide(variance**2, spread, out=np.full_like(variance, least), where=spread > 0)
        found[name] = Estimated(value, np.sqrt(variance), df)
    return found
