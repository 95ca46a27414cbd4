"""Times ddpbench's ring and gloo's all-reduce in turn: `python ring_beside_gloo.py LINKS NODES BYTES PAIRS FOLDER`.

LINKS may be empty: then ranks use loopback. Prints, as JSON, pairs of seconds, the ring's first, each of the slowest
rank. The one that goes first alternates from pair to pair.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist

from ddpbench.collectives import load_collective
from ddpbench.collectives.transport import Transport
from tests.benchmarks.all_reduce import on_nodes


def rank_main(rank: int, nodes: int, count: int, pairs: int, folder: Path) -> None:
    ring = load_collective("ring")(Transport(dist.new_group()))
    tensor = torch.ones(count // 4)

    def timed(all_reduce: Callable[[torch.Tensor], object]) -> float:
        tensor.fill_(1)
        dist.barrier()
        began = time.monotonic()
        all_reduce(tensor)
        took = time.monotonic() - began
        assert tensor[0] == tensor[-1] == nodes
        return took

    sides = (ring.all_reduce, dist.all_reduce)
    for side in sides:
        timed(side)
    found: list[list[float]] = []
    for pair in range(pairs):
        pair_took = [0.0, 0.0]
        for which in (0, 1) if pair % 2 else (1, 0):
            pair_took[which] = timed(sides[which])
        found.append(pair_took)
    slowest = torch.tensor(found, dtype=torch.float64)
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    if rank == 0:
        (folder / "pairs.json").write_text(json.dumps(slowest.tolist()), encoding="ascii")
    dist.barrier()


def main(links: str, nodes: int, count: int, pairs: int, folder: Path) -> None:
    on_nodes(links, nodes, folder, lambda rank: rank_main(rank, nodes, count, pairs, folder))
    print((folder / "pairs.json").read_text(encoding="ascii"))


if __name__ == "__main__":
    main(
        sys.argv[1],
        *map(int, sys.argv[2:5]),  # type: ignore[arg-type]
        Path(sys.argv[5]),
    )
