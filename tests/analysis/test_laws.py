"""Laws fitted to curves whose parameters are known, exactly and with noise; curves that must not be fitted."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ddpbench.analysis.scaling.laws import KNEE_CUT, Laws, _knee, fit_laws
from ddpbench.analysis.scaling.speedups import SpeedupCurve
from ddpbench.analysis.statistics.interval import Interval
from ddpbench.analysis.statistics.timings import Timing

BASE_RATE = 100.0


def timing(number: int, rate: float) -> Timing:
    """Return a launch of 50 steps of 8 samples at `rate` samples per second."""
    return Timing(round=number, time_s=400 / rate, steps=50, samples=400)


def curve_of(
    speedup: Callable[[int], float],
    sizes: Sequence[int] = (2, 4, 8, 16),
    *,
    scaling: str = "strong",
    rounds: int = 5,
    noise: float = 0.0,
    seed: int = 0,
) -> SpeedupCurve:
    """Return launches around a law, each with a separate log-normal error, the base case's too; rounds
    drift by 10 %.
    """
    generator = np.random.default_rng(seed)
    drift = np.exp(0.1 * generator.standard_normal(rounds)) if noise else np.ones(rounds)

    def launches(rate: float) -> tuple[Timing, ...]:
        errors = np.exp(noise * generator.standard_normal(rounds)) * drift
        return tuple(timing(number, rate * float(error)) for number, error in enumerate(errors))

    return SpeedupCurve(
        scaling="strong" if scaling == "strong" else "weak",
        base=launches(BASE_RATE),
        sizes={n: launches(BASE_RATE * speedup(n)) for n in sizes},
    )


def amdahl(s: float) -> Callable[[int], float]:
    return lambda n: 1 / (s + (1 - s) / n)


def gustafson(s: float) -> Callable[[int], float]:
    return lambda n: n - s * (n - 1)


def usl(alpha: float, beta: float) -> Callable[[int], float]:
    return lambda n: n / (1 + alpha * (n - 1) + beta * n * (n - 1))


def parameter(laws: Laws, law: str, name: str) -> float:
    return next(fit for fit in laws.fits if fit.law == law).parameters[name].value


def test_amdahl_and_karp_flatt_are_recovered_from_exact_speed_ups() -> None:
    laws = fit_laws(curve_of(amdahl(0.05)))
    assert parameter(laws, "amdahl", "s") == pytest.approx(0.05, rel=1e-9)
    fit = laws.fits[0]
    assert fit.goodness == "within error"
    assert fit.r_squared == pytest.approx(1)
    # Karp-Flatt of Amdahl's own curve is s at every point
    assert [point.serial_fraction.value for point in laws.points] == pytest.approx([0.05] * 4)
    assert "does not measurably change from 2 to 16 ranks" in laws.trend
    # 20 at most, by hand: 1/(0.05 + 0.95/32) = 12.55 at twice the largest
    assert fit.line[-1] == (32.0, pytest.approx(12.549, abs=1e-3))
    assert fit.line[0] == (1.0, pytest.approx(1.0))
    # USL with beta = 0 is Amdahl with alpha = s
    assert parameter(laws, "usl", "alpha") == pytest.approx(0.05)
    assert parameter(laws, "usl", "beta") == pytest.approx(0, abs=1e-9)
    assert parameter(laws, "usl", "gamma") == pytest.approx(BASE_RATE)


def test_gustafson_is_recovered_from_weak_scaling() -> None:
    laws = fit_laws(curve_of(gustafson(0.08), scaling="weak"))
    assert parameter(laws, "gustafson", "s") == pytest.approx(0.08)
    assert laws.fits[0].goodness == "within error"
    assert [point.serial_fraction.value for point in laws.points] == pytest.approx([0.08] * 4)
    assert [point.marginal.value for point in laws.points] == pytest.approx([0.92] * 4)
    assert "Up to 16 ranks an added rank brings at least 50 %" in laws.knee_words


def test_usl_is_recovered_with_its_peak_and_the_knee() -> None:
    laws = fit_laws(curve_of(usl(0.03, 0.004)))
    assert parameter(laws, "usl", "alpha") == pytest.approx(0.03)
    assert parameter(laws, "usl", "beta") == pytest.approx(0.004)
    assert laws.fits[1].goodness == "within error"
    assert laws.fits[0].goodness == "beyond error", "a law of one parameter cannot bend down"
    # sqrt(0.97/0.004) = 15.57; an exact curve has a negligible interval
    assert "By the USL throughput peaks at 15.6 [15.6, 15.6] ranks." in laws.peak_words
    # by hand: 2/1.038 = 1.927, 4/1.138 = 3.515, 8/1.434 = 5.579, 16/2.410 = 6.639
    assert [round(point.marginal.value, 3) for point in laws.points] == [0.927, 0.794, 0.516, 0.133]
    assert laws.knee == 8
    assert "rises from 2 to 16 ranks" in laws.trend


@pytest.mark.parametrize(
    ("scaling", "fitted"), [("strong", ["amdahl", "usl"]), ("weak", ["gustafson", "usl"])]
)
def test_a_law_is_refused_the_other_kind_of_scaling(scaling: str, fitted: list[str]) -> None:
    laws = fit_laws(curve_of(amdahl(0.1), scaling=scaling))
    assert [fit.law for fit in laws.fits] == fitted
    other = "Gustafson" if scaling == "strong" else "Amdahl"
    assert [text for text in laws.refused if text.startswith(other) and "scaling" in text]


def test_fewer_than_three_world_sizes_are_too_few_points() -> None:
    laws = fit_laws(curve_of(amdahl(0.1), (2,)), devices=2)
    assert not laws.fits
    assert laws.absent == "too few points: 1 and 2 ranks measured, and a law needs 3 world sizes"
    assert laws.next is not None
    assert (laws.next.world_size, laws.next.here) == (4, False)
    assert fit_laws(curve_of(amdahl(0.1), (2,)), devices=4).next.here  # type: ignore[union-attr]


def test_a_world_size_with_few_rounds_is_worth_more_rounds_before_another_size_is() -> None:
    curve = curve_of(amdahl(0.1), (2,))
    few = SpeedupCurve(scaling="strong", base=curve.base, sizes={2: curve.sizes[2][:4]})
    laws = fit_laws(few, devices=8)
    assert "1 rank measured (2 with under 5 rounds)" in laws.absent
    assert laws.next is not None
    assert (laws.next.world_size, laws.next.here) == (2, True)
    assert laws.next.reason == "with more rounds it is a point, and a law needs 2 more points"
    none = fit_laws(SpeedupCurve(scaling="strong", base=curve.base, sizes={}), devices=8).next
    assert none is not None
    assert none.reason == "it is the next power of two, and a law needs 2 more points"


def test_a_world_size_with_few_rounds_or_unpaired_ones_is_no_point() -> None:
    curve = curve_of(amdahl(0.1), (2, 4))
    few = SpeedupCurve(scaling="strong", base=curve.base, sizes={2: curve.sizes[2], 4: curve.sizes[4][:4]})
    assert "4 with under 5 rounds" in fit_laws(few).absent
    apart = tuple(timing(number + 100, 300) for number in range(5))
    assert not fit_laws(
        SpeedupCurve(scaling="strong", base=curve.base, sizes={2: curve.sizes[2], 4: apart})
    ).fits


def test_three_points_leave_nothing_to_judge_the_usl_by() -> None:
    laws = fit_laws(curve_of(usl(0.05, 0.01), (2, 4), noise=0.01))
    goodness = {fit.law: fit.goodness for fit in laws.fits}
    assert goodness["usl"] == "undetermined"
    assert goodness["amdahl"] != "undetermined"


def test_what_could_go_unseen_is_told_with_a_law_that_fits() -> None:
    """By hand, with one parameter and every round complete: the widest end of Bonferroni's intervals."""
    curve = curve_of(amdahl(0.05), (2, 8), noise=0.01, rounds=6)
    fit = fit_laws(curve).fits[0]
    assert fit.goodness == "within error"
    assert fit.unseen is not None
    # The stored residuals have t(0.975, 5) = 2.5706; two of them at 5 % together have t(0.9875, 5) = 3.1634.
    ends = []
    for residual in fit.residuals.values():
        assert residual.low is not None
        value, half = math.log1p(residual.value), math.log1p(residual.value) - math.log1p(residual.low)
        ends.append(abs(value) + half * 3.1634 / 2.5706)
    assert fit.unseen == pytest.approx(math.expm1(max(ends)), rel=1e-3)
    assert f"; a misfit of up to {100 * fit.unseen:.1f} % would go unseen)" in fit.verdict
    assert fit_laws(curve_of(lambda n: amdahl(0.05)(n) * (1.2 if n == 8 else 1))).fits[0].unseen is None


def test_a_residual_without_an_interval_is_no_sign_of_a_fit() -> None:
    """A curve that loses with the second rank: without one round Gustafson's s exceeds 16/15, and S(16) is negative."""
    noisy = curve_of({2: 0.5, 16: 8.0}.__getitem__, (2, 16), scaling="weak", noise=0.5, seed=37)
    fit = fit_laws(noisy).fits[0]
    assert fit.law == "gustafson"
    assert fit.residuals[16].value < -0.7
    assert fit.residuals[16].low is None
    assert fit.goodness == "undetermined"
    assert fit.unseen is None
    assert fit.verdict.startswith("cannot be judged (without one of the rounds")


def test_a_knee_lies_before_the_first_stretch_that_brings_little() -> None:
    measured = {2: 1.9, 4: 3.5, 8: 4.0}
    laws = fit_laws(curve_of(measured.__getitem__, (2, 4, 8)))
    assert laws.knee == 4
    assert (
        "From 4 to 8 ranks an added rank brings only 12 % of the samples/s that one rank" in laws.knee_words
    )


def test_what_a_rejected_law_would_forecast_is_not_said() -> None:
    """Neither where it predicts most, nor where its throughput would peak."""
    laws = fit_laws(curve_of(lambda n: (1.9, 1.2, 3.9, 1.1)[int(math.log2(n)) - 1], noise=0.001))
    assert all(fit.rejected for fit in laws.fits)
    assert laws.next is None
    assert laws.peak_words == ""


@pytest.mark.parametrize(
    ("speedup", "scaling", "impossible"),
    [
        (gustafson(1.03), "weak", True),
        (gustafson(0.97), "weak", False),
        (gustafson(-0.05), "weak", True),
        (amdahl(1.2), "strong", True),
        (amdahl(0.0), "strong", False),
    ],
)
def test_a_serial_fraction_is_between_0_and_1(speedup: Any, scaling: str, impossible: bool) -> None:
    fit = fit_laws(curve_of(speedup, scaling=scaling)).fits[0]
    assert fit.impossible is impossible
    assert (fit.judged == "does not apply") is impossible
    assert fit.rejected is impossible


def test_superlinear_speed_up_is_said_in_words() -> None:
    laws = fit_laws(curve_of(lambda n: n * (1 + 0.05 * math.log2(n)), noise=0.002))
    assert any("superlinear" in text for fit in laws.fits for text in fit.remarks)


def test_the_next_world_size_is_a_candidate_that_divides_the_batch_and_fits_the_machine() -> None:
    curve = curve_of(amdahl(0.05), (2, 8), noise=0.02)
    free = fit_laws(curve, devices=64, batch=64).next
    assert free is not None
    assert (free.world_size, free.here) == (16, True), "the farthest point is where laws part"
    assert "extrapolated" in free.reason
    inside = fit_laws(curve, devices=8, batch=64).next
    assert inside is not None
    assert (inside.world_size, inside.here) == (4, True), (
        "beyond the machine there is more to learn, but not here"
    )
    curve = curve_of(amdahl(0.05), (2, 4), noise=0.02)
    divided = fit_laws(curve, devices=4, batch=12).next
    assert divided is not None
    assert (divided.world_size, divided.here) == (3, True), "8 does not divide 12"
    elsewhere = fit_laws(curve, devices=4, batch=64).next
    assert elsewhere is not None
    assert (elsewhere.world_size, elsewhere.here) == (8, False), "3 does not divide 64"


@settings(max_examples=60, deadline=None)
@given(
    s=st.floats(0, 0.6),
    alpha=st.floats(0, 0.3),
    beta=st.floats(1e-5, 0.02),
    sizes=st.sets(st.integers(2, 64), min_size=3, max_size=6),
    rate=st.floats(1e-2, 1e6),
)
def test_exact_curves_give_their_parameters_back(
    s: float, alpha: float, beta: float, sizes: set[int], rate: float
) -> None:
    curve = curve_of(amdahl(s), sorted(sizes))
    assert parameter(fit_laws(curve), "amdahl", "s") == pytest.approx(s, abs=1e-7)
    weak = curve_of(gustafson(s), sorted(sizes), scaling="weak")
    assert parameter(fit_laws(weak), "gustafson", "s") == pytest.approx(s, abs=1e-7)
    bent = curve_of(usl(alpha, beta), sorted(sizes))
    scaled = SpeedupCurve(
        scaling="strong",
        base=tuple(timing(t.round, rate) for t in bent.base),
        sizes={
            n: tuple(timing(t.round, rate * usl(alpha, beta)(n)) for t in times)
            for n, times in bent.sizes.items()
        },
    )
    laws = fit_laws(scaled)
    assert parameter(laws, "usl", "alpha") == pytest.approx(alpha, abs=1e-6)
    assert parameter(laws, "usl", "beta") == pytest.approx(beta, abs=1e-6)
    assert parameter(laws, "usl", "gamma") == pytest.approx(rate, rel=1e-5)


def covered(truth: float, laws: Laws, law: str, name: str) -> bool:
    interval = next(fit for fit in laws.fits if fit.law == law).parameters[name]
    assert interval.low is not None
    assert interval.high is not None
    return interval.low <= truth <= interval.high


def test_intervals_cover_the_truth_95_times_in_100() -> None:
    """400 made-up runs of five rounds: 95 % within 3 standard errors of a count (3 * 1.09 %)."""
    hits = {"s": 0, "alpha": 0, "beta": 0}
    misjudged = 0
    count = 400
    for seed in range(count):
        strong = fit_laws(curve_of(amdahl(0.06), noise=0.02, seed=seed))
        hits["s"] += covered(0.06, strong, "amdahl", "s")
        misjudged += strong.fits[0].goodness == "beyond error"
        bent = fit_laws(curve_of(usl(0.04, 0.003), noise=0.02, seed=seed))
        hits["alpha"] += covered(0.04, bent, "usl", "alpha")
        hits["beta"] += covered(0.003, bent, "usl", "beta")
    assert {name: 0.917 <= hit / count <= 0.983 for name, hit in hits.items()} == dict.fromkeys(hits, True), (
        hits
    )
    assert misjudged / count <= 0.083, "a law that holds is called wrong 1 time in 20 at most"


def test_intervals_cover_where_no_round_has_all_world_sizes() -> None:
    """A merge of two allocations: rounds 0 to 4 have 2 and 4 ranks, rounds 5 to 9 have 8 and 16."""
    hits, count = 0, 400
    for seed in range(count):
        near = curve_of(amdahl(0.06), (2, 4), noise=0.02, seed=seed)
        far = curve_of(amdahl(0.06), (8, 16), noise=0.02, seed=10_000 + seed)
        moved = {
            n: tuple(Timing(round=t.round + 5, time_s=t.time_s, steps=50, samples=400) for t in times)
            for n, times in far.sizes.items()
        }
        base = tuple(Timing(round=t.round + 5, time_s=t.time_s, steps=50, samples=400) for t in far.base)
        curve = SpeedupCurve(scaling="strong", base=(*near.base, *base), sizes={**near.sizes, **moved})
        hits += covered(0.06, fit_laws(curve), "amdahl", "s")
    # Each half has a base case of five rounds, so that the intervals cover a little less often: 91 to 92 %.
    assert 0.89 <= hits / count <= 0.985, hits


def test_with_every_world_size_in_every_round_the_interval_is_that_of_one_fit_a_round() -> None:
    curve = curve_of(amdahl(0.06), noise=0.01, rounds=8)
    laws = fit_laws(curve)
    interval = laws.fits[0].parameters["s"]
    assert interval.high is not None
    # Weights are taken as equal here: with errors as similar as these the width agrees to a tenth.
    singles = []
    for number in range(8):
        logs = [
            math.log(curve.base[number].sample_s / times[number].sample_s) for times in curve.sizes.values()
        ]
        n, speedup = np.array(list(curve.sizes), float), np.exp(logs)
        x, y, weight = 1 - 1 / n, 1 / speedup - 1 / n, speedup
        singles.append(float(np.sum(weight**2 * x * y) / np.sum(weight**2 * x * x)))
    half = 2.3646 * np.std(singles, ddof=1) / math.sqrt(8)  # t(0.975, 7), from a printed table
    assert interval.high - interval.value == pytest.approx(half, rel=0.25)
    assert interval.value == pytest.approx(np.mean(singles), rel=0.05)


@pytest.mark.parametrize(
    ("value", "low", "high", "knee", "end"),
    [
        (0.53, 0.51, 0.56, None, "(53 % from 2 to 4)."),
        (0.53, 0.31, 0.74, None, "(53 % from 2 to 4); intervals do not rule out less."),
        (0.53, None, None, None, "(53 % from 2 to 4); intervals do not rule out less."),
        (0.47, 0.44, 0.49, 2, "trains alone."),
        (0.47, 0.31, 0.74, 2, "trains alone; the interval does not rule out half."),
        (0.47, None, None, 2, "trains alone; the interval does not rule out half."),
    ],
)
def test_what_added_ranks_bring_is_said_as_surely_as_it_is_known(
    value: float, low: float | None, high: float | None, knee: int | None, end: str
) -> None:
    assert KNEE_CUT == 0.5
    points: Any = [
        SimpleNamespace(world_size=2, marginal=Interval(value=0.9, low=0.8, high=1.0)),
        SimpleNamespace(world_size=4, marginal=Interval(value=value, low=low, high=high)),
    ]
    found, words = _knee(points)
    assert (found, words[-len(end) :]) == (knee, end)
