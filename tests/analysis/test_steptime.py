"""A step's time is the planted period for any phase, number of steps per block, hosts and pace."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from ddpbench.analysis import load
from ddpbench.analysis.read.steptime import BlockTimes, time_blocks
from ddpbench.analysis.rounds import quick_timing
from ddpbench.records import Address, RunDir
from ddpbench.spec import Budget, Case
from tests.synthetic import MS, ORIGIN_NS, RUN_ID, RankLaunch, case_of, write_launch, write_plan

PERIOD_NS = 267_000_000


def blocks_of(edges: Iterator[float], steps: int, blocks: int, samples: int = 8) -> dict[int, BlockTimes]:
    """Return a rank's blocks from the ends of its steps; between blocks one end is left out, as after a barrier."""
    found: dict[int, BlockTimes] = {}
    for index in range(blocks):
        ends = [round(edge) for edge in itertools.islice(edges, steps + 1)]
        times = tuple(after - before for before, after in itertools.pairwise(ends))
        found[index] = BlockTimes(ends[-1] - ends[0], steps, steps * samples, times)
    return found


def in_step(phase_ns: float, jitter: Callable[[], float] = lambda: 0.0) -> Iterator[float]:
    """Yield the ends of a rank's steps: `PERIOD_NS` apart, at its phase, each off by a jitter that does not add up."""
    return (number * PERIOD_NS + phase_ns + jitter() for number in itertools.count())


@pytest.mark.parametrize("hosts", ["one", "many"])
@pytest.mark.parametrize("steps", [2, 3, 4, 10, 40])
@pytest.mark.parametrize("strategy", ["master", "pipeline"])
def test_a_constant_phase_is_not_in_the_step_time(
    tmp_path: Path, strategy: str, steps: int, hosts: str
) -> None:
    run = RunDir(tmp_path / "run")
    case = case_of(strategy, 4)
    write_plan(run, [case], Budget(rounds_min=1, rounds_max=1))
    phases_ns = (
        0,
        1,
        PERIOD_NS // 3,
        PERIOD_NS - 1,
    )  # up to a whole period, which once made 4 steps 25 % too long
    ranks = [
        RankLaunch(
            blocks=[[PERIOD_NS] * steps] * 3,
            start_ns=ORIGIN_NS + phase_ns + (rank * 10**15 if hosts == "many" else 0),
            host=f"node-{rank}" if hosts == "many" else "node",
        )
        for rank, phase_ns in enumerate(phases_ns)
    ]
    write_launch(run, case, 0, ranks)
    (row,) = load(run).to_dict("records")
    assert row["step_time_s"] == pytest.approx(PERIOD_NS / 1e9, rel=1e-3)
    assert row["samples_per_s"] == pytest.approx(32 / (PERIOD_NS / 1e9), rel=1e-3)
    assert row["steps"] == 3 * steps
    quick = quick_timing(
        run.launch(case.case_id, "measure", 0), Address(case, case.case_id, "measure", 0, RUN_ID)
    )
    assert quick is not None
    assert quick.step_s == row["step_time_s"]  # the stopping rule uses the same number


@pytest.mark.parametrize("steps", [2, 4, 10, 40])
def test_jitter_leaves_no_bias(steps: int) -> None:
    # Every end of a step is off by its own normal error of 3 % of the period: mean over 400 launches of 40 steps.
    noise = random.Random(12)
    found = []
    for number in range(400):
        ranks = [
            blocks_of(
                in_step(rank * 50e6, lambda: noise.gauss(0, 0.03 * PERIOD_NS)), steps, max(2, 40 // steps)
            )
            for rank in range(4)
        ]
        timing = time_blocks(number, ranks)
        assert timing is not None
        found.append(timing.step_s)
    assert sum(found) / len(found) == pytest.approx(PERIOD_NS / 1e9, rel=1e-3)


def test_a_slow_step_of_all_ranks_lengthens_the_mean_by_its_part() -> None:
    # Ranks in step: the third of ten steps takes twice as long on each. The mean is 1.1 periods, by hand.
    times = tuple(PERIOD_NS * (2 if number == 2 else 1) for number in range(10))
    timing = time_blocks(0, [{0: BlockTimes(sum(times), 10, 80, times)}] * 3)
    assert timing is not None
    assert timing.step_s == pytest.approx(1.1 * PERIOD_NS / 1e9)
    assert (timing.steps, timing.samples) == (10, 240)


def paced(step_ns: float, noise: random.Random, spread: float) -> Iterator[float]:
    """Yield the ends of the steps of a rank that waits for nobody: independent times around a mean."""
    at = 0.0
    while True:
        yield at
        at += step_ns * noise.lognormvariate(-spread * spread / 2, spread)


@pytest.mark.parametrize(("steps", "spread"), [(4, 0.0), (10, 0.0), (4, 0.1), (10, 0.1), (40, 0.2)])
def test_workers_of_different_pace_add_their_rates(steps: int, spread: float) -> None:
    # Rank 0 serves and takes no samples; workers make a step in 100, 130 and 310 ms. Rates add up: a step of
    # the job's 24 samples takes 3 / (1/100 + 1/130 + 1/310) ms, by hand.
    noise = random.Random(5)
    paces = (100e6, 130e6, 310e6)
    wanted_s = 3 / sum(1 / pace for pace in paces) / 1e9
    found = []
    for number in range(1 if spread == 0 else 600):
        server = blocks_of(paced(125e6, noise, spread), steps, 10, samples=0)
        workers = [blocks_of(paced(pace, noise, spread), steps, 10) for pace in paces]
        timing = time_blocks(number, [server, *workers])
        assert timing is not None
        found.append(timing.step_s)
    assert sum(found) / len(found) == pytest.approx(wanted_s, rel=1e-3)


def test_steps_that_a_slow_rank_began_when_the_fast_one_was_done_do_not_count() -> None:
    # The fast rank's ten steps take 1 s. The slow one takes 0.3 s per step meanwhile, and 0.2 s once it is
    # alone: four steps (1.2 s) had begun by then. Rates: 10 + 1/0.3 steps per second; a step of the job is
    # two ranks' steps.
    fast = BlockTimes(1_000 * MS, 10, 80, (100 * MS,) * 10)
    slow_ns = (300 * MS,) * 4 + (200 * MS,) * 6
    slow = BlockTimes(sum(slow_ns), 10, 80, slow_ns)
    timing = time_blocks(0, [{0: fast}, {0: slow}])
    assert timing is not None
    assert timing.step_s == pytest.approx(2 / (10 + 1 / 0.3))


def test_older_records_without_single_steps_count_whole_blocks() -> None:
    fast, slow = BlockTimes(1_000 * MS, 10, 80), BlockTimes(3_000 * MS, 10, 80)
    timing = time_blocks(0, [{0: fast}, {0: slow}])
    assert timing is not None
    assert timing.step_s == pytest.approx(2 / (10 + 10 / 3))


@pytest.mark.parametrize(
    "ranks",
    [
        [],
        [{}],
        [{0: BlockTimes(0, 0, 0)}],
        [{0: BlockTimes(5, 1, 0, (5,))}],  # nobody takes samples
        [{0: BlockTimes(5, 1, 8, (5,))}, {1: BlockTimes(5, 1, 8, (5,))}],  # no block that both have
    ],
)
def test_no_number_comes_of_nothing(ranks: Sequence[dict[int, BlockTimes]]) -> None:
    assert time_blocks(0, ranks) is None


def test_single_steps_are_pooled_over_ranks_that_take_samples(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "run")
    case: Case = case_of("async_server", 3, global_batch=16)
    write_plan(run, [case], Budget(rounds_min=1, rounds_max=1))
    server = RankLaunch(blocks=[[1 * MS] * 10], samples_per_step=0)
    first = RankLaunch(blocks=[[n * MS for n in range(1, 11)]])
    second = RankLaunch(blocks=[[n * MS for n in range(11, 21)]])
    write_launch(run, case, 0, [server, first, second])
    (row,) = load(run).to_dict("records")
    assert row["step_time_median_s"] == pytest.approx(0.0105)  # of 1 to 20 ms
    assert row["step_time_p95_s"] == pytest.approx(0.01905)  # linear between the 19th and 20th
