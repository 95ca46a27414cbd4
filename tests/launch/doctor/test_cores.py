"""Checks of cores, their clocks, other load, and memory."""

from __future__ import annotations

import os

import pytest

from ddpbench.launch.doctor import cores, load, memory
from ddpbench.launch.doctor.host import CpuLoad
from tests.launch.doctor.fakes import Machine


def test_one_core_is_no_curve(machine: Machine) -> None:
    machine.affinity({0, 2})  # a core and its hyper-thread
    found = machine.findings(cores.cores)
    assert found["cores"].level == "note"
    assert found["cores"].found == "A Fine Processor: room for 1 rank with a core each"
    assert found["affinity"].found == "2 of 4 logical cores: 0,2"
    assert machine.findings(cores.hyper_threads)["hyper-threads"].found.startswith("2 on 1 cores")


@pytest.mark.parametrize(
    ("group", "files", "words"),
    [
        ("0::/a\n", {"cpu.max": "max 100000"}, "no control group"),
        ("0::/a\n", {"a/cpu.max": "150000 100000"}, "1.5 CPUs on 4 logical cores"),
        (
            "4:cpu,cpuacct:/job\n",
            {"cpu/job/cpu.cfs_quota_us": "50000", "cpu/job/cpu.cfs_period_us": "100000"},
            "0.5 CPUs",
        ),
        ("0::/\n", {"cpu.max": "400000 100000"}, "4 CPUs, enough for all cores here"),
    ],
)
def test_a_quota_of_either_version(machine: Machine, group: str, files: dict[str, str], words: str) -> None:
    machine.write("proc/self/cgroup", group)
    for path, text in files.items():
        machine.write(f"sys/fs/cgroup/{path}", text)
    found = machine.findings(cores.cores)["quota"]
    assert words in found.found
    assert (found.level == "note") == ("logical" in words or "0.5" in words)


def test_memory_nodes_beside_the_usable_cores(machine: Machine) -> None:
    machine.write("sys/devices/system/node/node0/cpulist", "0,2\n")
    machine.write("sys/devices/system/node/node1/cpulist", "1,3\n")
    machine.write("sys/devices/system/node/node2/cpulist", "\n")  # memory without cores
    found = machine.findings(cores.numa)["numa"].found
    assert found.startswith("2 nodes: node0: cores 0,2; node1: cores 1,3.")


def test_governors_and_turbo(machine: Machine) -> None:
    for core in range(4):
        machine.write(f"sys/devices/system/cpu/cpu{core}/cpufreq/scaling_governor", "performance\n")
    machine.write("sys/devices/system/cpu/intel_pstate/no_turbo", "1\n")
    found = machine.findings(cores.clocks)["clocks"]
    assert (found.level, found.found) == ("ok", "governor performance on 4 cores, turbo off")
    machine.write("sys/devices/system/cpu/cpu3/cpufreq/scaling_governor", "schedutil\n")
    found = machine.findings(cores.clocks)["clocks"]
    assert found.level == "note"
    assert "performance on 3 cores, schedutil on 1 core" in found.found


def process(machine: Machine, pid: int, name: str, ticks: int) -> None:
    machine.write(f"proc/{pid}/stat", f"{pid} ({name}) R 1 1 1 0 -1 0 0 0 0 0 {ticks} 0 0 0 20 0 1 0\n")


def test_two_looks_tell_cores_and_who_uses_them(machine: Machine) -> None:
    """30 ticks pass on each of four cores: 15 used, 3 stolen; one process had 45, that is one and a half cores."""
    process(machine, 7, "other (work)", 100)
    process(machine, 8, "idle", 100)
    process(machine, os.getpid(), "ourselves", 100)

    def meanwhile() -> None:
        machine.stat(user=15, idle=1012, steal=3)
        process(machine, 7, "other (work)", 145)
        process(machine, os.getpid(), "ourselves", 500)

    machine.between = meanwhile
    found = load.watch(machine.host())
    assert found == CpuLoad(2.0, 0.1, (("other (work) (process 7)", 1.5),))


def test_a_busy_machine_is_a_note(machine: Machine) -> None:
    host = machine.host()
    host.load = CpuLoad(1.5, 0.05, (("python (process 7)", 1.0),))
    busy, stolen = load.others(host)
    assert busy.found == "1.50 of 4 logical cores over 0.3 s; load average 0.10: python (process 7) 1.00"
    assert stolen.found == "the host takes 5% of these cores' time for other guests"
    host.load = CpuLoad(0.02, 0.0, ())
    (quiet,) = load.others(host)
    assert quiet.level == "ok"


def test_another_sweep_is_seen_by_its_claims(machine: Machine) -> None:
    entry = "0000000000000000: 00000002 00000000 00010000 0001 01 99 @ddpbench-core-{}\n"
    machine.write("proc/net/unix", entry.format(9) + entry.format(3))
    found = machine.findings(load.sweeps)["other sweeps"]
    assert (found.level, found.found) == ("note", "one holds core 3")  # 9 is not a core of ours
    assert "taskset" in found.advice
    machine.write("proc/net/unix", "".join(entry.format(core) for core in range(4)))
    found = machine.findings(load.sweeps)["other sweeps"]
    assert found.advice == "wait until it ends: a second sweep on the same cores is refused"


def test_a_real_claim_is_seen() -> None:
    from ddpbench.launch.doctor import Host
    from ddpbench.machine.claim import claimed

    core = 100_000  # no machine has it, so that the claim disturbs no other program
    with claimed([core]), pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "sched_getaffinity", lambda _: {core})
        (found,) = load.sweeps(Host())
    assert found.found == f"one holds core {core}"


def test_the_least_of_system_and_control_group_counts(machine: Machine) -> None:
    assert machine.findings(memory.memory)["memory"].found == "12 GiB of 16 GiB available"
    machine.write("proc/self/cgroup", "0::/pod\n")
    machine.write("sys/fs/cgroup/pod/memory.max", str(2**30))
    machine.write("sys/fs/cgroup/pod/memory.current", str(2**29))
    found = machine.findings(memory.memory)["memory"]
    assert found.level == "note"  # 512 MiB are left, and two ranks need 1 GiB
    assert found.found.endswith("a control group allows 1 GiB, of which 512 MiB are used")


def test_version_ones_way_to_say_no_limit(machine: Machine) -> None:
    machine.write("proc/self/cgroup", "4:memory:/pod\n")
    machine.write("sys/fs/cgroup/memory/pod/memory.limit_in_bytes", "9223372036854771712")
    assert machine.findings(memory.memory)["memory"].found == "12 GiB of 16 GiB available"


def test_swap_in_use(machine: Machine) -> None:
    machine.write("proc/meminfo", "MemAvailable: 1 kB\nSwapTotal: 2097152 kB\nSwapFree: 1048576 kB\n")
    found = machine.findings(memory.swap)["swap"]
    assert (found.level, found.found) == ("note", "1 GiB of 2 GiB in use")
