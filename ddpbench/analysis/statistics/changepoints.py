"""Find where the level of a series changes, by permutation tests, and how many values a series needs for this.

A series is cut where the cut explains most of its spread, if chance would rarely explain as much, and each part is
tested again (binary segmentation: Scott & Knott, Biometrics 30 (1974)). Spells, after which the old level returns, are
tested too (Olshen, Venkatraman, Lucito & Wigler, Biostatistics 5 (2004)). Permuting needs no distribution: outliers
never raise false alarms. The package `ruptures` lacks the test against chance.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from ddpbench.analysis.statistics.stats import FEWEST, Comparison

_Series = NDArray[np.float64]
_Places = tuple[NDArray[np.intp], NDArray[np.intp]]
"""Stretches [begin, end) whose level may differ from the rest of a series."""

STEP_SHARE = 0.8
"""Share of a test's level that goes to single cuts. Spells have the rest, because lasting changes matter more."""
_SEED = 2004
_HITS = 40
"""Number of permutations that explain as much as the series. A test with this many is abandoned.

It is large enough to make the test's random error small.
"""
_AT_ONCE = 250_000
"""Largest number of values in one batch of permutations."""
_MOST_ALIKE = 0.7
"""Largest correlation of neighbours that is believed; a larger estimate comes from very few values."""
_SAME = 1 - 1e-9
"""Factor that allows for rounding: sums of the same values in different orders differ slightly."""


def change_points(values: Sequence[float], level: float) -> tuple[int, ...]:
    """Return the places at which the level changes, in order. Place 3 is between the third value and the fourth.

    In a series of independent values without a change, a change is found with a probability of at most `level`. For
    correlated neighbours, as under lasting drift, a change's F statistic is divided by `variance_inflation`, which
    halves false alarms at a correlation of 0.3. No level has fewer than `FEWEST` values.

    Permutation tests find changes, and `shifts` computes t-intervals, which outliers affect more. Changes whose
    intervals contain 0 are removed one by one, the least certain first.
    """
    series = np.asarray(values, dtype=np.float64)
    cuts = sorted(_cuts(series, level, 0, 1.0))
    inflation = variance_inflation(values, cuts)
    if cuts and inflation > 1:
        cuts = sorted(_cuts(series, level, 0, inflation))
    while cuts:
        sure = [abs(shift.log) - (shift.half_width() or 0.0) for shift in shifts(values, cuts)]
        if min(sure) > 0:
            break
        del cuts[sure.index(min(sure))]
    return tuple(cuts)


def fewest_values(level: float) -> int:
    """Return the smallest number of values in which a test at `level` can find a change.

    The clearest possible change is a cut in the middle that separates all low values from all high values. Of the
    `comb(n, n // 2)` equally likely orders of low and high values, two are as clear: all low values first, or all high
    values first.
    """
    count = 2 * FEWEST
    while 2 / math.comb(count, count // 2) > STEP_SHARE * level:
        count += 1
    return count


def level_each(counts: Sequence[int], alpha: float) -> float:
    """Return the level for the test of each series if the joint probability of a false alarm is to be at most `alpha`.

    `alpha` is divided among the series that are long enough to find anything at the resulting level (Tarone, Biometrics
    46 (1990)).

    Args:
        counts: number of values of each series.
        alpha: one minus the joint confidence of all series.
    """
    for number in range(1, len(counts)):
        fewest = fewest_values(alpha / number)
        if sum(count >= fewest for count in counts) <= number:
            return alpha / number
    return alpha / max(1, len(counts))


def shifts(values: Sequence[float], cuts: Sequence[int]) -> list[Comparison]:
    """Return the size of each change of level: the mean logarithm after it minus the mean before.

    All levels share one variance, multiplied by `variance_inflation`.

    Args:
        values: logarithms.
        cuts: places, as `change_points` returns them.
    """
    parts = [values[begin:end] for begin, end in pairwise((0, *cuts, len(values)))]
    if len(parts) == 1:
        return []
    means = [math.fsum(part) / len(part) for part in parts]
    squares = math.fsum(
        (value - mean) ** 2 for part, mean in zip(parts, means, strict=True) for value in part
    )
    df = len(values) - len(parts)
    variance = squares / df * variance_inflation(values, cuts)
    return [
        Comparison(
            log=means[number] - means[number - 1],
            standard_error=math.sqrt(variance * (1 / len(before) + 1 / len(after))),
            df=df,
            rounds=min(len(before), len(after)),
            paired=False,
        )
        for number, (before, after) in enumerate(pairwise(parts), start=1)
    ]


def variance_inflation(values: Sequence[float], cuts: Sequence[int]) -> float:
    """Return the factor, at least 1, by which correlation of neighbours raises the variance of a level's mean.

    It is (1 + r) / (1 - r) for an autoregression with lag-1 correlation r, estimated within levels. Every fitted mean
    and place lowers the estimate by about 1 / n, which is added back.
    """
    parts = [np.asarray(values[begin:end]) for begin, end in pairwise((0, *cuts, len(values)))]
    rests = [part - part.mean() for part in parts if len(part)]
    squares = math.fsum(float(rest @ rest) for rest in rests)
    if squares <= 1e-18:  # equal values
        return 1.0
    products = math.fsum(float(rest[1:] @ rest[:-1]) for rest in rests)
    alike = products / squares + (2 * len(cuts) + 1) / len(values)
    alike = min(max(alike, 0.0), _MOST_ALIKE)
    return (1 + alike) / (1 - alike)


def _cuts(series: _Series, level: float, begin: int, inflation: float) -> Iterator[int]:
    """Yield the places of cuts in a part that begins at `begin`; its pieces divide the level by length."""
    place = _place(series, level, inflation)
    if place is None:
        return
    yield begin + place
    share = level / len(series)
    yield from _cuts(series[:place], share * place, begin, inflation)
    yield from _cuts(series[place:], share * (len(series) - place), begin + place, inflation)


def _place(series: _Series, level: float, inflation: float) -> int | None:
    count = len(series)
    if count < 2 * FEWEST or count < fewest_values(level):
        return None
    for stretches, part in ((_steps(count), STEP_SHARE), (_spells(count), 1 - STEP_SHARE)):
        if _shown(series, stretches, part * level, inflation):
            begins, ends = stretches
            best = int(_explained(series[np.newaxis], stretches)[0].argmax())
            edges = np.array([edge for edge in (begins[best], ends[best]) if edge < count])
            one_cut = (edges, np.full_like(edges, count))
            return int(edges[_explained(series[np.newaxis], one_cut)[0].argmax()])
    return None


def _steps(count: int) -> _Places:
    """Return the stretches from a possible cut to the end of the series."""
    begins = np.arange(FEWEST, count - FEWEST + 1)
    return begins, np.full_like(begins, count)


def _spells(count: int) -> _Places:
    """Return the stretches strictly inside a series; empty if too short for three levels."""
    begins, ends = np.triu_indices(count + 1, FEWEST)
    inside = (begins >= FEWEST) & (ends <= count - FEWEST)
    return begins[inside], ends[inside]


def _explained(rows: _Series, stretches: _Places) -> _Series:
    """Return the sum of squares that a level per stretch explains, shape (rows, stretches).

    Permutations share the total sum of squares, so this orders them as the F statistic would.
    """
    begins, ends = stretches
    count = rows.shape[1]
    sums = np.zeros((len(rows), count + 1))
    np.cumsum(rows - rows.mean(axis=1, keepdims=True), axis=1, out=sums[:, 1:])
    lengths = ends - begins
    found: _Series = (sums[:, ends] - sums[:, begins]) ** 2 * (count / (lengths * (count - lengths)))
    return found


def _shown(series: _Series, stretches: _Places, level: float, inflation: float) -> bool:
    """Return whether chance explains as much as the best stretch with a probability of at most `level`.

    The F statistic is divided by `inflation`. The permutation test (1 + hits) / (1 + permutations) stops early.
    """
    count = len(stretches[0])
    if not count:
        return False
    seen = float(_explained(series[np.newaxis], stretches).max()) * _SAME
    if seen <= 1e-18:  # equal values
        return False
    rest = max(0.0, float(((series - series.mean()) ** 2).sum()) - seen)
    seen *= (seen + rest) / (seen + inflation * rest)
    allowed, left = _HITS - 1, math.ceil(_HITS / level) - 1
    dice = np.random.default_rng(_SEED)
    batch, most = 50, max(50, _AT_ONCE // (count + len(series)))
    while left > 0:
        rows = dice.permuted(np.tile(series, (min(batch, left), 1)), axis=1)
        allowed -= int((_explained(rows, stretches).max(axis=1) >= seen).sum())
        left -= len(rows)
        if allowed < 0:
            return False
        batch = min(2 * batch, most)
    return True
