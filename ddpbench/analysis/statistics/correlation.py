"""Estimate the lag-1 correlation of a run's rounds, and widen intervals over rounds for it. No other module does this.

A t-interval assumes independent rounds. On a machine whose load comes and goes, one round's ratios resemble the next
one's. Differences then vary less within a sweep than from sweep to sweep, and the interval is too narrow.

The lag-1 correlation is one number per run, because the machine correlates rounds, and a few rounds of two cases could
not show it. It is estimated from the residuals of a model with one effect per case and one per round, with limited
weight for a case that scatters widely. Rounds are neighbours only if one session ran them one after the other. From few
rounds, such an estimate is too low on average (Kendall, Biometrika 41, 1954). This bias is removed: the result is the
correlation whose expected estimate equals the estimate found. Half a standard error is added, because an interval that
is too wide does less harm than one that is too narrow.

For an AR(1) of correlation r the variance of a mean over n rounds, and the expectation of s^2, are

    Var(mean) = sum of R / n^2        E(s^2) = (n - sum of R / n) / (n - 1),      R(i, j) = r^|i - j| within a session

and the interval is widened by the root of n Var(mean) / E(s^2) (Zieba & Ramza, Metrol. Meas. Syst. 18, 2011). Rounds
that seem to alternate do not narrow it.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ddpbench.spec.settings import MIN_ROUNDS

if TYPE_CHECKING:
    from ddpbench.analysis.statistics.timings import Timing, TimingKey

MOST = 0.9
"""Largest correlation used in intervals; the usual numbers of rounds could not show a larger one."""
IN_TURN_FROM = 12
"""Smallest number of interleaved rounds that can show their correlation.

Intervals over fewer rounds are wider than a t-interval anyway. This suffices up to a correlation of 0.35, but not at
0.5 (`python -m tests.simulations alike-rounds`).
"""
TOLD_FROM = 0.2
"""Smallest correlation of step times for which a report says that their intervals assume independent launches."""
_SAFETY = 0.5
"""Number of standard errors added to the estimate."""
_TOLD_BY = 200
"""Largest number of rounds for which the bias of an estimate is computed; with more rounds it is negligible."""
_FAR = 2.0
"""Largest scatter of a case, as a multiple of the median of all cases, with which its residuals have full weight."""
_NOTHING = 1e-12
"""Largest scatter of logarithms that counts as rounding."""
_FURTHEST = 400
"""Smallest distance at which rounds are taken as uncorrelated, because `MOST` to this power is negligible."""
_GRID = np.arange(-0.95, MOST + 0.01, 0.05)
_Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Correlation:
    """The lag-1 correlation of a run's rounds: the `estimate`, and the larger value `reckoned` that intervals use."""

    estimate: float = 0.0
    reckoned: float = 0.0
    shown: float = 0.0
    """Estimate minus one standard error, computed as if cases had nothing in common but the round's effect."""


def correlation_of(cases: Sequence[Sequence[Timing]]) -> Correlation:
    """Return the correlation of a run's rounds from the launches of all its cases; 0 if there are too few rounds."""
    return _correlation_of(cases, fewest=2, ratios=False)


def correlation_of_levels(cases: Sequence[Sequence[Timing]]) -> Correlation:
    """Return the correlation of the cases' own times, including effects that all cases of a round share.

    The result is 0 if there are too few rounds. Intervals of step times are not widened for it.
    """
    return _correlation_of(cases, fewest=1, ratios=True)


def _correlation_of(cases: Sequence[Sequence[Timing]], *, fewest: int, ratios: bool) -> Correlation:
    able = [{one.pair: math.log(one.compared_s) for one in own} for own in cases if len(own) >= MIN_ROUNDS]
    rounds = sorted({pair for own in able for pair in own}, key=lambda pair: (pair[1], pair[0]))
    if len(able) < fewest or not neighbours(rounds):
        return Correlation()
    logs = np.array([[own.get(pair, math.nan) for pair in rounds] for own in able])
    return estimated(logs, rounds, ratios=ratios)


def estimated(logs: _Array, rounds: Sequence[TimingKey], *, ratios: bool = False) -> Correlation:
    """Return the correlation of rounds from log times, shape (cases, rounds), with NaN for missing launches.

    With `ratios`, the values are logs of ratios, such as those of two interleaved sides. Common effects of a round are
    then kept, because nothing cancels them.
    """
    apart, wide = _residuals(logs, np.ones((len(logs), 1)), ratios=ratios), np.ones((len(logs), 1))
    missing = np.isnan(logs).any()
    mean, total = (np.nanmean, np.nansum) if missing else (np.mean, np.sum)
    for _ in range(2):  # a case that scatters widely must not affect the others' rounds
        scatter = np.sqrt(mean(apart**2, axis=1, keepdims=True))
        usual = np.median(scatter)
        if not usual > _NOTHING:
            return Correlation()
        wide = np.maximum(1.0, scatter / (_FAR * usual))
        apart = _residuals(logs, wide, ratios=ratios)
    apart = apart / wide
    first, second, expected = _known_of(tuple(rounds))
    seen = float(total(apart[:, first] * apart[:, second]) / total(apart**2))
    error = 1 / math.sqrt((len(apart) if ratios else len(apart) - 1) * len(rounds))
    # The correlations for which the expected estimates are these.
    estimates = [seen, seen + _SAFETY * error, seen - 1 / math.sqrt(len(rounds))]
    found, reckoned, shown = np.interp(estimates, expected, _GRID).tolist()
    return Correlation(found, min(max(reckoned, 0.0), MOST), shown)


def reckoned_by_pairs(ratios: _Array) -> _Array:
    """Return the correlation that intervals would use in each of many simulated sweeps of two cases.

    Args:
        ratios: log ratios within rounds, shape (sweeps, rounds), one round after the other.
    """
    rounds = [(number, "") for number in range(ratios.shape[-1])]
    apart = ratios - ratios.mean(axis=-1, keepdims=True)
    seen = (apart[:, 1:] * apart[:, :-1]).sum(axis=-1) / np.square(apart).sum(axis=-1)
    every = np.interp(seen + _SAFETY / math.sqrt(len(rounds)), _table(_places(rounds[:_TOLD_BY])), _GRID)
    found: _Array = np.clip(every, 0.0, MOST)
    return found


def neighbours(rounds: Sequence[tuple[int, str | int]]) -> list[tuple[int, int]]:
    """Return pairs of indices of rounds that one session ran one after the other."""
    places = {pair: place for place, pair in enumerate(rounds)}
    after = ((place, places.get((number + 1, session))) for (number, session), place in places.items())
    return [(place, other) for place, other in after if other is not None]


def widening(rounds: Sequence[TimingKey], correlation: float) -> float:
    """Return the factor, at least 1, by which an interval over these rounds must be wider than a t-interval."""
    if correlation <= 0 or len(rounds) < 2:
        return 1.0
    return _widening(_places(rounds), correlation)


def _places(rounds: Sequence[TimingKey]) -> tuple[tuple[int, int], ...]:
    """Number the sessions, because a cache key must not depend on their names."""
    sessions = {session: place for place, session in enumerate(dict.fromkeys(pair[1] for pair in rounds))}
    return tuple((number, sessions[session]) for number, session in rounds)


def widening_of(rounds: int, correlation: float) -> float:
    """Return `widening` for this number of consecutive rounds of one session."""
    if correlation <= 0 or rounds < 2:
        return 1.0
    lags = np.arange(1, min(rounds, _FURTHEST))
    total = rounds + 2 * float(((rounds - lags) * np.power(correlation, lags)).sum())
    return _factor(rounds, total)


def widening_in_turn(rounds: int, correlation: float) -> float:
    """Return `widening` for interleaved rounds, whose interval holds at every number of rounds."""
    return widening_of(rounds, correlation) if rounds >= IN_TURN_FROM else 1.0


def widened(timings: Sequence[Timing], other: Sequence[Timing] = ()) -> float:
    """Return `widening` for an interval over the rounds of these launches, or of their pairs with `other`."""
    most = max((one.correlation for one in (*timings, *other)), default=0.0)
    return widening([one.pair for one in timings], most)


@functools.lru_cache(maxsize=1024)
def _widening(rounds: tuple[tuple[int, int], ...], correlation: float) -> float:
    return _factor(len(rounds), float(_matrix(rounds, correlation).sum()))


def _factor(count: int, total: float) -> float:
    """Return the widening for `count` rounds; `total` is the sum of all pairwise correlations."""
    left = (count - total / count) / (count - 1)
    return max(1.0, math.sqrt(total / count / left))


def _matrix(rounds: Sequence[tuple[int, int]], correlation: float) -> _Array:
    numbers, sessions = np.array(rounds).T
    found: _Array = np.where(
        sessions[:, None] == sessions[None, :],
        np.power(float(correlation), np.abs(numbers[:, None] - numbers[None, :])),
        0.0,
    )
    return found


def _residuals(logs: _Array, wide: _Array, *, ratios: bool) -> _Array:
    """Return log times minus their case's mean and, except for `ratios`, minus their round's mean.

    A case has the weight 1 / `wide`^2 in a round's mean.
    """
    missing = np.isnan(logs)
    apart: _Array = logs
    if not missing.any():  # in most runs no launch is missing, so that this suffices
        apart = logs - logs.mean(axis=1, keepdims=True)
        if not ratios:
            weights = np.broadcast_to(1 / wide**2, logs.shape)
            apart = apart - (weights * apart).sum(axis=0) / weights.sum(axis=0)
        return apart
    weights = np.where(missing, 0.0, 1 / wide**2)
    for _ in range(30):
        apart = apart - np.nanmean(apart, axis=1, keepdims=True)
        if not ratios:
            apart = apart - np.nansum(weights * apart, axis=0) / weights.sum(axis=0)
    return apart


@functools.lru_cache(maxsize=64)
def _known_of(rounds: tuple[TimingKey, ...]) -> tuple[NDArray[np.intp], NDArray[np.intp], _Array]:
    """Return the indices of neighbours, first and second, and the expected estimate for each correlation in `_GRID`."""
    first, second = np.array(neighbours(rounds)).T
    return first, second, _table(_places(rounds[:_TOLD_BY]))


@functools.lru_cache(maxsize=64)
def _table(rounds: tuple[tuple[int, int], ...]) -> _Array:
    return np.array([_expected(value, rounds) for value in _GRID])


def _expected(correlation: float, rounds: Sequence[tuple[int, int]]) -> float:
    """Return the expected estimate from these rounds, after their common mean was subtracted."""
    matrix = _matrix(rounds, correlation)
    means = matrix.mean(axis=0)
    centred = matrix - means[:, None] - means[None, :] + means.mean()
    first, second = np.array(neighbours(rounds)).T
    return float(centred[first, second].sum() / np.trace(centred))
