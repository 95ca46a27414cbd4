"""The promised resolution of a comparison, against simulated comparisons with a known scatter."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from unittest import mock

import numpy as np
import pytest
from numpy.typing import NDArray

from ddpbench.analysis.regression.apart import across
from ddpbench.analysis.regression.changes import _outcome_in_turn, wider_in_turn
from ddpbench.analysis.statistics import resolution
from ddpbench.analysis.statistics.correlation import estimated, reckoned_by_pairs
from ddpbench.analysis.statistics.interval import Interval
from ddpbench.analysis.statistics.resolution import (
    InTurn,
    deviation_interval,
    drift_of,
    power_of_each,
    resolved_by_two_runs,
    resolved_in_one_sweep,
    resolved_in_turn,
    rounds_to_resolve,
    smallest_seen,
)
from ddpbench.analysis.statistics.sequential import evidence
from ddpbench.analysis.statistics.stats import ALPHA, MIN_ROUNDS, POWER, t_quantile
from ddpbench.analysis.statistics.timings import Timing
from ddpbench.spec.settings import MOST_INTERLEAVED_ROUNDS
from tests.analysis.test_correlation import factors, noise

RUNS = 1500


@pytest.fixture
def independent() -> Iterator[None]:
    """Set the correlation of rounds to a known 0, so that no interval is wider for it."""
    with mock.patch.object(resolution, "_widening_shown", return_value=1.0):
        yield


def seen_in_turn(change: float, deviation: float, rounds: int, alpha: float = ALPHA) -> NDArray[np.bool_]:
    """Return for each number of rounds whether an interleaved comparison has shown the change by then; by run.

    It checks after every round from the fifth on, as `compare --interleave` does, with that round's own deviation.
    """
    draw = np.random.default_rng(rounds).normal(math.log1p(change), deviation, (RUNS, rounds))
    shown = evidence(draw)[:, MIN_ROUNDS - 1 :] >= math.log(1 / alpha)
    return np.logical_or.accumulate(shown, axis=1)


@pytest.mark.usefixtures("independent")
@pytest.mark.parametrize("alpha", [ALPHA, ALPHA / 4], ids=["one case", "four cases"])
@pytest.mark.parametrize("rounds", [8, 12, 25, 60, 200])
def test_the_promised_change_is_seen_in_turn_four_times_in_five(rounds: int, alpha: float) -> None:
    """The binomial interval of 1,500 comparisons is 2 points wide to either side, and the promise's own error 4."""
    change = resolved_in_turn(0.04, rounds, alpha)
    assert change is not None
    share = seen_in_turn(change, 0.04, rounds, alpha)[:, -1].mean()
    assert share == pytest.approx(POWER, abs=0.05)


@pytest.mark.usefixtures("independent")
@pytest.mark.parametrize(("change", "deviation"), [(0.03, 0.03), (0.05, 0.04), (0.02, 0.04), (0.10, 0.05)])
def test_the_promised_time_is_what_a_comparison_in_turn_takes(change: float, deviation: float) -> None:
    plan = InTurn(deviation=deviation, round_s=2.0, begin_s=10.0)
    promised = plan.rounds_for(change)
    assert promised is not None
    by_round = seen_in_turn(change, deviation, 2 * promised).mean(axis=0)
    needed = MIN_ROUNDS + int(np.argmax(by_round >= POWER))
    assert promised == pytest.approx(needed, rel=0.1, abs=1)
    assert plan.time_for(change) == 10.0 + 2.0 * promised
    found = plan.resolved_in(10.0 + 2.0 * promised)
    assert found is not None
    assert found <= change
    short = plan.resolved_in(10.0 + 2.0 * promised - 0.1)
    assert short is None or short > change


def test_interleaved_rounds_are_more_than_those_of_a_sweep_whose_number_is_fixed() -> None:
    """This is the cost of checking after every round; the fixed interval's promise would be broken by it."""
    fixed = rounds_to_resolve(0.03, lambda n: resolved_in_one_sweep(0.04, n))
    in_turn = InTurn(deviation=0.04, round_s=1.0).rounds_for(0.03)
    assert fixed is not None
    assert in_turn is not None
    assert 1.6 * fixed < in_turn < 2 * fixed
    assert seen_in_turn(0.03, 0.04, fixed)[:, -1].mean() < 0.6


@pytest.mark.parametrize("correlation", [0.0, 0.35])
@pytest.mark.parametrize(
    ("rounds", "runs"), [(12, 120), (20, 120), pytest.param(40, 300, marks=pytest.mark.thorough)]
)
def test_so_it_is_where_the_correlation_is_what_the_rounds_show(
    rounds: int, runs: int, correlation: float
) -> None:
    """Judged as `compare --interleave` judges: with the deviation known, 64 of 100 would be seen in 20 rounds."""
    change = resolved_in_turn(0.04, rounds, correlation=correlation)
    assert change is not None
    seen = 0
    for logs in math.log1p(change) + 0.04 * noise((runs, rounds), correlation, seed=3):
        looks = (logs[:count].tolist() for count in range(MIN_ROUNDS, rounds + 1))
        seen += any(
            _outcome_in_turn(one, 0.0, ALPHA, wider_in_turn([dict(enumerate(one))])).verdict == "slower"
            for one in looks
        )
    chance = 2.5 * math.sqrt(POWER * (1 - POWER) / runs)
    assert POWER - chance <= seen / runs <= POWER + chance + 0.04


@pytest.mark.parametrize("correlation", [0.0, 0.35])
@pytest.mark.parametrize("rounds", [5, 8, 20, 60])
def test_the_promised_change_is_seen_in_one_sweep_four_times_in_five(rounds: int, correlation: float) -> None:
    """Each sweep of two cases is judged as a sweep is: wider by the correlation that its own rounds show."""
    logs, deviation = noise((RUNS, rounds), correlation, seed=rounds), 0.04
    seen_deviation = deviation * math.sqrt(float(logs.var(axis=-1, ddof=1).mean()))
    change = resolved_in_one_sweep(seen_deviation, rounds, correlation)
    assert change is not None
    assert shown_by_sweeps(math.log1p(change) + deviation * logs) == pytest.approx(POWER, abs=0.04)


def shown_by_sweeps(ratios: NDArray[np.float64]) -> float:
    """Return the share of sweeps of two cases, by log ratios within rounds, that show the first to be slower."""
    wider = factors(np.stack([ratios, np.zeros(ratios.shape)], axis=1))
    count = ratios.shape[-1]
    error = ratios.std(axis=1, ddof=1) / math.sqrt(count)
    return float((ratios.mean(axis=1) > wider * t_quantile(1 - ALPHA / 2, count - 1) * error).mean())


def test_what_is_drawn_is_judged_as_a_sweep_of_two_cases_is() -> None:
    ratios = noise((20, 9), 0.3)
    for one, found in zip(ratios, reckoned_by_pairs(ratios), strict=True):
        pair = np.array([one, np.zeros(9)])
        assert found == pytest.approx(estimated(pair, [(number, "") for number in range(9)]).reckoned)


def test_a_sweep_of_more_rounds_than_are_drawn_gains_by_their_root() -> None:
    few, many = resolved_in_one_sweep(0.04, 200), resolved_in_one_sweep(0.04, 800)
    assert few is not None
    assert many is not None
    assert math.log1p(few) == pytest.approx(2 * math.log1p(many))


@pytest.mark.parametrize("launches", [5, 8, 20])
@pytest.mark.parametrize("scatter", [0.03, 0.06, 0.10], ids=["quiet", "in between", "shared"])
def test_the_promised_change_is_seen_by_two_runs_four_times_in_five(scatter: float, launches: int) -> None:
    """The machine drifts by 4 % from session to session, and by more where launches scatter by more.

    A few launches that scatter by more than that sometimes show less than it, and their interval is narrow then.
    """
    dice, count = np.random.default_rng(1), 3000
    change = resolved_by_two_runs(scatter, launches)
    assert change is not None

    def run(shift: float) -> list[Timing]:
        logs = shift + dice.normal(0, drift_of(scatter)) + dice.normal(0, scatter, launches)
        return [
            Timing(round=number, time_s=math.exp(log), steps=1, samples=1) for number, log in enumerate(logs)
        ]

    seen = 0
    for _ in range(count):
        low = across(run(0.0), run(math.log1p(change))).time_ratio().low
        assert low is not None
        seen += low > 1
    assert seen / count == pytest.approx(POWER, abs=0.025)


def test_two_runs_never_resolve_what_a_machine_drifts() -> None:
    """(1.96 + 0.84) sqrt(2) 4 % = 15.8 %, as a logarithm, however many rounds they have."""
    assert resolved_by_two_runs(0.03, 10**6) == pytest.approx(
        math.expm1(2.8016 * math.sqrt(2) * 0.04), rel=1e-3
    )
    assert rounds_to_resolve(0.10, lambda n: resolved_by_two_runs(0.03, n)) is None


@pytest.mark.parametrize("resolved", [resolved_in_turn, resolved_in_one_sweep, resolved_by_two_runs])
def test_too_few_rounds_resolve_nothing(resolved: Callable[[float, int], float | None]) -> None:
    assert resolved(0.03, MIN_ROUNDS - 1) is None
    assert resolved(0.03, MIN_ROUNDS + 1) is not None
    plan = InTurn(deviation=0.03, round_s=10.0, begin_s=5.0)
    assert plan.resolved_in(10.0) is None
    assert plan.resolved_in(3.0) is None
    assert InTurn(deviation=0.03, round_s=0.0).resolved_in(60.0) is None


def test_more_rounds_than_a_comparison_may_have_are_not_promised() -> None:
    plan = InTurn(deviation=0.3, round_s=1.0)
    assert plan.rounds_for(0.01) is None
    assert plan.time_for(0.01) is None
    assert plan.resolved_in(1e6) == resolved_in_turn(0.3, MOST_INTERLEAVED_ROUNDS)


def test_the_interval_of_a_deviation_covers() -> None:
    assert deviation_interval(1.0, 2) == Interval(1.0)
    found = deviation_interval(1.0, 8)
    # chi-squared with 7 degrees of freedom: 2.5 % below 1.68987, and above 16.01276
    assert found.low == pytest.approx(math.sqrt(7 / 16.01276), rel=1e-5)
    assert found.high == pytest.approx(math.sqrt(7 / 1.68987), rel=1e-5)


def test_the_widest_interval_is_a_number() -> None:
    """This is one degree of freedom, twelve cases, and times 16 decades apart."""
    found = Interval.around(1e16, 5000.0)
    assert found.low is not None
    assert found.low > 0
    assert math.isfinite(found.high or math.inf)
    assert math.isfinite(smallest_seen(40.0, 1.0, ALPHA / 12))
    assert math.isfinite(resolved_in_turn(400.0, 12, ALPHA / 12) or math.inf)


@pytest.mark.usefixtures("independent")
@pytest.mark.parametrize("cases", [4, 12])
def test_the_time_for_all_cases_resolves_all_of_them_four_times_in_five(cases: int) -> None:
    """Cases that share no noise; with `POWER` each, four would all be seen in 0.8^4 = 41 % of comparisons."""
    power = power_of_each(cases)
    for rounds in (12, 25, 60):
        change = resolved_in_turn(0.04, rounds, ALPHA / cases, power)
        assert change is not None
        share = seen_in_turn(change, 0.04, rounds, ALPHA / cases)[:, -1].mean()
        assert share**cases == pytest.approx(POWER, abs=0.05)
