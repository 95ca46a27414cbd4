"""Times gloo's all-reduce between the nodes of a fabric: `python all_reduce.py LINKS NODES BYTES REPEATS TIMES FOLDER`.

Prints, as JSON, the seconds of one all-reduce in each repeat: the mean of several in a row, of the slowest rank.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import torch
import torch.distributed as dist

from ddpbench.fabric import Fabric, RankPlace
from ddpbench.fabric.entering import enter
from ddpbench.guard import die_with_parent
from ddpbench.spec import Links


def rank_main(rank: int, nodes: int, count: int, repeats: int, times: int, folder: Path) -> None:
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


def on_nodes(links: str, nodes: int, folder: Path, work: Callable[[int], None]) -> None:
    """Call `work(rank)` in a process on each node of a fabric, or on loopback if `links` is empty."""
    with ExitStack() as stack:
        places: tuple[RankPlace | None, ...] = (None,) * nodes
        if links:
            log = folder / "fabric.log"
            places = stack.enter_context(
                Fabric(Links.parse(links), nodes=nodes, ranks_per_node=1, log=log)
            ).places
        parent, pids = os.getpid(), []
        for rank, place in enumerate(places):
            pid = os.fork()
            if pid == 0:
                code = 1
                try:
                    die_with_parent(parent)
                    if place is not None:
                        enter(place.net_ns, place.user_ns)
                    os.environ["GLOO_SOCKET_IFNAME"] = place.interface if place is not None else "lo"
                    torch.set_num_threads(1)
                    store = dist.FileStore(str(folder / "store"), nodes)
                    dist.init_process_group("gloo", store=store, rank=rank, world_size=nodes)
                    work(rank)
                    code = 0
                except BaseException:
                    traceback.print_exc()
                finally:
                    os._exit(code)
            pids.append(pid)
        codes = [os.waitpid(pid, 0)[1] for pid in pids]
    assert not any(codes), codes


def main(text: str, nodes: int, count: int, repeats: int, times: int, folder: Path) -> None:
    on_nodes(text, nodes, folder, lambda rank: rank_main(rank, nodes, count, repeats, times, folder))
    print((folder / "took.json").read_text(encoding="ascii"))


if __name__ == "__main__":
    main(
        sys.argv[1],
        *map(int, sys.argv[2:6]),  # type: ignore[arg-type]
        Path(sys.argv[6]),
    )
