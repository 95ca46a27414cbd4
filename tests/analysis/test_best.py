"""Best, as good as best, slower: critical values against tables, and error rates and power by simulation."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats as scipy_stats

from ddpbench.analysis.statistics.best import (
    Family,
    bounds,
    half_widths,
    standings,
    tukey_quantile,
    verdicts,
)
from ddpbench.analysis.statistics.interval import Interval
from ddpbench.analysis.statistics.stats import compare
from ddpbench.analysis.statistics.timings import Timing

FAMILIES = 2400
TOLERANCE = 0.05 + 3 * math.sqrt(0.05 * 0.95 / FAMILIES)
"""Deviation from a rate of 5 % that one simulation in a thousand exceeds."""


@pytest.mark.parametrize(
    ("cases", "df", "published"),
    [(2, 4, 3.93), (3, 10, 3.88), (4, 12, 4.20), (4, 20, 3.96), (10, 20, 5.01)],
)
def test_ranges_are_those_of_a_printed_table(cases: int, df: int, published: float) -> None:
    assert math.sqrt(2) * tukey_quantile(cases, df) == pytest.approx(published, abs=0.0051)


def test_one_comparison_is_a_t_test() -> None:
    assert tukey_quantile(2, 7) == pytest.approx(scipy_stats.t.ppf(0.975, 7), abs=1e-3)


def simulated(
    cases: int,
    rounds: int,
    cv: float,
    *,
    slower: float = 0.0,
    spread: float = 1.0,
    heavy: bool = False,
    families: int = FAMILIES,
) -> NDArray[np.float64]:
    """Return logs of step times, shape (families, cases, rounds): the last case is slower; drift is common to a round.

    Every second case has `spread` times the others' deviation. Heavy tails are t with 4 degrees of freedom.
    """
    dice = np.random.default_rng(cases * 100 + rounds)
    shape = (families, cases, rounds)
    own = dice.standard_t(4, shape) / math.sqrt(2) if heavy else dice.standard_normal(shape)
    drift = 0.1 * dice.standard_normal((families, 1, rounds))
    scale = np.where(np.arange(cases) % 2, spread, 1.0)[:, None]
    logs: NDArray[np.float64] = cv * scale * own + drift
    logs[:, -1] += math.log1p(slower)
    return logs


def judged(logs: NDArray[np.float64]) -> tuple[NDArray[np.bool_], NDArray[np.bool_], NDArray[np.bool_]]:
    means = logs.mean(axis=-1)
    return verdicts(means[..., :, None] - means[..., None, :], half_widths(logs))


def rate(found: NDArray[np.bool_]) -> float:
    return float(np.mean(found))


@pytest.mark.parametrize("cv", [0.05, 0.08])
@pytest.mark.parametrize("rounds", [5, 8])
@pytest.mark.parametrize("cases", [2, 4, 8, 16])
def test_identical_cases_are_called_different_in_few_families(cases: int, rounds: int, cv: float) -> None:
    best, _, slower = judged(simulated(cases, rounds, cv))
    assert rate((best | slower).any(axis=-1)) <= TOLERANCE


@pytest.mark.parametrize(("spread", "heavy"), [(2.0, False), (1.0, True), (2.0, True)])
@pytest.mark.parametrize("rounds", [5, 8])
@pytest.mark.parametrize("cases", [2, 4, 8, 16])
def test_nor_where_spreads_differ_by_two_or_tails_are_heavy(
    cases: int, rounds: int, spread: float, heavy: bool
) -> None:
    best, _, slower = judged(simulated(cases, rounds, 0.05, spread=spread, heavy=heavy))
    assert rate((best | slower).any(axis=-1)) <= TOLERANCE


@pytest.mark.parametrize(("slower", "cv"), [(0.08, 0.05), (0.15, 0.08), (0.02, 0.003)])
@pytest.mark.parametrize(("spread", "heavy"), [(1.0, False), (2.0, False), (1.0, True)])
def test_a_slower_case_is_seldom_called_as_good(slower: float, cv: float, spread: float, heavy: bool) -> None:
    # The last case is slower by exactly the margin; the noise would make the others as good.
    _, good, _ = judged(simulated(4, 5, cv, slower=slower, spread=spread, heavy=heavy))
    assert rate(good[:, -1]) <= TOLERANCE


@pytest.mark.parametrize("cases", [4, 8])
def test_of_many_slower_cases_none_is_called_as_good_in_most_families(cases: int) -> None:
    logs = simulated(cases, 5, 0.005)
    logs[:, 1:] += math.log1p(0.02)
    _, good, _ = judged(logs)
    assert rate(good[:, 1:].any(axis=-1)) <= TOLERANCE


def test_twelve_rounds_at_one_per_cent_are_enough_to_tell() -> None:
    _, good, _ = judged(simulated(4, 12, 0.01))
    assert rate(good) > 0.8
    assert rate(good.all(axis=-1)) > 0.5
    assert rate(judged(simulated(2, 12, 0.01))[1].all(axis=-1)) > 0.8
    _, _, slower = judged(simulated(4, 8, 0.01, slower=0.05))
    assert rate(slower[:, -1]) >= 0.9


@pytest.mark.parametrize(("cases", "rounds"), [(3, 5), (4, 8)])
def test_a_case_that_scatters_widely_hides_no_difference_of_the_others(cases: int, rounds: int) -> None:
    logs = simulated(cases, rounds, 0.002, slower=0.1)
    logs[:, 0] += 0.3 * np.random.default_rng(1).standard_normal(logs[:, 0].shape)
    means = logs.mean(axis=-1)
    apart = means[:, -1] - means[:, 1]
    assert rate(apart > half_widths(logs)[:, -1, 1]) > 0.9
    alike = simulated(cases, rounds, 0.01)
    alike[:, 0] += 0.3 * np.random.default_rng(1).standard_normal(alike[:, 0].shape)
    means = alike.mean(axis=-1)
    wrong = np.abs(means[:, :, None] - means[:, None, :]) > half_widths(alike)
    assert rate(wrong.any(axis=(-2, -1))) <= TOLERANCE


def test_a_case_that_is_ahead_of_all_is_best() -> None:
    best, _, slower = judged(simulated(3, 8, 0.01, slower=-0.05))
    assert rate(best[:, -1]) > 0.9
    assert rate(slower[:, :-1].all(axis=-1)) > 0.9


@pytest.mark.parametrize("spread", [1.0, 2.0])
@pytest.mark.parametrize("cases", [2, 4, 8])
def test_all_pairs_are_covered_at_once(cases: int, spread: float) -> None:
    logs = simulated(cases, 5, 0.03, spread=spread)
    means = logs.mean(axis=-1)
    missed = np.abs(means[:, :, None] - means[:, None, :]) > half_widths(logs)
    assert rate(missed.any(axis=(-2, -1))) <= TOLERANCE


@pytest.mark.parametrize("spread", [1.0, 2.0])
def test_each_bound_covers_in_95_of_100_families(spread: float) -> None:
    logs = simulated(4, 5, 0.03, spread=spread, slower=0.04)
    truth = np.array([0, 0, 0, math.log1p(0.04)])
    means = logs.mean(axis=-1)
    low, high = bounds(means[..., :, None] - means[..., None, :], half_widths(logs))
    assert rate((low <= truth).all(axis=-1)) >= 1 - TOLERANCE
    assert rate((high >= truth).all(axis=-1)) >= 1 - TOLERANCE


def test_half_widths_of_two_cases_are_the_paired_tests() -> None:
    logs = np.log([[1.0, 1.1, 1.3, 1.2, 1.25], [1.05, 1.12, 1.36, 1.3, 1.28]])
    test = scipy_stats.ttest_rel(*logs)
    interval = test.confidence_interval(0.95)
    assert half_widths(logs)[0, 1] == pytest.approx((interval.high - interval.low) / 2, rel=1e-3)


def timings(steps: dict[int, float]) -> list[Timing]:
    return [Timing(round=number, time_s=time_s, steps=10, samples=80) for number, time_s in steps.items()]


def family(rounds: int, *, gone: dict[int, int] | None = None) -> dict[str, list[Timing]]:
    """Return cases of 1, 1.2 and 1.4 s with drift and little noise; `gone`: a round that a case lacks."""
    dice = np.random.default_rng(3)
    drift = 1 + 0.2 * dice.random(rounds)
    return {
        str(case): timings(
            {
                number: (1 + 0.2 * case) * drift[number] * (1 + 0.002 * dice.standard_normal())
                for number in range(rounds)
                if (gone or {}).get(case) != number
            }
        )
        for case in range(3)
    }


def test_standings_by_name() -> None:
    found = standings(family(6))
    assert {name: one.verdict for name, one in found.items()} == {"0": "best", "1": "slower", "2": "slower"}
    assert [one.against for one in found.values()] == ["1", "0", "0"]
    assert found["2"].ratio.value == pytest.approx(1.4, rel=0.005)
    assert found["0"].ratio.value == pytest.approx(1 / 1.2, rel=0.005)
    for one in found.values():
        assert one.ratio.low is not None
        assert one.ratio.high is not None
        assert one.ratio.low < one.ratio.value < one.ratio.high
    assert found["0"].ratio.high < 1
    assert [one.rounds for one in found.values()] == [6] * 3
    pair = compare(family(6)["1"], family(6)["0"])
    assert pair is not None
    assert found["1"].ratio.value == pytest.approx(math.exp(pair.log))


def test_missing_launches_leave_the_rounds_that_all_share() -> None:
    found = standings(family(8, gone={0: 2, 1: 5}))
    assert [one.rounds for one in found.values()] == [6] * 3
    assert found["0"].verdict == "best"


def test_where_few_rounds_are_shared_by_all_each_pair_uses_its_own() -> None:
    cases = family(15)
    for index, name in enumerate(cases):
        cases[name] = [one for one in cases[name] if one.round % 3 != index]
    found = standings(cases)  # no round has all three, and each pair shares five
    assert [one.rounds for one in found.values()] == [5] * 3
    assert {name: one.verdict for name, one in found.items()} == {"0": "best", "1": "slower", "2": "slower"}


def test_cases_without_enough_common_rounds_are_not_compared() -> None:
    assert {one.verdict for one in standings(family(4)).values()} == {"too few"}
    cases = family(6)
    cases["2"] = [Timing(round=one.round + 100, time_s=9, steps=10, samples=80) for one in cases["2"]]
    found = standings(cases)  # as where two runs are merged
    assert (found["2"].verdict, found["2"].rounds) == ("too few", 0)
    assert found["1"].verdict == "slower"
    assert found["0"].verdict == "cannot tell"  # the third may be faster
    assert found["0"].ratio.high is None
    assert standings({"0": cases["0"]}) == {}


def test_within_the_margin_is_as_good_even_where_a_difference_is_measured() -> None:
    exact = {"a": timings(dict.fromkeys(range(6), 1.0)), "b": timings(dict.fromkeys(range(6), 1.01))}
    found = standings(exact)
    assert [one.verdict for one in found.values()] == ["best", "as good"]
    same = {"a": exact["a"], "b": exact["a"]}
    assert {one.verdict for one in standings(same).values()} == {"as good"}


def ends(ratio: Interval) -> tuple[float | None, float, float | None]:
    return ratio.low, ratio.value, ratio.high


def test_a_standing_s_ends_are_those_of_its_pairs_among_all_or_some() -> None:
    """A case against the best of the others has the same number as the pair of the two."""
    whole = Family(family(6))
    pair = whole.pair("0", "1")
    assert pair is not None
    stands = whole.standings()["0"]
    assert ends(stands.ratio) == pytest.approx(ends(pair.ratio))
    some = whole.standings(["1", "2"])
    assert list(some) == ["1", "2"]
    again = whole.pair("2", "1")
    assert again is not None
    assert ends(some["2"].ratio) == pytest.approx(ends(again.ratio))
    assert (some["1"].verdict, again.verdict, again.rounds) == ("best", "slower", 6)
    assert whole.pair("0", "none") is None


def test_a_pair_in_too_few_rounds_has_its_own_interval_and_no_verdict() -> None:
    cases = family(6)
    cases["2"] = cases["2"][:4]
    pair = Family(cases).pair("2", "0")
    alone = compare(cases["2"], cases["0"])
    assert pair is not None
    assert alone is not None
    assert (pair.verdict, pair.rounds, pair.ratio) == ("too few", 4, alone.time_ratio())
