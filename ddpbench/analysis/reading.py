"""Large runs are read by two processes: parsing records is most of an analysis' time, and needs one core.

python -m ddpbench.analysis.reading    # a run, its plan and a share of the cases come in, pickled; they go out
"""

from __future__ import annotations

import contextlib
import gc
import os
import pickle
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

from ddpbench.analysis.launches import CaseRun, read_cases
from ddpbench.records import RunDir
from ddpbench.records.plan import StoredPlan

WORTH_SHARING = 100
"""Fewer cases are read here: a second process takes most of a second to start."""


def read_cases_of(run: RunDir, plan: StoredPlan) -> list[CaseRun]:
    """`read_cases`, by two processes where that is worth it. What fails in the other one is read here.

    Raises:
        IdentityError: a case's contents do not give the id that the plan names.
    """
    half = len(plan.cases) // 2
    if len(plan.cases) < WORTH_SHARING or len(os.sched_getaffinity(0)) < 2:
        return read_cases(run, plan)
    root = Path(__file__).resolve().parents[2]
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "ddpbench.analysis.reading"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(root), os.environ.get("PYTHONPATH", "")])},
    )
    assert process.stdin is not None
    try:
        with contextlib.suppress(BrokenPipeError):  # it has ended: its exit code tells
            pickle.dump((run, _part(plan, half, None)), process.stdin)
            process.stdin.flush()
        found = read_cases(run, _part(plan, 0, half))
        answer, _ = process.communicate()
    except BaseException:
        process.kill()
        process.communicate()
        raise
    if process.returncode != 0:
        return found + read_cases(run, _part(plan, half, None))
    others: list[CaseRun] = pickle.loads(answer)
    return found + others


def _part(plan: StoredPlan, start: int, end: int | None) -> StoredPlan:
    return replace(plan, cases=plan.cases[start:end], ids=plan.ids[start:end])


def main() -> None:
    """Reads what is asked for, and ends."""
    gc.disable()
    run, plan = pickle.load(sys.stdin.buffer)
    pickle.dump(read_cases(run, plan), sys.stdout.buffer)


if __name__ == "__main__":
    main()
