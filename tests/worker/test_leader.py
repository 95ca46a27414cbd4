"""The leader's watch over other slots, with a clock set by hand."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ddpbench.errors import LaunchError
from ddpbench.records import LaunchOutcome, RunDir
from ddpbench.records.plan import StoredPlan
from ddpbench.runtime.estimate import SERVER_START_S, Tried
from ddpbench.runtime.order import run_order
from ddpbench.spec import Budget, Case, PlannedCase
from ddpbench.worker.slot import hearing, leader, watch
from ddpbench.worker.slot.hearing import LOST_BEFORE_S, LOST_S
from ddpbench.worker.slot.roster import Seat

JOB = 3
SEAT = Seat(rank=1, node=1, local_rank=0, host="b", cores=(0,), physical=1, gpus=0, gpu_cores=())


class FakeMeeting:
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
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeMeeting:
    meeting = FakeMeeting()
    for module in (hearing, watch):
        monkeypatch.setattr(module.time, "monotonic", lambda: meeting.now)
    return meeting


def watch_of(fake: FakeMeeting, *, hang_timeout_s: float = 1e9) -> Any:
    slot: Any = SimpleNamespace(meeting=fake)
    found = watch.Watch(slot, JOB, [SEAT], hang_timeout_s=hang_timeout_s)
    found.look()
    return found


def look_for(fake: FakeMeeting, watch: Any, seconds: float) -> None:
    """Look every second."""
    for _ in range(round(seconds)):
        fake.now += 1.0
        watch.look()


def test_a_slot_whose_rank_is_under_way_is_soon_missed(fake: FakeMeeting) -> None:
    fake.state = {"tick": 2, "job": JOB, "steps": 0, "phase": "starting"}
    watch = watch_of(fake)
    look_for(fake, watch, LOST_S)
    with pytest.raises(LaunchError, match="has not been heard from for 20 s"):
        look_for(fake, watch, 1.0)


def test_a_slot_may_take_its_time_to_import_as_long_as_it_shows_life(fake: FakeMeeting) -> None:
    watch = watch_of(fake)
    for tick in range(2, 12):
        fake.state = {"tick": tick, "job": JOB - 1}
        look_for(fake, watch, LOST_BEFORE_S)
    fake.state = {"tick": 12, "job": JOB, "steps": 0, "phase": "starting"}
    watch.look()
    assert watch.states == [fake.state]


def test_a_slot_that_is_gone_before_its_rank_is_there_is_soon_missed(fake: FakeMeeting) -> None:
    watch = watch_of(fake)
    look_for(fake, watch, LOST_BEFORE_S)
    with pytest.raises(
        LaunchError, match=r"slot 1 \(node 1, b, local rank 0\) has not been heard from for 40 s"
    ):
        look_for(fake, watch, 1.0)


def test_a_job_that_was_stopped_as_a_whole_is_not_lost(fake: FakeMeeting) -> None:
    """The leader continues first, and finds the others as silent as it was itself."""
    watch = watch_of(fake)
    look_for(fake, watch, LOST_BEFORE_S - 1)
    fake.now += 3600
    watch.look()
    look_for(fake, watch, LOST_BEFORE_S)


def test_a_slot_that_is_gone_while_servers_start_is_soon_missed(
    fake: FakeMeeting, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def passes(seconds: float) -> None:
        fake.now += seconds

    monkeypatch.setattr(leader.time, "sleep", passes)
    slot = SimpleNamespace(
        meeting=fake,
        seats=[SEAT],
        lives=lambda: None,
        check_stop=lambda: None,
        beat=lambda: None,
        run=tmp_path,
    )
    leads = object.__new__(leader.Leader)
    leads._slot, leads._meeting = slot, fake  # type: ignore[assignment]
    with pytest.raises(LaunchError, match="has not been heard from for 40 s"):
        leads._await_ready(JOB)
    assert LOST_BEFORE_S < fake.now < LOST_BEFORE_S + 1


def test_a_stopped_fork_server_is_named_and_not_the_rank_whose_end_it_does_not_tell(
    fake: FakeMeeting,
) -> None:
    """The rank may have ended long ago; a later report of the server's end then does not replace the cause."""
    fake.state = {"tick": 2, "job": JOB, "steps": 9, "phase": "finishing", "server_stopped": True}
    watch = watch_of(fake, hang_timeout_s=1.0)
    fake.now = 2.0
    watch.look()
    assert fake.put_ == [("order", {"end": JOB, "stacks": False})]
    cause = "the fork server of slot 1 (node 1, b, local rank 0) was stopped (by SIGSTOP or a debugger) and was ended"
    assert watch.seen.server_gone == cause
    assert not watch.seen.hang
    fake.state = fake.state | {"tick": 3, "gone": "the fork server ended with exit code -9", "cpu_s": 0.0}
    watch.look()
    assert watch.seen.server_gone == cause
    assert watch.over


class Slots:
    """A leader without any slots, whose clock only launches move: each takes the time that it is given."""

    def __init__(
        self, patch: pytest.MonkeyPatch, folder: Path, *, total_s: float = 1e6, rounds: int = 2
    ) -> None:
        self.now, self.took_s, self.started_s = 100.0, 10.0, 0.0
        self.ordered: list[bool] = []
        self.launched: list[tuple[str, int, float]] = []
        self.said: list[str] = []
        cases = [PlannedCase(case=Case(workload="mlp", strategy=name)) for name in ("single", "ddp")]
        budget = Budget(rounds_min=rounds, rounds_max=rounds, seed=1, measured_s=1.0)
        budget = budget.model_copy(update={"total": total_s})  # less than a request may have
        run = RunDir(folder)
        run.create()
        plan = StoredPlan(
            experiment="x",
            question="",
            budget=budget,
            cases=tuple(cases),
            ids=tuple(entry.case.case_id for entry in cases),
            order=tuple(run_order(cases, budget)),
        )
        patch.setattr(leader, "read_plan", lambda _: plan)
        patch.setattr(leader, "say", self.said.append)
        patch.setattr(leader.time, "monotonic", lambda: self.now)
        slot: Any = SimpleNamespace(
            meeting=None,
            run=run,
            begin_round=lambda _job, _envs, *, fresh: self.ordered.append(fresh),
        )
        self.leader: Any = leader.Leader(slot, retry_failed=False)
        self.leader._order = lambda job: self.ordered.append(job["fresh"]) or 0
        self.leader._await_ready = lambda _job: self.started_s
        self.leader._launch = self._launch

    def _launch(self, entry: PlannedCase, purpose: Any, number: int, *, server_s: float) -> None:
        self.launched.append((purpose, number, server_s))
        took_s = 0.5 if purpose == "proof" else self.took_s
        self.now += took_s
        case_id = entry.case.case_id
        outcome = LaunchOutcome(case_id=case_id, round=number, purpose=purpose, status="ok", wall_s=took_s)
        self.leader._done.endings[case_id, purpose, number] = outcome.status
        if purpose == "measure":
            self.leader._expected.note(entry.case, outcome, took_s)


@pytest.mark.parametrize("shared", [False, True])
def test_slots_get_fresh_servers_after_a_measured_round_and_proofs_bear_nothing_of_a_start(
    shared: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """If sweeps share the cores, no number counts, and servers continue to serve."""
    monkeypatch.setenv("DDPBENCH_SHARED_MACHINE", "1" if shared else "0")
    slots = Slots(monkeypatch, tmp_path)
    slots.started_s = 3.0
    assert slots.leader._work("as estimated") == "rounds_max"
    # The messages to others, and what it does itself.
    assert slots.ordered == [False, False, False, False, not shared, not shared]
    assert (
        slots.launched
        == [("proof", 0, 0.0)] * 2 + [("measure", 0, 1.5)] * 2 + [("measure", 1, 0.0 if shared else 1.5)] * 2
    )
    assert slots.leader._expected.server_start_s == (SERVER_START_S if shared else 3.0)


@pytest.mark.parametrize(
    ("total_s", "launches"), [(1.0 + 40.0, 4), (1.0 + 39.0, 2), (1.0 + 15.0, 1), (0.8, 0)]
)
def test_nothing_is_launched_that_would_end_after_the_budget(
    total_s: float, launches: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Two proofs of 0.5 s, then rounds of two launches of 10 s: a round without room is not begun."""
    monkeypatch.setenv("DDPBENCH_SHARED_MACHINE", "1")
    slots = Slots(monkeypatch, tmp_path, total_s=total_s)
    assert slots.leader._work("as estimated") == ("rounds_max" if launches == 4 else "budget")
    assert [purpose for purpose, *_ in slots.launched].count("measure") == launches


def test_what_the_budget_has_room_for_is_told_as_an_ordinary_sweep_tells_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Five rounds of 20 s under 50 s: two fit, which is known after the first."""
    monkeypatch.setenv("DDPBENCH_SHARED_MACHINE", "1")
    slots = Slots(monkeypatch, tmp_path, total_s=50.0, rounds=5)
    assert slots.leader._work("as estimated") == "budget"
    assert [number for purpose, number, _ in slots.launched if purpose == "measure"] == [0, 0, 1, 1]
    (room,) = slots.said
    assert room == (
        "after round 1, 5 rounds take about 1 min 41 s: budget.total, 50 s, has room for 2 of them, and under 5 give "
        "no interval; raise it, lower budget.measured_s, or leave out cases"
    )


def test_a_budget_that_an_own_model_needs_more_than_is_told_once_it_was_tried(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """47 steps of 200 ms take longer than the second that is timed."""
    monkeypatch.setenv("DDPBENCH_SHARED_MACHINE", "1")
    slots = Slots(monkeypatch, tmp_path, total_s=60.0, rounds=5)
    tried = {"mlp": Tried(made_s=0.1, step_s=0.2, local_batch=1)}
    monkeypatch.setattr(leader, "open_run", lambda *_: None)
    monkeypatch.setattr(leader, "settled_plan", lambda _slot, plan: (plan, tried))
    slots.leader._order = lambda _job: 0
    slots.leader.lead()
    assert slots.said[0].startswith("once your model was tried, 5 rounds take about ")
    assert "budget.total, 60 s, has room for " in slots.said[0]


def test_what_is_left_out_is_told_at_the_end(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DDPBENCH_SHARED_MACHINE", "1")
    slots = Slots(monkeypatch, tmp_path, total_s=50.0, rounds=5)
    monkeypatch.setattr(leader, "open_run", lambda *_: None)
    monkeypatch.setattr(leader, "settled_plan", lambda _slot, plan: (plan, {}))
    slots.leader._order = lambda _job: 0
    slots.leader.lead()
    assert slots.said[1] == (
        "budget.total, 50 s, is spent after 2 of 5 rounds: 6 launches not run; to run them, run the same commands again"
    )
