"""`python -m ddpbench.worker.spawn N RUN_DIR CASE_ID ROUND`: the ranks of a launch, by torch.multiprocessing.spawn."""

from __future__ import annotations

import os
import sys
import time

ENTERED_NS = time.perf_counter_ns()
"""When this process began to be ddpbench's: a rank imports this file first, as its `__mp_main__`."""


def _rank(number: int, count: int, words: list[str]) -> None:
    os.environ["DDPBENCH_BEGAN_NS"] = str(ENTERED_NS)
    os.environ |= {"RANK": str(number), "WORLD_SIZE": str(count), "LOCAL_RANK": str(number)}
    sys.argv = ["ddpbench.worker", *words]
    from ddpbench.worker.__main__ import main

    main()


def main() -> None:
    """Starts the ranks, and ends with the first that ends badly."""
    import torch.multiprocessing

    count, *words = sys.argv[1:]
    torch.multiprocessing.spawn(_rank, args=(int(count), words), nprocs=int(count))  # type: ignore[attr-defined, no-untyped-call]


if __name__ == "__main__":
    main()
