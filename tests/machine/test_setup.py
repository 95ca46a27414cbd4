"""A machine's setup is read from the system's own files, and values that they lack are left out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ddpbench.machine import interfaces
from ddpbench.machine.hardware import read_hardware
from ddpbench.machine.identity import machine_record, nodes_record
from ddpbench.machine.interfaces import Interface, gloo_interfaces, list_interfaces
from ddpbench.machine.setup import read_setup
from ddpbench.records.files import parse_json
from ddpbench.records.machine import setups_of
from ddpbench.spec import Case
from ddpbench.worker.rank.rank import _interfaces

FILES = {
    "sys/class/dmi/id/sys_vendor": "Example Inc.\n",
    "sys/class/dmi/id/product_name": "Server 3\n",
    "sys/class/dmi/id/bios_vendor": "Firm\n",
    "sys/class/dmi/id/bios_version": "1.2\n",
    "sys/class/dmi/id/bios_date": "03/04/2025\n",
    "proc/cpuinfo": "processor : 0\nmicrocode : 0xa1\nflags\t\t: fpu hypervisor\n\nprocessor : 1\nmicrocode : 0xb2\n",
    "etc/os-release": 'NAME=x\nPRETTY_NAME="Some Linux 12"\n',
    "sys/devices/system/cpu/smt/active": "1\n",
    "sys/devices/system/node/node0/cpulist": "0\n",
    "sys/devices/system/node/node1/cpulist": "1\n",
    "sys/devices/system/node/online": "0-1\n",
    "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor": "powersave\n",
    "sys/devices/system/cpu/cpu1/cpufreq/scaling_governor": "performance\n",
    "sys/devices/system/cpu/intel_pstate/no_turbo": "1\n",
    "sys/kernel/mm/transparent_hugepage/enabled": "always [madvise] never\n",
    "sys/class/net/lo/speed": "10\n",
    "sys/class/net/eth0/speed": "25000\n",
    "sys/class/net/eth0/device/vendor": "0x1\n",
    "sys/class/net/eth1/speed": "-1\n",
    "sys/class/net/eth1/device/vendor": "0x1\n",
    "sys/class/infiniband/mlx5_0/fw_ver": "20.31\n",
    "sys/class/infiniband/mlx5_0/ports/1/rate": "200 Gb/sec (4X HDR)\n",
}


def made(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return root


def test_a_firmware_may_say_what_is_no_text(tmp_path: Path) -> None:
    path = tmp_path / "sys/class/dmi/id/sys_vendor"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"Maker\xae \x00 Ltd.\xff\n")
    found = read_setup(tmp_path)
    assert found["system"].startswith("Maker")
    assert found["system"].endswith("Ltd.\N{REPLACEMENT CHARACTER}")
    assert parse_json(json.dumps(found)) == found  # as machine.json is read


def test_everything_is_read_where_it_stands(tmp_path: Path) -> None:
    root = made(tmp_path, FILES)
    driver = root / "drivers/fast_nic"
    driver.mkdir(parents=True)
    (root / "sys/class/net/eth0/device/driver").symlink_to(driver)
    found = read_setup(root)
    assert found.pop("libc")
    assert found == {
        "system": "Example Inc. Server 3",
        "firmware": "Firm 1.2 03/04/2025",
        "microcode": "0xa1",
        "virtual_machine": "yes",
        "os": "Some Linux 12",
        "threads_per_core": "2 or more",
        "numa_nodes": "2",
        "cpu_governor": "performance, powersave",
        "cpu_boost": "off",
        "transparent_huge_pages": "madvise",
        "network": "eth0 25 Gbit/s, fast_nic; eth1",
        "infiniband": "mlx5_0, port 1 200 Gb/sec (4X HDR), firmware 20.31",
    }


def test_what_is_not_told_is_left_out(tmp_path: Path) -> None:
    assert set(read_setup(tmp_path)) <= {"os", "libc"}
    few = {"sys/devices/system/cpu/cpufreq/boost": "1\n", "sys/devices/system/cpu/smt/active": "0\n"}
    found = read_setup(made(tmp_path, few))
    assert found["cpu_boost"] == "on"
    assert found["threads_per_core"] == "1"


def test_a_run_records_it_and_may_be_resumed_where_it_differs() -> None:
    probe = dict.fromkeys(("torch", "cuda", "nccl", "cpu_capability", "python"), None) | {"gpus": []}
    record = machine_record(read_hardware(), probe, "", ())
    assert record["context"]["setup"] == read_setup()
    assert "setup" not in record["identity"]


def test_nodes_tell_what_differs_between_them() -> None:
    nodes = [("a", 1, {"cpu": "x"}), ("b", 1, {"cpu": "x"})]
    alike = nodes_record(nodes, {}, {}, {"a": {"os": "L"}, "b": {"os": "L"}})
    assert alike["context"]["setup"] == {"os": "L"}
    apart = nodes_record(nodes, {}, {}, {"b": {"os": "M"}, "a": {"os": "L"}})
    assert apart["context"]["setup"] == {"a": {"os": "L"}, "b": {"os": "M"}}


def test_set_ups_are_told_by_host_whether_or_not_they_differ() -> None:
    assert setups_of({"host": "a, b", "setup": {"os": "L"}}) == {"a, b": {"os": "L"}}
    assert setups_of({"host": "a, b", "setup": {"a": {"os": "L"}, "b": {}}}) == {"a": {"os": "L"}, "b": {}}
    assert setups_of({"host": "a"}) == {}


def test_a_rank_tells_the_interface_that_gloo_would_use(monkeypatch: pytest.MonkeyPatch) -> None:
    there = [
        Interface("lo", True, ("127.0.0.1",)),
        Interface("eth0", True, ("10.0.0.2",), 1_000),
        Interface("ib0", True, ("10.1.0.2",), 100_000),
    ]
    monkeypatch.setattr(interfaces, "list_interfaces", lambda: there)
    monkeypatch.setattr(interfaces, "look_up", lambda _: ["10.0.0.2"])
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    assert gloo_interfaces() == ("eth0 (1 Gbit/s)", "ib0 (100 Gbit/s)")
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "ib0")
    assert gloo_interfaces() == ("ib0 (100 Gbit/s)", "")
    monkeypatch.delenv("GLOO_SOCKET_IFNAME")

    def late(_: str) -> list[str]:
        raise TimeoutError("no answer within 2 s")

    monkeypatch.setattr(interfaces, "look_up", late)  # gloo itself would wait
    assert gloo_interfaces() == ("", "")


def test_a_bridges_rate_is_nobodys(tmp_path: Path) -> None:
    (tmp_path / "sys/class/net/lo/device").mkdir(parents=True)
    assert next(one for one in list_interfaces(tmp_path) if one.name == "lo").real
    assert not next(one for one in list_interfaces(tmp_path / "other") if one.name == "lo").real


@pytest.mark.parametrize(
    ("changes", "engine", "asked"),
    [
        ({}, "torch", True),
        ({"nodes": 1}, "torch", False),
        ({"backend": "nccl"}, "torch", False),
        ({"fabric": "2x1@1gbit"}, "torch", False),
        ({}, "tensorflow", False),
    ],
)
def test_a_rank_asks_where_gloo_goes_between_nodes_alone(
    changes: dict[str, Any], engine: str, asked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(interfaces, "gloo_interfaces", lambda: ("eth0", "ib0"))
    values = {"nodes": 2, "backend": "gloo", "strategy": "ddp", "world_size": 2, "workload": "mlp"} | changes
    assert _interfaces(Case(**values), engine) == (("eth0", "ib0") if asked else ("", ""))
