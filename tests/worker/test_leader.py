"""The leader's watch over other slots, with times by hand."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from ddpbench.errors import LaunchError
from ddpbench.spec import Budget, Case
from ddpbench.worker.slot import leader, watch
from ddpbench.worker.slot.roster import Seat
from ddpbench.worker.slot.slot import LEADER_LOST_S
from ddpbench.worker.slot.watch import LOST_S

JOB = 3


class Told:
    """The meeting and the clock of a leader that watches one other slot."""

    def __init__(self) -> None:
        self.now = 0.0
        self.state: dict[str, Any] = {"tick": 1, "job": JOB - 1}

        self.put_: list[tuple[str, dict[str, Any]]] = []

    def get(self, *_keys: str) -> list[dict[str, Any]]:
        return [self.state]

    def put(self, key: str, value: dict[str, Any]) -> None:
        self.put_.append((key, value))


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Told:
    found = Told()
    monkeypatch.setattr(watch.time, "monotonic", lambda: found.now)
    return found


def watch_of(told: Told, *, hang_timeout_s: float = 1e9) -> Any:
    slot: Any = SimpleNamespace(meeting=told)
    other = Seat(rank=1, node=1, local_rank=0, host="b", cores=(0,), physical=1, gpus=0, gpu_cores=())
    found = watch.Watch(slot, JOB, [other], hang_timeout_s=hang_timeout_s)
    found.look()
    return found


def test_a_slot_whose_rank_is_under_way_is_soon_missed(told: Told) -> None:
    told.state = {"tick": 2, "job": JOB, "steps": 0, "phase": "starting"}
    watch = watch_of(told)
    told.now = LOST_S
    watch.look()
    told.now += 0.1
    with pytest.raises(LaunchError, match="has not been heard of for 20 s"):
        watch.look()


def test_a_slot_may_take_its_time_to_import_before_its_rank_is_there(told: Told) -> None:
    watch = watch_of(told)
    told.now = LEADER_LOST_S
    watch.look()
    told.state = {"tick": 2, "job": JOB, "steps": 0, "phase": "starting"}
    told.now += 0.1
    watch.look()
    assert watch.states == [told.state]
    told.state = {"tick": 2, "job": JOB - 1}
    told.now += LEADER_LOST_S + 0.1
    with pytest.raises(LaunchError, match="has not been heard of for 180 s"):
        watch.look()


def test_a_stopped_fork_server_is_named_and_not_the_rank_whose_end_it_does_not_tell(told: Told) -> None:
    """The rank may have ended long ago; then a later word of the server's end does not replace the cause."""
    told.state = {"tick": 2, "job": JOB, "steps": 9, "phase": "finishing", "server_stopped": True}
    watch = watch_of(told, hang_timeout_s=1.0)
    told.now = 2.0
    watch.look()
    assert told.put_ == [("order", {"end": JOB, "stacks": False})]
    cause = "the fork server of slot 1 (node 1, b, local rank 0) was stopped (by SIGSTOP or a debugger) and was ended"
    assert watch.seen.server_gone == cause
    assert not watch.seen.hang
    told.state = told.state | {"tick": 3, "gone": "the fork server ended with exit code -9", "cpu_s": 0.0}
    watch.look()
    assert watch.seen.server_gone == cause
    assert watch.over


@pytest.mark.parametrize("shared", [False, True])
def test_slots_get_fresh_servers_after_a_measured_round_and_proofs_bear_nothing_of_a_start(
    shared: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where sweeps share the cores no number counts, and servers serve on."""
    monkeypatch.setenv("DDPBENCH_SHARED_MACHINE", "1" if shared else "0")
    found: Any = object.__new__(leader.Leader)
    ordered: list[bool] = []
    launched: list[tuple[str, int, float]] = []
    found._measured, found._outcomes = False, {}
    found._walls, found._spent = [], lambda expected_s: False
    found._slot = SimpleNamespace(begin_round=lambda _job, _envs, *, fresh: ordered.append(fresh))
    found._order = lambda job: ordered.append(job["fresh"]) or 0
    found._await_ready = lambda _job: 3.0
    found._launch = lambda _entry, purpose, number, *, server_s: launched.append((purpose, number, server_s))
    todo = [SimpleNamespace(case=Case(workload="mlp", strategy=name)) for name in ("single", "ddp")]
    for purpose, number in (("proof", 0), ("measure", 0), ("measure", 1)):
        found._round(todo, purpose, number)
    assert ordered == [
        False,
        False,
        False,
        False,
        not shared,
        not shared,
    ]  # what others are told, and what it does itself
    assert (
        launched
        == [("proof", 0, 0.0)] * 2 + [("measure", 0, 1.5)] * 2 + [("measure", 1, 0.0 if shared else 1.5)] * 2
    )


@pytest.mark.parametrize(("shared", "expected_s"), [("0", 3 * 2.0 + 4.0), ("1", 3 * 2.0)])
def test_one_more_round_starts_servers_only_where_those_that_run_do_not_serve_it(
    shared: str, expected_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DDPBENCH_SHARED_MACHINE", shared)
    found: Any = object.__new__(leader.Leader)
    found._walls, found._server_s = [1.0, 3.0], 4.0
    assert found._expected_s(3) == expected_s


@pytest.mark.parametrize(("total_s", "launches"), [(100.0, 2), (25.0, 1), (15.0, 0)])
def test_nothing_is_launched_that_would_end_after_the_budget(
    total_s: float, launches: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Launches took 10 s so far, and 10 s have passed."""
    now = [110.0]
    found: Any = object.__new__(leader.Leader)
    monkeypatch.setattr(leader.time, "monotonic", lambda: now[0])
    found._measured, found._outcomes, found._walls, found._started = False, {}, [10.0], 100.0
    found._plan = SimpleNamespace(budget=Budget(total=total_s))
    found._slot = SimpleNamespace(begin_round=lambda *_, **__: None)
    found._order = lambda _job: 0
    found._await_ready = lambda _job: 0.0
    launched: list[object] = []

    def launch(entry: object, *_: object, **__: object) -> None:
        launched.append(entry)
        now[0] += 10.0

    found._launch = launch
    todo = [SimpleNamespace(case=Case(workload="mlp", strategy=name)) for name in ("single", "ddp")]
    assert found._round(todo, "measure", 1) is (launches == 2)
    assert len(launched) == launches
