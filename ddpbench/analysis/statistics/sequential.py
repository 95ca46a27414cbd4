"""Intervals that hold however often they are checked, for comparisons that may end at any time.

Two kinds of evidence against a mean m0 are averaged. If m0 is right, the probability that one kind ever exceeds
1/alpha, at any number of values, is at most alpha (Ville, 1939). The same holds for the average of both kinds. The
values m0 for which the average stays below 1/alpha form an interval that is valid at all numbers of values at once
(Lai, 1976).

**For normal values.** With mean m, deviation s and t = (m - m0) sqrt(n) / s, the Bayes factor for an effect of
standard deviation c (in units of the values' own) against none is

    B(n) = (1 + n c^2)^(-1/2) ((1 + t^2/v) / (1 + t^2/(v (1 + n c^2))))^((v + 1)/2),  v = n - 1

(Gonen, Johnson, Lu & Westfall, The American Statistician 59, 2005; Perez-Ortiz, Lardy, de Heide & Grunwald, Annals of
Statistics 52, 2024). A single outlier makes s large, and B small for as long as it is among the values.

**For any symmetric values.** Log ratios of two sides with equal disturbances are symmetric. Let y be a value minus m0,
in units of a scale from the values before it, cut off at +-`CUT`; let S be the sum of all y and V that of their
squares. Then exp(a S - a^2 V / 2) is a supermartingale for every a (de la Pena, Annals of Probability 27, 1999), and
its mean over a of a normal distribution is

    R(n) = (1 + V c^2)^(-1/2) exp(S^2 c^2 / (2 (1 + V c^2)))

An outlier counts in it as `CUT` scales. Without disturbances, R needs some more rounds than B to show a difference.
With disturbances, R needs far fewer rounds than B. The average of B and R needs only a few more rounds than the better
of the two.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from ddpbench.analysis.statistics.interval import Interval
from ddpbench.analysis.statistics.stats import ALPHA, FEWEST, deviation

EFFECT = 1.0
"""The c of the formulas: the difference that the interval shows soonest, in standard deviations of single rounds."""
CUT = 2.0
"""Distance from the middle, in scales, beyond which a value counts no more than at this distance."""
_UNSCALED = 4
"""Number of values at the beginning that count only by their sign, because no scale is known yet."""
_NORMAL = 1.4826
"""Ratio of a normal distribution's standard deviation to its median distance from the middle."""
_CUT_NORMAL = 0.9594
"""Standard deviation of standard normal values cut off at +-`CUT`."""
_STEPS = np.geomspace(1e-4, 1e4, 200)
"""Distances from the middle, in ranges of the values, at which an end of the interval is first searched."""
_HUNDREDTHS = np.arange(101)
_Values = NDArray[np.float64]


def anytime_interval(values: Sequence[float], alpha: float = ALPHA, *, wider: float = 1.0) -> Interval:
    """Return the middle of the values, with an interval that holds at every number of values.

    The middle is Huber's estimate, with values cut off at `CUT` scales, so outliers have little effect. There are no
    ends for too few values. `wider` is the factor of `correlation.py`.
    """
    every = np.asarray(values, dtype=np.float64)
    middle, spread = middle_of(every), float(np.ptp(every)) if len(every) else 0.0
    if len(every) < FEWEST:
        return Interval(value=middle)
    if not spread:
        return Interval(value=middle, low=middle, high=middle)
    ends = _ends(every, middle, spread, math.log(1 / alpha))
    if ends is None:
        return Interval(value=middle)
    low, high = ends
    middle = min(max(middle, low), high)
    return Interval(value=middle, low=middle - wider * (middle - low), high=middle + wider * (high - middle))


def evidence(values: _Values | Sequence[float], mean: float = 0.0) -> _Values:
    """Return the logarithm of the evidence that the mean is not `mean`, after 1, 2, 3 ... values, shape (..., values).

    The evidence is 0 for fewer than `FEWEST` values. The last dimension of `values` is a series; all other dimensions
    number separate series.
    """
    every = np.asarray(values, dtype=np.float64)
    count, apart = np.arange(1, every.shape[-1] + 1), every - mean
    cut = _cut(apart, _scales(every))
    means = apart.cumsum(axis=-1) / count
    squares = np.maximum((apart**2).cumsum(axis=-1) - count * means**2, 1e-300)
    with np.errstate(divide="ignore", invalid="ignore"):
        normal = _normal(count, count * means**2 / (squares / (count - 1)))
        found = _averaged(normal, _symmetric(cut.cumsum(axis=-1), (cut**2).cumsum(axis=-1)))
    found[..., : FEWEST - 1] = 0.0
    return found


def middle_of(values: _Values) -> float:
    """Return Huber's estimate of the values' location; 0 if `values` is empty.

    The estimate is the mean if no value is beyond `CUT` scales.
    """
    if not len(values):
        return 0.0
    middle = _median(values)
    scale = _NORMAL * _median(np.abs(values - middle))
    if not scale:
        return middle if len(values) > 2 else float(values.mean())
    for _ in range(50):
        before = middle
        middle += float(_cut_off(values - middle, CUT * scale).sum()) / len(values)
        if middle == before:
            break
    return middle


def far_off(values: _Values | Sequence[float], least: float = 0.0) -> tuple[int, int]:
    """Return how many values are far below the middle, and how many are far above it.

    A distance is far if it exceeds both `CUT` scales and `least`.
    """
    every = np.asarray(values, dtype=np.float64)
    apart = every - middle_of(every)
    reach = max(CUT * _NORMAL * float(np.median(np.abs(apart))), least)
    return int((apart < -reach).sum()), int((apart > reach).sum())


def typical_deviation(values: Sequence[float]) -> float:
    """Return the standard deviation of the values, with less effect of outliers.

    The result is 0 for equal values, or for fewer than `FEWEST`.
    """
    every = np.asarray(values, dtype=np.float64)
    if len(every) < FEWEST or not np.ptp(every):
        return 0.0
    middle = middle_of(every)
    scale = _NORMAL * float(np.median(np.abs(every - middle)))
    if not scale:
        return deviation(values)
    cut = np.clip(every - middle, -CUT * scale, CUT * scale)
    return min(deviation(values), float(cut.std(ddof=1)) / _CUT_NORMAL)


def _scales(values: _Values) -> _Values:
    """Return, for each value, the scale of the values before it, or 0 if these determine no scale."""
    scales = np.zeros(values.shape)
    if values.ndim == 1:  # for one short series, lists take a tenth of the time of arrays
        every: list[float] = values.tolist()
        for index in range(_UNSCALED, len(every)):
            middle = statistics.median(every[:index])
            scales[index] = _NORMAL * statistics.median([abs(value - middle) for value in every[:index]])
        return scales
    for index in range(_UNSCALED, values.shape[-1]):
        before = values[..., :index]
        apart = np.abs(before - _medians(before)[..., np.newaxis])
        scales[..., index] = _NORMAL * _medians(apart)
    return scales


def _cut(apart: _Values, scales: _Values) -> _Values:
    known = scales > 0
    return np.where(known, _cut_off(apart / np.where(known, scales, 1.0), CUT), np.sign(apart))


def _cut_off(values: _Values, reach: float) -> _Values:
    """Cut the values off at +-`reach`, in place. For short series, `clip` takes several times as long."""
    np.maximum(values, -reach, out=values)
    return np.minimum(values, reach, out=values)


def _median(values: _Values) -> float:
    """Return the median; for short series, `np.median` takes several times as long."""
    found: float = statistics.median(values.tolist())
    return found


def _medians(values: _Values) -> _Values:
    """Return the medians of series along the last dimension, in half of the time of `np.median`."""
    above = values.shape[-1] // 2
    below = (values.shape[-1] - 1) // 2
    ordered = np.partition(values, (below, above), axis=-1)
    found: _Values = (ordered[..., below] + ordered[..., above]) / 2
    return found


def _symmetric(sums: _Values, squares: _Values) -> _Values:
    wide = 1 + squares * EFFECT**2
    found: _Values = (sums * EFFECT) ** 2 / (2 * wide) - np.log(wide) / 2
    return found


def _normal(count: NDArray[np.int64] | int, t2: _Values) -> _Values:
    wide = 1 + count * EFFECT**2
    grown = np.log1p(t2 / (count - 1)) - np.log1p(t2 / ((count - 1) * wide))
    found: _Values = count / 2 * grown - np.log(wide) / 2
    return found


def _averaged(normal: _Values, symmetric: _Values) -> _Values:
    found: _Values = np.logaddexp(normal, symmetric) - math.log(2)
    return found


def _evidence_against(values: _Values) -> Callable[[_Values], _Values]:
    """Return a function that returns the log of the evidence against each of several means as the true mean."""
    column, scales = values[:, np.newaxis], _scales(values)
    signs = np.flatnonzero(scales == 0)
    divisors = np.where(scales > 0, scales, 1.0)[:, np.newaxis]
    count, own = len(values), deviation(values.tolist())

    def evidence_of(means: _Values) -> _Values:
        apart = column - means
        t2 = count * (apart.sum(axis=0) / count / own) ** 2
        cut = _cut_off(apart / divisors, CUT)
        cut[signs] = np.sign(apart[signs])
        return _averaged(_normal(count, t2), _symmetric(cut.sum(axis=0), (cut**2).sum(axis=0)))

    return evidence_of


def _ends(values: _Values, middle: float, spread: float, limit: float) -> tuple[float, float] | None:
    """Return the outermost places at which the interval ends on either side of the middle; None if it is unbounded.

    The search takes 200 geometric steps from 1e-4 to 1e4 times `spread`, then refines the last gap five times.
    """
    evidence_of, sides = _evidence_against(values), np.arange(2)
    steps = middle + np.array([[-spread], [spread]]) * _STEPS
    last = _last_below(evidence_of(steps.ravel()).reshape(steps.shape), limit)
    if last.max() + 1 == len(_STEPS):
        return None
    near, far = steps[sides, np.maximum(last, 0)], steps[sides, last + 1]
    for _ in range(5):
        between = near[:, np.newaxis] + _HUNDREDTHS * ((far - near) / 100)[:, np.newaxis]
        between[:, -1] = far
        last = _last_below(evidence_of(between[:, :-1].ravel()).reshape(2, -1), limit)
        near, far = (between[sides, np.maximum(last, 0) + more] for more in (0, 1))
    return float(far[0]), float(far[1])


def _last_below(rows: _Values, limit: float) -> NDArray[np.intp]:
    """Return, for each row, the index of the last value below the limit, or -1 if there is none."""
    below = rows < limit
    last: NDArray[np.intp] = rows.shape[1] - 1 - below[:, ::-1].argmax(axis=1)
    return np.where(below.any(axis=1), last, -1)


def half_width_in_deviations(count: int, alpha: float = ALPHA) -> float | None:
    """Return the half-width, in standard deviations, of the interval for the mean of `count` normal values.

    None while the interval is unbounded.
    """
    if count < FEWEST:
        return None
    wide = 1 + count * EFFECT**2
    edge = (math.sqrt(wide) / alpha) ** (2 / count)
    if edge >= wide:
        return None
    return math.sqrt((count - 1) * (edge - 1) / (1 - edge / wide) / count)
