"""Decide which cases of a family are best, as good, or slower. No other module defines these words.

A family is a few cases of which the fastest is not known beforehand, such as all at one number of ranks. Two simple
methods fail for families. Picking the fastest from the data and testing the others against it finds differences between
identical cases. Calling all cases that are not significantly slower "as good" hides slower ones.

This module avoids both errors with one interval for each pair of cases (Tukey's all pairs), on log times with rounds as
blocks. All intervals hold at once with 95 % confidence, and every statement on two cases of a family uses them. A
case's standing follows from the intervals. A case's difference from the best of the others is the largest of its
differences from each of them. Each end of the interval of this largest difference is the largest of the corresponding
ends (Hsu). So at most 5 % of families have

- a case that is "slower" (its lower end is above 0), or "best" (all others are slower), although all are identical;
- a case that is "as good" (its upper end is within the margin), but is not within the margin of the best.

Sources:

- Hsu, "Multiple Comparisons: Theory and Methods", 1996, ch. 4 (with the best), 5 (all pairs).
- Tukey's studentized range, as in Hsu 1996, 5.1.
- Grubbs, J. Amer. Statist. Assoc. 43 (1948): each case's own variance in a two-way layout.

The residual variance of case + round is pooled. Cases need not have equal variances. A pair's variance is the largest
of three: the pooled variance, the variance of the pair's differences, and the sum of Grubbs' variances of its two
cases. For similar spreads this costs a little power; for spreads that differ by a factor of two it keeps the 5 %. A
case that scatters far more than the others would hide all differences. So with three cases or more, two intervals are
computed for each pair, and the shorter one is used. The first uses 4 of the 5 %. The second is from the pair's own
differences alone (Bonferroni) and uses 1 %. The 5 % assume independent rounds. If the run's rounds are correlated, all
intervals are widened (`correlation.py`).
"""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray
from scipy import special

from ddpbench.analysis.statistics.correlation import widened
from ddpbench.analysis.statistics.interval import Interval
from ddpbench.analysis.statistics.judgement import (
    MARGIN,
    RESOLUTION,
    BestVerdict,
    Judgement,
    Standing,
    judged,
)
from ddpbench.analysis.statistics.stats import (
    ALPHA,
    MIN_ROUNDS,
    by_pair,
    compare,
    judge,
    rounds_of_all,
    t_quantile,
)
from ddpbench.analysis.statistics.timings import Timing, TimingKey

_Array = NDArray[np.float64]
_Shown = NDArray[np.bool_]
_OWN = 0.2
"""Share of a family's error probability that goes to the intervals from a pair's own differences."""

_Z, _Z_WEIGHTS = np.polynomial.legendre.leggauss(64)
_Z, _Z_WEIGHTS = 8 * _Z, 8 * _Z_WEIGHTS * np.exp(-((8 * _Z) ** 2) / 2) / math.sqrt(2 * math.pi)
_U, _U_WEIGHTS = np.polynomial.legendre.leggauss(48)
_U, _U_WEIGHTS = (_U + 1) / 2, _U_WEIGHTS / 2


class Family:
    """Cases that are compared with each other, with an interval for every pair. All intervals hold at once."""

    def __init__(
        self,
        timings: Mapping[str, Sequence[Timing]],
        *,
        alpha: float = ALPHA,
        claimed: Mapping[tuple[str, str], Judgement] = MappingProxyType({}),
    ) -> None:
        """Compare all pairs.

        `alpha` is the family's error probability, and `claimed` are pairs with judgements. Cases with too few rounds
        are left out. Only the rounds that all cases have are used or, if these are too few, each pair's own, with
        Bonferroni's correction.
        """
        self._timings = {name: own for name, own in timings.items() if own}
        self._logs = {name: by_pair(own) for name, own in self._timings.items()}
        logs = self._logs
        able = [name for name, mine in logs.items() if len(mine) >= MIN_ROUNDS]
        self._places = {name: place for place, name in enumerate(able)}
        shared = rounds_of_all([logs[name] for name in able])
        fullest = max((len(logs[name]) for name in able), default=0)
        if len(able) > 1 and len(shared) >= max(MIN_ROUNDS, fullest / 2):
            cells = [[logs[name][key] for key in shared] for name in able]
            table = np.log(np.array([[one.compared_s for one in row] for row in cells]))
            centres = np.array([_cost(row) for row in cells])
            self._difference = centres[:, None] - centres[None, :]
            half = half_widths(table, alpha) * max(widened(row) for row in cells)
            self._rounds = np.full(self._difference.shape, len(shared))
        else:
            self._difference, half, self._rounds = _pairwise([logs[name] for name in able], alpha)
        self._low, self._high = self._difference - half, self._difference + half
        for (a, b), one in claimed.items():
            if a in self._places and b in self._places and one.ratio.low and one.ratio.high:
                place = self._places[a], self._places[b]
                self._difference[place], self._rounds[place] = math.log(one.ratio.value), one.rounds
                self._low[place], self._high[place] = math.log(one.ratio.low), math.log(one.ratio.high)
        self._claimed = claimed

    def __contains__(self, name: str) -> bool:
        return name in self._logs

    @property
    def size(self) -> int:
        """Return the number of compared cases, which are those with enough rounds."""
        return len(self._places)

    def pair(self, a: str, b: str, *, margin: float = MARGIN) -> Judgement | None:
        """Return the judgement of A compared with B; None if either case has no launch."""
        if a not in self or b not in self:
            return None
        if (a, b) in self._claimed:
            one = self._claimed[a, b]
            return replace(judged(one.ratio, one.rounds, margin=margin), comparisons=one.comparisons)
        if a in self._places and b in self._places:
            place = self._places[a], self._places[b]
            rounds, value = int(self._rounds[place]), float(self._difference[place])
            if rounds >= MIN_ROUNDS:
                ratio = Interval.around(math.exp(value), float(self._high[place]) - value)
                return judged(ratio, rounds, margin=margin)
        comparison = compare(self._timings[a], self._timings[b])
        return None if comparison is None else judge(comparison, min_rounds=sys.maxsize)

    def standings(self, names: Sequence[str] | None = None, *, margin: float = MARGIN) -> dict[str, Standing]:
        """Return each case's standing among the named cases, by name and in their order.

        Without `names`, all cases are used. The result is empty if there are fewer than two cases.
        """
        logs = {name: self._logs[name] for name in (self._logs if names is None else names) if name in self}
        if len(logs) < 2:
            return {}
        able = [name for name in logs if name in self._places]
        places = np.ix_(*[[self._places[name] for name in able]] * 2)
        ends = self._low[places], self._high[places]
        found = _told(able, self._difference[places], ends, self._rounds[places], margin=margin)
        return {name: found.get(name) or _too_few(name, logs) for name in logs}


def standings(
    family: Mapping[str, Sequence[Timing]], *, margin: float = MARGIN, alpha: float = ALPHA
) -> dict[str, Standing]:
    """Return each case's standing among the cases of a family, by name and in the family's order.

    The result is empty if there are fewer than two cases.
    """
    return Family(family, alpha=alpha).standings(margin=margin)


def _told(
    names: Sequence[str],
    difference: _Array,
    ends: tuple[_Array, _Array],
    rounds: NDArray[np.int64],
    *,
    margin: float,
) -> dict[str, Standing]:
    if len(names) < 2:
        return {}
    low, high = (_largest(end) for end in ends)
    best, good, slower = _shown(low, high, margin)
    found: dict[str, Standing] = {}
    for index, name in enumerate(names):
        others = np.where(rounds[index] >= MIN_ROUNDS, difference[index], -np.inf)
        others[index] = -np.inf
        if np.isneginf(others).all():
            continue  # the case has too few rounds in common with every other case
        other = int(np.argmax(others))
        verdict: BestVerdict = (
            "best"
            if best[index]
            else "as good"
            if good[index]
            else "slower"
            if slower[index]
            else "cannot tell"
        )
        # A bound that a missing pair leaves open is None.
        least, most = (math.exp(end) if math.isfinite(end) else None for end in (low[index], high[index]))
        ratio = Interval(value=math.exp(others[other]), low=least, high=most)
        found[name] = Standing(
            verdict=verdict, against=names[other], ratio=ratio, rounds=int(rounds[index, other])
        )
    return found


def _too_few(name: str, logs: Mapping[str, Mapping[TimingKey, Timing]]) -> Standing:
    """Return the standing of a case with too few rounds; its ratio compares it with the fastest other case."""
    costs = {other: _cost(list(rounds.values())) for other, rounds in logs.items()}
    against = min((other for other in costs if other != name), key=costs.__getitem__)
    both = logs[name].keys() & logs[against].keys()
    ratio = Interval(value=math.exp(costs[name] - costs[against]))
    return Standing(verdict="too few", against=against, ratio=ratio, rounds=len(both))


def bounds(difference: _Array, half: _Array) -> tuple[_Array, _Array]:
    """Return lower and upper bounds on the log ratio of each case to the best of the others, of shape (..., cases).

    `difference[..., i, j]` is case i's log time minus case j's; `half` are half-widths of the same shape. Case i's
    difference from the best is its largest difference, and each bound is the largest of the corresponding bounds.
    """
    return _largest(difference - half), _largest(difference + half)


def _largest(differences: _Array) -> _Array:
    own = np.eye(differences.shape[-1], dtype=bool)
    found: _Array = np.where(own, -np.inf, differences).max(axis=-1)
    return found


def verdicts(difference: _Array, half: _Array, *, margin: float = MARGIN) -> tuple[_Shown, _Shown, _Shown]:
    """Return which cases are shown to be best, within the margin of the best, and slower than the best.

    A case may be both within the margin and slower.
    """
    return _shown(*bounds(difference, half), margin)


def _shown(low: _Array, high: _Array, margin: float) -> tuple[_Shown, _Shown, _Shown]:
    least = math.log1p(RESOLUTION)
    return high < -least, high < math.log1p(margin), low > least


def half_widths(logs: _Array, alpha: float = ALPHA) -> _Array:
    """Return half-widths of the intervals of all differences between two cases' means, shape (..., cases, cases).

    `logs` has the shape (..., cases, rounds), and every round has every case. All intervals hold at once; see the
    module's docstring.
    """
    cases, rounds = logs.shape[-2:]
    df = (cases - 1) * (rounds - 1)
    residuals = (
        logs
        - logs.mean(axis=-1, keepdims=True)
        - logs.mean(axis=-2, keepdims=True)
        + logs.mean(axis=(-2, -1), keepdims=True)
    )
    squares = np.square(residuals).sum(axis=-1)
    total = squares.sum(axis=-1)[..., None, None]
    apart = logs[..., :, None, :] - logs[..., None, :, :]
    own = apart.var(axis=-1, ddof=1)
    variance = np.maximum(2 * total / df, own)
    found: _Array
    if cases == 2:
        found = tukey_quantile(2, df, alpha) * np.sqrt(variance / rounds)
        return found
    each = (cases * (cases - 1) * squares - total[..., 0]) / ((cases - 1) * (cases - 2) * (rounds - 1))
    variance = np.maximum(variance, each[..., :, None] + each[..., None, :])
    pooled = tukey_quantile(cases, df, (1 - _OWN) * alpha) * np.sqrt(variance / rounds)
    alone = t_quantile(1 - _OWN * alpha / (cases * (cases - 1)), rounds - 1) * np.sqrt(own / rounds)
    found = np.minimum(pooled, alone)
    return found


def _pairwise(
    logs: Sequence[Mapping[TimingKey, Timing]], alpha: float
) -> tuple[_Array, _Array, NDArray[np.int64]]:
    """Return each pair's difference, half-width (infinite for too few rounds) and number of rounds."""
    cases = len(logs)
    difference = np.zeros((cases, cases))
    half = np.full((cases, cases), np.inf)
    rounds = np.zeros((cases, cases), np.int64)
    for i in range(cases):
        for j in range(cases):
            shared = rounds_of_all([logs[i], logs[j]])
            if i == j or len(shared) < MIN_ROUNDS:
                continue
            mine, other = ([logs[one][key] for key in shared] for one in (i, j))
            ratios = np.log([a.compared_s / b.compared_s for a, b in zip(mine, other, strict=True)])
            error = widened(mine, other) * float(ratios.std(ddof=1)) / math.sqrt(len(shared))
            difference[i, j], rounds[i, j] = _cost(mine) - _cost(other), len(shared)
            half[i, j] = t_quantile(1 - alpha / (cases * (cases - 1)), len(shared) - 1) * error
    return difference, half, rounds


def _cost(timings: Sequence[Timing]) -> float:
    return math.fsum(math.log(one.compared_s) for one in timings) / len(timings)


@functools.lru_cache(maxsize=512)
def tukey_quantile(cases: int, df: int, alpha: float = ALPHA) -> float:
    """Return the studentized range's critical value divided by sqrt(2), as a multiple of a difference's standard error.

    P(range <= q s) = E[cases * (Phi(z) - Phi(z - q s))^(cases - 1)], averaged over s and z, where z is the largest
    value.
    """

    def below(d: float) -> float:
        inner = (special.ndtr(_Z) - special.ndtr(_Z - math.sqrt(2) * d * _scales(df)[:, None])) ** (cases - 1)
        return float(cases * (_U_WEIGHTS @ (inner @ _Z_WEIGHTS)))

    return _solve(below, 1 - alpha)


def _scales(df: int) -> _Array:
    """Return sqrt(chi-square(df) / df) at the quadrature nodes, which have equal probability."""
    found: _Array = np.sqrt(2 * special.gammaincinv(df / 2, _U) / df)
    return found


def _solve(below: Callable[[float], float], probability: float) -> float:
    """Return where the increasing function `below` reaches `probability`, by bisection to 1e-6."""
    low, high = 0.0, 1.0
    while below(high) < probability:
        low, high = high, 2 * high
    while high - low > 1e-6:
        middle = (low + high) / 2
        low, high = (middle, high) if below(middle) < probability else (low, middle)
    return (low + high) / 2
