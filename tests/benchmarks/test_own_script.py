"""Fidelity with a user's script: the harness's numbers are those of the script's own loop."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.benchmarks.conftest import ROOT, Say
from tests.benchmarks.ratio import paired_ratio
from tests.processes import python_path

KEEPS_MEMORY = {
    "MALLOC_TRIM_THRESHOLD_": "1000000000",
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TOP_PAD_": "100000000",
}
"""glibc's malloc returns the top of its heap to the kernel when it happens to be free. Whether this happens in every
step of a loop of this size (a thousand page faults, a tenth of its time) is chance, decided once per process: both
sides must have the same state of it."""


@pytest.mark.thorough
@pytest.mark.multiprocess
def test_blocks_in_turn_with_the_scripts_own_epochs(full: bool, say: Say, tmp_path: Path) -> None:
    """Bound: the 95 % interval of harness / the script's own loop is within 0.98 to 1.02.

    Pairs are added until the interval is 0.8 % to either side, at least 60 and at most 600.
    """
    out = tmp_path / "pairs.json"
    size = ["--steps", "32" if full else "4"]
    pairs = ["--pairs", "60", "--pairs-max", "600"] if full else ["--pairs", "2", "--pairs-max", "2"]
    subprocess.run(
        [sys.executable, ROOT / "tests/benchmarks/own_script.py", *size, *pairs, "--out", out],
        check=True,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": python_path(ROOT), "OMP_NUM_THREADS": "1", **KEEPS_MEMORY},
        timeout=600,
    )
    seen = [(harness, own) for harness, own in json.loads(out.read_text(encoding="utf-8"))["pairs"]]
    assert all(harness > 0 and own > 0 for harness, own in seen)
    if full:
        ratio = paired_ratio(seen)
        say(f"harness / the script's own loop, own_script: {ratio}, within 0.98 to 1.02")
        assert 0.98 <= ratio.low <= ratio.high <= 1.02
