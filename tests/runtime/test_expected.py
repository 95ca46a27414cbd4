"""The time that a sweep expects to take, with launches and their times by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddpbench.cli.dry_run import table
from ddpbench.launch.plan import Plan
from ddpbench.launch.sweep.preparation import SweepRequest, prepare
from ddpbench.records import LaunchOutcome, RunDir
from ddpbench.runtime.estimate import SERVER_START_S
from ddpbench.runtime.expected import Expected
from ddpbench.runtime.progress import Done
from ddpbench.runtime.room import Room
from tests.launch.test_plan import plan_of

ROUNDS = 4
TOOK_S = 3.0


@pytest.fixture
def plan() -> Plan:
    return plan_of(f"[axes]\nworld_size = [1, 2]\n[budget]\nrounds_min = {ROUNDS}\nseed = 1")


def begun(plan: Plan, *, shared: bool) -> tuple[Done, Expected]:
    """Return a sweep whose cases are proved, and whose first round is done: each launch took as long."""
    done = Done(RunDir(Path("/nowhere")), plan)
    expected = Expected(plan, done, shared=shared)
    for entry in plan.runnable:
        case_id = entry.case.case_id
        for purpose in ("proof", "measure"):
            done.endings[case_id, purpose, 0] = "ok"
        outcome = LaunchOutcome(case_id=case_id, round=0, purpose="measure", status="ok")
        expected.note(entry.case, outcome, TOOK_S)
    return done, expected


@pytest.mark.parametrize(("shared", "starts"), [(False, ROUNDS - 2), (True, 0)])
def test_a_round_to_come_starts_servers_only_where_those_that_run_do_not_serve_it(
    plan: Plan, shared: bool, starts: int
) -> None:
    """In the second round; where sweeps share the machine the first round's servers continue to serve."""
    done, expected = begun(plan, shared=shared)
    launches_s = (ROUNDS - 1) * len(plan.runnable) * TOOK_S
    assert expected.left_s(1) == pytest.approx(launches_s + starts * SERVER_START_S)
    one_more_s = expected.round_s(done.worthwhile)
    assert one_more_s == pytest.approx(len(plan.runnable) * TOOK_S + (not shared) * SERVER_START_S)


def test_what_is_told_to_be_needed_is_more_than_the_budget_that_has_no_room_for_it(plan: Plan) -> None:
    """Three rounds are left, each with a start of servers, and the budget of 100 s is a second too short."""
    done, expected = begun(plan, shared=False)
    expected.server_start_s = 4.0
    warned: list[str] = []
    round_s = len(plan.runnable) * TOOK_S + 4.0
    budget = plan.budget.model_copy(update={"total": 100.0})
    noted: list[str] = []
    room = Room(budget, warned.append, noted.append)
    room.tell("after round 1", 3 * round_s - 1.0, 1, done, expected)
    (warning,) = warned
    assert warning.startswith(f"after round 1, {ROUNDS} rounds take about 1 min 41 s: ")
    assert f"has room for {ROUNDS - 1} of them" in warning
    room.tell("after round 1", 3 * round_s + 1.0, 1, done, expected)
    assert len(warned) == 1
    assert [each.endswith("has room for them") for each in noted] == [True]


def test_an_estimate_starts_servers_once_where_all_rounds_share_them(plan: Plan) -> None:
    for rounds in (1, ROUNDS):
        apart, together = (plan.estimate_s(rounds, shared=shared) for shared in (False, True))
        assert apart - together == pytest.approx((rounds - 1) * SERVER_START_S)
    assert plan.estimate_s(0, {}, [], shared=True) == 0


@pytest.mark.parametrize(("shared", "often"), [("0", "once a round"), ("1", "once")])
def test_a_dry_run_says_how_often_torch_is_started(
    shared: str, often: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DDPBENCH_SHARED_MACHINE", shared)
    experiment = tmp_path / "once.toml"
    experiment.write_text(f"[budget]\nrounds_min = {ROUNDS}\n", encoding="utf-8")
    lines = table(prepare(SweepRequest(experiment=experiment, out=tmp_path / "run")), 100)
    (row,) = (line for line in lines if line.startswith("starting torch"))
    words, *times = (cell.strip() for cell in row.split("  ") if cell)
    assert words == f"starting torch, {often}"
    starts = ROUNDS if shared == "0" else 1
    assert times == [f"{SERVER_START_S} s", f"{starts * SERVER_START_S:g} s"]
