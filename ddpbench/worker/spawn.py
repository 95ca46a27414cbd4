"""Run a launch's N ranks by torch.multiprocessing.spawn: `python -m ddpbench.worker.spawn N RUN_DIR CASE_ID ROUND`."""

from __future__ import annotations

import os
import signal
import sys
import time

ENTERED_NS = time.perf_counter_ns()
"""The moment this process entered ddpbench's code. A spawned rank imports this file first, as its `__mp_main__`."""


def _rank(number: int, count: int, words: list[str], parent: int) -> None:
    from ddpbench.guard import die_with_parent

    # torch itself makes the child receive SIGINT if the parent dies. SIGINT may be ignored, though, and torch asks
    # for it only after its import, when the parent may have died already.
    die_with_parent(parent, signal.SIGTERM)
    os.environ["DDPBENCH_BEGAN_NS"] = str(ENTERED_NS)
    os.environ |= {"RANK": str(number), "WORLD_SIZE": str(count), "LOCAL_RANK": str(number)}
    sys.argv = ["ddpbench.worker", *words]
    from ddpbench.worker.__main__ import main

    main()


def main() -> None:
    """Start the ranks and wait for them. If one fails, end with its error."""
    import torch.multiprocessing

    count, *words = sys.argv[1:]
    asked = int(count), words, os.getpid()
    torch.multiprocessing.spawn(_rank, args=asked, nprocs=int(count))  # type: ignore[attr-defined, no-untyped-call]


if __name__ == "__main__":
    main()
