"""Intervals, paired comparisons, corrections and verdicts, against tables, scipy.stats and numbers by hand."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from scipy import stats as scipy_stats

from ddpbench.analysis.statistics.interval import Interval
from ddpbench.analysis.statistics.stats import (
    Comparison,
    compare,
    half_width,
    judge,
    judge_all,
    mean_rate,
    mean_step_s,
    median_launch,
    samples_rate,
    share,
    step_time,
    t_quantile,
)
from ddpbench.analysis.statistics.timings import Timing


def timings(seconds: list[float], *, steps: int = 10, samples: int = 80, first: int = 0) -> list[Timing]:
    return [
        Timing(round=first + number, time_s=time_s, steps=steps, samples=samples)
        for number, time_s in enumerate(seconds)
    ]


@pytest.mark.parametrize(
    ("probability", "df", "published"),
    [(0.975, 1, 12.706), (0.975, 4, 2.776), (0.975, 9, 2.262), (0.95, 10, 1.812), (0.8, 7, 0.896)],
)
def test_quantiles_are_those_of_a_printed_t_table(probability: float, df: int, published: float) -> None:
    assert t_quantile(probability, df) == pytest.approx(published, abs=5e-4)


def test_half_width_by_hand() -> None:
    # mean 3, squared deviations 4 + 1 + 0 + 1 + 4 = 10, s^2 = 2.5; 2.776 * sqrt(2.5 / 5)
    assert half_width([1, 2, 3, 4, 5]) == pytest.approx(2.776445 * math.sqrt(0.5), rel=1e-6)
    assert half_width([1.0]) is None
    assert half_width([]) is None


def test_two_launches_have_no_interval() -> None:
    two, three = timings([1.0, 2.2]), timings([1.0, 2.2, 1.4])
    base = timings([2.0, 2.1, 2.2])
    elsewhere = timings([2.0, 2.1], first=10)  # without common rounds: by Welch
    assert half_width([1.0, 2.0]) is None
    for found in (step_time(two), samples_rate(two), share([1.0, 2.0], [4.0, 5.0])):
        assert (found.low, found.high) == (None, None)
    for other in (base, elsewhere):
        gain = compare(two, other)
        assert gain is not None
        assert gain.rate_ratio().low is None
        assert gain.p_value is None
    gain = compare(three, base)
    assert gain is not None
    assert gain.rate_ratio().low is not None


def test_step_time_is_the_median_launch_s_each_of_which_weighs_alike() -> None:
    """Launches are the replicates: a slow one has fewer steps in its time, and the same weight."""
    launches = [
        Timing(round=0, time_s=1.0, steps=10, samples=80),
        Timing(round=1, time_s=4.0, steps=20, samples=160),
        Timing(round=2, time_s=8.0, steps=20, samples=160),
        Timing(round=3, time_s=0.3, steps=1, samples=8),
    ]
    assert step_time(launches[:3]).value == pytest.approx(0.2)
    assert step_time(launches).value == pytest.approx(0.25)
    assert mean_step_s(launches) == pytest.approx((0.1 + 0.2 + 0.4 + 0.3) / 4)
    assert mean_rate(launches) == pytest.approx(8 / mean_step_s(launches))


def test_a_rate_is_the_median_step_time_s_turned_round_with_its_interval() -> None:
    """This also holds for an even number of launches, where the median of the rates would differ."""
    launches = timings([1.0, 2.0, 4.0, 1.5, 1.2, 9.0])
    rate, step = samples_rate(launches), step_time(launches)
    assert step.value == pytest.approx((0.15 + 0.2) / 2)
    assert rate.value == pytest.approx(8 / step.value)  # 8 samples per step
    assert rate.low is not None
    assert rate.high is not None
    assert step.low is not None
    assert step.high is not None
    assert (rate.low, rate.high) == (pytest.approx(8 / step.high), pytest.approx(8 / step.low))


def test_a_median_s_interval_by_hand() -> None:
    """By the sign test, from binomial coefficients: how often fewer than d of n values are on one side."""
    five = median_launch([3.0, 1.0, 2.0, 5.0, 4.0])
    assert (five.low, five.value, five.high) == (1.0, 3.0, 5.0)  # 1 - 2 / 32: 93.75 %
    six = median_launch([6.0, 1.0, 2.0, 5.0, 4.0, 3.0])
    assert (six.low, six.value, six.high) == (
        1.0,
        3.5,
        6.0,
    )  # 1 - 2 / 64; from the second value on 78 %, too few
    eight = median_launch([float(one) for one in range(8)])
    wider, narrower = 1 - 2 / 256, 1 - 2 * 9 / 256  # d = 1 and 2: 99.2 % and 93.0 %
    part = (wider - 0.95) / (wider - narrower)
    weight = 7 * part / (1 + 6 * part)
    assert (eight.low, eight.high) == (pytest.approx(weight), pytest.approx(7 - weight))
    assert (median_launch([1.0] * 4).low, median_launch([1.0] * 4).high) == (None, None)


def test_how_often_a_median_s_interval_holds_is_told_where_it_is_not_about_95_per_cent() -> None:
    """Its ends are the d-th values from either side: 1 - 2 P(fewer than d of n on one side), by the binomial."""
    page = (Path(__file__).parents[2] / "docs/method.md").read_text(encoding="utf-8")
    said = " ".join(page.split())
    for count, depth in ((5, 1), (6, 1), (7, 1), (10, 2)):
        found = median_launch([float(one) for one in range(1, count + 1)])
        assert (found.low, found.high) == (depth, count + 1 - depth)
        held = 100 * (1 - 2 * sum(math.comb(count, fewer) for fewer in range(depth)) / 2**count)
        assert f"{held:.2f} %" in said if count == 5 else f"{held:.1f} % with {count}" in said


@pytest.mark.parametrize("count", [6, 8, 9, 12, 20, 40])
def test_a_median_s_interval_lies_in_the_uninterpolated_one_of_scipy(count: int) -> None:
    values = [float((7 * one) % count) for one in range(count)] if count % 7 else [*map(float, range(count))]
    found = median_launch(values)
    whole = scipy_stats.quantile_test(values, q=values[0], p=0.5).confidence_interval(0.95)
    assert found.low is not None
    assert found.high is not None
    assert whole.low <= found.low < found.value < found.high <= whole.high


def test_one_round_has_a_point_and_no_interval() -> None:
    found = step_time(timings([1.0]))
    assert (found.value, found.low, found.high) == (pytest.approx(0.1), None, None)


def test_comparison_is_scipy_s_paired_t_test_of_the_logs() -> None:
    a, b = [1.02, 1.10, 0.99, 1.21, 1.05], [1.00, 1.05, 0.93, 1.20, 1.01]
    found = compare(timings(a), timings(b))
    assert found is not None
    expected = scipy_stats.ttest_rel([math.log(x) for x in a], [math.log(x) for x in b])
    low, high = expected.confidence_interval()
    assert found.half_width() == pytest.approx((high - low) / 2)
    assert found.rounds == 5
    assert found.log == pytest.approx((high + low) / 2)
    assert found.rate_ratio().value == pytest.approx(math.prod(b) ** 0.2 / math.prod(a) ** 0.2)
    assert found.p_value == pytest.approx(expected.pvalue)


def test_drift_cancels_within_rounds() -> None:
    drift = [1.0, 1.3, 0.8, 1.1, 1.6]
    found = compare(timings([1.1 * d for d in drift]), timings(drift))
    assert found is not None
    assert found.half_width() == pytest.approx(0, abs=1e-12)
    assert found.time_ratio().value == pytest.approx(1.1)


def test_launches_of_more_steps_weigh_no_more() -> None:
    """Exactly 0.78 in each round, and common drift: fast launches of A and B have twice the steps of slow ones."""
    drift = [1.08, 0.92, 1.06, 0.94, 1.03, 0.97]
    a = [Timing(round=n, time_s=20 * 0.078 * d, steps=20, samples=80) for n, d in enumerate(drift)]
    steps = [10 if d > 1 else 20 for d in drift]
    b = [
        Timing(round=n, time_s=k * 0.1 * d, steps=k, samples=4 * k)
        for n, (d, k) in enumerate(zip(drift, steps, strict=True))
    ]
    found = compare(a, b)
    assert found is not None
    assert found.time_ratio().value == pytest.approx(0.78)


def test_only_rounds_that_both_have_are_paired() -> None:
    found = compare(timings([2.0, 2.0, 9.0]), timings([7.0, 1.0, 3.0], first=-1))
    assert found is not None
    assert found.rounds == 2
    assert found.time_ratio().value == pytest.approx(math.sqrt(2.0 / 1.0 * 2.0 / 3.0))


def test_one_shared_round_gives_its_ratio_and_no_interval() -> None:
    """Launches of either side from other rounds or sessions add nothing to it."""
    found = compare(timings([2.0, 9.0, 9.0]), timings([7.0, 7.0, 3.0], first=-2))
    assert found is not None
    assert (found.paired, found.rounds, found.half_width(), found.p_value) == (True, 1, None, None)
    assert found.time_ratio().value == pytest.approx(2.0 / 3.0)
    judged = judge(found)
    assert (judged.verdict, judged.rounds, judged.ratio.low) == ("too few", 1, None)


def test_without_shared_rounds_the_interval_is_welch_s() -> None:
    a, b = [1.02, 1.10, 0.99, 1.21], [2.00, 2.05, 1.93, 2.20, 2.01]
    found = compare(timings(a), timings(b, first=10))
    assert found is not None
    assert not found.paired
    expected = scipy_stats.ttest_ind([math.log(x) for x in a], [math.log(x) for x in b], equal_var=False)
    low, high = expected.confidence_interval()
    assert found.df == pytest.approx(expected.df)
    assert found.half_width() == pytest.approx((high - low) / 2)


def test_nothing_to_compare() -> None:
    assert compare([], timings([1.0])) is None
    alone = compare(timings([2.0]), timings([1.0]))
    assert alone is not None
    assert (alone.half_width(), alone.p_value, alone.rounds) == (None, None, 1)


def comparison(low_percent: float, high_percent: float, rounds: int = 5) -> Comparison:
    """Return a comparison whose 95 % interval of the time ratio, minus 1, runs from low to high."""
    low, high = math.log1p(low_percent / 100), math.log1p(high_percent / 100)
    error = (high - low) / 2 / t_quantile(0.975, rounds - 1)
    return Comparison(log=(low + high) / 2, standard_error=error, df=rounds - 1, rounds=rounds)


@pytest.mark.parametrize(
    ("low", "high", "verdict", "small", "beyond"),
    [
        (3.0, 8.0, "slower", False, True),
        (-8.0, -3.0, "faster", False, True),
        (0.5, 1.5, "slower", True, False),
        (-1.5, -0.5, "faster", True, False),
        (1.0, 6.0, "slower", False, False),
        (-1.0, 1.5, "equivalent", False, False),
        (-1.0, 3.0, "unresolved", False, False),
        (-5.0, 1.0, "unresolved", False, False),
    ],
)
def test_verdicts_with_a_margin_of_two_per_cent(
    low: float, high: float, verdict: str, small: bool, beyond: bool
) -> None:
    found = judge(comparison(low, high))
    assert (found.verdict, found.small, found.beyond) == (verdict, small, beyond)
    assert found.ratio.low == pytest.approx(1 + low / 100)
    assert found.ratio.high == pytest.approx(1 + high / 100)


def test_the_bound_is_the_largest_difference_not_ruled_out() -> None:
    assert judge(comparison(-1.0, 3.0)).bound == pytest.approx(0.03)
    assert judge(comparison(-5.0, 1.0)).bound == pytest.approx(1 / 0.95 - 1)  # B would be 5.3 % slower


def test_four_rounds_are_too_few() -> None:
    assert judge(comparison(30.0, 31.0, rounds=4)).verdict == "too few"


def test_ten_comparisons_make_one_of_them_less_sure() -> None:
    borderline = comparison(0.2, 6.0)
    assert judge(borderline).verdict == "slower"
    alike = {f"other {number}": comparison(-3.0, 3.0) for number in range(9)}
    every = judge_all({"it": borderline, **alike})
    judged = every["it"]
    assert judged.verdict == "unresolved"
    same = math.log(1.03 / 0.97) / 2 * t_quantile(0.9975, 4) / t_quantile(0.975, 4)
    for name in alike:  # all intervals hold at once, not only those that show a difference
        low, high = every[name].ratio.low, every[name].ratio.high
        assert low is not None
        assert high is not None
        assert math.log(high / low) / 2 == pytest.approx(same)
    # its interval is drawn at 1 - 0.05/10
    log_half = (math.log(1.06) - math.log(1.002)) / 2 * t_quantile(0.9975, 4) / t_quantile(0.975, 4)
    assert judged.ratio.low == pytest.approx(math.sqrt(1.06 * 1.002) / math.exp(log_half))


def test_comparisons_with_too_few_rounds_do_not_count_towards_the_correction() -> None:
    few = {f"few {number}": comparison(-3.0, 3.0, rounds=3) for number in range(9)}
    assert judge_all({"it": comparison(0.2, 6.0), **few})["it"].verdict == "slower"


def test_the_interval_of_a_share_by_hand() -> None:
    # the whole does not vary: the part's mean is 2 with an error of 1/sqrt(3), and all is divided by 4
    found = share([1.0, 2.0, 3.0], [4.0, 4.0, 4.0])
    assert found.value == 0.5
    assert found.low == pytest.approx((2 - 4.302653 / math.sqrt(3)) / 4)
    assert found.high == pytest.approx((2 + 4.302653 / math.sqrt(3)) / 4)
    # parts in proportion to the whole are a share without error, for any variation of the whole
    exact = share([1.0, 2.0, 1.5], [4.0, 8.0, 6.0])
    assert (exact.low, exact.high) == (pytest.approx(0.25), pytest.approx(0.25))


def test_a_share_of_what_may_be_nothing_has_no_ends() -> None:
    assert share([1.0], [2.0]) == Interval(value=0.5)
    found = share([1.0, 2.0, 3.0], [-3.0, 1.0, 5.0])
    assert (found.value, found.low, found.high) == (2.0, None, None)


def test_the_ends_of_a_share_are_the_ratios_that_a_paired_test_just_rejects() -> None:
    parts, wholes = [2.1, 1.7, 2.6, 2.2, 1.9], [3.0, 2.8, 3.9, 3.1, 2.6]
    found = share(parts, wholes)
    for end in (found.low, found.high):
        assert end is not None
        left = [part - end * whole for part, whole in zip(parts, wholes, strict=True)]
        assert scipy_stats.ttest_1samp(left, 0).pvalue == pytest.approx(0.05, rel=1e-5)


def test_an_interval_in_another_unit_and_around_a_value() -> None:
    assert Interval(value=2, low=1, high=4).scaled(1e3) == Interval(value=2e3, low=1e3, high=4e3)
    assert Interval(value=2).scaled(0.5) == Interval(value=1)
    assert Interval.plus_minus(2, 3) == Interval(value=2, low=-1, high=5)
    assert Interval.plus_minus(2, None) == Interval(value=2)
