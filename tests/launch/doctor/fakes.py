"""A made-up machine: system files under a folder, and answers in place of commands, torch and the network."""

from __future__ import annotations

import json
import os
import resource
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from ddpbench.launch.catalog import TableCatalog
from ddpbench.launch.doctor import Check, CheckResult, Host, carry_out
from ddpbench.launch.doctor.host import ASK_GPU_LINKS, ASK_GPUS, ASK_TORCH, Disk, Reply
from ddpbench.machine.interfaces import Interface

CPU_FACTS: dict[str, Any] = {
    "torch": "2.13.0+cpu",
    "python": "3.12.1",
    "cuda_build": None,
    "rocm_build": None,
    "distributed": True,
    "cuda": None,
    "nccl": None,
    "cpu_capability": "AVX2",
    "backends": ["gloo"],
    "gpus": [],
    "built_in": {"gloo": True, "nccl": False, "mpi": False, "ucc": False},
    "rpc": True,
    "driver_cuda": None,
    "architectures": [],
    "other_devices": [],
    "warnings": [],
    "mpi": "MPICH 5.0.2",
    "why_no_mpi": None,
}


def gpu_facts(count: int, **changes: Any) -> dict[str, Any]:
    """Return the facts of a CUDA build on a machine with `count` H100."""
    gpu = {"name": "NVIDIA H100", "memory_bytes": 80 * 2**30, "capability": "9.0", "pci": None}
    return {
        **CPU_FACTS,
        "torch": "2.9.0+cu128",
        "cuda_build": "12.8",
        "cuda": "12.8",
        "nccl": "2.27.5",
        "gpus": [gpu] * count,
        "built_in": {"gloo": True, "nccl": True, "mpi": False, "ucc": False},
        "driver_cuda": "12.8",
        "architectures": ["sm_80", "sm_90", "compute_90"],
        **changes,
    }


class SmallCatalog(TableCatalog):
    """Write the system files that every check needs."""

    def strategy_names(self) -> list[str]:
        return ["single", "ddp"]

    def workload_names(self) -> list[str]:
        return ["mlp:small", "gpt:nano"]


GPU_LINE = (
    "{n}, NVIDIA H100 80GB HBM3, 81559, 4, 0, 00000000:{bus}:00.0, 550.54.15, Enabled, Default, Disabled\n"
)
EIGHT_BUSES = ("1B", "43", "52", "61", "9D", "C3", "D1", "DF")


def smi_lines(count: int) -> str:
    """Return nvidia-smi's output for `count` idle H100."""
    return "".join(GPU_LINE.format(n=n, bus=bus) for n, bus in enumerate(EIGHT_BUSES[:count]))


LOOPBACK = Interface("lo", True, ("127.0.0.1", "::1"))
ETHERNET = Interface("eth0", True, ("10.0.0.2",), 10_000)


def write(path: Path, text: str) -> None:
    """Write a file, and create the folders above it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


class Machine:
    """Four threads on two cores, 16 GiB, one network, torch for the CPU; tests change the part that they check."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root = root
        self.monkeypatch = monkeypatch
        self.env: dict[str, str] = {}
        self.replies: dict[tuple[str, ...], Reply] = {}
        self.commands = {"torchrun", "unshare"}
        fields = ("privileged", "user_namespaces", "veth", "bridge", "tbf", "netem")
        self.fabric: dict[str, object] = {**dict.fromkeys(fields, True), "reasons": {}}
        self.found: list[Interface] = [LOOPBACK, ETHERNET]
        self.addresses: dict[str, list[str]] = {"node1": ["10.0.0.2"]}
        self.disks: dict[str, Disk] = {}
        self.limits: dict[int, tuple[int, int]] = {}
        self.writable = True
        self.between: Callable[[], None] = lambda: None
        self.c_library = "glibc"
        self.catalog: TableCatalog = SmallCatalog()
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        self.affinity({0, 1, 2, 3})
        self.torch(CPU_FACTS)
        for core in range(4):
            path = f"sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list"
            self.write(path, f"{core % 2},{core % 2 + 2}\n")
        self.write("sys/devices/system/cpu/online", "0-3\n")
        self.write("sys/devices/system/node/node0/cpulist", "0-3\n")
        self.write("proc/cpuinfo", "model name\t: A Fine Processor\n")
        self.write("proc/meminfo", "MemTotal: 16777216 kB\nMemAvailable: 12582912 kB\nSwapTotal: 0 kB\n")
        self.write("proc/loadavg", "0.10 0.20 0.30 1/100 4242\n")
        self.stat(idle=1000)
        (root / "home").mkdir()

    def write(self, path: str, text: str) -> None:
        write(self.root / path, text)

    def affinity(self, cores: set[int]) -> None:
        self.monkeypatch.setattr(os, "sched_getaffinity", lambda _: cores)

    def stat(self, *, user: int = 0, idle: int = 0, steal: int = 0) -> None:
        """Write /proc/stat with the same ticks for each of four cores."""
        lines = [f"cpu{core} {user} 0 0 {idle} 0 0 0 {steal} 0 0\n" for core in range(4)]
        self.write("proc/stat", "cpu  0 0 0 0 0 0 0 0 0 0\n" + "".join(lines))

    def torch(self, facts: dict[str, Any] | Reply) -> None:
        """Set torch's answer, or how the question ended."""
        reply = facts if isinstance(facts, Reply) else Reply(0, json.dumps(facts) + "\n")
        self.replies[ASK_TORCH] = reply

    def gpus(self, count: int, links: str = "", lines: str | None = None) -> None:
        """Add GPUs, as shown by the driver and by nvidia-smi."""
        for bus in EIGHT_BUSES[:count]:
            self.write(f"proc/driver/nvidia/gpus/0000:{bus.lower()}:00.0/information", "")
            self.write(f"sys/bus/pci/devices/0000:{bus.lower()}:00.0/numa_node", "0\n")
        self.commands.add("nvidia-smi")
        self.replies[ASK_GPUS] = Reply(0, smi_lines(count) if lines is None else lines)
        self.replies[ASK_GPU_LINKS] = Reply(0, links)

    def _run(self, argv: Sequence[str], _timeout_s: float) -> Reply:
        if "ddpbench.fabric" in argv:
            return Reply(0, json.dumps(self.fabric))
        return self.replies.get(tuple(argv), Reply(None, err="not found"))

    def host(self) -> Host:
        """Return the machine for a check."""

        def pause(_: float) -> None:
            self.between()

        return Host(
            sys_root=self.root / "sys",
            proc_root=self.root / "proc",
            dev_root=self.root / "dev",
            etc_root=self.root / "etc",
            folder=self.root / "home",
            env=self.env,
            host_name="node1",
            run=self._run,
            resolve=lambda name: self.addresses.get(name, []),
            interfaces=lambda: self.found,
            disk=lambda path: self.disks.get(path.name, Disk(2**38, 2**37)),
            writable=lambda _: self.writable,
            limit=lambda which: self.limits.get(which, (resource.RLIM_INFINITY, resource.RLIM_INFINITY)),
            which=lambda name: f"/usr/bin/{name}" if name in self.commands else None,
            c_library=self.c_library,
            catalog=self.catalog,
            pause=pause,
        )

    def findings(self, check: Check) -> dict[str, CheckResult]:
        """Return a check's findings by subject."""
        found = carry_out(check, self.host(), "A topic")
        assert len({finding.subject for finding in found}) == len(found), found
        return {finding.subject: finding for finding in found}
