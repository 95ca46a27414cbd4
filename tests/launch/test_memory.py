"""Memory is predicted before a launch: a case that does not fit is skipped, with a shrink that would fit."""

from __future__ import annotations

import re

import pytest

from ddpbench.launch.catalog import TableCatalog
from ddpbench.launch.memory import memory_limit, needed_bytes, within_memory
from ddpbench.spec import Case, Devices, PlannedCase, expand, parse_experiment

GIB = 2**30


def planned(text: str) -> PlannedCase:
    catalog = TableCatalog()
    experiment = parse_experiment(text, catalog, name="test")
    return expand(experiment, catalog, Devices(kind="cpu", gpus=0, cores=2))[0]


def resnet50(world_size: int, shrink: int = 1) -> PlannedCase:
    return planned(
        f'[base]\nworkload = "replay:resnet50-v100"\nworld_size = {world_size}\nshrink = {shrink}\n'
    )


def test_what_was_measured_is_predicted_within_a_tenth() -> None:
    for ranks, measured_mib in ((2, 4030), (4, 7571)):  # the machine's peak memory in use
        needed = needed_bytes(resnet50(ranks).case)
        assert needed is not None
        assert abs(needed / 2**20 / measured_mib - 1) < 0.1


def test_a_job_that_does_not_fit_is_skipped_and_the_shrink_it_names_fits() -> None:
    entry = within_memory(resnet50(16), 24 * GIB)
    assert entry.skip_reason is not None
    assert entry.skip_reason.startswith("16 ranks need about 29.")
    assert "but only 24 GiB is available: set shrink = " in entry.skip_reason
    found = re.search(r"shrink = (\d+)", entry.skip_reason)
    assert found is not None
    shrink = int(found[1])
    assert within_memory(resnet50(16, shrink), 24 * GIB).skip_reason is None
    assert within_memory(resnet50(16, shrink - 1), 24 * GIB).skip_reason is not None
    assert within_memory(resnet50(4), 24 * GIB).skip_reason is None
    none = within_memory(resnet50(256, 50), GIB).skip_reason
    assert none is not None
    assert none.endswith("use fewer ranks")
    assert "shrink" not in none


def test_other_workloads_are_not_predicted() -> None:
    assert needed_bytes(Case(workload="gpt:nano", strategy="ddp")) is None


def test_a_control_group_limits_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    total = memory_limit()
    monkeypatch.setattr("ddpbench.launch.memory.memory_quota", lambda: 1_000_000)
    assert memory_limit() == 1_000_000
    monkeypatch.setattr("ddpbench.launch.memory.memory_quota", lambda: None)
    assert memory_limit() >= total
