"""Launches that a sweep takes as done: a proof that one case gives to others."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from ddpbench.launch.plan import Plan
from ddpbench.records import RunDir
from ddpbench.runtime.progress import Done, to_prove
from tests.launch.test_plan import plan_of
from tests.synthetic import RUN_ID, Outcome, write_plan, write_proof

TWO_RATES = """
[base]
workload = "replay:resnet50-v100"
[fabric]
nodes = 2
[axes]
"fabric.bandwidth" = ["1 Gbit/s", "10 Gbit/s"]
"""


@pytest.fixture
def plan() -> Plan:
    return plan_of(TWO_RATES)


@pytest.mark.parametrize("tried_before", [False, True])
def test_a_proof_is_given_to_the_case_that_differs_in_its_links_alone(
    plan: Plan, tmp_path: Path, tried_before: bool
) -> None:
    slow, fast = (entry for entry in plan.runnable if entry.case.fabric)
    assert len(to_prove([slow, fast])) == 1
    run = RunDir(tmp_path)
    proved, given = (run.launch(entry.case.case_id, "proof") for entry in (slow, fast))
    proved.path.mkdir(parents=True)
    for file, text in ((proved.request, "asked"), (proved.outcome, "{}"), (proved.records(0), "told\n")):
        file.write_text(text, encoding="utf-8")
    if tried_before:
        given.path.mkdir(parents=True)
        given.request.write_text("an earlier try", encoding="utf-8")
    done = Done(run, plan)
    assert not done.take_proof(fast)
    done.endings[slow.case.case_id, "proof", 0] = "ok"
    assert done.take_proof(fast)
    assert done.finished(fast, "proof", 0)
    assert {path.name: path.read_text(encoding="utf-8") for path in given.path.iterdir()} == {
        path.name: path.read_text(encoding="utf-8") for path in proved.path.iterdir()
    }
    assert not [path for path in given.path.parent.iterdir() if path.name == ".proof"]
    single = next(entry for entry in plan.runnable if not entry.case.fabric)
    assert not done.take_proof(single)


@pytest.mark.parametrize(
    ("run_id", "changed", "status", "borrowed"),
    [
        (RUN_ID, "experiment_digest", "ok", True),
        (RUN_ID, "workload_digest", "ok", False),
        (RUN_ID, "torch", "ok", False),
        ("of-another-session", "", "ok", False),
        (RUN_ID, "", "diverged", False),
    ],
)
def test_a_proof_is_borrowed_from_a_run_of_the_same_session_code_and_torch_alone(
    run_id: str, changed: str, status: str, borrowed: bool, tmp_path: Path
) -> None:
    plan = replace(plan_of("[base]\nworkload = 'mlp:small'\nworld_size = 2"), run_id=run_id)
    entry = next(each for each in plan.runnable if each.case.world_size == 2)
    run, lender = RunDir(tmp_path / "run"), RunDir(tmp_path / "lender")
    for each in (run, lender):
        write_plan(each, [entry])
    write_proof(lender, entry.case, Outcome(status=status))
    machine = json.loads(run.machine.read_text())
    machine["identity"][changed] = "another"
    run.machine.write_text(json.dumps(machine))
    done = Done(run, plan)
    lenders = [RunDir(tmp_path / "nowhere"), lender]
    if changed:
        assert done.borrow_proof(entry, lenders) is borrowed
    else:
        lender.machine.write_text(run.machine.read_text())  # equal: the other fault decides
        assert done.borrow_proof(entry, lenders) is borrowed
    assert done.finished(entry, "proof", 0) is borrowed
    assert run.launch(entry.case.case_id, "proof").outcome.exists() is borrowed
