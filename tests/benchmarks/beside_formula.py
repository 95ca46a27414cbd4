"""Times every way to all-reduce in turn: `python beside_formula.py LINKS NODES BYTES REPEATS FOLDER`.

Prints, as JSON, by algorithm the seconds of one all-reduce in each repeat: from the last rank's start, as in reports,
until the last rank has its result.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist

from ddpbench.collectives import TABLE, load_collective
from ddpbench.collectives.transport import Transport
from tests.benchmarks.all_reduce import on_nodes


def rank_main(rank: int, nodes: int, count: int, repeats: int, folder: Path) -> None:
    transport = Transport(dist.new_group())
    ways: dict[str, Callable[[torch.Tensor], object]] = {"all_reduce": dist.all_reduce}
    ways |= {name: load_collective(name)(transport).all_reduce for name in TABLE}
    tensor, small = torch.empty(count // 4), torch.zeros(nodes)
    for way in ways.values():
        way(small)  # makes the connections
    ends: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
    for _ in range(repeats):
        for name, way in ways.items():
            tensor.fill_(1)
            dist.barrier()
            began = time.monotonic()
            way(tensor)
            ends[name].append((began, time.monotonic()))
            assert tensor[0] == tensor[-1] == nodes
    last = torch.tensor(list(ends.values()), dtype=torch.float64)
    dist.all_reduce(last, op=dist.ReduceOp.MAX)
    if rank == 0:
        took_s = dict(zip(ends, (last[:, :, 1] - last[:, :, 0]).tolist(), strict=True))
        (folder / "took.json").write_text(json.dumps(took_s), encoding="ascii")
    dist.barrier()


def main(links: str, nodes: int, count: int, repeats: int, folder: Path) -> None:
    on_nodes(links, nodes, folder, lambda rank: rank_main(rank, nodes, count, repeats, folder))
    print((folder / "took.json").read_text(encoding="ascii"))


if __name__ == "__main__":
    main(
        sys.argv[1],
        *map(int, sys.argv[2:5]),  # type: ignore[arg-type]
        Path(sys.argv[5]),
    )
