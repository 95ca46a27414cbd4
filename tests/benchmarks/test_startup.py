"""Waiting times for a person: the command line's own time, and a large report."""

from __future__ import annotations

import json
import os
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.benchmarks.conftest import ROOT, Say


def cpu_seconds(*arguments: str) -> float:
    """Return user and system time of one command."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(
        [sys.executable, "-m", "ddpbench", *arguments],
        check=True,
        capture_output=True,
        cwd=ROOT,
        env=os.environ.copy(),
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


@pytest.mark.parametrize("arguments", [("--help",), ("list",)])
def test_the_command_line_is_there_at_once(arguments: tuple[str, ...], full: bool, say: Say) -> None:
    """Bound: under 0.15 s of CPU, the median of nine."""
    seen = sorted(cpu_seconds(*arguments) for _ in range(9 if full else 1))
    median = seen[len(seen) // 2]
    assert median > 0
    if full:
        say(f"ddpbench {' '.join(arguments)}: {median:.3f} s of CPU, under 0.15")
        assert median < 0.15


def test_the_doctor_answers_soon(full: bool, say: Say) -> None:
    """Bound: under 5 s, process start and a fresh import of torch included; the slowest of five, files being read."""
    command = [sys.executable, "-m", "ddpbench", "doctor", "--json"]
    seen: list[float] = []
    for number in range(6 if full else 1):
        began = time.monotonic()
        result = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=True)
        if number or not full:
            seen.append(time.monotonic() - began)
        assert json.loads(result.stdout)[-1]["found"].startswith("Training can run here: ")
    if full:
        say(f"ddpbench doctor: {max(seen):.2f} s at most, under 5")
        assert max(seen) < 5


@pytest.mark.thorough
@pytest.mark.multiprocess
def test_a_sweep_spends_its_time_measuring(full: bool, say: Say, tmp_path: Path) -> None:
    """Bound: at least 70 % of the wall time of `quick` is spent in warm-up and measured steps."""
    small = ["--set", "budget.rounds_min=1", "--set", "budget.rounds_max=1", "--set", "budget.measured_s=0.1"]
    small += [
        "--set",
        'axes.strategy=["ddp"]',
        "--set",
        "axes.world_size=[2]",
        "--set",
        "base.workload='mlp:small'",
    ]
    command = [sys.executable, "-m", "ddpbench", "sweep", "quick", "--json", "--out", str(tmp_path / "run")]
    result = subprocess.run(
        [*command, *([] if full else small)], check=False, capture_output=True, text=True, cwd=ROOT
    )
    assert result.returncode == 0, result.stderr  # such as another sweep that holds these cores
    outcome = json.loads(result.stdout)
    assert {case["status"] for case in outcome["cases"]} == {"ok"}
    assert 0 < outcome["measured_share"] < 1
    if full:
        say(
            f"share of quick's wall time in warm-up and measured steps: {outcome['measured_share']:.2f}, at least 0.70"
        )
        assert outcome["measured_share"] >= 0.70


@pytest.mark.thorough
def test_a_report_on_a_thousand_cases(full: bool, say: Say, tmp_path: Path) -> None:
    """Bounds, relative to the time `json` takes to parse the run's records once: 5, and 1.7 if they were read before.

    Seconds depend on the machine. The process's start is included; the sweep's own report reads records first.
    """
    from tests.synthetic import write_run

    write_run(tmp_path / "run", 1000 if full else 20)
    environment = os.environ | {"DDPBENCH_CACHE": str(tmp_path / "cache")}
    parsed: list[float] = []
    took: list[float] = []
    for _ in range(4 if full else 2):
        began = time.monotonic()
        for path in (tmp_path / "run/cases").rglob("*.json*"):
            for line in path.read_bytes().splitlines() if path.suffix == ".jsonl" else [path.read_bytes()]:
                json.loads(line)
        parsed.append(time.monotonic() - began)
        began = time.monotonic()
        subprocess.run(
            [sys.executable, "-m", "ddpbench", "report", str(tmp_path / "run")],
            check=True,
            capture_output=True,
            cwd=ROOT,
            env=environment,
        )
        took.append(time.monotonic() - began)
    assert (tmp_path / "run/report.html").read_text(encoding="utf-8").count("<svg") >= 1
    assert any((tmp_path / "cache").rglob("*.run.kept")) is full  # a small run is read again
    if full:
        first, *again = [seconds / unit for seconds, unit in zip(took, parsed, strict=True)]
        say(
            f"ddpbench report on 1,000 cases: {took[0]:.1f} s, again {statistics.median(took[1:]):.1f} s; over the "
            f"time in which json parses their records: {first:.1f} and {statistics.median(again):.1f}, under 5 and 1.7"
        )
        assert first < 5
        assert statistics.median(again) < 1.7
