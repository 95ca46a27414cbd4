"""The leading slot's steps before any launch, with a fork server whose answers are written by hand."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ddpbench.errors import IdentityError, RequestError, WorkloadError
from ddpbench.launch.layout import Nodes, plan_for
from ddpbench.records import RunDir
from ddpbench.records.job_key import job_key
from ddpbench.records.machine import read_machine
from ddpbench.records.plan import read_plan
from ddpbench.spec import Case
from ddpbench.worker.place import SlotPlace
from ddpbench.worker.slot.opening import _cores_counted, _identify, open_run, settled_plan
from ddpbench.worker.slot.own_card import own_card, plan_digest
from ddpbench.worker.slot.roster import check, seat
from tests.worker.test_roster import card

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
    """A fork server that knows a model with ten gradients of 36 KiB, and the result of an own class's trial."""

    def __init__(self, facts: dict[str, Any]) -> None:
        self.facts = facts
        self.asked = 0

    def gradients(self, case: Case, folder: Path, timeout_s: float) -> list[int]:
        self.asked += 1
        return [36 * KIB] * 10

    def inspect(self, case: Case, folder: Path, timeout_s: float, largest: Case) -> dict[str, Any]:
        assert largest.world_size == 2
        return self.facts


@pytest.fixture(autouse=True)
def without_trying(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ddpbench.runtime.trial.gradients_of", Server.gradients)
    monkeypatch.setattr("ddpbench.runtime.trial.inspected", Server.inspect)


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


@pytest.mark.parametrize(
    ("before", "now", "same"),
    [
        ([0, 1, 2, 3], [32, 33, 34, 35], True),
        ({"a": [0, 1], "b": [2, 3]}, {"c": [4, 5], "d": [6, 7]}, True),
        ({"a": [0, 1], "b": [2, 3]}, [0, 1], True),
        ([0, 1, 2, 3], [0, 1, 2], False),
        ({"a": [0, 1], "b": [2]}, {"c": [4, 5], "d": [6, 7]}, False),
        ({"a": [0, 1], "b": [2, 3], "c": [4]}, {"a": [0, 1], "b": [2], "c": [3]}, False),
        (None, [0], False),
    ],
)
def test_another_job_may_have_other_cores_of_the_same_nodes(before: Any, now: Any, same: bool) -> None:
    """A queue gives a continued job any free cores; only their number must not change."""
    one, other = ({"identity": {"cpu": "x", "cores": cores}} for cores in (before, now))
    assert (_cores_counted(one) == _cores_counted(other)) is same


def test_as_many_cores_that_are_fewer_physical_ones_are_others(tmp_path: Path) -> None:
    """Two hyper-threads of one core are two cores too."""

    def begun(cores: tuple[int, ...], physical: int) -> Any:
        cards = [card(0, cores=cores, physical=physical)]
        place = SimpleNamespace(slots=1)
        return SimpleNamespace(run=run, cards=cards, seats=seat(cards, 0), place=place)

    run = planned(tmp_path)
    plan = read_plan(run)
    _identify(begun((0, 1), 2), plan)
    assert read_machine(run)["identity"]["physical_cores"] == [2]
    _identify(begun((4, 5), 2), plan)
    with pytest.raises(IdentityError, match=r"physical_cores: \[2\] before, \[1\] now"):
        _identify(begun((0, 8), 1), plan)


def test_nodes_of_unequal_slots_may_come_in_another_order() -> None:
    one, other = ({"identity": {"cores": [0], "slots": slots}} for slots in ([4, 2], [2, 4]))
    assert _cores_counted(one) == _cores_counted(other)


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
    """Its base class may be an installed package's."""
    (tmp_path / "train.py").write_text("class Mine:\n    pass\n", encoding="utf-8")
    given = {'strategy = "ddp"': "", "[axes]": '[axes]\nstrategy = ["ddp", "post_local_sgd"]'}
    run = planned(tmp_path, f"{tmp_path}/train.py:Mine", **given)
    slot, _ = slot_of(run, {**TRIED, "step": True})
    plan, tried = settled_plan(slot, read_plan(run))
    reasons = {one.case.strategy: one.skip_reason for one in plan.cases}
    assert reasons["ddp"] is reasons["single"] is None
    assert str(reasons["post_local_sgd"]).startswith(
        "post_local_sgd aggregates between its backward and its update"
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


def linked(path: Path) -> None:
    path.rename(path.with_name("elsewhere"))
    path.symlink_to(path.with_name("elsewhere"))


def piped(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def endless(path: Path) -> None:
    with path.open("ab") as file:
        file.truncate(2**40)  # sparse: it takes no space


def changed(**values: Any) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        data = json.loads(path.read_text(encoding="utf-8"))
        path.write_text(json.dumps({**data, **values}), encoding="utf-8")

    return change


STRANGE: dict[str, tuple[Callable[[Path], None], str]] = {
    "a link": (linked, "is a link"),
    "a pipe": (piped, "is a pipe"),
    "too large": (endless, "has 1,099,511,627,776 bytes; such a file has"),
    "no JSON": (lambda path: path.write_text("{", encoding="utf-8") and None, "cannot be read: Expecting"),
    "another schema": (changed(schema_version="x"), "has schema 'x'"),
}
STRANGE_PLAN = {
    **STRANGE,
    "no list": (changed(cases={"a": 1}), "plan.json is damaged: cases: input should be a valid list"),
    "no numbers": (changed(launches=[{"round": "1", "case_id": "x"}]), "damaged: launches.0.round"),
    "no cases": (changed(cases=[], launches=[]), "plan.json has no case"),
}
STRANGE_MACHINE = {
    **STRANGE,
    "no context": (changed(context=[]), "machine.json is damaged: context: input should be"),
    "no identity": (changed(identity=7), "machine.json is damaged: identity: input should be"),
    "no cores": (changed(identity={"cores": "all"}), "machine.json is damaged: identity.cores"),
}


@pytest.mark.parametrize("what", STRANGE_PLAN)
def test_a_slot_says_in_its_card_that_its_plan_is_none(tmp_path: Path, what: str) -> None:
    def server(_env: object) -> Any:
        raise AssertionError("started something")

    run = planned(tmp_path)
    change, said = STRANGE_PLAN[what]
    change(run.plan)
    place = SlotPlace.from_environment(
        {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    )
    card = own_card(run, place, server)
    assert said in card.problem
    assert "\n" not in card.problem
    with pytest.raises(RequestError, match=re.escape(card.problem)):
        check([card, replace(card, rank=1)])


@pytest.mark.parametrize("name", ["experiment.toml", "job.key", "server-00000.log"])
@pytest.mark.parametrize("change", [linked, piped])
def test_a_slot_says_in_its_card_that_its_directory_leads_elsewhere(
    tmp_path: Path, name: str, change: Callable[[Path], None]
) -> None:
    run = planned(tmp_path)
    path = run.path / name
    path.touch()
    change(path)
    card = own_card(run, SimpleNamespace(rank=0, local_rank=0, node=""), lambda _env: None)  # type: ignore[arg-type, return-value]
    assert card.problem.startswith(f"{path} is a {'link' if change is linked else 'pipe'}")


def test_a_slot_says_in_its_card_that_others_can_exchange_its_checkpoints(tmp_path: Path) -> None:
    """The directory is the node's own."""
    run, scratch = planned(tmp_path), tmp_path / "scratch"
    scratch.mkdir()
    scratch.chmod(0o777)
    plan = read_plan(run)
    case = replace(plan.cases[0].case, checkpoint=True, checkpoint_dir=str(scratch))
    replaced = replace(plan, cases=(replace(plan.cases[0], case=case),))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("ddpbench.worker.slot.own_card.read_plan", lambda _: replaced)
        card = own_card(run, SimpleNamespace(rank=0, local_rank=0, node=""), lambda _env: None)  # type: ignore[arg-type, return-value]
    assert f"everybody can rename what is in {scratch}" in card.problem


class Opening:
    """The store of a job whose slots have no objections."""

    def __init__(self, run: RunDir) -> None:
        self.refusal = ""
        self.run, self.meeting, self.seats = run, self, []
        self.cards = [SimpleNamespace(experiment="", workloads="")]
        self.place = SimpleNamespace(slots=1)

    def put(self, key: str, value: dict[str, Any]) -> None:
        self.refusal = value.get("refusal", "")

    def missing(self, keys: list[str]) -> list[str]:
        return []

    def get(self, *keys: str) -> list[dict[str, Any]]:
        return [{"problem": "", "sees": True} for _ in keys]

    def share(self, nonce: str) -> None:
        assert (self.run.path / nonce).read_bytes() == b""

    def go(self) -> None:
        if self.refusal:
            raise RequestError(self.refusal)


@pytest.mark.parametrize("what", STRANGE_MACHINE)
def test_a_leader_refuses_a_machine_that_is_none_before_anything_runs(tmp_path: Path, what: str) -> None:
    run = planned(tmp_path)
    plan = read_plan(run)
    change, said = STRANGE_MACHINE[what]
    change(run.machine)
    slot: Any = Opening(run)
    with ExitStack() as stack, pytest.raises(RequestError, match=re.escape(said)) as refused:
        open_run(slot, plan, stack)
    assert "\n" not in str(refused.value)
    assert not list(run.path.glob(".meeting-*"))


def test_what_own_classes_are_is_noted_in_a_machine_without_a_context(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("class Mine:\n    pass\n", encoding="utf-8")
    run = planned(tmp_path, f"{tmp_path}/train.py:Mine")
    data = json.loads(run.machine.read_text(encoding="utf-8"))
    del data["context"]
    run.machine.write_text(json.dumps(data), encoding="utf-8")
    settled_plan(slot_of(run)[0], read_plan(run))
    assert read_machine(run)["context"]["own_workloads"]


def test_a_key_that_is_a_pipe_waits_for_nobody(tmp_path: Path) -> None:
    run = planned(tmp_path)
    for change, said in ((piped, "is a pipe"), (linked, "is a link")):
        change(run.job_key)
        key, problem = job_key(run, {})
        assert key == b""
        assert said in problem
