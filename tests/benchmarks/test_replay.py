"""A replay against the original that it was profiled from."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

import pytest

from tests.benchmarks.conftest import ROOT, Say
from tests.benchmarks.ratio import paired_ratio
from tests.processes import python_path

pytestmark = pytest.mark.multiprocess


@pytest.mark.thorough
def test_a_replay_keeps_its_originals_times(full: bool, say: Say, tmp_path: Path) -> None:
    """Bounds: the interval of step times, replay / original, within 0.98 to 1.02; each gradient's time within
    2 % of the step, as the mean over pairs. A block is profiled and replayed in turn: the machine drifts less.
    """
    for workload, batch in (("gpt:micro", 8), ("resnet:18", 2)) if full else (("gpt:micro", 1),):
        folder = tmp_path / workload.replace(":", "-")
        folder.mkdir()
        _keeps_times(workload, batch, full, say, folder)


def _keeps_times(workload: str, batch: int, full: bool, say: Say, tmp_path: Path) -> None:
    out = tmp_path / "pairs.json"
    sizes = ("--pairs", "20" if full else "1", "--block-seconds", "1.0" if full else "0.05")
    command = [sys.executable, str(ROOT / "tests/benchmarks/replaying.py"), "--workload", workload]
    subprocess.run(
        [*command, "--local-batch", str(batch), *sizes, "--out", str(out)],
        check=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": python_path(ROOT)},
        timeout=600,
    )
    found = json.loads(out.read_text(encoding="utf-8"))
    pairs = [(replay, original) for replay, original in found["pairs"]]
    apart = [statistics.fmean(each) for each in zip(*found["apart"], strict=True)]
    assert all(replay > 0 and original > 0 for replay, original in pairs)
    assert len(apart) > 10
    if full:
        ratio = paired_ratio(pairs)
        worst = max(apart, key=abs)
        step = f"{1e3 * statistics.fmean(original for _, original in pairs):.2f} ms"
        say(f"step time, replay / original, {workload} ({step}): {ratio}, within 0.98 to 1.02")
        say(
            f"gradients' moments, replay - original, {workload}: worst {100 * worst:+.2f} % of the step, within 2 %"
        )
        assert 0.98 <= ratio.low <= ratio.high <= 1.02
        assert abs(worst) <= 0.02
