"""Checks of the cores: how many ranks can have a core each, and how the cores' clocks behave."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from ddpbench.errors import MachineError
from ddpbench.launch.doctor.finding import CheckResult, note, ok, problem
from ddpbench.launch.doctor.host import Host

_CPUS = "devices/system/cpu"


def cores(host: Host) -> Iterator[CheckResult]:
    """Report the usable cores, and the affinity or CPU quota that limits ranks to them."""
    try:
        hardware = host.hardware()
    except MachineError as error:
        yield problem(
            "cores", str(error), "run ddpbench on Linux: a virtual machine or WSL will do", blocks=True
        )
        return
    ranks = hardware.devices(gpus=0).cores
    described = f"{hardware.cpu_model}: room for {_count(ranks, 'rank')} with a core each"
    if ranks < 2:
        yield note(
            "cores",
            described,
            "two ranks would share the core: such cases are marked oversubscribed, and only claims use them. For "
            "curves over ranks use a machine, container or job with two cores or more",
        )
    else:
        yield ok("cores", described)
    online = _numbers(host.read(host.sys_root / _CPUS / "online"))
    usable = set(hardware.cores)
    if online and not online <= usable:
        yield ok("affinity", f"{len(usable)} of {len(online)} logical cores: {_ranges(usable)}")
    if hardware.quota is None:
        yield ok("quota", "no control group limits the CPU time")
    elif hardware.quota >= len(usable):
        yield ok("quota", f"{hardware.quota:g} CPUs, enough for all cores here")
    else:
        yield note(
            "quota",
            f"a control group grants the time of {hardware.quota:g} CPUs on {len(usable)} logical cores",
            "ranks that use up this time stop until the next period, and their launches are flagged. "
            "Pin to whole cores instead (docker run --cpuset-cpus=0-1 in place of --cpus), or ask for "
            "a larger limit",
        )


def hyper_threads(host: Host) -> Iterator[CheckResult]:
    """Report whether usable cores are hyper-threads that share a physical core."""
    hardware = host.hardware()
    shared = len(hardware.cores) - len(
        {
            host.read(host.sys_root / _CPUS / f"cpu{core}/topology/thread_siblings_list") or core
            for core in hardware.cores
        }
    )
    if shared:
        physical = len(hardware.cores) - shared
        yield ok(
            "hyper-threads",
            f"{len(hardware.cores)} on {physical} cores; each core gets one rank before any gets a second",
        )
    else:
        yield ok(
            "hyper-threads",
            f"the system reports none on the {_count(len(hardware.cores), 'usable core')}",
        )


def numa(host: Host) -> Iterator[CheckResult]:
    """Report the NUMA nodes, with the usable cores of each."""
    usable = set(host.hardware().cores)
    folder = host.sys_root / "devices/system/node"
    nodes = [name for name in host.names(folder) if name.removeprefix("node").isdigit()]
    nodes.sort(key=lambda name: int(name.removeprefix("node")))
    cores_of = {name: _numbers(host.read(folder / name / "cpulist")) & usable for name in nodes}
    cores_of = {name: mine for name, mine in cores_of.items() if mine}
    if len(cores_of) < 2:
        yield ok("numa", "one node" if nodes else "not given by the system")
        return
    listed = "; ".join(f"{name}: cores {_ranges(mine)}" for name, mine in cores_of.items())
    yield ok(
        "numa",
        f"{len(cores_of)} nodes: {listed}. Ranks fill them in order: a step in the curve can be a node's edge",
    )


def clocks(host: Host) -> Iterator[CheckResult]:
    """Report whether the system changes the cores' clock rates with load."""
    names = Counter(
        host.read(host.sys_root / _CPUS / f"cpu{core}/cpufreq/scaling_governor")
        for core in host.hardware().cores
    )
    del names[""]
    if not names:
        yield ok(
            "clocks",
            "not visible, as in a virtual machine",
        )
        return
    listed = ", ".join(f"{name} on {_count(count, 'core')}" for name, count in names.items())
    turbo = _turbo(host)
    if set(names) == {"performance"}:
        yield ok("clocks", f"governor {listed}{turbo}")
    else:
        yield note(
            "clocks",
            f"governor {listed}{turbo}: clock rates follow the load",
            "for steadier numbers: sudo cpupower frequency-set -g performance",
        )


def _turbo(host: Host) -> str:
    if no_turbo := host.read(host.sys_root / _CPUS / "intel_pstate/no_turbo"):
        return ", turbo off" if no_turbo == "1" else ", turbo on (the more cores work, the lower the clock)"
    if boost := host.read(host.sys_root / _CPUS / "cpufreq/boost"):
        return ", turbo on (the more cores work, the lower the clock)" if boost == "1" else ", turbo off"
    return ""


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' if number != 1 else ''}"


def _numbers(text: str) -> set[int]:
    """Parse core numbers in the kernel's notation, such as `0-3,8`."""
    numbers: set[int] = set()
    for part in text.split(","):
        low, _, high = part.strip().partition("-")
        if low.isdigit() and (not high or high.isdigit()):
            numbers |= set(range(int(low), int(high or low) + 1))
    return numbers


def _ranges(numbers: set[int]) -> str:
    """Format core numbers in the kernel's notation, such as `0-3,8`."""
    parts: list[str] = []
    start = last = None
    for number in [*sorted(numbers), None]:
        if start is not None and last is not None and number != last + 1:
            parts.append(str(start) if start == last else f"{start}-{last}")
            start = None
        if start is None:
            start = number
        last = number
    return ",".join(parts)
