"""Intervals checked after every round: how often they are wrong at any of them, and how soon they decide."""

from __future__ import annotations

import math

import numpy as np
import pytest

from ddpbench.analysis.statistics.sequential import (
    CUT,
    anytime_interval,
    evidence,
    half_width_in_deviations,
    middle_of,
    typical_deviation,
)
from ddpbench.analysis.statistics.stats import deviation

ROUNDS, RUNS = 60, 1000


def anytime_half_width(values: list[float], alpha: float = 0.05) -> float | None:
    """Return half the interval for normal values alone."""
    factor = half_width_in_deviations(len(values), alpha)
    return None if factor is None else deviation(values) * factor


def by_hand(values: list[float], alpha: float, effect: float = 1.0) -> float:
    """Return the edge of the interval, by bisection of the Bayes factor itself."""
    n = len(values)
    s = deviation(values)

    def factor(half: float) -> float:
        t2 = (half * math.sqrt(n) / s) ** 2
        wide = 1 + n * effect**2
        return wide**-0.5 * ((1 + t2 / (n - 1)) / (1 + t2 / ((n - 1) * wide))) ** (n / 2)

    low, high = 0.0, 1e6 * s
    for _ in range(300):
        middle = (low + high) / 2
        low, high = (middle, high) if factor(middle) < 1 / alpha else (low, middle)
    return low


@pytest.mark.parametrize("count", [6, 10, 40])
def test_the_interval_ends_where_the_bayes_factor_does(count: int) -> None:
    values = list(np.random.default_rng(count).normal(1.0, 0.3, count))
    assert anytime_half_width(values, 0.05) == pytest.approx(by_hand(values, 0.05), rel=1e-6)


def test_few_rounds_have_no_interval() -> None:
    assert anytime_half_width([0.1, 0.2]) is None
    assert anytime_half_width([0.1, 0.2, 0.3], 1e-6) is None  # nor an end, at such a level


def test_the_interval_ends_where_the_evidence_is_as_large_as_its_level() -> None:
    """Both kinds by hand, from their formulas; one of six values is far off."""
    values = [0.02, 0.05, 0.03, 0.04, 0.03, 0.9, 0.01, 0.06, 0.035, 0.045]
    found = anytime_interval(values)
    assert found.low is not None
    assert found.high is not None
    for mean in (found.low, found.high):
        n, apart = len(values), [value - mean for value in values]
        t2 = n * (sum(apart) / n / deviation(values)) ** 2
        wide = 1 + n
        normal = wide**-0.5 * ((1 + t2 / (n - 1)) / (1 + t2 / ((n - 1) * wide))) ** (n / 2)
        cut = [math.copysign(1, one) for one in apart[:4]]
        for index in range(4, n):
            middle = np.median(values[:index])
            scale = 1.4826 * np.median([abs(value - middle) for value in values[:index]])
            cut.append(max(-CUT, min(CUT, apart[index] / scale)))
        wide = 1 + sum(one**2 for one in cut)
        symmetric = wide**-0.5 * math.exp(sum(cut) ** 2 / (2 * wide))
        assert (normal + symmetric) / 2 == pytest.approx(20, rel=1e-6)
    assert found.low < found.value < found.high
    assert evidence(values, found.high)[-1] == pytest.approx(math.log(20), rel=1e-6), "as after each of them"


def test_values_without_spread_and_few_values() -> None:
    assert anytime_interval([]) == anytime_interval([0.0])
    assert anytime_interval([0.1, 0.2]).low is None
    assert anytime_interval([0.1, 0.2, 0.3]).low is None
    same = anytime_interval([0.1] * 6)
    assert (same.low, same.value, same.high) == (0.1, 0.1, 0.1)
    assert typical_deviation([0.1] * 6) == 0
    ties = anytime_interval([0.1] * 19 + [5.0])
    assert ties.low is not None
    assert ties.low < 0.1 < (ties.high or 0) < 2


def test_an_outlier_moves_neither_the_middle_nor_the_ends_by_much() -> None:
    values = np.random.default_rng(5).normal(0.03, 0.03, 30)
    plain, struck = anytime_interval(values), anytime_interval([*values[:-1], -1.1])
    assert middle_of(values) == pytest.approx(values.mean(), abs=0.003)
    assert typical_deviation(list(values)) == pytest.approx(deviation(list(values)), rel=0.15)
    assert struck.value == pytest.approx(plain.value, abs=0.005)
    assert plain.high is not None
    assert plain.low is not None
    assert struck.high is not None
    assert struck.low is not None
    assert struck.high - struck.low < 1.5 * (plain.high - plain.low)
    assert 2 * (anytime_half_width([*values[:-1], -1.1]) or 0) > 5 * (plain.high - plain.low), (
        "what it is for"
    )


def ever_wrong(draw: np.ndarray[tuple[int, int], np.dtype[np.float64]], mean: float = 0.0) -> float:
    """Return the share of runs whose interval excludes the mean at any number of rounds: where evidence is
    against it.
    """
    return float((evidence(draw, mean) >= math.log(20)).any(axis=1).mean())


def at_most(share: float, wanted: float = 0.05, runs: int = RUNS) -> bool:
    """Return whether the binomial interval of the seen share reaches down to the wanted one."""
    return share - 2.58 * math.sqrt(share * (1 - share) / runs) <= wanted


def test_false_alarms_at_any_round_of_equal_sides() -> None:
    """With the noise recorded here: 4 % per launch, a slow drift, one round in twenty disturbed."""
    dice = np.random.default_rng(1)
    plain = dice.normal(0, 0.04, (RUNS, ROUNDS))
    assert at_most(ever_wrong(plain))
    drift = 0.10 * np.linspace(0, 1, ROUNDS) + dice.normal(0, 0.02, (RUNS, 1))
    sides = [drift + dice.normal(0, 0.03, (RUNS, ROUNDS)) for _ in range(2)]
    assert at_most(ever_wrong(sides[0] - sides[1]))  # what both share cancels
    outliers = plain + (dice.random((RUNS, ROUNDS)) < 0.05) * dice.choice([-1, 1], (RUNS, ROUNDS)) * 0.2
    assert at_most(ever_wrong(outliers))


def test_an_interval_for_one_look_is_wrong_too_often_when_it_is_looked_at_often() -> None:
    """The reason for these intervals: the same runs with Student's interval at every round."""
    from ddpbench.analysis.statistics.stats import half_width

    dice = np.random.default_rng(2)
    wrong = 0
    for values in dice.normal(0, 0.04, (200, ROUNDS)):
        looks = ((half_width(list(values[:n])) or math.inf, values[:n].mean()) for n in range(3, ROUNDS + 1))
        wrong += any(abs(mean) > half for half, mean in looks)
    assert wrong / 200 > 0.15


def share_found(draw: np.ndarray[tuple[int, int], np.dtype[np.float64]]) -> float:
    """Return the share of runs in which the mean is shown to be above 0 by their last round."""
    return float((evidence(draw)[:, 4:] >= math.log(20)).any(axis=1).mean())


@pytest.mark.parametrize(("change", "deviation_", "rounds"), [(0.05, 0.04, 25), (0.03, 0.03, 40)])
def test_planted_changes_are_found(change: float, deviation_: float, rounds: int) -> None:
    dice = np.random.default_rng(3)
    assert share_found(dice.normal(change, deviation_, (300, rounds))) >= 0.9


def test_planted_changes_are_found_among_outliers() -> None:
    """Every twentieth round is ten times as scattered, to either side: an interval of normal values alone finds few."""
    dice = np.random.default_rng(4)
    size = (300, 40)
    draw = 0.03 + dice.normal(0, 0.03, size) * np.where(dice.random(size) < 0.05, 10, 1)
    assert share_found(draw) >= 0.85
    found = 0
    for values in draw:
        ends = (values[:n].mean() - (anytime_half_width(list(values[:n])) or math.inf) for n in range(5, 41))
        found += any(low > 0 for low in ends)
    assert found / len(draw) < 0.8


def test_the_middle_is_a_place_that_another_step_does_not_move() -> None:
    """The steps end where one moves nothing, and the value is exactly that of all fifty."""
    draws = np.random.default_rng(3)
    for count in (3, 5, 8, 40):
        for values in (draws.standard_normal(count), draws.standard_cauchy(count)):
            middle, scale = (
                float(np.median(values)),
                1.4826 * float(np.median(np.abs(values - np.median(values)))),
            )
            for _ in range(50):
                middle += float(np.clip(values - middle, -CUT * scale, CUT * scale).mean())
            assert middle_of(values) == middle
