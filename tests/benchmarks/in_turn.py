"""An interleaved comparison of two settings of an experiment, by the command; how many of ten find a planted change."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from ddpbench.analysis.regression.changes import interleaved_rounds
from ddpbench.launch.interleave.compare import changes_in
from tests.benchmarks.conftest import ROOT, Say
from tests.benchmarks.keeping import keep
from tests.benchmarks.kept_pairs import Launch

RUNS = 10


def compare(
    experiment: str, out: Path, total: str, base: str, new: str, *more: str
) -> tuple[dict[str, object], float]:
    """Run a comparison; return its result, and how long it took, seconds."""
    began = time.monotonic()
    done = subprocess.run(
        [
            *(sys.executable, "-m", "ddpbench", "compare", "--interleave", experiment, "--json"),
            *("--base", f"set={base}", "--new", f"set={new}", "--total", total, "--out", str(out), *more),
        ],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=os.environ.copy(),
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (case,) = json.loads(done.stdout)["cases"]
    return case, time.monotonic() - began


def shown_to_work(experiment: str, out: Path, base: str, new: str, small: Sequence[str]) -> None:
    """Run one comparison of a few seconds, with any result."""
    case, _ = compare(experiment, out, "5 s", base, new, *small)
    assert case["verdict"] in ("slower", "cannot tell", "equivalent", "faster")
    assert isinstance(case["ratio"], dict)
    assert len(pairs_in(out).pairs) == case["rounds"]


def pairs_in(out: Path) -> Launch:
    """Return the step times of a comparison's rounds, new side first, seconds."""
    changes = changes_in(out)
    (base,), (new,) = changes.base.cases, changes.new.cases
    rounds = interleaved_rounds(base.timings, new.timings)
    return Launch([(after.step_s, before.step_s) for before, after in rounds], 1)


def times_found(
    experiment: str, out: Path, minutes: int, base: str, new: str, say: Say, folder: Path | None, name: str
) -> int:
    """Return in how many of ten comparisons the new side is shown to be slower; each is reported and kept."""
    found = 0
    kept: list[Launch] = []
    for number in range(RUNS):
        to = out / f"run-{number}"
        case, seconds = compare(experiment, to, f"{minutes} min", base, new)
        kept.append(pairs_in(to))
        keep(kept, name, folder)
        found += case["verdict"] == "slower"
        ratio = case["ratio"]
        assert isinstance(ratio, dict)
        ends = " to ".join("-" if ratio[end] is None else f"{ratio[end]:.3f}" for end in ("low", "high"))
        say(f"{case['verdict']}: {ratio['value']:.3f} [{ends}] in {case['rounds']} rounds, {seconds:.0f} s")
    return found
