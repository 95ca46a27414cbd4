"""Real ranks for tests: forked from a server that has imported torch, they meet in a file and report by file."""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from importlib.util import find_spec
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
_CONTEXT = multiprocessing.get_context("forkserver")
_SERVER = forkserver.ForkServer()
"""A separate fork server: Python's, one per process, may have been started without torch, as by a test of workers."""
_SERVER.set_forkserver_preload(
    [
        "torch",
        # torch's compiler whole, which `tests/lighter` leaves for later: ranks with shards want it, and each would take
        # over a second for it.
        "torch._dynamo.utils",
        "torch.distributed",
        "torch.distributed.fsdp",
        "torch.distributed.optim",
        "torch.nn.parallel",
        "torch.utils.flop_counter",  # which each proof would import
        "torch.distributed.pipelining",  # which each rank of a pipeline would import
        "pytest",  # a child imports the parent's main module
        "tests.strategies.training",
        "tests.strategies.sharding",
        "ddpbench.worker.rank.rank",
        # Brings pandas, a second: ranks' functions are in modules of tests that import it. If pyarrow is installed,
        # pandas starts a thread as well, and then each rank has to import it itself.
        *([] if find_spec("pyarrow") else ["ddpbench.analysis.read.overlap"]),
        # Frameworks, if installed; otherwise the server continues without them.
        "accelerate",
        "lightning.pytorch",
    ]
)
TIMEOUT_S = 60.0


def run_ranks(function: Callable[..., Any], processes: int, *arguments: Any) -> list[Any]:
    """Call `function(rank, processes, *arguments)` in that many ranks; return their results in the order of ranks.

    The default process group is gloo's. `function` is a module's own, and its result is pickled.
    A rank that fails, dies or takes longer than `TIMEOUT_S` fails the test, with its traceback.
    """
    with tempfile.TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patch:
        # Otherwise numpy starts a thread, and then the server may not fork.
        patch.setenv("OPENBLAS_NUM_THREADS", "1")
        patch.setenv("OMP_NUM_THREADS", "1")
        folder = Path(name)
        patch.setattr(forkserver, "connect_to_new_process", _SERVER.connect_to_new_process)
        with contextlib.chdir(ROOT):  # elsewhere it would find no tests to import, and report nothing
            _SERVER.ensure_running()
        ranks = [
            _CONTEXT.Process(target=_be_rank, args=(function, rank, processes, folder, arguments))
            for rank in range(processes)
        ]
        for process in ranks:
            process.start()
        deadline = time.monotonic() + TIMEOUT_S
        try:
            while any(process.is_alive() for process in ranks) and time.monotonic() < deadline:
                if any(process.exitcode for process in ranks):
                    break
                time.sleep(0.005)
        finally:
            for process in ranks:
                process.kill()
                process.join()
        errors = [path.read_text(encoding="utf-8") for path in sorted(folder.glob("error-*"))]
        codes = [process.exitcode for process in ranks]
        if errors or any(codes):
            pytest.fail(f"ranks ended with {codes} ({TIMEOUT_S:g} s allowed)\n" + "\n".join(errors))
        return [_load(folder / f"result-{rank}") for rank in range(processes)]


def _load(path: Path) -> Any:
    import torch

    return torch.load(path, weights_only=False)


def _be_rank(
    function: Callable[..., Any], rank: int, processes: int, folder: Path, arguments: tuple[Any, ...]
) -> None:
    import torch
    import torch.distributed as dist
    from torch._C._distributed_c10d import FileStore

    gc.freeze()  # collections need not look through all of torch
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    os.environ["DDPBENCH_SECRET"] = "the same on all ranks"
    torch.set_num_threads(1)
    code = 1
    try:
        dist.init_process_group(
            "gloo",
            store=FileStore(str(folder / "rendezvous"), processes),
            rank=rank,
            world_size=processes,
            timeout=timedelta(seconds=TIMEOUT_S),
        )
        torch.save(function(rank, processes, *arguments), folder / f"result-{rank}")
        dist.barrier()
        dist.destroy_process_group()
        code = 0
    except BaseException:
        (folder / f"error-{rank}").write_text(f"rank {rank}: {traceback.format_exc()}", encoding="utf-8")
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)  # gloo's threads may abort an orderly exit
