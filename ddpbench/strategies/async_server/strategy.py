"""The `async_server` strategy, a parameter server that applies each worker's gradient when it arrives."""

from __future__ import annotations

import importlib.util
import mmap
from functools import cache
from pathlib import Path
from typing import Literal

from pydantic import BaseModel

from ddpbench.spec import Case
from ddpbench.strategies.base import Job, Promise, Replica, Strategy, dense_reason

NO_RPC = (
    'this torch was built without torch.distributed.rpc, which transport = "rpc" needs: '
    'set transport = "p2p" or "auto"'
)


class AsyncServerOptions(BaseModel, extra="forbid", frozen=True):
    """Options of the transport between workers and server."""

    transport: Literal["auto", "rpc", "p2p"] = "auto"
    """Transport of gradients: one torch.distributed.rpc call per step (`rpc`), or process-group messages (`p2p`).
    `auto` is rpc if supported."""


class AsyncServer(Strategy[AsyncServerOptions]):
    """Downpour SGD with n_push = n_fetch = 1 (Dean et al., "Large scale distributed deep networks", NIPS 2012).

    Rank 0 has the parameters and the optimizer but no samples. Each other rank computes a gradient, sends it, and gets
    the newest parameters back. The server applies gradients in the order of arrival. Workers wait for each other only
    at the end of a block of steps. A parameter that the loss does not reach gets a gradient of zeros.
    """

    name = "async_server"
    display = "async server"
    spoken = "the asynchronous server"
    colour, marker = "#D55E00", "d"
    options = AsyncServerOptions
    algorithm = "async_server"
    schedule = "after_backward"
    replicas_equal = False
    whole_state = False
    variants = ({"transport": "p2p"},)
    note = (
        "Workers compute gradients from parameters that other workers' updates have changed meanwhile "
        "(staleness), so a step achieves less than a synchronous one. Rank 0 only serves."
    )

    def promise(self, options: AsyncServerOptions) -> Promise:
        return "ordered"

    def trainers(self, world_size: int) -> int:
        return world_size - 1

    def check(self, case: Case) -> str | None:
        if case.world_size < 2:
            return "async_server needs a server and a worker: set world_size to 2 or more"
        if case.device == "cuda":
            return 'the server and its workers exchange CPU tensors: set device = "cpu"'
        if case.precision == "fp16":
            return (
                "fp16 scales the loss by a factor that all ranks agree on in every update, but here "
                'each rank has its own: set precision = "full" or "bf16"'
            )
        if AsyncServerOptions.model_validate(case.options).transport == "rpc" and not carries_rpc():
            return NO_RPC
        return None

    def model_reason(self, case: Case, *, closure: str, sparse: bool) -> str | None:
        return dense_reason(self.name) if sparse else None

    def build(self, job: Job, options: AsyncServerOptions) -> Replica:
        from torch.distributed import rpc

        from ddpbench.strategies.async_server.replica import BufferLayout, ServerReplica, WorkerReplica

        layout = BufferLayout(job.model)
        if options.transport == "rpc" and not rpc.is_available():
            raise RuntimeError(NO_RPC)
        if options.transport == "p2p" or not rpc.is_available():
            from ddpbench.strategies.async_server.p2p import P2pServer, P2pWorker

            if job.rank == 0:
                return ServerReplica(job, layout, P2pServer(job, layout))
            return WorkerReplica(job, layout, P2pWorker(job, layout))
        from ddpbench.strategies.async_server.rpc import RpcServer, RpcWorker

        if job.rank == 0:
            return ServerReplica(job, layout, RpcServer(job, layout))
        return WorkerReplica(job, layout, RpcWorker(job, layout))


@cache
def carries_rpc() -> bool:
    """Return whether the installed torch was built with RPC, without importing torch.

    This searches torch's shared library for the name that `torch.distributed.rpc.is_available` looks up. If there is no
    such library, return True. A rank then fails if RPC is missing.
    """
    spec = importlib.util.find_spec("torch")
    folders = spec.submodule_search_locations if spec is not None else None
    for library in (
        path for folder in folders or () for path in Path(folder, "lib").glob("libtorch_python.*")
    ):
        with library.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            return content.find(b"_rpc_init") >= 0
    return True
