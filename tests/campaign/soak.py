"""A long sweep: memory and open files of its controller, its guard and its fork server must not grow.

`python -m tests.campaign.soak` runs 500 launches of one sweep from one fork server, as sweeps on a shared
machine do, and then a fifth of that from a new server each round, as other sweeps do. After every launch it
reads each process's open files and its memory without file pages, which come and go with other processes
(`RssAnon`, `RssShmem` and `VmSwap`). The first tenth is left out, and a straight line is fitted to the
medians of eight batches of the rest.

Memory is flat if the slope's interval contains 0 (a rise by one pool in total counts as 0) and ends below
`MOST_KIB` per launch, so that noise hides no leak. The intervals hold together with 95 %. The last batch must
not have more open files than the first.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil

from tests.campaign import oracle
from tests.campaign.setups import ROOT

BATCHES = 8
T_TOGETHER = 3.521
"""Student's t of 6 degrees of freedom, exceeded with a probability of 2.5 % in one of four memories."""
MOST_KIB = 2.0
"""KiB per launch that are detected despite noise."""
POOL_KIB = 16.0
"""Least growth of Python's own memory, KiB."""
_EXPERIMENT = f"""
question = "Does a long sweep grow?"
[base]
strategy = "ddp"
world_size = 2
local_batch = 4
workload = "{ROOT}/tests/failures/faulty.py:Sound"
[budget]
rounds_min = {{rounds}}
rounds_max = {{rounds}}
total = "4 h"
measured_s = "100 ms"
"""
MEMORY, FILES = "memory, KiB", "open files"
Series = dict[tuple[str, str], list[float]]
"""Values per launch, by process and quantity."""


def slope(values: Sequence[float]) -> tuple[float, float]:
    """Return the growth per launch and half its interval, from a straight line through the medians of
    batches.
    """
    every = batches(values)
    size, medians = len(every[0]), list(map(statistics.median, every))
    middle = (BATCHES - 1) / 2
    spread = sum((one - middle) ** 2 for one in range(BATCHES))
    mean = statistics.fmean(medians)
    rise = sum((one - middle) * (value - mean) for one, value in enumerate(medians)) / spread
    rest = sum((value - mean - rise * (one - middle)) ** 2 for one, value in enumerate(medians))
    half = T_TOGETHER * (rest / (BATCHES - 2) / spread) ** 0.5
    return rise / size, half / size


def batches(values: Sequence[float]) -> list[Sequence[float]]:
    """Return the last of these values in `BATCHES` parts of equal size."""
    size = len(values) // BATCHES
    if not size:
        raise ValueError(f"{len(values)} launches are too few: {BATCHES} at least")
    kept = values[len(values) - BATCHES * size :]
    return [kept[size * one : size * (one + 1)] for one in range(BATCHES)]


def is_flat(values: Sequence[float]) -> bool:
    """Return whether memory does not grow, KiB per launch."""
    rise, half = slope(values)
    return abs(rise) <= half + POOL_KIB / len(values) and rise + half < MOST_KIB


def is_steady(values: Sequence[float]) -> bool:
    """Return whether no more files are open at the end than at the beginning."""
    first, *_, last = batches(values)
    return max(last) <= max(first)


def counted(values: Sequence[float]) -> Sequence[float]:
    """Return the values without the first tenth."""
    return values[len(values) // 10 :]


def _role(process: psutil.Process, controller: int) -> str:
    """Return a process's role in the sweep; empty for ranks, which come and go."""
    if process.pid == controller:
        return "controller"
    if "--serve" not in process.cmdline():
        return ""
    parent = process.parent()
    depth = 0
    while parent is not None and parent.pid != controller:
        depth += "--serve" in parent.cmdline()
        parent = parent.parent()
    return ("guard", "fork server")[depth] if depth < 2 else ""


def watched(run: Path, rounds: int, tag: str, *, one_server: bool) -> Series:
    """Run the sweep, and return the values read after each launch."""
    run.parent.mkdir()
    (run.parent / "given.toml").write_text(_EXPERIMENT.format(rounds=rounds), encoding="utf-8")
    line = [sys.executable, "-m", "ddpbench", "sweep", str(run.parent / "given.toml"), "--out", str(run)]
    found: Series = defaultdict(list)
    seen = 0
    with (run.parent / "log").open("wb") as log:
        process = subprocess.Popen(
            line,
            stdout=log,
            stderr=log,
            cwd=ROOT,
            env={**os.environ, oracle.TAG: tag, "DDPBENCH_SHARED_MACHINE": "1" if one_server else "0"},
            start_new_session=True,
        )
        try:
            while process.poll() is None:
                done = sum(1 for _ in run.glob("cases/*/launch-*/outcome.json"))
                if done > seen:
                    seen = done
                    _read(process.pid, tag, found)
                    print(f"\r{done} of {2 * rounds} launches", end="", file=sys.stderr, flush=True)
                time.sleep(0.05)
        finally:
            if process.poll() is None:
                process.terminate()
            process.wait()
    if process.returncode:
        raise SystemExit((run.parent / "log").read_text(encoding="utf-8")[-2000:])
    return found


def _read(controller: int, tag: str, found: Series) -> None:
    for process in oracle.processes_of(tag):
        with contextlib.suppress(psutil.Error, OSError):
            if role := _role(process, controller):
                found[role, MEMORY].append(_own_memory_kib(process.pid))
                found[role, FILES].append(process.num_fds())


def _own_memory_kib(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
    found = [
        float(line.split()[1]) for line in status if line.startswith(("RssAnon:", "RssShmem:", "VmSwap:"))
    ]
    if len(found) != 3:
        raise psutil.NoSuchProcess(pid)  # it has just ended
    return sum(found)


def holds(what: str, values: Sequence[float]) -> bool:
    """Return whether a quantity does not grow, over the launches that count."""
    return (is_steady if what == FILES else is_flat)(counted(values))


def table(found: Mapping[tuple[str, str], Sequence[float]]) -> str:
    """Return a table of each process's values at the end, and their growth per launch."""
    rows = [
        "| process | of it | at first | at the end | a launch adds (95 %) | flat |",
        "|---|---|---|---|---|---|",
    ]
    for (role, what), values in sorted(found.items()):
        late = counted(values)
        rise, half = slope(late)
        rows.append(
            f"| {role} | {what} | {values[0]:,.0f} | {values[-1]:,.0f} | "
            f"{rise:.3f} [{rise - half:.3f}, {rise + half:.3f}] | {'yes' if holds(what, values) else 'no'} |"
        )
    return "\n".join(rows)


def main() -> None:
    """Print the table, and exit with 1 if something grows."""
    parser = argparse.ArgumentParser(prog="python -m tests.campaign.soak", description=__doc__)
    parser.add_argument("--launches", type=int, default=500)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ddpbench-soak-") as folder:
        found = watched(
            Path(folder) / "one" / "run", given.launches // 2, f"soak-{os.getpid()}", one_server=True
        )
        rounds = given.launches // 10
        others = watched(Path(folder) / "more" / "run", rounds, f"soak-{os.getpid()}-more", one_server=False)
    # Then each round has a new fork server with a new guard.
    found |= {
        (f"{role}, {rounds} servers", what): others[role, what]
        for role, what in others
        if role == "controller"
    }
    print(f"\n{table(found)}")
    grows = [values for (_, what), values in found.items() if not holds(what, values)]
    sys.exit(bool(grows) or len(found) < 8)


if __name__ == "__main__":
    main()
