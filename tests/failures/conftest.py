"""Sweeps for tests: small, on real ranks, with nothing left behind."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from tests.processes import nothing_left_behind, started

__all__ = ["nothing_left_behind"]

ROOT = Path(__file__).parents[2]
FAULTY = ROOT / "tests/failures/faulty.py"


def workload(name: str) -> str:
    return f"{FAULTY}:{name}"


def experiment_text(
    workloads: list[str], *, rounds: int = 2, measured: str = "60 ms", **budget: object
) -> str:
    extra = "\n".join(f"{key} = {value!r}".replace("'", '"') for key, value in budget.items())
    return f"""
question = "What becomes of a sweep when something breaks?"
[base]
strategy = "ddp"
world_size = 2
local_batch = 4
[axes]
workload = {workloads}
[budget]
rounds_min = {rounds}
rounds_max = {rounds}
measured_s = "{measured}"
{extra}
"""


def worker_processes() -> list[psutil.Process]:
    """Fork servers, ranks and holders of fabrics of these tests that are alive."""
    found: list[psutil.Process] = []
    for process in started():
        with contextlib.suppress(psutil.Error):
            if {"ddpbench.worker", "ddpbench.fabric"} & set(process.cmdline()):
                found.append(process)
    return found


@pytest.fixture(autouse=True)
def clean(nothing_left_behind: None) -> None:
    """Every test here is held to it."""


@pytest.fixture
def write_experiment(tmp_path: Path) -> Callable[..., Path]:
    def write(workloads: list[str], **settings: object) -> Path:
        path = tmp_path / "faults.toml"
        path.write_text(experiment_text(workloads, **settings), encoding="utf-8")  # type: ignore[arg-type]
        return path

    return write


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "ddpbench", *map(str, arguments)]


def run_cli(*arguments: object, timeout: float = 120, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(*arguments),
        capture_output=True,
        text=True,
        timeout=timeout,
        env={**os.environ, **environment},
        cwd=ROOT,
        check=False,
    )
