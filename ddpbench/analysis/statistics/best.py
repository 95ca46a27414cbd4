"""Which case of a family is best, and which are as good: the one owner of these words.

A family is a few cases of which the fastest is not known beforehand, such as one strategy's bucket caps. Picking
the fastest from the data and testing the others against it finds differences between identical cases; calling
all that is not significantly slower "as good" hides slower ones. Both are settled here, on log times with rounds as
blocks, by two bounds on each case's difference from the best of the others:

- upper: Hsu's multiple comparisons with the best, with Dunnett's one-sided critical value. "As good as best" is
  a case whose upper bound lies within the margin. At most 5 % of families have one that is not.
- lower: from all pairs, with Tukey's critical value, for Hsu's lower bound does not tell "slower" from a tie.
  "Slower" is a case whose lower bound is above 0; "best" is one than which all others are slower. At most 5 %
  of families of identical cases have either.

Each of the two bounds holds for a whole family at once with 95 % confidence. Sources:

- Hsu, "Multiple Comparisons: Theory and Methods", 1996, ch. 4 (with the best), 5 (all pairs);
  Ann. Statist. 9 (1981).
- Dunnett, J. Amer. Statist. Assoc. 50 (1955); Tukey's studentized range, as in Hsu 1996, 5.1.
- Grubbs, J. Amer. Statist. Assoc. 43 (1948): each case's own variance in a two-way layout.

The residual variance of case + round is pooled. Cases need not scatter alike: a pair's variance is the largest of
the pooled one, that of its own differences and the sum of Grubbs' two. For spreads that are alike this costs a
little power; for spreads that differ by a factor of two it keeps the 5 % (16 cases in 5 rounds: 5.6 %).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy import special

from ddpbench.analysis.statistics.stats import (
    ALPHA,
    MARGIN,
    MIN_ROUNDS,
    Interval,
    Pair,
    Timing,
    by_pair,
    rounds_of_all,
    t_quantile,
)

BestVerdict = Literal["best", "as good", "slower", "cannot tell", "too few"]
_Array = NDArray[np.float64]

_Z, _Z_WEIGHTS = np.polynomial.legendre.leggauss(64)
_Z, _Z_WEIGHTS = 8 * _Z, 8 * _Z_WEIGHTS * np.exp(-((8 * _Z) ** 2) / 2) / math.sqrt(2 * math.pi)
_U, _U_WEIGHTS = np.polynomial.legendre.leggauss(48)
_U, _U_WEIGHTS = (_U + 1) / 2, _U_WEIGHTS / 2


@dataclass(frozen=True, kw_only=True, slots=True)
class Standing:
    """How a case stands in its family.

    `against` is the fastest of the others by mean; `ratio` the case's time over the best of the others', where the
    ends are the two bounds of the module's docstring. `rounds` are those the ratio was taken from.
    """

    verdict: BestVerdict
    against: str
    ratio: Interval
    rounds: int


def standings(
    family: Mapping[str, Sequence[Timing]], *, margin: float = MARGIN, alpha: float = ALPHA
) -> dict[str, Standing]:
    """Return how each case of a family stands, by name, in the family's order; empty for fewer than two cases.

    Cases with too few rounds are left out of the comparison. Where launches are missing, the rounds that all cases
    have are used, or, where these are few, each pair's own, with Bonferroni's correction. `alpha`: the family's error.
    """
    logs = {name: by_pair(timings) for name, timings in family.items() if timings}
    if len(logs) < 2:
        return {}
    able = [name for name, mine in logs.items() if len(mine) >= MIN_ROUNDS]
    shared = rounds_of_all([logs[name] for name in able])
    fullest = max((len(logs[name]) for name in able), default=0)
    if len(able) > 1 and len(shared) >= max(MIN_ROUNDS, fullest / 2):
        cells = [[logs[name][key] for key in shared] for name in able]
        table = np.log(np.array([[one.sample_s for one in row] for row in cells]))
        centres = np.array([_cost(row) for row in cells])
        difference = centres[:, None] - centres[None, :]
        upper, lower = half_widths(table, alpha)
        rounds = np.full(difference.shape, len(shared))
    else:
        difference, upper, lower, rounds = _pairwise([logs[name] for name in able], alpha)
    found = _told(able, difference, upper, lower, rounds, margin=margin)
    return {name: found.get(name) or _too_few(name, logs) for name in logs}


def _told(
    names: Sequence[str],
    difference: _Array,
    upper: _Array,
    lower: _Array,
    rounds: NDArray[np.int64],
    *,
    margin: float,
) -> dict[str, Standing]:
    if len(names) < 2:
        return {}
    low, high = bounds(difference, upper, lower)
    best, good, slower = verdicts(difference, upper, lower, margin=margin)
    found: dict[str, Standing] = {}
    for index, name in enumerate(names):
        others = np.where(rounds[index] >= MIN_ROUNDS, difference[index], -np.inf)
        others[index] = -np.inf
        if np.isneginf(others).all():
            continue  # it shares its rounds with no other
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
        # a bound that a missing pair leaves open is None
        ends = [math.exp(end) if math.isfinite(end) else None for end in (low[index], high[index])]
        ratio = Interval(value=math.exp(others[other]), low=ends[0], high=ends[1])
        found[name] = Standing(
            verdict=verdict, against=names[other], ratio=ratio, rounds=int(rounds[index, other])
        )
    return found


def _too_few(name: str, logs: Mapping[str, Mapping[Pair, Timing]]) -> Standing:
    """Return a case that cannot be compared, with the ratio to the other with the shortest mean."""
    costs = {other: _cost(list(rounds.values())) for other, rounds in logs.items()}
    against = min((other for other in costs if other != name), key=costs.__getitem__)
    both = logs[name].keys() & logs[against].keys()
    ratio = Interval(value=math.exp(costs[name] - costs[against]))
    return Standing(verdict="too few", against=against, ratio=ratio, rounds=len(both))


def bounds(difference: _Array, upper: _Array, lower: _Array) -> tuple[_Array, _Array]:
    """Return each case's logarithm over the best of the others: the lower and the upper bound, shape (..., cases).

    `difference[..., i, j]` is case i's log time minus case j's; `upper` and `lower` are half-widths of the same shape.
    Case i less the best of the others is the largest of its differences, and so are its bounds.
    """
    own = np.eye(difference.shape[-1], dtype=bool)
    low = np.where(own, -np.inf, difference - lower).max(axis=-1)
    high = np.where(own, -np.inf, difference + upper).max(axis=-1)
    return low, high


def verdicts(
    difference: _Array, upper: _Array, lower: _Array, *, margin: float = MARGIN
) -> tuple[NDArray[np.bool_], NDArray[np.bool_], NDArray[np.bool_]]:
    """Return which cases are shown to be best, within the margin of the best, and slower than the best.

    The last two may both be so of one case: measurably slower, yet within the margin.
    """
    low, high = bounds(difference, upper, lower)
    own = np.eye(difference.shape[-1], dtype=bool)
    best = np.where(own, -np.inf, difference + lower).max(axis=-1) < 0
    return best, high < math.log1p(margin), low > 0


def half_widths(logs: _Array, alpha: float = ALPHA) -> tuple[_Array, _Array]:
    """Half-widths of all differences of two cases' means, shape (..., cases, cases): upper and lower.

    `logs` has the shape (..., cases, rounds); every round has every case. See the module's docstring.
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
    variance = np.maximum(2 * total / df, apart.var(axis=-1, ddof=1))
    if cases > 2:
        each = (cases * (cases - 1) * squares - total[..., 0]) / ((cases - 1) * (cases - 2) * (rounds - 1))
        variance = np.maximum(variance, each[..., :, None] + each[..., None, :])
    error = np.sqrt(variance / rounds)
    return dunnett_quantile(cases - 1, df, alpha) * error, tukey_quantile(cases, df, alpha) * error


def _pairwise(
    logs: Sequence[Mapping[Pair, Timing]], alpha: float
) -> tuple[_Array, _Array, _Array, NDArray[np.int64]]:
    """Differences, half-widths and rounds of every pair by itself; infinite where a pair shares too few rounds."""
    cases = len(logs)
    difference = np.zeros((cases, cases))
    upper, lower = np.full((cases, cases), np.inf), np.full((cases, cases), np.inf)
    rounds = np.zeros((cases, cases), np.int64)
    for i in range(cases):
        for j in range(cases):
            shared = rounds_of_all([logs[i], logs[j]])
            if i == j or len(shared) < MIN_ROUNDS:
                continue
            mine, other = ([logs[one][key] for key in shared] for one in (i, j))
            ratios = np.log([a.sample_s / b.sample_s for a, b in zip(mine, other, strict=True)])
            error = float(ratios.std(ddof=1)) / math.sqrt(len(shared))
            difference[i, j], rounds[i, j] = _cost(mine) - _cost(other), len(shared)
            upper[i, j] = t_quantile(1 - alpha / (cases - 1), len(shared) - 1) * error
            lower[i, j] = t_quantile(1 - alpha / (cases * (cases - 1)), len(shared) - 1) * error
    return difference, upper, lower, rounds


def _cost(timings: Sequence[Timing]) -> float:
    """The mean logarithm of time per sample: of launches in pairs, what their rounds share cancels in differences."""
    return math.fsum(math.log(one.sample_s) for one in timings) / len(timings)


@functools.lru_cache(maxsize=512)
def dunnett_quantile(comparisons: int, df: int, alpha: float = ALPHA) -> float:
    """Dunnett's one-sided critical value: of so many t statistics that correlate by 1/2, the largest's quantile.

    P(max T <= d) = E over s, z of Phi(z + sqrt(2) d s)^comparisons, s^2 being chi-square(df) over df, z normal.
    """

    def below(d: float) -> float:
        inner = special.ndtr(_Z + math.sqrt(2) * d * _scales(df)[:, None]) ** comparisons
        return float(_U_WEIGHTS @ (inner @ _Z_WEIGHTS))

    return _solve(below, 1 - alpha)


@functools.lru_cache(maxsize=512)
def tukey_quantile(cases: int, df: int, alpha: float = ALPHA) -> float:
    """Return the studentized range's critical value over sqrt(2), so that it multiplies a difference's standard error.

    P(range <= q s) = E over s, z of cases * (Phi(z) - Phi(z - q s))^(cases - 1), z being the largest of them.
    """

    def below(d: float) -> float:
        inner = (special.ndtr(_Z) - special.ndtr(_Z - math.sqrt(2) * d * _scales(df)[:, None])) ** (cases - 1)
        return float(cases * (_U_WEIGHTS @ (inner @ _Z_WEIGHTS)))

    return _solve(below, 1 - alpha)


def _scales(df: int) -> _Array:
    """Nodes of sqrt(chi-square(df) / df), one for each equal-probability node of the quadrature."""
    found: _Array = np.sqrt(2 * special.gammaincinv(df / 2, _U) / df)
    return found


def _solve(below: Callable[[float], float], probability: float) -> float:
    """Return the argument at which an increasing function has this value, by bisection to 1e-6."""
    low, high = 0.0, 1.0
    while below(high) < probability:
        low, high = high, 2 * high
    while high - low > 1e-6:
        middle = (low + high) / 2
        low, high = (middle, high) if below(middle) < probability else (low, middle)
    return (low + high) / 2
