"""Correlated rounds: how often a verdict is wrong, by simulation, and which intervals allow for them."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from ddpbench.analysis import summarize
from ddpbench.analysis.read.cases import read_cases
from ddpbench.analysis.rounds import so_far
from ddpbench.analysis.statistics.best import Family, half_widths
from ddpbench.analysis.statistics.correlation import (
    IN_TURN_FROM,
    MOST,
    TOLD_FROM,
    Correlation,
    correlation_of,
    correlation_of_levels,
    estimated,
    neighbours,
    widening,
    widening_of,
)
from ddpbench.analysis.statistics.resolution import resolved_in_one_sweep, resolved_in_turn
from ddpbench.analysis.statistics.sequential import anytime_interval
from ddpbench.analysis.statistics.stats import ALPHA, compare
from ddpbench.analysis.statistics.timings import Timing
from ddpbench.records.plan import read_plan
from tests.synthetic import write_run

RUNS = 1000
PROMISED = {0.0: 0.05, 0.2: 0.055, 0.35: 0.065, 0.5: 0.09}
"""Promised maximum of the share of families with a wrong verdict, by the lag-1 correlation of rounds."""
SHAPES = [(2, 5), (2, 8), (2, 20), (7, 5), (7, 8), (15, 5)]
Logs = NDArray[np.float64]


def noise(shape: tuple[int, ...], correlation: float, seed: int = 1) -> Logs:
    """Return normal values with deviation 1, of which the last axis is an AR(1)."""
    drawn = np.random.default_rng(seed).standard_normal(shape)
    for index in range(1, shape[-1]):
        fresh = math.sqrt(1 - correlation**2) * drawn[..., index]
        drawn[..., index] = correlation * drawn[..., index - 1] + fresh
    return drawn


def rounds_of(count: int, *, session: int = 10**6) -> list[tuple[int, str]]:
    """Return `count` rounds, in sessions of `session` rounds each."""
    return [(number, str(number // session)) for number in range(count)]


def factors(logs: Logs) -> Logs:
    rounds = rounds_of(logs.shape[-1])
    return np.array([widening(rounds, round(estimated(run, rounds).reckoned, 3)) for run in logs])


def wrong(logs: Logs, wider: Logs) -> float:
    """Return the share of families of identical cases with a pair that is called different."""
    means = logs.mean(axis=-1)
    apart = np.abs(means[:, :, None] - means[:, None, :])
    return float((apart > wider[:, None, None] * half_widths(logs)).any(axis=(1, 2)).mean())


def sure(promised: float, runs: int = RUNS) -> float:
    """Return the interval of a rate that a simulation of a thousand shows."""
    return promised + 3 * math.sqrt(promised * (1 - promised) / runs)


@pytest.mark.parametrize("correlation", PROMISED)
@pytest.mark.parametrize(("cases", "rounds"), SHAPES)
def test_few_families_of_identical_cases_have_a_wrong_verdict(
    cases: int, rounds: int, correlation: float
) -> None:
    logs = noise((RUNS, cases, rounds), correlation)
    assert wrong(logs, factors(logs)) <= sure(PROMISED[correlation])


@pytest.mark.parametrize(("cases", "rounds"), SHAPES)
def test_t_intervals_as_they_are_would_not_do(cases: int, rounds: int) -> None:
    logs = noise((RUNS, cases, rounds), 0.35)
    assert wrong(logs, np.ones(RUNS)) > 0.1


def test_a_family_of_two_gains_by_the_run_it_is_in() -> None:
    """The run's estimate is more precise than the pair's own, and as correct."""
    logs = noise((RUNS, 15, 5), 0.0)
    whole, own = factors(logs), factors(logs[:, :2])
    assert whole.mean() < 1.25 < own.mean() / 1.5
    for correlation in (0.2, 0.35, 0.5):
        logs = noise((RUNS, 15, 5), correlation)
        assert wrong(logs[:, :2], factors(logs)) <= sure(PROMISED[correlation])


@pytest.mark.parametrize("correlation", [0.2, 0.5])
def test_so_it_does_where_groups_of_cases_have_drifts_of_their_own_and_scatter_unlike(
    correlation: float,
) -> None:
    own = noise((RUNS, 7, 8), correlation) * np.where(np.arange(7) % 2, 2.0, 1.0)[:, None]
    logs = own + noise((RUNS, 2, 8), correlation, seed=2)[:, np.arange(7) // 4]
    assert wrong(logs[:, :4], factors(logs)) <= sure(PROMISED[correlation])


def test_one_case_that_scatters_widely_does_not_decide_alone() -> None:
    quiet = noise((300, 6, 8), 0.0)
    restless = 10 * noise((300, 1, 8), 0.8, seed=2)
    with_it = factors(np.concatenate([quiet, restless], axis=1))
    assert np.median(with_it) < 1.5


def test_estimates_are_right_in_the_mean() -> None:
    for correlation in (0.0, 0.35, 0.6):
        for count, session in ((12, 12), (12, 4)):
            rounds = rounds_of(count, session=session)
            logs = np.concatenate(
                [noise((300, 12, session), correlation, seed) for seed in range(count // session)], axis=-1
            )
            found = np.mean([estimated(run, rounds).estimate for run in logs])
            assert found == pytest.approx(correlation, abs=0.04)


def test_missing_launches_change_little() -> None:
    rounds, logs = rounds_of(20), noise((200, 8, 20), 0.35)
    logs[:, 2, 5] = logs[:, 4, 11] = math.nan
    assert np.mean([estimated(run, rounds).estimate for run in logs]) == pytest.approx(0.35, abs=0.04)


def test_only_rounds_one_after_the_other_in_one_session_are_neighbours() -> None:
    assert neighbours([(0, "a"), (1, "a"), (3, "a"), (4, "b"), (5, "b")]) == [(0, 1), (3, 4)]
    alone = [(number, str(number)) for number in range(8)]
    assert widening(alone, 0.5) == pytest.approx(1)
    assert widening(rounds_of(8, session=4), 0.5) < widening(rounds_of(8), 0.5)


def test_the_widening_is_what_an_ar_1_needs() -> None:
    for count, correlation in ((5, 0.2), (8, 0.5), (30, 0.35)):
        logs = noise((40_000, count), correlation)
        needed = logs.mean(axis=-1).std() / math.sqrt((logs.var(axis=-1, ddof=1) / count).mean())
        assert widening(rounds_of(count), correlation) == pytest.approx(needed, rel=0.02)
        assert widening_of(count, correlation) == pytest.approx(widening(rounds_of(count), correlation))
    assert widening_of(10**6, 0.5) == pytest.approx(math.sqrt(3), rel=1e-3)
    assert widening_of(8, -0.5) == widening_of(1, 0.5) == 1


def test_too_little_shows_no_correlation() -> None:
    def launches(count: int) -> list[Timing]:
        return [Timing(round=number, time_s=1.0, steps=1, samples=1) for number in range(count)]

    assert correlation_of([]) == correlation_of([launches(9)]) == Correlation()
    assert correlation_of([launches(4), launches(4)]) == Correlation()
    assert correlation_of([launches(9), launches(9)]) == Correlation()  # no scatter at all
    drifting = np.cumsum(noise((6, 9), 0.9), axis=-1)
    assert estimated(drifting, rounds_of(9)).reckoned == pytest.approx(MOST)


def timings(logs: Sequence[float], correlation: float) -> list[Timing]:
    return [
        Timing(round=number, time_s=math.exp(log), steps=1, samples=1, correlation=correlation)
        for number, log in enumerate(logs)
    ]


def test_every_comparison_is_wider_by_what_its_launches_carry() -> None:
    logs, factor = 0.01 * noise((3, 8), 0.0), widening_of(8, 0.4)
    for make in (_half_alone, partial(_half_of_pair, gone=False), partial(_half_of_pair, gone=True)):
        plain, wide = (
            make({str(n): timings(row, correlation) for n, row in enumerate(logs)})
            for correlation in (0.0, 0.4)
        )
        assert wide == pytest.approx(factor * plain, rel=1e-6)


def _half_alone(own: dict[str, list[Timing]]) -> float:
    """Return half of the interval of two cases outside any family."""
    found = compare(own["0"], own["1"])
    assert found is not None
    half = found.half_width()
    assert half is not None
    return half


def _half_of_pair(own: dict[str, list[Timing]], *, gone: bool) -> float:
    """Return half of the interval of a pair in its family; `gone`: too few rounds have all cases."""
    if gone:
        own = {**own, "2": [replace(one, session="another") for one in own["2"]]}
    found = Family(own).pair("0", "1")
    assert found is not None
    assert found.ratio.high is not None
    return math.log(found.ratio.high / found.ratio.value)


def slowed(run: Path, *, times: Sequence[float], cases: str = "ddp*") -> None:
    """Stretch all timed blocks of ranks of DDP, or of `cases`, by their round's factor."""
    for path in run.glob(f"cases/{cases}/launch-*/rank-*.jsonl"):
        number = int(path.parent.name.removeprefix("launch-"))
        records = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        for one in records:
            if one["kind"] == "block":
                length = one["end_ns"] - one["start_ns"]
                one["end_ns"] = one["start_ns"] + int(times[number] * length)
                one["step_ns"] = [int(times[number] * step) for step in one["step_ns"]]
        path.write_text("".join(f"{json.dumps(one)}\n" for one in records), encoding="utf-8")


def test_a_run_whose_rounds_drift_says_so_and_has_wider_intervals(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", 6, rounds=10)
    slowed(run.path, times=[1.0, 1.0, 1.0, 1.0, 1.1, 1.1, 1.1, 1.2, 1.2, 1.2])
    cases = read_cases(run, read_plan(run))
    (reckoned,) = {one.correlation for case in cases for one in case.timings}
    assert reckoned > 0.4
    message = [
        one
        for one in summarize(run).conclusions.validity
        if one.startswith("Rounds have a lag-1 correlation")
    ]
    assert len(message) == 1
    assert f"{reckoned:.2f}" in message[0]
    assert f"{widening_of(10, reckoned):.2f} times as wide" in message[0]
    ddp = next(case for case in cases if case.case.strategy == "ddp")
    base = next(case for case in cases if case.case_id == ddp.baseline_id)
    found = compare(ddp.timings, base.timings)
    assert found is not None
    assert so_far(run).widths[ddp.case_id] == pytest.approx(found.half_width())


@pytest.mark.parametrize(
    ("times", "says"),
    [
        ([1.0, 1.0, 1.0, 1.0, 1.1, 1.1, 1.1, 1.2, 1.2, 1.2], True),
        ([1.0, 1.1, 1.0, 1.2, 1.0, 1.1, 1.2, 1.0, 1.1, 1.0], False),
    ],
    ids=["alike", "alternating"],
)
def test_a_run_all_of_whose_cases_drift_together_says_that_step_times_are_not_independent(
    tmp_path: Path, times: list[float], says: bool
) -> None:
    """Differences between cases do not show it: a round slows all of them, and comparisons are as certain as ever."""
    run = write_run(tmp_path / "run", 6, rounds=10)
    slowed(run.path, times=times, cases="*")
    levels = correlation_of_levels([case.timings for case in read_cases(run, read_plan(run))])
    found = levels.estimate
    message = [
        one for one in summarize(run).conclusions.validity if one.startswith("Step times of one round")
    ]
    assert (levels.shown >= TOLD_FROM) == says
    words = (
        f"Step times of one round and the next have a lag-1 correlation of {found:.2f}. Intervals of comparisons "
        "within rounds are not concerned. Those of step times, rates and parts take launches to be independent: "
        "they hold the median less often than 95 % of the time, in simulations 85 % at 0.35 and 78 % at 0.5."
    )
    assert message == ([words] if says else [])


@pytest.mark.parametrize("rounds", [5, 8, 10, 20])
@pytest.mark.parametrize("cases", [1, 5])
def test_independent_rounds_are_seldom_said_to_be_correlated(rounds: int, cases: int) -> None:
    """Cases of a run share the effect of a round: together they show no more of it than one does."""

    def said(correlation: float) -> float:
        drawn = noise((RUNS, 1, rounds), correlation) + 0.1 * noise((RUNS, cases, rounds), 0.0, seed=2)
        found = [estimated(logs, rounds_of(rounds), ratios=True) for logs in drawn]
        return sum(one.shown >= TOLD_FROM for one in found) / RUNS

    assert said(0.0) <= 0.08
    if rounds == 20:
        assert said(0.5) > 0.4
        assert said(0.8) > 0.8


def test_a_comparison_in_turn_is_as_sure_with_the_same_factor() -> None:
    """Checked several times; the correlation is estimated from its ratios."""
    looks, cases, runs = (8, 14, 24), 2, 80

    def alarms(correlation: float, *, allowed: bool) -> float:
        count = 0
        for logs in noise((runs, cases, looks[-1]), correlation):
            for n in looks:
                reckoned = estimated(logs[:, :n], rounds_of(n), ratios=True).reckoned if allowed else 0.0
                wider = widening_of(n, reckoned)
                ends = [anytime_interval(list(row[:n]), ALPHA / cases, wider=wider) for row in logs]
                if any(
                    one.low is not None and one.high is not None and not one.low <= 0 <= one.high
                    for one in ends
                ):
                    count += 1
                    break
        return count / runs

    assert alarms(0.5, allowed=False) > 0.1
    assert alarms(0.35, allowed=True) <= sure(PROMISED[0.35], runs)
    assert alarms(0.5, allowed=True) <= sure(PROMISED[0.5], runs)


def test_what_is_promised_to_be_resolved_is_less_where_rounds_are_correlated() -> None:
    fixed, fewer = (resolved_in_one_sweep(0.01, 12, one) for one in (0.0, 0.4))
    assert fixed is not None
    assert fewer is not None
    assert fewer > 1.5 * fixed
    plain, less = (resolved_in_turn(0.01, 40, correlation=one) for one in (0.0, 0.4))
    assert plain is not None
    assert less is not None
    assert less > 1.4 * plain
    early = resolved_in_turn(0.01, IN_TURN_FROM - 1)
    assert resolved_in_turn(0.01, IN_TURN_FROM, correlation=0.4) == early, "shown before any widening"
