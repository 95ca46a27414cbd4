"""Benchmarks on real ranks. Without `--ratios` each runs once, small, and asserts only that it works."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.processes import python_path

ROOT = Path(__file__).parents[2]
Say = Callable[[str], None]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--ratios", action="store_true", help="measure the promised ratios and assert their bounds"
    )
    parser.addoption(
        "--alike",
        action="store_true",
        help="with --ratios, pair frameworks' loops (-k a_loop, -k costs) or timed steps (-k noting) with "
        "themselves: what a benchmark makes of no difference",
    )
    parser.addoption(
        "--keep",
        type=Path,
        metavar="FOLDER",
        help="with --ratios, write every pair of frameworks, noting, interleaved launches and what is planted there",
    )


@pytest.fixture
def full(request: pytest.FixtureRequest) -> bool:
    """Return whether to measure the promised ratios, or only to show that their benchmarks work."""
    return bool(request.config.getoption("--ratios", default=False))


@pytest.fixture
def folder(request: pytest.FixtureRequest) -> Path | None:
    """Return the folder in which pairs are kept; None: they are not kept."""
    found: Path | None = request.config.getoption("--keep", default=None)
    return found


@pytest.fixture
def say(capsys: pytest.CaptureFixture[str]) -> Iterator[Say]:
    """Return a function that prints a line past pytest's capture, so that `make bench` shows it."""

    def tell(line: str) -> None:
        with capsys.disabled():
            print(line, flush=True)

    return tell


def printed_by(script: str, *arguments: object) -> Any:
    """Run a script of this folder and return the JSON that it prints; its last argument is a folder made for it."""
    Path(str(arguments[-1])).mkdir()
    result = subprocess.run(
        [sys.executable, str(ROOT / "tests/benchmarks" / script), *map(str, arguments)],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": python_path(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=570,
    )
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


def torchrun(script: str, processes: int, *arguments: object) -> None:
    """Run a script of this folder under torchrun as its documentation says."""
    launcher = ("-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}")
    _run(*launcher, ROOT / "tests/benchmarks" / script, *arguments)


def by_python(script: str, *arguments: object) -> None:
    """Run a script of this folder that starts its ranks itself."""
    _run(ROOT / "tests/benchmarks" / script, *arguments)


def _run(*words: object) -> None:
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": python_path(ROOT),
        "GLOO_SOCKET_IFNAME": "lo",
        "PYTHONWARNINGS": "ignore",
    }
    done = subprocess.run(
        [sys.executable, *map(str, words)],
        check=False,
        env=environment,
        capture_output=True,
        text=True,
        timeout=900,  # 600 pairs of a slow step's blocks are measured within it
    )
    assert done.returncode == 0, done.stdout + done.stderr
