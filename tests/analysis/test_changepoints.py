"""Change-points, simulated: how often one is found where there is none, and how reliably a real one is found.

Series have the drift between sessions that `DRIFT` states, launches that vary within them, and outliers of both.
"""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from ddpbench.analysis.statistics.changepoints import (
    change_points,
    fewest_values,
    level_each,
    shifts,
    variance_inflation,
)
from ddpbench.analysis.statistics.resolution import DRIFT
from ddpbench.analysis.statistics.stats import ALPHA, MIN_ROUNDS

LAUNCH = 0.03
"""Standard deviation of the logarithm of a launch's step time within a session."""
STEP = math.log(1.15)


def drifting(
    dice: np.random.Generator, series: int, runs: int, *, sessions: float = 0.0
) -> NDArray[np.float64]:
    """Return series of runs of an unchanged program: mean logarithms of five launches each.

    In one run of 20 a launch takes 30 % longer; with `sessions`, this share of entire runs does.
    """
    launches = dice.normal(0, LAUNCH, (series, runs, MIN_ROUNDS))
    launches[:, :, 0] += math.log(1.3) * (dice.random((series, runs)) < 0.05)
    disturbed = math.log(1.3) * (dice.random((series, runs)) < sessions)
    drift = dice.normal(0, DRIFT, (series, runs))
    found: NDArray[np.float64] = drift + disturbed + launches.mean(axis=2)
    return found


def interval(hits: int, of: int) -> tuple[float, float]:
    """Return the exact 99 % interval of a share (Clopper & Pearson)."""
    ends = stats.binomtest(hits, of).proportion_ci(0.99)
    return float(ends.low), float(ends.high)


@pytest.mark.parametrize(("runs", "cases", "sessions"), [(12, 4, 0.0), (20, 6, 0.02), (30, 1, 0.02)])
def test_false_alarms_of_histories_without_a_change(runs: int, cases: int, sessions: float) -> None:
    """All cases of a history together: at most 5 %, within the precision of 400 histories of several cases."""
    dice = np.random.default_rng([runs, cases])
    level = level_each([runs] * cases, ALPHA)
    histories = 400
    wrong = sum(
        any(change_points(series, level) for series in drifting(dice, cases, runs, sessions=sessions))
        for _ in range(histories)
    )
    low, high = interval(wrong, histories)
    assert low <= ALPHA, f"{wrong} of {histories}: {low:.3f} to {high:.3f}"


def test_drifts_that_are_alike_seldom_make_a_change() -> None:
    """Each run's drift has a correlation of 0.3 with the one before: a test for independent ones is wrong in 19 %."""
    dice = np.random.default_rng(13)
    series = dice.normal(0, DRIFT, (300, 20))
    for run in range(1, 20):
        series[:, run] = 0.3 * series[:, run - 1] + math.sqrt(1 - 0.3**2) * series[:, run]
    low, high = interval(sum(bool(change_points(one, ALPHA)) for one in series), len(series))
    assert low <= 0.08, f"{low:.3f} to {high:.3f}"
    assert high <= 0.15, f"{low:.3f} to {high:.3f}"


def test_variance_inflation_is_that_of_an_autoregression() -> None:
    dice = np.random.default_rng(17)
    series = dice.normal(0, 1, 20_000)
    assert variance_inflation(list(series), [500]) == pytest.approx(1.0, abs=0.05)
    for at in range(1, len(series)):
        series[at] += 0.3 * series[at - 1]
    assert variance_inflation(list(series), [500]) == pytest.approx(1.3 / 0.7, rel=0.05)
    assert variance_inflation([1.0] * 9, [4]) == 1.0


def test_a_step_of_15_per_cent_is_found_where_it_is() -> None:
    """Ten runs on either side, one case of six; the ratio's 95 % interval covers the true one in 95 % of them."""
    dice = np.random.default_rng(7)
    level, count = level_each([20] * 6, ALPHA), 600
    found, near, held, more = 0, 0, 0, 0
    for series in drifting(dice, count, 20):
        series[10:] += STEP
        cuts = change_points(series, level)
        more += len(cuts) > 1
        found += bool(cuts)
        near += any(abs(cut - 10) <= 1 for cut in cuts)
        if len(cuts) == 1:
            (shift,) = shifts(series, cuts)
            half = shift.half_width()
            assert half is not None
            held += abs(shift.log - STEP) <= half
    assert found / count >= 0.9, f"{found} of {count}: {interval(found, count)}"
    assert near / count >= 0.9, f"{near} of {count}: {interval(near, count)}"
    assert interval(more, count)[0] <= ALPHA
    assert interval(held, found - more)[1] >= 0.95, (
        f"{held} of {found - more}: {interval(held, found - more)}"
    )


def test_a_slow_down_of_the_last_four_runs_and_a_spell_that_has_ended_are_found() -> None:
    dice = np.random.default_rng(11)
    level = level_each([30] * 6, ALPHA)
    late, spell = 0, 0
    for series in drifting(dice, 20, 30):
        series[26:] += STEP
        late += any(abs(cut - 26) <= 1 for cut in change_points(series, level))
    for series in drifting(dice, 20, 30):
        series[10:20] += STEP
        first, *rest = (*change_points(series, level), 0, 0)
        spell += abs(first - 10) <= 1 and abs(rest[0] - 20) <= 1
    assert late >= 17
    assert spell >= 17


def test_a_level_s_share_of_orders_is_what_counting_all_of_them_gives() -> None:
    """Eight values separated by a cut in the middle: 2 of 70 orders have as good a cut, so that 4 % shows it."""
    values = [0.0, 0.01, 0.02, 0.03, 1.0, 1.01, 1.02, 1.03]
    total = sum(values)

    def best(order: tuple[float, ...]) -> float:
        sums = list(itertools.accumulate(order))
        return max((sums[k - 1] - total * k / 8) ** 2 * 8 / (k * (8 - k)) for k in range(3, 6))

    seen = best(tuple(values))
    orders = list(itertools.permutations(values))
    share = sum(best(order) >= seen - 1e-12 for order in orders) / len(orders)
    assert share == pytest.approx(2 / 70)
    assert change_points(values, 0.05) == (4,)
    assert change_points(values, share) == ()  # of which spells have a fifth
    assert change_points(values[::-1], 0.05) == (4,)


def test_too_few_values_and_equal_ones_have_no_change() -> None:
    assert change_points([0.0] * 3 + [9.0] * 4, ALPHA) == ()
    assert change_points([1.0] * 40, ALPHA) == ()
    assert change_points([], ALPHA) == ()
    assert change_points([0.1, 0.2, 0.3, 0.25, 5.1, 5.2, 5.3, 5.25], ALPHA) == (4,)


def test_equal_series_have_equal_answers() -> None:
    series = drifting(np.random.default_rng(1), 1, 40)[0]
    series[20:] += 0.06
    assert change_points(series, 0.02) == change_points(list(series), 0.02)


def test_levels_are_shared_by_the_series_that_can_show_anything() -> None:
    assert [fewest_values(ALPHA / number) for number in (1, 2, 5, 12, 50)] == [8, 9, 10, 12, 14]
    assert level_each([20] * 5, ALPHA) == pytest.approx(0.01)
    assert level_each([20, 4, 4, 4], ALPHA) == pytest.approx(0.05)
    assert level_each([8, 8], ALPHA) == pytest.approx(0.05 / 2)  # at which neither test can find anything
    assert level_each([9, 9], ALPHA) == pytest.approx(0.05 / 2)
    assert level_each([], ALPHA) == ALPHA


def test_a_shift_is_a_pooled_t_interval() -> None:
    before, after = [0.0, 0.1, 0.05, 0.02], [0.3, 0.35, 0.31]
    (shift,) = shifts([*before, *after], [4])
    expected = stats.ttest_ind(after, before, equal_var=True)
    assert shift.p_value == pytest.approx(expected.pvalue)
    ends = expected.confidence_interval(0.95)
    ratio = shift.time_ratio()
    assert (ratio.low, ratio.high) == (pytest.approx(math.exp(ends.low)), pytest.approx(math.exp(ends.high)))


def test_no_change_is_found_whose_interval_holds_no_change() -> None:
    """The test permutes, and the interval is a t-interval: values with long tails can make the two differ."""
    outliers = [-0.021, -0.181, 0.039, -0.439, 0.037, 0.001, -0.009]
    late = [0.241, 0.133, 0.126, 0.108, 0.065, 0.208, 0.123, 0.099]
    every = [[*outliers, *late]]
    dice = np.random.default_rng(61)
    for _ in range(150):
        runs = int(dice.integers(8, 16))
        series = 0.04 * dice.standard_t(2, runs)
        series[runs // 2 :] += 0.12
        every.append(list(series))
    found = 0
    for values in every:
        cuts = change_points(values, ALPHA)
        for shift in shifts(values, cuts):
            half = shift.half_width()
            assert half is not None
            assert abs(shift.log) > half, (values, cuts)
        found += bool(cuts)
    assert found > 50
