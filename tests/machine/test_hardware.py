"""Cores, quotas and GPUs, read from made-up system trees."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ddpbench.machine.hardware import numa_cores, read_hardware


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


@pytest.fixture
def four_threads_on_two_cores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3})
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    for core in range(4):
        path = tmp_path / f"sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list"
        write(path, f"{core % 2},{core % 2 + 2}\n")
    write(tmp_path / "proc/cpuinfo", "processor : 0\nmodel name\t: A Fine Processor\n")
    return tmp_path


def test_physical_cores_come_before_their_hyper_threads(four_threads_on_two_cores: Path) -> None:
    root = four_threads_on_two_cores
    found = read_hardware(root / "sys", root / "proc")
    assert found.cores == (0, 1, 2, 3)  # 2 and 3 are the siblings
    assert found.physical == 2
    assert found.cpu_model == "A Fine Processor"
    assert found.devices().kind == "cpu"
    assert found.devices().ranks("cpu", threads_per_rank=1) == 2


def test_affinity_leaves_cores_out(four_threads_on_two_cores: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {1, 3})
    root = four_threads_on_two_cores
    found = read_hardware(root / "sys", root / "proc")
    assert (found.cores, found.physical) == ((1, 3), 1)


@pytest.mark.parametrize(
    ("where", "text", "quota"),
    [
        ("a/b/cpu.max", "150000 100000", 1.5),
        ("a/cpu.max", "100000 100000", 1.0),  # a parent's limit binds too
        ("a/b/cpu.max", "max 100000", None),
    ],
)
def test_the_control_groups_quota_limits_the_devices(
    four_threads_on_two_cores: Path, where: str, text: str, quota: float | None
) -> None:
    root = four_threads_on_two_cores
    write(root / "proc/self/cgroup", "0::/a/b\n")
    write(root / "sys/fs/cgroup" / where, text)
    found = read_hardware(root / "sys", root / "proc")
    assert found.quota == quota
    assert found.physical == (2 if quota is None else 1)


def test_an_older_control_groups_quota_counts_too(four_threads_on_two_cores: Path) -> None:
    root = four_threads_on_two_cores
    write(root / "proc/self/cgroup", "4:cpu,cpuacct:/job\n")
    write(root / "sys/fs/cgroup/cpu/job/cpu.cfs_quota_us", "50000")
    write(root / "sys/fs/cgroup/cpu/job/cpu.cfs_period_us", "100000")
    found = read_hardware(root / "sys", root / "proc")
    assert (found.quota, found.physical) == (0.5, 1)


def test_gpus_are_seen_without_torch_and_can_be_hidden(
    four_threads_on_two_cores: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = four_threads_on_two_cores
    for address in ("0000:3b:00.0", "0000:af:00.0"):
        write(root / "proc/driver/nvidia/gpus" / address / "information", "")
    found = read_hardware(root / "sys", root / "proc")
    assert found.devices().kind == "cuda"
    assert found.devices().ranks("cuda", threads_per_rank=1) == 2
    assert found.devices(gpus=1).gpus == 1  # torch has the last word
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert read_hardware(root / "sys", root / "proc").gpu_addresses == ()


def test_a_gpus_own_cores(four_threads_on_two_cores: Path) -> None:
    sys_root = four_threads_on_two_cores / "sys"
    write(sys_root / "bus/pci/devices/0000:3b:00.0/local_cpulist", "1-2,8\n")
    assert numa_cores("0000:3b:00.0", sys_root) == (1, 2)  # 8 is outside the affinity
    assert numa_cores("0000:ff:00.0", sys_root) == ()
    assert numa_cores(None, sys_root) == ()
