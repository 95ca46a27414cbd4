"""Work is shared among the cores that a process may keep busy, not among all that it sees."""

from __future__ import annotations

import os

import pytest

from ddpbench import cpu_quota


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
