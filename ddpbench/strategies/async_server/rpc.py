"""`async_server` over torch.distributed.rpc, with one remote call per step.

All messages use TCP. TensorPipe's alternatives within a host are turned off: shared memory needs a thread that polls on
the rank's core, and copying from other processes' memory (channel `cma`) bypasses emulated links.
"""

from __future__ import annotations

import os
import queue
import warnings
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Store
from torch.distributed import rpc
from torch.distributed.rendezvous import register_rendezvous_handler

from ddpbench.collectives.transport import CollectiveError
from ddpbench.measure.clock import Mark
from ddpbench.strategies.async_server.p2p import message
from ddpbench.strategies.async_server.replica import BufferLayout, Parcel
from ddpbench.strategies.base import Job

NEVER_S = 24 * 3600.0
"""Time-out of calls in seconds, long enough that ddpbench's watchdog ends a hang first."""
_SCHEME = "ddpbench"
_Answer = torch.futures.Future[list[torch.Tensor]]
_calls: queue.SimpleQueue[tuple[int, list[torch.Tensor], _Answer]] = queue.SimpleQueue()
"""Queue of the workers' calls on the server, in order of arrival: rank, gradients, and the future to complete."""


class RpcServer:
    """The server's end of the transport: RPC's threads queue the workers' calls, and the rank's thread answers them."""

    def __init__(self, job: Job, layout: BufferLayout) -> None:
        self._job, self._layout = job, layout
        # A buffer per worker, since parameters change while they are still being sent to a different worker.
        self._answers = {worker: Parcel(layout) for worker in range(1, job.world_size)}
        self._taken = [0] * job.world_size
        self._start: Mark = None
        self._answer = _Answer()
        _join(job)

    def take(self) -> tuple[int, list[torch.Tensor]]:
        self._start = self._job.recorder.mark()
        worker, buffers, self._answer = _calls.get()
        return worker, self._layout.views(buffers)

    def answer(self, worker: int, parameters: list[torch.Tensor]) -> None:
        recorder, parcel = self._job.recorder, self._answers[worker]
        torch._foreach_copy_(parcel.views, parameters)
        self._answer.set_result(parcel.buffers)
        recorder.add_transfer(
            bucket=0,
            op="call",
            size=self._layout.size,
            start=self._start,
            end=recorder.mark(),
            message=message(self._job, worker, self._taken[worker]),
        )
        self._taken[worker] += 1

    def close(self) -> None:
        rpc.shutdown()


class RpcWorker:
    """A worker's end of the transport.

    It records each call, from sending gradients to receiving parameters, as one transfer.
    """

    def __init__(self, job: Job, layout: BufferLayout) -> None:
        self._job, self._layout = job, layout
        self._gradient = Parcel(layout)
        self._made = 0
        _join(job)

    def exchange(self, gradients: list[torch.Tensor], parameters: list[torch.Tensor]) -> None:
        job, recorder = self._job, self._job.recorder
        torch._foreach_copy_(self._gradient.views, gradients)
        start = recorder.mark()
        try:
            buffers = rpc.rpc_sync(_name(0), _exchange, args=(job.rank, self._gradient.buffers))
        except RuntimeError as error:
            raise CollectiveError(
                f"rank {job.rank}: async_server: its call to rank 0 failed: {error}"
            ) from error
        recorder.add_transfer(
            bucket=0,
            op="call",
            size=self._layout.size,
            start=start,
            end=recorder.mark(),
            message=message(job, job.rank, self._made),
        )
        torch._foreach_copy_(parameters, self._layout.views(buffers))
        self._made += 1

    def close(self) -> None:
        rpc.shutdown()


@rpc.functions.async_execution  # type: ignore[untyped-decorator]
def _exchange(worker: int, gradients: list[torch.Tensor]) -> _Answer:
    answer = _Answer()
    _calls.put((worker, gradients, answer))
    return answer


def _name(rank: int) -> str:
    return f"rank{rank}"


def _join(job: Job) -> None:
    interface, _, _ = os.environ.get("GLOO_SOCKET_IFNAME", "").partition(",")
    if interface:
        os.environ.setdefault("TP_SOCKET_IFNAME", interface)
    options = rpc.TensorPipeRpcBackendOptions(
        init_method=f"{_SCHEME}://", rpc_timeout=NEVER_S, _transports=["uv"], _channels=["basic"]
    )
    rank, world_size = job.rank, job.world_size
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="You are using a Backend")  # RPC uses it itself
        rpc.init_rpc(_name(rank), rank=rank, world_size=world_size, rpc_backend_options=options)  # type: ignore[no-untyped-call]


def _meet(url: str, **_: Any) -> Iterator[tuple[Store, int, int]]:
    """Yield the process group's store; RPC adds a new prefix each time, so that keys do not collide."""
    yield dist.distributed_c10d._get_default_store(), dist.get_rank(), dist.get_world_size()


register_rendezvous_handler(_SCHEME, _meet)  # type: ignore[no-untyped-call]
