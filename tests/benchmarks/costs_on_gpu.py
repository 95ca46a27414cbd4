"""Step times of frameworks relative to plain torch on one GPU: every pair of blocks, kept.

    python -m tests.benchmarks.costs_on_gpu --seconds 480 FOLDER

It does what `test_frameworks.py -k costs` does at one rank on a CPU, with launches of all cases in turn until time is
up. While one trains, the next ones start up on other cores: a GPU is often available for minutes only, and most of a
launch is imports.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue

from tests.benchmarks.kept_pairs import (
    GPU_WORKLOADS,
    Launch,
    folder_of,
    note_machine,
    over_launches,
    summary_of,
    write,
)
from tests.benchmarks.test_frameworks import COSTS_OVER_DDP, FRAMEWORKS, launched, other_is_first

CASES = [("ddp", "bare"), *((loop, "ddp") for loop in COSTS_OVER_DDP)]
PAIRS = ("--pairs", 20, "--pairs-max", 40, "--block-seconds", 0.1, "--seconds-max", 5)
AT_ONCE = 3
"""Number of launches at once, of which one trains."""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="for the pairs, a folder in it for each workload")
    parser.add_argument("--seconds", type=float, required=True, help="begin no launch after so long")
    parser.add_argument("--loop", nargs="*", default=[loop for loop, _ in CASES], help="only these")
    asked = parser.parse_args(arguments)
    ends = time.monotonic() + asked.seconds
    cases = [(workload, *case) for case in CASES if case[0] in asked.loop for workload in GPU_WORKLOADS]
    note_machine(asked.folder, {FRAMEWORKS[loop] for loop in asked.loop if loop in FRAMEWORKS})
    groups: SimpleQueue[set[int]] = SimpleQueue()
    for group in _groups(sorted(os.sched_getaffinity(0)), AT_ONCE):
        groups.put(group)
    kept: dict[tuple[str, str, str], list[Launch]] = defaultdict(list)
    broken: set[tuple[str, str, str]] = set()

    def launch(number: int, workload: str, loop: str, against: str) -> Launch | None:
        cores = groups.get()
        os.sched_setaffinity(0, cores)  # of this thread, and of what it starts
        try:
            if time.monotonic() > ends or (workload, loop, against) in broken:
                return None
            batch, classes = GPU_WORKLOADS[workload]
            out = asked.folder / f"{number}-{folder_of(workload)}-{loop}-{against}.json"
            words = ("--workload", workload, "--local-batch", batch, "--device", "cuda", *PAIRS)
            words = (*words, "--lock", asked.folder / "lock")
            first = other_is_first(range(number), 1)
            return launched(loop, 1, against, out, words, other_first=first, classes=classes)
        except (AssertionError, OSError, ValueError, subprocess.TimeoutExpired) as problem:
            broken.add((workload, loop, against))
            print(f"{workload}, {loop}: {str(problem)[-1500:]}", file=sys.stderr, flush=True)
            return None
        finally:
            groups.put(cores)

    with ThreadPoolExecutor(AT_ONCE) as pool:
        waiting: list[tuple[tuple[str, str, str], Future[Launch | None]]] = []
        for number in range(100):
            waiting += [(case, pool.submit(launch, number, *case)) for case in cases]
        for case, future in waiting:
            workload, loop, against = case
            if (found := future.result()) is not None:
                kept[case].append(found)
                write(asked.folder / folder_of(workload) / f"{loop}-1-{against}.csv", kept[case])
    (asked.folder / "lock").unlink(missing_ok=True)
    for (workload, loop, against), launches in kept.items():
        plain = "ddp" if against == "ddp" else "single"
        print(f"{workload}: step of {loop} / of {plain}: {summary_of(over_launches(launches), launches)}")
    return int(bool(broken))


def _groups(cores: Sequence[int], count: int) -> list[set[int]]:
    """Return the cores in `count` groups of the same size."""
    size = max(1, len(cores) // count)
    return [set(cores[start : start + size]) for start in range(0, len(cores), size)][:count]


if __name__ == "__main__":
    sys.exit(main())
