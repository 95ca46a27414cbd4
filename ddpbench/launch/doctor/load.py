"""Check for programs that would disturb a sweep: the present load of the cores, and other sweeps' claims to them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass

from ddpbench.launch.doctor.finding import CheckResult, note, ok
from ddpbench.launch.doctor.host import CpuLoad, Host
from ddpbench.machine.claim import claimed_cores

BETWEEN_LOOKS_S = 0.3
BUSY_CORES = 0.1
"""CPU use by other programs above which they are reported, cores."""
STEAL_SHARE = 0.01


@dataclass(frozen=True, slots=True)
class CpuTicks:
    """Clock ticks since the system started: the busy, stolen and total ticks of some cores, and each process's ticks.

    `processes` maps (process id, name) to ticks.
    """

    busy: int
    stolen: int
    total: int
    processes: dict[tuple[int, str], int]


def look(host: Host, cores: frozenset[int]) -> CpuTicks:
    """Read from /proc the clock ticks of the given cores, and of all processes except this one."""
    busy = stolen = total = 0
    for line in host.read(host.proc_root / "stat").splitlines():
        name, *fields = line.split()
        if not (name.startswith("cpu") and name[3:].isdigit() and int(name[3:]) in cores):
            continue
        ticks = [int(field) for field in fields[:8]] + [0] * (8 - len(fields))
        user, nice, system, _idle, _iowait, irq, softirq, steal = ticks
        busy += user + nice + system + irq + softirq
        stolen += steal
        total += sum(ticks)
    processes: dict[tuple[int, str], int] = {}
    for name in host.names(host.proc_root):
        if not name.isdigit() or int(name) == os.getpid():
            continue
        head, _, tail = host.read(host.proc_root / name / "stat").rpartition(")")
        fields = tail.split()
        if len(fields) > 12:  # fields after the name in proc(5): state is 3, utime 14, stime 15
            processes[int(name), head.partition("(")[2]] = int(fields[11]) + int(fields[12])
    return CpuTicks(busy, stolen, total, processes)


def watch(host: Host) -> CpuLoad | None:
    """Measure the cores' load for `BETWEEN_LOOKS_S` seconds, while this process is idle; None without /proc/stat."""
    cores = frozenset(host.hardware().cores)
    before = look(host, cores)
    host.pause(BETWEEN_LOOKS_S)
    after = look(host, cores)
    passed = after.total - before.total
    if not after.total:
        return None
    if passed <= 0:  # no tick between the readings
        return CpuLoad(0.0, 0.0, ())
    each = passed / len(cores)  # ticks per core between the readings
    used = [
        (f"{name} (process {pid})", (ticks - before.processes[pid, name]) / each)
        for (pid, name), ticks in after.processes.items()
        if (pid, name) in before.processes
    ]
    users = sorted((entry for entry in used if entry[1] >= BUSY_CORES), key=lambda entry: -entry[1])
    return CpuLoad(
        (after.busy - before.busy) / each, (after.stolen - before.stolen) / passed, tuple(users[:3])
    )


def others(host: Host) -> Iterator[CheckResult]:
    """Report the programs that use the cores now, and any time that the hypervisor takes away."""
    load = host.load
    if load is None:
        yield ok("in use now", "not readable")
        return
    count = len(host.hardware().cores)
    average = host.read(host.proc_root / "loadavg").split()
    average_1min = f"; load average {average[0]}" if average else ""
    found = f"{load.busy_cores:.2f} of {count} logical cores over {BETWEEN_LOOKS_S} s{average_1min}"
    if load.busy_cores > BUSY_CORES:
        users = ", ".join(f"{name} {used:.2f}" for name, used in load.users)
        yield note(
            "in use now",
            f"{found}{f': {users}' if users else ''}",
            "wait for the other work or stop it, because launches during other work are flagged",
        )
    else:
        yield ok("in use now", found)
    if load.stolen_share > STEAL_SHARE:
        yield note(
            "stolen time",
            f"the host takes {load.stolen_share:.0%} of these cores' time for other guests",
            "use a machine with reserved cores, or measure more rounds: such launches are flagged",
        )


def sweeps(host: Host) -> Iterator[CheckResult]:
    """Report whether another sweep has claimed usable cores. A claim is an abstract socket named after the core."""
    usable = set(host.hardware().cores)
    text = host.read(host.proc_root / "net/unix")
    held = claimed_cores(text) & usable
    if held:
        listed = ", ".join(map(str, sorted(held)))
        free = ", or give the next one other cores with taskset" if usable - held else ""
        yield note(
            "other sweeps",
            f"one holds core{'s' if len(held) != 1 else ''} {listed}",
            f"wait until it ends{free}: a second sweep on the same cores is refused",
        )
    else:
        yield ok("other sweeps", "none holds these cores")
