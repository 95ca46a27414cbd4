"""Forecast how intervals narrow with further rounds, if these scatter like those so far. No other module does this.

A t-interval narrows with the root of the rounds, with the quantile of t, and with its widening for correlated rounds
(`correlation.py`). A median's interval narrows with the distance of its order statistics from the median, here for
normal values.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable

from scipy import special

from ddpbench.analysis.statistics.correlation import MOST, Correlation, widening_of
from ddpbench.analysis.statistics.interval import Interval
from ddpbench.analysis.statistics.judgement import MARGIN
from ddpbench.analysis.statistics.stats import ALPHA, FEWEST, LEAST_COVERAGE, order_statistic, t_quantile

_INDEPENDENT = Correlation()


def half_width_after(
    half: float, rounds: int, later: int, correlation: Correlation = _INDEPENDENT
) -> float | None:
    """Return the expected half-width over `later` rounds of a t-interval that has `half` over `rounds` rounds.

    None if either number of rounds is below `FEWEST`. The estimated correlation is assumed to stay the same, and what
    is added to it for its uncertainty to decrease with the root of the rounds.
    """
    if min(rounds, later) < FEWEST:
        return None
    added = (correlation.reckoned - correlation.estimate) * math.sqrt(rounds / later)
    then = min(max(correlation.estimate + added, 0.0), MOST)
    wider = widening_of(later, then) / widening_of(rounds, correlation.reckoned)
    return half * wider * _half_in_deviations(later) / _half_in_deviations(rounds)


def _half_in_deviations(rounds: int) -> float:
    return t_quantile(1 - ALPHA / 2, rounds - 1) / math.sqrt(rounds)


def median_half_width_after(half: float, launches: int, later: int) -> float | None:
    """Return the expected half-width over `later` launches of a median's interval with `half` over `launches`.

    None if either number of launches is too small for an interval.
    """
    now, then = _median_half_in_deviations(launches), _median_half_in_deviations(later)
    return None if now is None or then is None else half * then / now


def _median_half_in_deviations(launches: int) -> float | None:
    """Return the median interval's half-width for normal values, whose order statistics are Blom's (1958)."""
    at = order_statistic(launches, ALPHA, LEAST_COVERAGE)
    if at is None:
        return None
    depth, weight = at

    def score(rank: int) -> float:
        return -float(special.ndtri((rank - 0.375) / (launches + 0.25)))

    return (1 - weight) * score(depth) + weight * score(depth + 1)


def rounds_for(ratio: Interval, rounds: int, margin: float = MARGIN) -> int | None:
    """Return about how many rounds would narrow an interval over `rounds` rounds to +-margin.

    `ratio` is the value with the present interval. If the interval is unknown, return None. The spread is assumed to
    stay the same. The interval then narrows with the root of the rounds and with the quantile of t at 95 %. The
    quantiles of intervals that are corrected for several comparisons fall somewhat differently.
    """
    if ratio.low is None or ratio.high is None:
        return None
    half = math.log(ratio.high / ratio.low) / 2
    wanted = math.log1p(margin)
    if rounds < FEWEST or half <= wanted:
        return rounds
    # The number that a constant quantile would need is an upper bound.
    most = math.ceil(rounds * (half / wanted) ** 2)
    return first_narrow(lambda count: half_width_after(half, rounds, count), wanted, rounds, most)


def first_narrow(
    half_after: Callable[[int], float | None], wanted: float, least: int, most: int
) -> int | None:
    """Return the smallest number of rounds from `least` to `most` whose half-width is at most `wanted`.

    None if even that of `most` rounds is wider. `half_after` returns the half-width for a number of rounds, or None if
    it is unknown, and decreases.
    """

    def narrow(count: int) -> bool:
        half = half_after(count)
        return half is not None and half <= wanted

    if most < least or not narrow(most):
        return None
    return bisect_left(range(most), True, lo=least, key=narrow)
