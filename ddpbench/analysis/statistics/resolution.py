"""The smallest change that a comparison resolves in a given time, and the time that it takes to resolve a change.

`ddpbench noise` uses this to plan a comparison, and a comparison without a verdict uses it to say what it would have
resolved. A change is resolved if a comparison shows it with probability `POWER`, at the confidence of the comparison.
There are three ways to compare, each with its own interval:

    interleaved    `ddpbench compare --interleave`: rounds are pairs, and the comparison may end after any of them
    in one sweep   two cases of a sweep: rounds are pairs, and their number is taken as fixed
    two runs       `ddpbench compare BASE NEW`: launches, and the drift between sessions
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy import special

from ddpbench.analysis.statistics.correlation import (
    IN_TURN_FROM,
    MOST,
    reckoned_by_pairs,
    widening_of,
)
from ddpbench.analysis.statistics.interval import WIDEST, Interval
from ddpbench.analysis.statistics.sequential import half_width_in_deviations
from ddpbench.analysis.statistics.stats import ALPHA, FEWEST, MIN_ROUNDS, POWER, t_quantile
from ddpbench.spec.settings import MOST_INTERLEAVED_ROUNDS

DRIFT = 0.04
"""Standard deviation of the logarithm of step time from one session to another, minutes or days later.

It was 3 to 5 % on the two shared cores of this project's own runs. `--drift` replaces it on a machine known to be
quieter.
"""
KNOWN = 1e9
"""Degrees of freedom of a variance that is not estimated."""
_MORE = 1.5
"""Factor on a session's own scatter if it exceeds `DRIFT`, because one calm session understates the drift.

It is the smallest that suffices for the rounds of tests/analysis/recorded/equal_sides_us.json, which are from a machine
with other users.
"""
WANTED = 0.03
"""Default change, as a fraction, that a comparison should resolve."""
_MORE_MISS_AT_THE_LAST = 1.4
"""Factor on the share of interleaved comparisons that do not show a change at their last round.

It is above 1 because some comparisons show the change at an earlier round, but not at the last one. The value is from
the simulations in `tests/analysis/test_resolution.py`.
"""
_SWEEPS, _MOST_DRAWN = 2000, 200
"""Number of sweeps that are simulated for a sweep's resolution, and the largest number of rounds of a simulated sweep.

For more rounds, the resolution is assumed to improve with the root of the rounds.
"""
_SHOWN = 40
"""Number of scatters that a run's launches may show, each the median of an equally likely range."""
_MOST_LOOKED_FOR = 100_000
"""Largest number of rounds considered."""


def resolved_in_turn(
    deviation: float, rounds: int, alpha: float = ALPHA, power: float = POWER, correlation: float = 0.0
) -> float | None:
    """Return the smallest change, as a fraction, that this number of interleaved rounds resolves.

    None without a verdict. The comparison looks at its interval after each round, and a change once shown counts. The
    half-width is a multiple f of the estimated deviation, which varies by about s / sqrt(2 (n - 1)). So the interval's
    end has the standard error s sqrt(1/n + f^2 / (2 (n - 1))). From `IN_TURN_FROM` rounds on, the interval is widened
    for the correlation of rounds.

    Args:
        deviation: standard deviation s of the logarithm of the ratio within a round.
        rounds: number n of rounds.
        alpha: one minus the confidence of this interval.
        power: the share of comparisons that show the change within this number of rounds.
        correlation: the lag-1 correlation of the rounds.
    """
    found = _in_turn(rounds, alpha, power)
    if found is not None and rounds >= IN_TURN_FROM:
        before = _in_turn(IN_TURN_FROM - 1, alpha, power)
        wide = found * _widening_shown(min(rounds, _MOST_DRAWN), correlation)
        found = wide if before is None else min(wide, before)
    return None if found is None else math.expm1(min(deviation * found, WIDEST))


def _in_turn(rounds: int, alpha: float, power: float) -> float | None:
    """Return the smallest log ratio that interleaved, independent rounds resolve; None if they give no verdict.

    The unit is the standard deviation within a round.
    """
    factor = half_width_in_deviations(rounds, alpha / 2)  # half of alpha for one of the two kinds of evidence
    if rounds < MIN_ROUNDS or factor is None:
        return None
    error = math.sqrt(1 / rounds + factor**2 / (2 * (rounds - 1)))
    quantile = float(special.ndtri(1 - _MORE_MISS_AT_THE_LAST * (1 - power)))
    return factor + quantile * error


def resolved_in_one_sweep(deviation: float, rounds: int, correlation: float = 0.0) -> float | None:
    """Return the smallest change, as a fraction, that a sweep of two cases resolves; None under `MIN_ROUNDS` rounds.

    A sweep widens its interval for the correlation that it estimates.

    Args:
        deviation: standard deviation of the logarithm of the ratio within a round.
        rounds: number of rounds.
        correlation: the lag-1 correlation of the rounds.
    """
    if rounds < MIN_ROUNDS:
        return None
    most = min(rounds, _MOST_DRAWN)
    return math.expm1(min(_in_sweep(most, correlation) * math.sqrt(most / rounds) * deviation, WIDEST))


def deviation_resolved(change: float, rounds: int) -> float | None:
    """Return the largest deviation at which a sweep of two cases resolves a change.

    This inverts `resolved_in_one_sweep` without correlation of rounds. The deviation is the standard deviation, within
    a round, of the logarithm of the two cases' ratio. None under `MIN_ROUNDS` rounds.

    Args:
        change: as a fraction, above 0.
        rounds: number of rounds.
    """
    one = resolved_in_one_sweep(1.0, rounds)
    return None if one is None else math.log1p(change) / math.log1p(one)


def _widening_shown(rounds: int, correlation: float) -> float:
    """Return the factor by which the resolved change is larger because the correlation of rounds is estimated."""
    independent = t_quantile(1 - ALPHA / 2, rounds - 1) + t_quantile(POWER, rounds - 1)
    return _in_sweep(rounds, correlation) * math.sqrt(rounds) / independent


@functools.lru_cache(maxsize=1024)
def _in_sweep(rounds: int, correlation: float) -> float:
    """Return the smallest log ratio that a sweep of two cases shows with probability `POWER`.

    The unit is the standard deviation within a round. It is simulated, because no formula describes the widening.
    """
    drawn = np.random.default_rng(1).standard_normal((_MOST_DRAWN, _SWEEPS))[:rounds].T
    for index in range(1, rounds):
        drawn[:, index] *= math.sqrt(1 - correlation**2)
        drawn[:, index] += correlation * drawn[:, index - 1]
    grid = np.linspace(0.0, MOST, 37)
    wider = np.interp(reckoned_by_pairs(drawn), grid, [widening_of(rounds, float(one)) for one in grid])
    deviations = drawn.std(axis=-1, ddof=1)
    half = wider * t_quantile(1 - ALPHA / 2, rounds - 1) * deviations / math.sqrt(rounds)
    shown = float(np.quantile(half - drawn.mean(axis=-1), POWER))
    return shown / math.sqrt(float(np.square(deviations).mean()))


@dataclass(frozen=True, slots=True)
class Variance:
    """A variance of the logarithm of step time, and the degrees of freedom of its estimate."""

    value: float
    df: float = KNOWN


@dataclass(frozen=True, slots=True)
class SessionDrift:
    """The variance of the logarithm of step time from session to session, and its source.

    The source is `known` (given), `of_launches` (estimated by `drift_of`), `of_sessions` (estimated from one side's
    sessions) or `pooled` (from both sides' sessions).
    """

    variance: Variance
    source: Literal["known", "of_launches", "of_sessions", "pooled"] = "known"


def drift_of(deviation: float) -> float:
    """Return the drift from session to session that is assumed for launches with this deviation within a session.

    It is sqrt(DRIFT^2 + _MORE^2 max(0, deviation^2 - DRIFT^2)), because a disturbance is assumed to sometimes outlast a
    session. Drift and deviation are standard deviations of the logarithm of step time.
    """
    return math.sqrt(DRIFT**2 + _MORE**2 * max(0.0, deviation**2 - DRIFT**2))


def drift_by_launches(scatter: Variance) -> SessionDrift:
    """Return the assumed drift (`drift_of`) of a side whose launches have this scatter within sessions.

    The drift is uncertain even for a scatter below `DRIFT`: a few launches of a disturbed session can agree.
    """
    drift = drift_of(math.sqrt(scatter.value)) ** 2
    return SessionDrift(_partly(drift, _MORE**2 * scatter.value, scatter.df), "of_launches")


def _partly(value: float, estimated: float, df: float) -> Variance:
    """Return a variance whose part `estimated` has `df` degrees of freedom; the rest is exact."""
    part = min(value, estimated)
    return Variance(value, min(df * (value / part) ** 2, KNOWN) if part else KNOWN)


def mean_variance(scatter: Variance, launches: int, drift: SessionDrift, shares: float = 1.0) -> Variance:
    """Return the variance of the mean over a side's launches, if the other side was measured at a different time.

    Its degrees of freedom allow for drift that is itself estimated, from launches or from sessions.

    Args:
        scatter: the launches' variance within sessions.
        launches: number of launches.
        drift: the drift of this side.
        shares: the sum over sessions of the squared share of launches; 1 for one session.
    """
    own = scatter.value / launches
    total = own + drift.variance.value * shares
    if drift.source in ("of_sessions", "pooled"):
        return Variance(total, drift.variance.df)
    taken = _MORE**2 * scatter.value * shares if drift.source == "of_launches" else 0.0
    return _partly(total, own + taken, scatter.df)


def added(variances: Sequence[Variance]) -> Variance:
    """Return the sum of independent variances, with its degrees of freedom by Welch and Satterthwaite."""
    total = math.fsum(one.value for one in variances)
    spread = math.fsum(one.value**2 / one.df for one in variances)
    return Variance(total, max(1.0, min(total**2 / spread, KNOWN)) if spread else KNOWN)


def resolved_by_two_runs(deviation: float, rounds: int) -> float | None:
    """Return the smallest change, as a fraction, that two runs of `rounds` rounds each resolve.

    None for fewer than `MIN_ROUNDS` rounds. The power is averaged over the scatters that runs may show, because a run
    estimates its drift (`drift_of`) from its own scatter.

    Args:
        deviation: standard deviation of the logarithm of a launch's step time.
        rounds: number of rounds of each run, which is one session.
    """
    if rounds < MIN_ROUNDS:
        return None
    halves = _halves_of_two_runs(deviation, rounds)
    error = math.sqrt(2 * (deviation**2 / rounds + drift_of(deviation) ** 2))
    low, high = 0.0, float(halves.max()) + 5 * error
    while high - low > 1e-6 * high:
        middle = (low + high) / 2
        seen = float(special.ndtr((middle - halves) / error).mean())
        low, high = (middle, high) if seen < POWER else (low, middle)
    return math.expm1(min(high, WIDEST))


def _halves_of_two_runs(deviation: float, rounds: int) -> NDArray[np.float64]:
    """Return the interval's half-width for each pair of the `_SHOWN` equally likely scatters of two runs."""
    df = rounds - 1
    levels = (np.arange(_SHOWN) + 0.5) / _SHOWN
    shown: list[float] = (deviation**2 * special.chdtri(df, levels) / df).tolist()
    scatters = [Variance(one, df) for one in shown]
    sides = [mean_variance(one, rounds, drift_by_launches(one)) for one in scatters]
    both = [added(pair) for pair in itertools.product(sides, sides)]
    halves = [t_quantile(1 - ALPHA / 2, one.df) * math.sqrt(one.value) for one in both]
    return np.array(halves, np.float64)


def smallest_seen(standard_error: float, df: float, alpha: float = ALPHA) -> float:
    """Return the smallest change that a t-interval with this standard error shows with probability `POWER`."""
    logarithm = (t_quantile(1 - alpha / 2, df) + t_quantile(POWER, df)) * standard_error
    return math.expm1(min(logarithm, WIDEST))


def rounds_to_resolve(change: float, resolved: Callable[[int], float | None]) -> int | None:
    """Return the smallest number of rounds that resolves a change; None if no practical number does.

    Args:
        change: as a fraction, above 0.
        resolved: returns the smallest change that a number of rounds resolves, which decreases with this number.
    """

    def enough(rounds: int) -> bool:
        found = resolved(rounds)
        return found is not None and found <= change

    high = MIN_ROUNDS
    while not enough(high):
        if high > _MOST_LOOKED_FOR:
            return None
        high *= 2
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return max(high, MIN_ROUNDS)


def power_of_each(cases: int) -> float:
    """Return the power per case at which all of `cases` cases show their changes with probability `POWER`.

    This holds for independent cases. Common noise makes it likelier that all show their changes.
    """
    return math.pow(POWER, 1 / max(cases, 1))


@dataclass(frozen=True, kw_only=True, slots=True)
class InTurn:
    """Noise and durations that decide which change an interleaved comparison resolves, and how long it takes."""

    deviation: float
    """Standard deviation of the logarithm of the ratio within a round."""
    round_s: float
    """Wall time of a round of both sides, with all cases, seconds."""
    begin_s: float = 0.0
    """Wall time until the first round begins, for starting both sides and proving their cases, seconds."""
    alpha: float = ALPHA
    """Error probability of a single case's interval, one minus its confidence."""
    correlation: float = 0.0
    """The lag-1 correlation of rounds."""

    def resolved_in(self, seconds: float) -> float | None:
        """Return the smallest change, as a fraction, that a comparison of this duration resolves.

        None if too few rounds fit.
        """
        rounds = rounds_in(seconds - self.begin_s, self.round_s)
        return self._resolved(min(rounds, MOST_INTERLEAVED_ROUNDS), POWER)

    def rounds_for(self, change: float, power: float = POWER) -> int | None:
        """Return the number of rounds that resolve a change; None if it is above the limit for a comparison."""
        rounds = rounds_to_resolve(change, lambda n: self._resolved(n, power))
        return rounds if rounds is not None and rounds <= MOST_INTERLEAVED_ROUNDS else None

    def _resolved(self, rounds: int, power: float) -> float | None:
        return resolved_in_turn(self.deviation, rounds, self.alpha, power, self.correlation)

    def time_for(self, change: float, power: float = POWER) -> float | None:
        """Return the seconds until a change is resolved; None if that takes more rounds than allowed."""
        rounds = self.rounds_for(change, power)
        return None if rounds is None else self.begin_s + rounds * self.round_s


def deviation_interval(deviation: float, values: int, alpha: float = ALPHA) -> Interval:
    """Return a standard deviation, estimated from `values` normal values, with its interval.

    The interval has no ends under `FEWEST` values.

    (n - 1) s^2 / sigma^2 has a chi-squared distribution with n - 1 degrees of freedom.
    """
    if values < FEWEST:
        return Interval(deviation)
    df = values - 1
    largest, smallest = (float(special.chdtri(df, share)) for share in (alpha / 2, 1 - alpha / 2))
    return Interval(deviation, deviation * math.sqrt(df / largest), deviation * math.sqrt(df / smallest))


def rounds_in(seconds: float, round_s: float) -> int:
    """Return how many whole rounds fit into a time; 0 if the duration of a round is unknown."""
    return int(seconds / round_s) if seconds > 0 and round_s > 0 else 0
