"""What the leading slot settles before anything is launched, with a fork server that answers by hand."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ddpbench.errors import WorkloadError
from ddpbench.launch.layout import Nodes, plan_for
from ddpbench.records import RunDir
from ddpbench.records.plan import read_plan
from ddpbench.spec import Case
from ddpbench.worker.slot.opening import settled_plan
from ddpbench.worker.slot.own_card import plan_digest

KIB = 1024
EXPERIMENT = """
[base]
workload = "{workload}"
strategy = "ddp"
[axes]
world_size = [1, 2]
bucket_cap_mb = ["default", 1, 0.1]
[[exclude]]
world_size = 1
bucket_cap_mb = [1, 0.1]
"""
TRIED = {"parameters": 1, "gradient_bytes": 4, "batch": "x", "made_s": 0.5, "step_s": 0.25, "local_batch": 4}


class Server:
    """Knows a model with ten gradients of 36 KiB, and what trying an own class gave."""

    def __init__(self, facts: dict[str, Any]) -> None:
        self.facts = facts
        self.asked = 0

    def gradients(self, case: Case, folder: Path, timeout_s: float) -> list[int]:
        self.asked += 1
        return [36 * KIB] * 10

    def inspect(self, case: Case, folder: Path, timeout_s: float) -> dict[str, Any]:
        return self.facts


def slot_of(run: RunDir, facts: dict[str, Any] = TRIED) -> tuple[Any, Server]:
    server = Server(facts)
    return SimpleNamespace(run=run, beat=lambda: None, server=lambda _env: server), server


def planned(folder: Path, workload: str = "mlp:small", **given: str) -> RunDir:
    experiment = folder / "x.toml"
    text = EXPERIMENT.format(workload=workload)
    for old, new in given.items():
        text = text.replace(old, new)
    experiment.write_text(text, encoding="utf-8")
    return plan_for(experiment, Nodes(names=("a", "b")), out=folder / "run").run


def test_a_leader_runs_equal_bucket_caps_once_and_writes_which_stand_for_which(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = planned(tmp_path)
    slot, server = slot_of(run)
    before = plan_digest(run.read_json(run.plan))
    plan, tried = settled_plan(slot, read_plan(run))
    assert read_plan(run) == plan
    assert [(one.case.bucket_cap_mb, one.stands_for) for one in plan.cases if one.case.world_size == 2] == [
        ("default", (1.0,)),
        (0.1, ()),
    ]
    assert {case_id for _, case_id in plan.order} == {one.case.case_id for one in plan.runnable}
    assert len(plan.order) == len(plan.runnable) * plan.budget.rounds_max
    assert "bucket caps default and 1 MiB make the same buckets and are run once" in capsys.readouterr().err
    assert (tried, server.asked) == ({}, 1)
    # A node with a copy of the directory still has the plan as it was made.
    assert plan_digest(run.read_json(run.plan)) == before


def test_a_run_that_has_launches_keeps_its_cases(tmp_path: Path) -> None:
    run = planned(tmp_path)
    plan = read_plan(run)
    folder = run.launch(plan.cases[0].case.case_id, "proof").path
    folder.mkdir(parents=True)
    (folder / "outcome.json").write_text("{}", encoding="utf-8")
    slot, server = slot_of(run)
    assert settled_plan(slot, plan) == (plan, {})
    assert server.asked == 0


def test_a_step_that_only_a_rank_finds_skips_what_cannot_make_it(tmp_path: Path) -> None:
    """Its base class is of an installed package, say."""
    (tmp_path / "train.py").write_text("class Mine:\n    pass\n", encoding="utf-8")
    given = {'strategy = "ddp"': "", "[axes]": '[axes]\nstrategy = ["ddp", "post_local_sgd"]'}
    run = planned(tmp_path, f"{tmp_path}/train.py:Mine", **given)
    slot, _ = slot_of(run, {**TRIED, "step": True})
    plan, tried = settled_plan(slot, read_plan(run))
    reasons = {one.case.strategy: one.skip_reason for one in plan.cases}
    assert reasons["ddp"] is reasons["single"] is None
    assert str(reasons["post_local_sgd"]).startswith(
        "post_local_sgd aggregates between a backward and an update of its own"
    )
    assert not any("post_local_sgd" in case_id for _, case_id in plan.order)
    assert [each.step_s for each in tried.values()] == [0.25]
    assert json.loads(run.machine.read_text(encoding="utf-8"))["context"]["own_workloads"]


def test_a_step_under_nothing_that_can_make_it_is_refused(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("class Mine:\n    pass\n", encoding="utf-8")
    run = planned(tmp_path, f"{tmp_path}/train.py:Mine")
    plan = read_plan(run)
    slot, _ = slot_of(run, {**TRIED, "step": True})
    bf16 = [Case.from_json({**one.case.to_json(), "precision": "bf16"}) for one in plan.cases]
    plan = replace(
        plan, cases=tuple(replace(one, case=case) for one, case in zip(plan.cases, bf16, strict=True))
    )
    with pytest.raises(WorkloadError, match="decides on autocast: it cannot run under precision = 'bf16'"):
        settled_plan(slot, plan)
