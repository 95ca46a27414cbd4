"""Times gloo's all-reduce between the nodes of a fabric: `python all_reduce.py LINKS NODES BYTES REPEATS TIMES FOLDER`.

Prints, as JSON, the seconds one all-reduce took in each repeat: of several in a row, the slowest rank's.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

from ddpbench.fabric import Fabric, RankPlace
from ddpbench.fabric.entering import die_with_parent, enter
from ddpbench.spec import Links


def rank_main(
    rank: int, place: RankPlace, nodes: int, count: int, repeats: int, times: int, folder: Path
) -> None:
    enter(place.net_ns, place.user_ns)
    os.environ["GLOO_SOCKET_IFNAME"] = place.interface
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", store=dist.FileStore(str(folder / "store"), nodes), rank=rank, world_size=nodes
    )
    tensor = torch.ones(count // 4)
    dist.all_reduce(tensor)
    assert tensor[0] == tensor[-1] == nodes
    took: list[float] = []
    for _ in range(repeats):
        tensor.fill_(0)
        dist.barrier()
        began = time.monotonic()
        for _ in range(times):
            dist.all_reduce(tensor)
        took.append((time.monotonic() - began) / times)
    slowest = torch.tensor(took, dtype=torch.float64)
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    if rank == 0:
        (folder / "took.json").write_text(json.dumps(slowest.tolist()), encoding="ascii")
    dist.barrier()


def main(text: str, nodes: int, count: int, repeats: int, times: int, folder: Path) -> None:
    with Fabric(Links.parse(text), nodes=nodes, ranks_per_node=1, log=folder / "fabric.log") as fabric:
        parent, pids = os.getpid(), []
        for rank, place in enumerate(fabric.places):
            pid = os.fork()
            if pid == 0:
                code = 1
                try:
                    die_with_parent(parent)
                    rank_main(rank, place, nodes, count, repeats, times, folder)
                    code = 0
                finally:
                    os._exit(code)
            pids.append(pid)
        codes = [os.waitpid(pid, 0)[1] for pid in pids]
    assert not any(codes), codes
    print((folder / "took.json").read_text(encoding="ascii"))


if __name__ == "__main__":
    main(
        sys.argv[1],
        *map(int, sys.argv[2:6]),  # type: ignore[arg-type]
        Path(sys.argv[6]),
    )
