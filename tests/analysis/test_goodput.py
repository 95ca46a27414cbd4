"""Snapshot period: the formula against a simulation, and the optimum against a search."""

from __future__ import annotations

import random

import pytest

from ddpbench.analysis.goodput import best, daly, ettr, young


def simulated(period: float, snapshot: float, recovery: float, mtbf: float, segments: int) -> float:
    """Return kept training over wall time, for a job that saves after each segment and fails at random moments."""
    generator = random.Random(1)
    wall = 0.0
    for _ in range(segments):
        while True:
            failure = generator.expovariate(1 / mtbf)
            if failure >= period + snapshot:
                wall += period + snapshot
                break
            wall += failure
            while (failure := generator.expovariate(1 / mtbf)) < recovery:
                wall += failure  # it fails while it recovers, and begins to recover again
            wall += recovery
    return segments * period / wall


@pytest.mark.parametrize(
    ("period", "snapshot", "recovery", "mtbf"),
    [(10.0, 1.0, 3.0, 100.0), (50.0, 5.0, 20.0, 100.0), (1.0, 0.5, 0.0, 4.0)],
)
def test_the_ratio_is_that_of_a_simulated_job(
    period: float, snapshot: float, recovery: float, mtbf: float
) -> None:
    found = simulated(period, snapshot, recovery, mtbf, 40_000)
    assert ettr(period, snapshot, recovery, mtbf) == pytest.approx(found, rel=0.01)


@pytest.mark.parametrize(
    ("snapshot", "mtbf"), [(0.02, 86_400.0), (1.0, 3_600.0), (60.0, 600.0), (500.0, 400.0)]
)
def test_the_best_period_is_better_than_its_neighbours(snapshot: float, mtbf: float) -> None:
    period = best(snapshot, mtbf)
    for recovery in (0.0, 30.0):
        top = ettr(period, snapshot, recovery, mtbf)
        for factor in (0.5, 0.9, 0.99, 1.01, 1.1, 2.0):
            assert ettr(factor * period, snapshot, recovery, mtbf) < top, factor


def test_young_and_daly_come_close_where_snapshots_are_short() -> None:
    exact = best(1.0, 86_400.0)
    assert young(1.0, 86_400.0) == pytest.approx(exact, rel=0.002)
    assert daly(1.0, 86_400.0) == pytest.approx(exact, rel=1e-6)
    assert young(60.0, 600.0) / best(60.0, 600.0) == pytest.approx(
        1.167, abs=0.001
    )  # but not where they are long
    assert daly(500.0, 200.0) == 200.0


def test_a_job_that_never_gets_on_keeps_nothing() -> None:
    assert ettr(1e6, 1.0, 1.0, 10.0) == 0.0
    assert ettr(1.0, 1.0, 1e6, 10.0) == 0.0


@pytest.mark.parametrize(
    "call", [lambda: best(0.0, 1.0), lambda: ettr(0.0, 1.0, 1.0, 1.0), lambda: young(1.0, -1.0)]
)
def test_times_that_are_none_are_refused(call: object) -> None:
    assert callable(call)
    with pytest.raises(ValueError, match="must be positive"):
        call()
