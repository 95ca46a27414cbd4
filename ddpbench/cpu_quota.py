"""Read how many cores and how much memory a control group grants, which may be less than the machine has."""

from __future__ import annotations

import os
from pathlib import Path

_SYS = Path("/sys")
_PROC = Path("/proc")


def granted_cores() -> int:
    """Return the number of logical cores that this process's affinity and CPU quota allow it to use, at least 1."""
    affinity = getattr(os, "sched_getaffinity", None)
    cores = len(affinity(0)) if affinity is not None else os.cpu_count() or 1
    quota = cpu_quota()
    return cores if quota is None else max(1, min(cores, int(quota)))


def cpu_quota(sys_root: Path = _SYS, proc_root: Path = _PROC) -> float | None:
    """Return the number of CPUs granted by this process's control group and its parents; None if none sets a limit."""
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


def memory_files(unified: str, legacy: str, sys_root: Path = _SYS, proc_root: Path = _PROC) -> list[Path]:
    """Return the files with a given name in the memory controllers of this process's control group and its parents.

    The name is `unified` in version 2 of control groups and `legacy` in version 1. Missing files are left out.
    """
    paths: list[Path] = []
    for line in read_text(proc_root / "self/cgroup").splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0":
            mount, name = sys_root / "fs/cgroup", unified
        elif "memory" in controllers.split(","):
            mount, name = sys_root / "fs/cgroup/memory", legacy
        else:
            continue
        parts = path.strip("/").split("/")
        folders = (mount.joinpath(*parts[:depth]) for depth in range(len(parts), -1, -1))
        paths += [folder / name for folder in dict.fromkeys(folders) if (folder / name).is_file()]
    return paths


def memory_quota(sys_root: Path = _SYS, proc_root: Path = _PROC) -> int | None:
    """Return the bytes of memory granted by this process's control group and its parents; None if none sets a limit."""
    files = memory_files("memory.max", "memory.limit_in_bytes", sys_root, proc_root)
    limits = [int(text) for path in files if (text := read_text(path)).isdecimal()]
    return min((limit for limit in limits if limit < _NO_LIMIT), default=None)


def memory_left(sys_root: Path = _SYS, proc_root: Path = _PROC) -> int | None:
    """Return the bytes that this process's control group and its parents may still use; None without a limit."""
    limits = memory_files("memory.max", "memory.limit_in_bytes", sys_root, proc_root)
    left: list[int] = []
    for path in limits:
        used = path.with_name({"memory.max": "memory.current"}.get(path.name, "memory.usage_in_bytes"))
        limit, now = read_text(path), read_text(used)
        if limit.isdecimal() and now.isdecimal() and int(limit) < _NO_LIMIT:
            left.append(max(0, int(limit) - int(now)))
    return min(left, default=None)


_NO_LIMIT = 1 << 60
"""Smallest value, in bytes, that means "no limit". Control groups of version 1 show such a value if no limit is set."""


def read_text(path: Path) -> str:
    """Return a system file's text, stripped; empty if the file cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""
