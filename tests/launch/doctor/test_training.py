"""What can be trained: strategies and workloads on each kind of device."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ddpbench.launch.catalog import TableCatalog
from ddpbench.launch.doctor import training
from ddpbench.launch.doctor.training import Way, why_not
from ddpbench.spec import Case, StrategyInfo
from tests.launch.doctor.fakes import CPU_FACTS, Machine, gpu_facts


def test_all_strategies_and_workloads_run_on_the_cpu(machine: Machine) -> None:
    catalog = TableCatalog()
    strategies = machine.findings(training.strategies)
    workloads = machine.findings(training.workloads)
    assert set(strategies) | set(workloads) == {"cpu strategies", "cpu workloads"}
    assert strategies["cpu strategies"].found == ", ".join(catalog.strategy_names())
    assert workloads["cpu workloads"].found == ", ".join(catalog.workload_names())


def test_a_strategys_own_reason_is_given(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    def check(case: Case) -> str | None:
        return "ddp needs a printer" if case.world_size < 8 else None

    known = TableCatalog.strategy

    def strategy(self: TableCatalog, name: str) -> StrategyInfo:
        found = known(self, name)
        return replace(found, check=check) if name == "ddp" else found

    monkeypatch.setattr(TableCatalog, "strategy", strategy)
    found = machine.findings(training.strategies)
    assert "ddp" not in found["cpu strategies"].found.split(", ")
    assert (found["ddp"].level, found["ddp"].found) == ("note", "not on cpu: ddp needs a printer")
    assert why_not(Way("cpu", "gloo", 2), strategy="ddp", workload="mlp", sizes=[8]) is None


def test_a_strategy_that_needs_more_gpus_than_there_are() -> None:
    one = Way("cuda", "nccl", 1)
    assert (
        why_not(one, strategy="ddp", workload="mlp", sizes=[2, 4])
        == "needs 4 GPUs, one a rank; here is 1 GPU"
    )
    assert why_not(one, strategy="ddp", workload="mlp") is None


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
