"""Test the number of rounds that narrow an interval to the margin, against a search with scipy's quantiles."""

from __future__ import annotations

import math

import pytest
from scipy import stats as scipy_stats

from ddpbench.analysis.statistics.interval import Interval
from ddpbench.analysis.statistics.narrowing import rounds_for


@pytest.mark.parametrize(("half", "rounds"), [(0.0376, 5), (0.05, 8), (0.25, 5), (0.021, 30)])
def test_the_fewest_rounds_are_found_with_their_own_quantile(half: float, rounds: int) -> None:
    ratio = Interval(value=1.0, low=math.exp(-half), high=math.exp(half))
    spread = half / scipy_stats.t.ppf(0.975, rounds - 1) * math.sqrt(rounds)
    found = rounds_for(ratio, rounds)
    widths = (
        spread * scipy_stats.t.ppf(0.975, count - 1) / math.sqrt(count) for count in range(rounds, 10**4)
    )
    assert found == rounds + next(at for at, width in enumerate(widths) if width <= math.log1p(0.02))


def test_an_interval_within_the_margin_needs_no_more_rounds() -> None:
    assert rounds_for(Interval(value=1.0, low=0.99, high=1.01), 5) == 5
    assert rounds_for(Interval(value=1.0, low=1.0, high=1.0), 5) == 5
    assert rounds_for(Interval(value=1.0), 5) is None


def test_five_rounds_to_four_per_cent_do_not_need_nineteen() -> None:
    assert rounds_for(Interval(value=1.0, low=1 / 1.039, high=1.039), 5) == 12
