"""Sweeps for tests: small, on real ranks, with nothing left behind."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

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


TAG = f"{os.getpid()}-{time.time_ns()}"
"""Inherited by every process these tests start, so that other people's sweeps are not taken for theirs."""


def worker_processes() -> list[psutil.Process]:
    """Fork servers, ranks and holders of fabrics of these tests that are alive."""
    found: list[psutil.Process] = []
    for process in psutil.process_iter(["cmdline", "status"]):
        line = process.info["cmdline"] or []
        if (
            not {"ddpbench.worker", "ddpbench.fabric"} & set(line)
            or process.info["status"] == psutil.STATUS_ZOMBIE
        ):
            continue
        with contextlib.suppress(psutil.Error):
            if process.environ().get("DDPBENCH_TEST_TAG") == TAG:
                found.append(process)
    return found


@pytest.fixture(autouse=True)
def nothing_left_behind(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Fails the test that leaves a server or a rank running."""
    monkeypatch.setenv("DDPBENCH_SHARED_MACHINE", "1")
    monkeypatch.setenv("DDPBENCH_TEST_TAG", TAG)
    yield
    deadline = time.monotonic() + 5
    while left := worker_processes():
        if time.monotonic() > deadline:
            for process in left:
                process.kill()
            pytest.fail(f"processes left behind: {left}")
        time.sleep(0.05)


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
