"""Launches called not steady: rates on recorded and simulated steps, with and without a planted decay.

The recorded steps are the timed ones of a `quick` on two cores: 42 launches of 10 or 20 steps each, microseconds.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from ddpbench.analysis import load
from ddpbench.analysis.read import reading
from ddpbench.analysis.read.cases import judged, read_cases
from ddpbench.analysis.read.launches import CaseRun
from ddpbench.analysis.statistics.steady import OWN_STEPS, launch_change, unsteady
from ddpbench.records import RunDir
from ddpbench.records.plan import read_plan
from ddpbench.spec import Budget, PlannedCase
from ddpbench.trend import TrendChange, change_of
from tests.synthetic import MS, RankLaunch, case_of, write_launch, write_plan

Series = NDArray[np.float64]
Launches = Mapping[str, Sequence[Sequence[Series]]]
"""Launches by case, each with the steps of its ranks."""

DECAYS: dict[str, Callable[[Series], Series]] = {
    # From 1.10 to 1.00 over the timed steps, and exponentials that leave 0.14 and 0.05 of the 10 % at their end.
    "linear": lambda t: 1 + 0.1 * (1 - t),
    "exponential": lambda t: 1 + 0.1 * np.exp(-2 * t),
    "fast exponential": lambda t: 1 + 0.1 * np.exp(-3 * t),
}


def flat(t: Series) -> Series:
    return np.ones_like(t)


@pytest.fixture(scope="module")
def recorded() -> Launches:
    text = (Path(__file__).parent / "recorded" / "quick_steps_us.json").read_text(encoding="ascii")
    return {
        case: [[np.array(rank, float) for rank in launch] for launch in launches]
        for case, launches in json.loads(text).items()
    }


def change_with(ranks: Sequence[Series], decay: Callable[[Series], Series], way: int = 1) -> TrendChange:
    """Return a launch's change, its steps in order or in reverse (-1), multiplied by a decay."""
    bent = [rank[::way] * decay(np.arange(len(rank)) / len(rank)) for rank in ranks]
    change = launch_change([np.round(1000 * each).astype(np.int64) for each in bent])
    assert change is not None
    return change


def verdicts(launches: Launches, decay: Callable[[Series], Series]) -> list[bool]:
    """Return every launch's verdict, with the decay on all."""
    changes = {case: [change_with(ranks, decay) for ranks in each] for case, each in launches.items()}
    return [flag for flags in unsteady(changes).values() for flag in flags]


def test_recorded_launches_are_steady_and_with_a_decay_are_not(recorded: Launches) -> None:
    assert sum(verdicts(recorded, flat)) == 0  # of 42
    for decay in DECAYS.values():
        assert np.mean(verdicts(recorded, decay)) >= 0.8


def test_rates_on_recorded_steps(recorded: Launches) -> None:
    # Random launches, every second on average, have their steps reversed: recorded trends cancel in the mean, while the
    # steps' correlation, their tails and the differences between launches stay.
    rng = np.random.default_rng(20)
    rate = {}
    for name, decay in {"none": flat, **DECAYS}.items():
        both = {
            case: [[change_with(ranks, decay, way) for way in (1, -1)] for ranks in each]
            for case, each in recorded.items()
        }
        found = [
            flag
            for _ in range(400)
            for flags in unsteady(
                {case: [pair[rng.integers(2)] for pair in each] for case, each in both.items()}
            ).values()
            for flag in flags
        ]
        rate[name] = float(np.mean(found))
    print(rate)
    assert rate["none"] <= 0.05
    assert min(rate[name] for name in DECAYS) >= 0.8


def simulated(rng: np.random.Generator, steps: int, spread: float, correlation: float) -> Series:
    """Return correlated steps with heavy tails (AR(1) of Student's t with 4 degrees of freedom), around 1."""
    raw = rng.standard_t(4, steps + 30) / np.sqrt(2)
    for number in range(1, len(raw)):
        raw[number] = correlation * raw[number - 1] + np.sqrt(1 - correlation**2) * raw[number]
    return np.exp(spread * raw[30:]) * 1e5


@pytest.mark.parametrize(
    ("steps", "spread", "correlation"),
    [(20, 0.08, 0.3), (20, 0.05, 0.5), (40, 0.05, 0.3), (80, 0.05, 0.7), (200, 0.1, 0.7)],
)
def test_rates_on_simulated_steps(steps: int, spread: float, correlation: float) -> None:
    rng = np.random.default_rng(7)
    rate = {}
    for name, decay in {"none": flat, **DECAYS}.items():
        found = []
        for _ in range(25):
            run = {
                str(case): [[simulated(rng, steps, spread, correlation)] for _ in range(5)]
                for case in range(7)
            }
            found.append(verdicts(run, decay))
        rate[name] = float(np.mean(found))
    print(rate)
    assert rate["none"] <= 0.05
    assert min(rate[name] for name in DECAYS) >= 0.8


def test_a_case_s_launches_show_together_what_one_does_not() -> None:
    # Only one case of seven has the decay: its five launches of 40 steps show it together, and no other is flagged.
    rng = np.random.default_rng(3)
    mine, others = [], []
    for _ in range(60):
        changes = {}
        for case in range(7):
            series = [simulated(rng, 40, 0.04, 0.3) for _ in range(5)]
            bent = [each * (DECAYS["linear"](np.arange(40) / 40) if case == 0 else 1) for each in series]
            changes[str(case)] = [change for each in bent if (change := change_of(each.tolist())) is not None]
        found = unsteady(changes)
        mine += found["0"]
        others += [flag for case, flags in found.items() if case != "0" for flag in flags]
    assert np.mean(mine) >= 0.8
    assert np.mean(others) <= 0.05


def test_a_long_launch_is_judged_on_its_own() -> None:
    rng = np.random.default_rng(4)
    bent, plain = [], []
    for _ in range(300):
        series = simulated(rng, 200, 0.04, 0.3)
        for found, decay in ((bent, DECAYS["linear"]), (plain, flat)):
            change = change_of((series * decay(np.arange(200) / 200)).tolist())
            assert change is not None
            found += unsteady({"a": [change]})["a"]
    assert np.mean(bent) >= 0.8
    assert np.mean(plain) <= 0.05


def test_a_change_is_the_slope_of_the_logarithms_over_the_whole() -> None:
    # exp(-0.2 t) over 64 steps, t from 0 to 1: medians of eight are on the line exactly but for the middle of
    # a batch.
    change = change_of([float(np.exp(-0.2 * step / 64)) for step in range(64)])
    assert change is not None
    assert change.log == pytest.approx(-0.2, rel=1e-3)
    assert change.standard_error < 1e-4
    assert (change.df, change.steps) == (6, 64)
    assert change.found
    assert not change.excluded
    within = change_of([float(np.exp(-0.02 * step / 64)) for step in range(64)])  # certain, but negligible
    assert within is not None
    assert within.excluded
    assert not within.found
    assert change_of([1.0, 1.0]) is None


def test_the_flag_comes_from_the_timed_steps_not_from_the_warm_up(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "run")
    steady, falling = case_of("single", 1), case_of("ddp", 2)
    write_plan(run, [steady, falling], Budget(rounds_min=1, rounds_max=1))
    even = [100 * MS + (step % 3) * MS for step in range(OWN_STEPS)]
    write_launch(run, steady, 0, [RankLaunch(blocks=[even], steady=False)])  # the warm-up ran out of time
    down = [[round(time * (1.1 - 0.1 * step / OWN_STEPS)) for step, time in enumerate(even)]]
    write_launch(run, falling, 0, [RankLaunch(blocks=down)] * 2)
    rows = {row["case_id"]: row for row in load(run).to_dict("records")}
    assert rows[steady.case_id]["noise_flag"] is None
    assert rows[falling.case_id]["noise_flag"] == "not steady 1/1"
    cases = read_cases(run, read_plan(run))
    found = {case.case_id: case.launches[0] for case in cases}
    assert (found[steady.case_id].steady, found[falling.case_id].steady) == (True, False)
    again = {case.case_id: case.launches[0] for case in judged(cases)}
    assert all(again[case_id] is launch for case_id, launch in found.items())  # judging again changes nothing
    (turned,) = judged(
        [
            replace(case, launches=tuple(replace(one, steady=True, flags=()) for one in case.launches))
            for case in cases
            if case.case_id == falling.case_id
        ]
    )
    assert (turned.launches[0].steady, turned.launches[0].flags) == (False, ("not steady",))


@pytest.mark.usefixtures("two_processes")
def test_two_readers_judge_all_launches_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A change that only all cases together show is found with either reader."""
    run = RunDir(tmp_path / "run")
    cases = [case_of("single", 1, local_batch=4 + number) for number in range(6)]
    write_plan(run, cases, Budget(rounds_min=1, rounds_max=1))
    for number, case in enumerate(cases):
        down = [
            round(100 * MS * (1 - 0.08 * step / 20) * (1 + 0.001 * ((step + number) % 3)))
            for step in range(20)
        ]
        write_launch(run, case, 0, [RankLaunch(blocks=[down])])
    alone = [case.launches[0].steady for case in read_cases(run, read_plan(run))]
    monkeypatch.setattr(reading, "WORTH_SHARING", 2)
    assert [case.launches[0].steady for case in reading.read_cases_of(run, read_plan(run))] == alone
    halves = [
        case.launches[0].steady for half in (cases[:3], cases[3:]) for case in _alone(tmp_path, half, run)
    ]
    assert alone == [False] * 6
    assert halves == [True] * 6


def _alone(tmp_path: Path, cases: Sequence[PlannedCase], run: RunDir) -> list[CaseRun]:
    plan = read_plan(run)
    ids = {case.case_id for case in cases}
    kept = [at for at, case_id in enumerate(plan.ids) if case_id in ids]
    part = replace(plan, cases=tuple(plan.cases[at] for at in kept), ids=tuple(plan.ids[at] for at in kept))
    return read_cases(run, part)
