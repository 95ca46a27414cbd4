"""The order of launches: balanced over rounds, from each run's own seed, and the same on resume."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from ddpbench.analysis.read.positions import position_spread
from ddpbench.analysis.statistics.stats import compare
from ddpbench.analysis.statistics.timings import Timing
from ddpbench.cli import run as cli
from ddpbench.launch.layout import Nodes, plan_for
from ddpbench.launch.sweep.preparation import Prepared, SweepRequest, prepare
from ddpbench.records import RunDir
from ddpbench.records.plan import read_plan
from ddpbench.runtime.order import balanced_orders, construct_three

TEXT = """
[base]
workload = "mlp:small"
[axes]
strategy = ["single", "ddp", "master"]
bucket_cap_mb = [1, 2, 5]
world_size = [1, 2]
[budget]
rounds_min = 5
rounds_max = 8
"""
ORDER = list[list[str]]


def orders_of(cases: int, rounds_min: int, rounds: int, seed: int = 1) -> ORDER:
    return balanced_orders(
        [f"case {n}" for n in range(cases)], rounds_min=rounds_min, rounds=rounds, seed=seed
    )


def sums(orders: Sequence[Sequence[str]]) -> list[int]:
    """Return the sum of each case's positions."""
    return [sum(order.index(case) for order in orders) for case in sorted(orders[0])]


@pytest.mark.parametrize("rounds_min", range(1, 9))
@pytest.mark.parametrize("cases", range(1, 25))
def test_positions_add_up_to_the_same_for_every_case(cases: int, rounds_min: int) -> None:
    """After n rounds the mean sum is n(k-1)/2. A sum is whole: for odd n and even k it is off by 1/2 at least."""
    orders = orders_of(cases, rounds_min, rounds_min + 4)
    for n in range(max(rounds_min, 2), rounds_min + 5):
        off = max(abs(2 * own - n * (cases - 1)) for own in sums(orders[:n]))
        if n % 2 == 0 if rounds_min == 1 else (n - rounds_min) % 2 == 0:
            assert off == n * (cases - 1) % 2
        else:  # one order is not balanced by another
            assert off <= cases - 1 + (cases % 2 == 0)
    assert all(sorted(order) == sorted(orders[0]) for order in orders)


@pytest.mark.parametrize("cases", [3, 4, 25, 41, 150, 151])
def test_three_orders_can_be_constructed_for_any_number_of_cases(cases: int) -> None:
    three = construct_three(cases)
    assert all(sorted(order) == list(range(cases)) for order in three)
    assert {2 * sum(own) - 3 * (cases - 1) for own in zip(*three, strict=True)} == (
        {0} if cases % 2 else {-1, 1}
    )


def test_no_case_follows_the_same_one_in_most_rounds() -> None:
    """With 12 cases a case has 11 others to follow: the most frequent one comes twice in five rounds, rarely more."""
    counted: Counter[int] = Counter()
    for seed in range(40):
        follows = Counter(pair for order in orders_of(12, 5, 5, seed) for pair in itertools.pairwise(order))
        counted.update(follows.values())
    assert sum(times >= 3 for times in counted.elements()) < 0.02 * counted.total()
    assert sum(times >= 2 for times in counted.elements()) < 0.25 * counted.total()


def test_the_seed_decides_the_order() -> None:
    assert orders_of(7, 5, 9) == orders_of(7, 5, 9)
    assert len({str(orders_of(7, 5, 9, seed)) for seed in range(50)}) == 50


def drifted(
    orders: ORDER, rng: np.random.Generator, *, drift: float = 0.05, noise: float = 0.005
) -> np.ndarray:
    """Return log step times of equal cases by round, in which the last launch is slower than the first by `drift`."""
    cases = sorted(orders[0])
    places = np.array([[order.index(case) for case in cases] for order in orders]) / (len(cases) - 1)
    return np.log1p(drift * places) + rng.normal(0, noise, places.shape)


def off_and_covered(orders: ORDER, rng: np.random.Generator, repeats: int) -> tuple[np.ndarray, np.ndarray]:
    """Return each case's mean log ratio to the first over repeats, and how often the 95 % interval holds 0."""
    logs, held = [], []
    for _ in range(repeats):
        times = np.exp(drifted(orders, rng))
        timings = [
            [Timing(round=number, time_s=float(time), steps=1, samples=1) for number, time in enumerate(own)]
            for own in times.T
        ]
        found = [one for own in timings[1:] if (one := compare(own, timings[0])) is not None]
        logs.append([one.log for one in found])
        held.append([abs(one.log) <= (one.half_width() or 0) for one in found])
    return np.mean(logs, axis=0), np.mean(held, axis=0)


def shuffled_each_round(cases: int, rounds: int, seed: int) -> ORDER:
    """Return the earlier order: every round shuffled separately, from a seed that was always 0."""
    import random

    found: ORDER = []
    for number in range(rounds):
        order = [f"case {n}" for n in range(cases)]
        random.Random(f"{seed}/{number}").shuffle(order)
        found.append(order)
    return found


@pytest.mark.parametrize("seed", [0, 1, 7])
def test_a_drift_within_rounds_cancels_whatever_the_seed(seed: int) -> None:
    """5 % from the first launch of a round to the last, over five rounds, again and again in the same order."""
    rng = np.random.default_rng(3)
    off, covered = off_and_covered(orders_of(10, 5, 5, seed), rng, 150)
    assert np.abs(off).max() < 0.003
    assert covered.min() >= 0.93
    before, held = off_and_covered(shuffled_each_round(10, 5, seed), rng, 150)
    assert np.abs(before).max() > 0.01
    assert held.min() < 0.9


def test_a_drift_within_rounds_cancels_over_many_seeds() -> None:
    rng = np.random.default_rng(4)
    found = [off_and_covered(orders_of(7, 5, 5, seed), rng, 1) for seed in range(300)]
    assert np.abs(np.mean([off for off, _ in found], axis=0)).max() < 0.003
    assert np.sqrt(np.mean([off**2 for off, _ in found])) < 0.006  # the noise alone: 0.005 * sqrt(2 / 5)
    assert np.mean([covered for _, covered in found]) >= 0.93


def flat(orders: ORDER) -> list[tuple[int, str]]:
    return [(number, case) for number, order in enumerate(orders) for case in order]


def test_how_far_mean_positions_are_apart() -> None:
    order = flat([["a", "b", "c"], ["a", "c", "b"], ["c", "b", "a"]])
    # In two rounds a's mean is 0, b's and c's 1.5 of 2; in three all but c's 1: a 2/3, b 4/3, c 1.
    assert position_spread(order, 2) == pytest.approx(1.5 / 2)
    assert position_spread(order, 3) == pytest.approx((4 / 3 - 2 / 3) / 2)
    assert position_spread(flat([["a"]]), 1) is None
    assert position_spread(flat([["a", "b"], ["a"]]), 2) is None


@pytest.fixture
def experiment(tmp_path: Path) -> Path:
    path = tmp_path / "asked.toml"
    path.write_text(TEXT, encoding="utf-8")
    return path


def kept(prepared: Prepared) -> RunDir:
    """Return a run that was begun and has measured nothing yet."""
    run = prepared.run
    run.create()
    run.experiment.write_text(prepared.experiment.to_toml(), encoding="utf-8")
    run.plan.write_text(prepared.plan.dumps(), encoding="utf-8")
    return run


def test_every_run_draws_a_seed_and_records_it(experiment: Path, tmp_path: Path) -> None:
    found = [prepare(SweepRequest(experiment=experiment, out=tmp_path / f"{n}")) for n in range(3)]
    seeds = {prepared.experiment.budget.seed for prepared in found}
    assert len(seeds) == len({prepared.plan.order for prepared in found}) == 3
    assert None not in seeds
    stored = read_plan(kept(found[0]))
    assert stored.budget.seed == found[0].experiment.budget.seed
    assert f"seed = {stored.budget.seed}\n" in found[0].run.experiment.read_text(encoding="utf-8")


def test_a_seed_that_is_given_is_kept(experiment: Path, tmp_path: Path) -> None:
    request = SweepRequest(experiment=experiment, out=tmp_path / "run", overrides=["budget.seed=7"])
    found = [prepare(request) for _ in range(2)]
    assert found[0].plan.order == found[1].plan.order
    assert found[0].experiment.budget.seed == 7
    assert not found[0].draws_seed


@pytest.mark.parametrize("by", ["directory", "out", "toml"])
def test_a_resumed_run_keeps_its_order_and_its_digest(experiment: Path, tmp_path: Path, by: str) -> None:
    first = prepare(SweepRequest(experiment=experiment, out=tmp_path / "run"))
    run = kept(first)
    request = {
        "directory": SweepRequest(experiment=run.path),
        "out": SweepRequest(experiment=experiment, out=run.path),
        "toml": SweepRequest(experiment=run.experiment),
    }[by]
    again = prepare(request)
    assert again.resumes
    assert not again.draws_seed
    assert again.plan.order == first.plan.order
    assert again.plan.dumps() == first.plan.dumps()
    assert again.experiment.to_toml() == first.experiment.to_toml()


def test_the_order_that_is_stored_is_the_one_resumed(experiment: Path, tmp_path: Path) -> None:
    """An older version's run has another order, by another seed."""
    run = kept(prepare(SweepRequest(experiment=experiment, out=tmp_path / "run")))
    plan = json.loads(run.plan.read_text(encoding="utf-8"))
    plan["launches"].reverse()
    run.plan.write_text(json.dumps(plan), encoding="utf-8")
    assert prepare(SweepRequest(experiment=run.path)).plan.order == read_plan(run).order


def test_a_plan_for_nodes_draws_a_seed_too(experiment: Path, tmp_path: Path) -> None:
    nodes = Nodes(names=("a", "b"))
    found = [plan_for(experiment, nodes, out=tmp_path / f"{n}") for n in range(2)]
    assert found[0].plan.order != found[1].plan.order
    for planned in found:
        stored = read_plan(planned.run)
        assert stored.order == planned.plan.order
        assert f"seed = {stored.budget.seed}\n" in planned.run.experiment.read_text(encoding="utf-8")


def test_a_dry_run_says_that_its_order_is_an_example(
    experiment: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    request = ["sweep", str(experiment), "--dry-run", "-v", "--out", str(tmp_path / "run")]
    assert cli(request) == 0
    assert "order of launches, as an example (seed " in capsys.readouterr().out
    assert cli([*request, "--set", "budget.seed=7"]) == 0
    assert "order of launches: seed 7\n" in capsys.readouterr().out
    assert not (tmp_path / "run").exists()


def test_a_seed_must_be_a_number(experiment: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli(["sweep", str(experiment), "--dry-run", "--set", "budget.seed=-1"]) == 2
    assert "budget.seed: -1 given" in capsys.readouterr().err


def test_old_order_is_as_unbalanced_as_it_is_told() -> None:
    """Rounds shuffled one by one leave mean positions of ten cases apart by tens of per cent of a round."""
    spread = position_spread(flat(shuffled_each_round(10, 5, 0)), 5)
    assert spread is not None
    assert spread > 0.25
    assert position_spread(flat(orders_of(9, 5, 5)), 5) == 0
    assert position_spread(flat(orders_of(10, 5, 5)), 5) == pytest.approx(1 / 5 / 9)
