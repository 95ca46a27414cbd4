"""`async_server` over point-to-point messages of the process group.

The server receives from any rank. gloo serves waiting ranks in the order of their requests
(gloo/transport/tcp/context.cc, recvFromAnyFindRank).
"""

from __future__ import annotations

import torch

from ddpbench.collectives.transport import Transport
from ddpbench.strategies.async_server.replica import BufferLayout, Parcel
from ddpbench.strategies.base import Job


class P2pServer:
    """The server's end of the transport. It receives one gradient at a time, and sends parameters meanwhile."""

    def __init__(self, job: Job, layout: BufferLayout) -> None:
        self._job, self._layout = job, layout
        self._gradient = Parcel(layout)
        # A buffer per worker, since parameters change while they are still being sent to a different worker.
        self._answers = {worker: Parcel(layout) for worker in range(1, job.world_size)}
        self._transports = {worker: _transport() for worker in range(job.world_size)}
        self._taken = [0] * job.world_size

    def take(self) -> tuple[int, list[torch.Tensor]]:
        recorder = self._job.recorder
        start = recorder.mark()
        first, *others = self._gradient.buffers
        worker = self._transports[0].receive_any(first)
        for buffer in others:
            self._transports[worker].receive(buffer, worker).wait()
        recorder.add_transfer(
            bucket=0,
            op="push",
            size=self._layout.size,
            start=start,
            end=recorder.mark(),
            sent=0,
            message=message(self._job, worker, self._taken[worker]),
        )
        return worker, self._gradient.views

    def answer(self, worker: int, parameters: list[torch.Tensor]) -> None:
        recorder, transport, answer = self._job.recorder, self._transports[worker], self._answers[worker]
        transport.flush()  # the previous answer has arrived, because the worker has sent a gradient since
        torch._foreach_copy_(answer.views, parameters)
        start = recorder.mark()
        for buffer in answer.buffers:
            transport.send(buffer, worker)
        # The send continues in the background. The worker records when the parameters have arrived.
        recorder.add_transfer(
            bucket=0,
            op="pull",
            size=self._layout.size,
            start=start,
            end=recorder.mark(),
            sent=self._layout.size,
            message=message(self._job, worker, self._taken[worker]),
        )
        self._taken[worker] += 1

    def close(self) -> None:
        for transport in self._transports.values():
            transport.flush()


class P2pWorker:
    """A worker's end of the transport, which begins to receive before it sends: the server never waits."""

    def __init__(self, job: Job, layout: BufferLayout) -> None:
        self._job, self._layout = job, layout
        self._gradient, self._answer = Parcel(layout), Parcel(layout)
        self._transport = _transport()
        self._sent = 0

    def exchange(self, gradients: list[torch.Tensor], parameters: list[torch.Tensor]) -> None:
        recorder, transport = self._job.recorder, self._transport
        torch._foreach_copy_(self._gradient.views, gradients)
        arrivals = [transport.receive(buffer, 0) for buffer in self._answer.buffers]
        start = recorder.mark()
        for buffer in self._gradient.buffers:
            transport.send(buffer, 0)
        transport.flush()
        pushed = recorder.mark()
        for arrival in arrivals:
            arrival.wait()
        pulled = recorder.mark()
        size, number = self._layout.size, message(self._job, self._job.rank, self._sent)
        recorder.add_transfer(
            bucket=0, op="push", size=size, start=start, end=pushed, sent=size, message=number
        )
        recorder.add_transfer(
            bucket=0, op="pull", size=size, start=pushed, end=pulled, sent=0, message=number
        )
        torch._foreach_copy_(parameters, self._answer.views)
        self._sent += 1

    def close(self) -> None:
        self._transport.flush()


def message(job: Job, worker: int, count: int) -> int:
    """Return a number that identifies exchange `count` of a worker, on the server as well as on the worker."""
    return count * job.world_size + worker


def _transport() -> Transport:
    transport = Transport()
    transport.phase = "async_server"
    return transport
