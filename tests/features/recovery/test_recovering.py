"""The planned step of a failure, the folder that gangs share, and the passing of times to later ranks."""

from __future__ import annotations

import logging
import random
from pathlib import Path

import numpy
import pytest
import torch

from ddpbench.features.recovery.rank.recovering import FailurePlan, Marks
from ddpbench.features.recovery.rank.snapshots import Snapshots
from ddpbench.spec import Case
from ddpbench.spec.recoveries import KEPT_SNAPSHOTS, WINDOW_STEPS, window_of
from ddpbench.worker.agent import _MOMENTS, Moments
from ddpbench.worker.elastic import gpus_of
from ddpbench.worker.training.randomness import random_bytes, seed_all, set_random_bytes
from tests.synthetic import case_of


def case(recovery: str = "SIGKILL", every: int = 50) -> Case:
    return case_of("ddp", 2, recovery=recovery, snapshot_every=every)


@pytest.mark.parametrize("step_s", [1e-4, 0.01, 0.3, 20.0])
@pytest.mark.parametrize("every", [1, 7, 50, 1000])
def test_it_fails_after_some_snapshots_and_a_pace_and_trains_on_long_enough(
    step_s: float, every: int
) -> None:
    seen = set()
    for number in range(30):
        plan = FailurePlan.of(case(every=every), step_s, number)
        assert plan.fails > (KEPT_SNAPSHOTS + 2) * every
        assert plan.fails >= WINDOW_STEPS[0]
        assert plan.ends - plan.fails >= 2 * window_of(step_s)
        assert plan.joins is None
        seen.add(plan.fails % every)
    assert len(seen) > min(every, 15) / 2  # anywhere between two snapshots


def test_launches_of_one_round_fail_at_one_step_and_those_of_others_elsewhere() -> None:
    kinds = ("SIGKILL", "SIGSTOP", "exception", "agent")
    assert len({FailurePlan.of(case(kind), 0.01, 3).fails for kind in kinds}) == 1
    assert len({FailurePlan.of(case(), 0.01, number).fails for number in range(10)}) > 5


def test_what_nothing_befalls_trains_longer() -> None:
    whole, killed = (FailurePlan.of(case(kind), 0.01, 3) for kind in ("uninterrupted", "SIGKILL"))
    assert whole.ends >= 1.2 * killed.ends  # the others' window may be a little longer


def test_a_snapshot_that_is_torn_is_one() -> None:
    assert FailurePlan.of(case("snapshot"), 0.01, 2).fails % 50 == 0


def test_a_node_comes_back_between_the_failure_and_the_end() -> None:
    plan = FailurePlan.of(case("leave"), 0.01, 2)
    assert plan.joins is not None
    assert plan.fails + WINDOW_STEPS[0] <= plan.joins <= plan.ends - WINDOW_STEPS[0]


def test_marks_are_made_once_and_gangs_counted(tmp_path: Path) -> None:
    marks = Marks(tmp_path / "marks")
    assert not marks.planned
    plan = FailurePlan(fails=5, joins=None, ends=9)
    marks.write(plan)
    assert marks.planned
    assert marks.read() == plan
    assert marks.first("failed")
    assert not marks.first("failed")
    assert [marks.next_gang(), marks.next_gang()] == [0, 1]


@pytest.mark.parametrize(
    ("number", "ranks", "visible", "expected"),
    [
        (0, 1, None, "0"),
        (1, 1, None, "1"),
        (1, 2, None, "2,3"),
        (1, 2, "4,5,6,7", "6,7"),
        (1, 1, "GPU-a,GPU-b", "GPU-b"),
        (3, 1, "0,1", ""),
        (0, 1, "-1", "-1"),
    ],
)
def test_agents_have_gpus_of_their_own_as_nodes_have(
    number: int, ranks: int, visible: str | None, expected: str
) -> None:
    assert gpus_of(number, ranks, visible) == expected


def test_torchruns_agent_says_what_its_moments_are_known_by(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its log is read: other words in a newer torch would leave the parts of a recovery unknown."""
    import inspect

    from torch.distributed.elastic.agent.server import api

    source = inspect.getsource(api)
    for words, name in _MOMENTS.items():
        assert words in source, words
        monkeypatch.delenv(f"DDPBENCH_AGENT_{name}_NS", raising=False)
    handler = Moments()
    record = logging.LogRecord("x", logging.INFO, "", 0, "[%s] Stopping worker group", ("r",), None)
    handler.emit(record)
    import os

    assert "DDPBENCH_AGENT_STOPPED_NS" not in os.environ
    record = logging.LogRecord("x", logging.INFO, "", 0, "[%s] Rendezvous'ing worker group", ("r",), None)
    handler.emit(record)
    assert "DDPBENCH_AGENT_STOPPED_NS" not in os.environ  # at the start nothing has stopped
    noticed = "[%s] Worker group %s. %s/%s attempts left; will restart worker group"
    handler.emit(logging.LogRecord("x", logging.INFO, "", 0, noticed, ("r", "FAILED", 1, 2), None))
    handler.emit(record)
    assert os.environ["DDPBENCH_AGENT_STOPPED_NS"].isdecimal()
    for name in ("NOTICED", "STOPPED"):
        monkeypatch.delenv(f"DDPBENCH_AGENT_{name}_NS")


def test_a_snapshot_holds_the_generators_of_torch_python_and_numpy(tmp_path: Path) -> None:
    """Each is saved as it is, also halfway through a pair of Gaussians, and in one size, because ranks gather them."""

    def draw() -> list[float]:
        numbers = [
            random.random(),
            random.gauss(0, 1),
            float(numpy.random.rand()),
            float(numpy.random.randn()),
        ]
        return [*numbers, float(torch.rand(()))]

    seed_all(3)
    sizes = set()
    snapshots = Snapshots(tmp_path)
    for made in range(4):
        states = random_bytes()
        sizes.add(states.numel())
        snapshots.write(made, {"generators": [states]}, lambda _: None)
        expected = [draw(), draw()]
        seed_all(9)
        set_random_bytes(snapshots.read(made)["generators"][0])
        assert [draw(), draw()] == expected
        (random.gauss if made % 2 else lambda *_: numpy.random.randn())(0, 1)  # half of a pair is left
    assert len(sizes) == 1


def test_a_generator_of_numpys_of_another_kind_is_left_alone() -> None:
    states = random_bytes()
    kept = numpy.random.get_bit_generator()
    try:
        numpy.random.set_bit_generator(numpy.random.PCG64(1))
        assert random_bytes().numel() == states.numel()
        other = random_bytes()
        first = numpy.random.rand()
        set_random_bytes(other)
        assert numpy.random.rand() != first
    finally:
        numpy.random.set_bit_generator(kept)
