"""How many cores a control group grants: a container may see all of a machine's, and be given two."""

from __future__ import annotations

import os
from pathlib import Path

_SYS = Path("/sys")
_PROC = Path("/proc")


def granted_cores() -> int:
    """Return how many logical cores this process may keep busy at once, at least one: affinity and quota applied."""
    affinity = getattr(os, "sched_getaffinity", None)
    cores = len(affinity(0)) if affinity is not None else os.cpu_count() or 1
    quota = cpu_quota()
    return cores if quota is None else max(1, min(cores, int(quota)))


def cpu_quota(sys_root: Path = _SYS, proc_root: Path = _PROC) -> float | None:
    """Return the CPUs that the control group grants, the least of its own and its parents'; None without a limit."""
    group = ""
    for line in read_text(proc_root / "self/cgroup").splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0" or "cpu" in controllers.split(","):
            group = path.strip("/")
    limits: list[float] = []
    parts = group.split("/") if group else []
    for depth in range(len(parts), -1, -1):
        folder = "/".join(parts[:depth])
        maximum = read_text(sys_root / "fs/cgroup" / folder / "cpu.max").split()
        if len(maximum) == 2 and maximum[0] != "max":
            limits.append(int(maximum[0]) / int(maximum[1]))
        legacy = sys_root / "fs/cgroup/cpu" / folder
        quota, period = read_text(legacy / "cpu.cfs_quota_us"), read_text(legacy / "cpu.cfs_period_us")
        if quota and period and int(quota) > 0:
            limits.append(int(quota) / int(period))
    return min(limits) if limits else None


def read_text(path: Path) -> str:
    """Return what a system file says, without blanks around it; empty where it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""
