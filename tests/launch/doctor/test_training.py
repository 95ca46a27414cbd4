"""Checks of what can be trained: strategies and workloads on each kind of device."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from ddpbench.launch.catalog import TableCatalog
from ddpbench.launch.doctor import training
from ddpbench.launch.doctor.training import Way, why_not
from ddpbench.spec import Case, StrategyInfo
from tests.launch.doctor.fakes import CPU_FACTS, Machine, gpu_facts


def test_every_strategy_and_workload_of_the_tables_is_spoken_of(machine: Machine) -> None:
    machine.catalog = TableCatalog()
    for check, names in (
        (training.strategies, TableCatalog().strategy_names()),
        (training.workloads, TableCatalog().workload_names()),
    ):
        text = " ".join(finding.found for finding in machine.findings(check).values())
        assert set(names) <= set(re.findall(r"[\w:.-]*\w", text))
    assert {"single", "ddp"} <= set(machine.findings(training.strategies)["cpu strategies"].found.split(", "))


def test_what_needs_something_is_told_with_its_own_reason(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = TableCatalog.strategy

    def strategy(self: TableCatalog, name: str) -> StrategyInfo:
        def check(case: Case) -> str | None:
            return "it needs a printer" if case.world_size < 8 else None

        return replace(known(self, name), check=check)

    monkeypatch.setattr(TableCatalog, "strategy", strategy)
    found = machine.findings(training.strategies)
    assert set(found) == {"single ..."}
    assert found["single ..."].level == "note"
    assert found["single ..."].found == "not on cpu: single, ddp: it needs a printer"
    way = Way("cpu", "gloo", 2)
    assert why_not(machine.catalog, way, strategy="ddp", workload="mlp", sizes=[8]) is None


def test_what_runs_on_several_nodes_only_can_run(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    known = TableCatalog.strategy

    def strategy(self: TableCatalog, name: str) -> StrategyInfo:
        return replace(known(self, name), check=lambda case: "one node" if case.nodes == 1 else None)

    monkeypatch.setattr(TableCatalog, "strategy", strategy)
    assert machine.findings(training.strategies)["cpu strategies"].found == "single, ddp"


def test_a_strategy_that_needs_branches_is_tried_with_a_model_that_has_some(machine: Machine) -> None:
    machine.catalog = TableCatalog()
    assert "branches" in machine.findings(training.strategies)["cpu strategies"].found.split(", ")


def test_a_strategy_that_needs_more_gpus_than_there_are(machine: Machine) -> None:
    one = Way("cuda", "nccl", 1)
    reason = why_not(machine.catalog, one, strategy="ddp", workload="mlp", sizes=[2, 4])
    assert reason == "needs 2 GPUs, one per rank; this machine has 1 GPU"
    assert why_not(machine.catalog, one, strategy="ddp", workload="mlp") is None


def test_a_way_for_each_kind_of_device(machine: Machine) -> None:
    machine.torch(gpu_facts(2))
    machine.gpus(2)
    assert training.ways(machine.host()) == [Way("cuda", "nccl", 2), Way("cpu", "gloo", 2)]
    machine.torch(gpu_facts(2, built_in={**CPU_FACTS["built_in"], "nccl": False}))
    assert training.ways(machine.host()) == [Way("cpu", "gloo", 2)]


def test_other_devices_are_named(machine: Machine) -> None:
    machine.torch({**CPU_FACTS, "other_devices": ["xpu"]})
    assert machine.findings(training.devices)["xpu"].level == "note"


def test_builds_without_rpc(machine: Machine) -> None:
    machine.torch({**CPU_FACTS, "rpc": False})
    assert machine.findings(training.features)["torch rpc"].level == "note"
