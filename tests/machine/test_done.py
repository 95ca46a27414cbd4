"""What a sweep takes as done: a proof that one case gives to others."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddpbench.launch.plan import Plan
from ddpbench.machine.done import Done, to_prove
from ddpbench.records import RunDir
from tests.launch.test_plan import plan_of

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
