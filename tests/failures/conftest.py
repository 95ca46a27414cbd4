"""Sweeps for tests: small, on real ranks, with nothing left behind."""

from __future__ import annotations

import contextlib
import io
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from ddpbench.cli import run
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
    """Return the fork servers, ranks and holders of fabrics of these tests that are alive."""
    found: list[psutil.Process] = []
    for process in started():
        with contextlib.suppress(psutil.Error):
            if {"ddpbench.worker", "ddpbench.fabric"} & set(process.cmdline()):
                found.append(process)
    return found


@pytest.fixture(autouse=True)
def clean(nothing_left_behind: None) -> None:
    """Apply to every test here: nothing may be left behind."""


@pytest.fixture
def no_base_case(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave the base case out of tests without speed-ups: each launch of a launcher takes ten seconds of a core."""
    monkeypatch.setattr("ddpbench.spec.matrix._add_base_cases", lambda planned, devices: None)


@pytest.fixture
def write_experiment(tmp_path: Path) -> Callable[..., Path]:
    def write(workloads: list[str], **settings: object) -> Path:
        path = tmp_path / "faults.toml"
        path.write_text(experiment_text(workloads, **settings), encoding="utf-8")  # type: ignore[arg-type]
        return path

    return write


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "ddpbench", *map(str, arguments)]


def run_cli(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a command in this process, which has already imported what a new process would have to import."""
    out, err = io.StringIO(), io.StringIO()
    at_end = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        for name, value in environment.items():
            patch.setenv(name, value)
        try:
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                code = run([str(argument) for argument in arguments])
        except SystemExit as stop:
            code = int(stop.code or 0)
        finally:
            for number, handler in at_end.items():
                signal.signal(number, handler)
    return subprocess.CompletedProcess(command(*arguments), code, out.getvalue(), err.getvalue())
