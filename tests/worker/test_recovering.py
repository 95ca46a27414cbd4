"""Where a training is planned to fail, what its gangs share, and how moments reach the ranks that come after."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from ddpbench.spec import Case
from ddpbench.spec.recoveries import KEPT_SNAPSHOTS, WINDOW_STEPS, window_of
from ddpbench.worker.agent import _MOMENTS, Moments
from ddpbench.worker.elastic import gpus_of
from ddpbench.worker.rank.recovering import Marks, Plan
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
        plan = Plan.of(case(every=every), step_s, number)
        assert plan.fails > (KEPT_SNAPSHOTS + 2) * every
        assert plan.fails >= WINDOW_STEPS[0]
        assert plan.ends - plan.fails >= 2 * window_of(step_s)
        assert plan.joins is None
        seen.add(plan.fails % every)
    assert len(seen) > min(every, 15) / 2  # anywhere between two snapshots


def test_launches_of_one_round_fail_at_one_step_and_those_of_others_elsewhere() -> None:
    kinds = ("SIGKILL", "SIGSTOP", "exception", "agent")
    assert len({Plan.of(case(kind), 0.01, 3).fails for kind in kinds}) == 1
    assert len({Plan.of(case(), 0.01, number).fails for number in range(10)}) > 5


def test_what_nothing_befalls_trains_longer() -> None:
    whole, killed = (Plan.of(case(kind), 0.01, 3) for kind in ("uninterrupted", "SIGKILL"))
    assert whole.ends >= 1.2 * killed.ends  # whose window may be a little longer


def test_a_snapshot_that_is_torn_is_one() -> None:
    assert Plan.of(case("snapshot"), 0.01, 2).fails % 50 == 0


def test_a_node_comes_back_between_the_failure_and_the_end() -> None:
    plan = Plan.of(case("leave"), 0.01, 2)
    assert plan.joins is not None
    assert plan.fails + WINDOW_STEPS[0] <= plan.joins <= plan.ends - WINDOW_STEPS[0]


def test_marks_are_made_once_and_gangs_counted(tmp_path: Path) -> None:
    marks = Marks(tmp_path / "marks")
    assert not marks.planned
    plan = Plan(fails=5, joins=None, ends=9)
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
    """Its log is read: a torch that words it otherwise would leave the parts of a recovery unknown."""
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
    assert "DDPBENCH_AGENT_STOPPED_NS" not in os.environ  # it begins: there was nothing to stop
    noticed = "[%s] Worker group %s. %s/%s attempts left; will restart worker group"
    handler.emit(logging.LogRecord("x", logging.INFO, "", 0, noticed, ("r", "FAILED", 1, 2), None))
    handler.emit(record)
    assert os.environ["DDPBENCH_AGENT_STOPPED_NS"].isdecimal()
    for name in ("NOTICED", "STOPPED"):
        monkeypatch.delenv(f"DDPBENCH_AGENT_{name}_NS")
