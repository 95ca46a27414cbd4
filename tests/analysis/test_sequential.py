"""Intervals that are looked at after every round: how often they are wrong at any of them, and how soon they decide."""

from __future__ import annotations

import math

import numpy as np
import pytest

from ddpbench.analysis.statistics.sequential import anytime_half_width
from ddpbench.analysis.statistics.stats import deviation

ROUNDS, RUNS = 60, 1000


def by_hand(values: list[float], alpha: float, effect: float = 1.0) -> float:
    """The edge of the interval, by bisection of the Bayes factor itself."""
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


def ever_wrong(draw: np.ndarray[tuple[int, int], np.dtype[np.float64]], mean: float = 0.0) -> float:
    """The share of runs in which the interval leaves out the mean at any number of rounds."""
    wrong = 0
    for values in draw:
        for count in range(3, ROUNDS + 1):
            half = anytime_half_width(list(values[:count]))
            if half is not None and abs(values[:count].mean() - mean) > half:
                wrong += 1
                break
    return wrong / len(draw)


def at_most(share: float, wanted: float = 0.05, runs: int = RUNS) -> bool:
    """Whether a binomial interval of what was seen reaches down to what is wanted."""
    return share - 2.58 * math.sqrt(share * (1 - share) / runs) <= wanted


def test_false_alarms_at_any_round_of_equal_sides() -> None:
    """With what was recorded here: 4 % a launch, a slow drift, one round in twenty disturbed."""
    dice = np.random.default_rng(1)
    plain = dice.normal(0, 0.04, (RUNS, ROUNDS))
    assert at_most(ever_wrong(plain))
    drift = 0.10 * np.linspace(0, 1, ROUNDS) + dice.normal(0, 0.02, (RUNS, 1))
    sides = [drift + dice.normal(0, 0.03, (RUNS, ROUNDS)) for _ in range(2)]
    assert at_most(ever_wrong(sides[0] - sides[1]))  # what both share cancels
    outliers = plain + (dice.random((RUNS, ROUNDS)) < 0.05) * dice.choice([-1, 1], (RUNS, ROUNDS)) * 0.2
    assert at_most(ever_wrong(outliers))


def test_an_interval_for_one_look_is_wrong_too_often_when_it_is_looked_at_often() -> None:
    """What this is for: the same runs with Student's interval at every round."""
    from ddpbench.analysis.statistics.stats import half_width

    dice = np.random.default_rng(2)
    wrong = 0
    for values in dice.normal(0, 0.04, (200, ROUNDS)):
        looks = ((half_width(list(values[:n])) or math.inf, values[:n].mean()) for n in range(3, ROUNDS + 1))
        wrong += any(abs(mean) > half for half, mean in looks)
    assert wrong / 200 > 0.15


@pytest.mark.parametrize(("change", "deviation_", "rounds"), [(0.05, 0.04, 25), (0.03, 0.03, 40)])
def test_planted_changes_are_found(change: float, deviation_: float, rounds: int) -> None:
    dice = np.random.default_rng(3)
    found = 0
    for values in dice.normal(change, deviation_, (300, rounds)):
        ends = (
            values[:n].mean() - (anytime_half_width(list(values[:n])) or math.inf)
            for n in range(3, rounds + 1)
        )
        found += any(low > 0 for low in ends)
    assert found / 300 >= 0.9
