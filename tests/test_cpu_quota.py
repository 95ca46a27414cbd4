"""Work is shared among the cores that a process may keep busy, not among all that it sees."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ddpbench import cpu_quota
from ddpbench.machine.disturbance import oom_kills


@pytest.mark.parametrize(
    ("affinity", "quota", "cores"),
    [(64, None, 64), (64, 2.0, 2), (64, 2.5, 2), (64, 0.5, 1), (2, 8.0, 2)],
)
def test_a_quota_below_the_affinity_counts(
    monkeypatch: pytest.MonkeyPatch, affinity: int, quota: float | None, cores: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(affinity)))
    monkeypatch.setattr(cpu_quota, "cpu_quota", lambda: quota)
    assert cpu_quota.granted_cores() == cores


def test_a_system_without_affinity_has_all_its_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """A report is made on any system, a macOS laptop too."""
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: 3)
    monkeypatch.setattr(cpu_quota, "cpu_quota", lambda: None)
    assert cpu_quota.granted_cores() == 3


def groups(root: Path, lines: str, files: dict[str, str]) -> tuple[Path, Path]:
    """Write a system of control groups with these files; return replacements for /sys and for /proc."""
    for name, text in {"proc/self/cgroup": lines, **files}.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="ascii")
    return root / "sys", root / "proc"


UNIFIED = "0::/user.slice/job.scope\n"
LEGACY = "4:memory:/slurm/job_7/step_0\n3:cpuset:/\n0::/\n"
NO_LIMIT = "9223372036854771712\n"


@pytest.mark.parametrize(
    ("lines", "files", "quota", "kills"),
    [
        (
            UNIFIED,
            {
                "user.slice/job.scope/memory.max": "max\n",
                "user.slice/job.scope/memory.events": "low 0\nhigh 0\nmax 9\noom 3\noom_kill 2\n",
                "user.slice/memory.max": "536870912\n",
            },
            536870912,
            2,
        ),
        (
            LEGACY,
            {
                "memory/slurm/job_7/step_0/memory.limit_in_bytes": NO_LIMIT,
                "memory/slurm/job_7/step_0/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 5\n",
                "memory/slurm/job_7/memory.limit_in_bytes": "1073741824\n",
                "memory/slurm/memory.limit_in_bytes": NO_LIMIT,
            },
            1073741824,
            5,
        ),
        # in a container the group's path may be that of the host, where only the root exists
        (LEGACY, {"memory/memory.oom_control": "oom_kill 1\n"}, None, 1),
        ("0::/\n", {"memory.max": "1000000\n"}, 1000000, 7),
        ("", {}, None, 7),
    ],
)
def test_memory_of_control_groups_of_both_versions(
    tmp_path: Path, lines: str, files: dict[str, str], quota: int | None, kills: int
) -> None:
    of_groups = {f"sys/fs/cgroup/{name}": text for name, text in files.items()}
    sys_root, proc_root = groups(tmp_path, lines, {**of_groups, "proc/vmstat": "nr_x 1\noom_kill 7\n"})
    assert cpu_quota.memory_quota(sys_root, proc_root) == quota
    assert oom_kills(sys_root, proc_root) == kills
