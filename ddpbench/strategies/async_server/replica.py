"""The two roles of `async_server`: a server that updates, and workers that compute.

In a step each worker sends one gradient, and waits until it has been applied and the new parameters have arrived. The
server's step ends when it has applied as many gradients as there are workers.

If all ranks make the same number of steps, none waits forever: while the server waits, at least one worker still has a
gradient to send, and workers wait only for the server's answers. One worker can be ahead of others until the end of a
block of steps, where all ranks synchronize.
"""

from __future__ import annotations

from itertools import groupby
from typing import Any, Protocol

import torch
import torch.distributed as dist

from ddpbench.records import Staleness
from ddpbench.strategies.base import Job, OrderedReplica


class BufferLayout:
    """Positions of all trained parameters in buffers, with one buffer per dtype, in the model's order."""

    def __init__(self, model: torch.nn.Module) -> None:
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        trained.sort(key=lambda parameter: str(parameter.dtype))  # stable
        self.parameters: list[torch.Tensor] = list(trained)
        self.values = [parameter.detach() for parameter in trained]
        """The parameters detached from autograd, in the same memory."""
        self._groups = [list(group) for _, group in groupby(trained, key=lambda parameter: parameter.dtype)]
        self.size = sum(parameter.numel() * parameter.element_size() for parameter in trained)
        """Total size of all gradients in bytes. All parameters together have the same size."""

    def buffers(self) -> list[torch.Tensor]:
        """Return new buffers, one per dtype."""
        return [
            torch.zeros(sum(each.numel() for each in group), dtype=group[0].dtype) for group in self._groups
        ]

    def views(self, buffers: list[torch.Tensor]) -> list[torch.Tensor]:
        """Return views into the buffers with the shapes and the order of `parameters`."""
        found: list[torch.Tensor] = []
        for buffer, group in zip(buffers, self._groups, strict=True):
            parts = torch.split(buffer, [each.numel() for each in group])
            found += [part.view(each.shape) for part, each in zip(parts, group, strict=True)]
        return found


class Parcel:
    """The content of one message, all gradients or all parameters: new buffers, and views into these buffers."""

    def __init__(self, layout: BufferLayout) -> None:
        self.buffers = layout.buffers()
        self.views = layout.views(self.buffers)


class ServerEnd(Protocol):
    """The server's end of a transport."""

    def take(self) -> tuple[int, list[torch.Tensor]]:
        """Wait for a worker's gradients. Return the worker's rank, and its gradients as in `BufferLayout.views`.

        The tensors stay valid until the next call.
        """

    def answer(self, worker: int, parameters: list[torch.Tensor]) -> None:
        """Begin to send the current parameters to `worker`, whose gradients `take` returned last."""

    def close(self) -> None:
        """Release the transport; all ranks call this together."""


class WorkerEnd(Protocol):
    """A worker's end of a transport."""

    def exchange(self, gradients: list[torch.Tensor], parameters: list[torch.Tensor]) -> None:
        """Send the gradients, wait until the server has applied them, and copy the new parameters into `parameters`."""

    def close(self) -> None:
        """Release the transport; all ranks call this together."""


class ServerReplica(OrderedReplica):
    """The replica of rank 0, which has the parameters and the optimizer, and keeps a log of the updates."""

    draws = False
    knows_loss = False

    def __init__(self, job: Job, layout: BufferLayout, end: ServerEnd) -> None:
        super().__init__(job)
        self._layout, self._end = layout, end
        self._log: list[tuple[int, int]] = []
        self._noted = 0
        self._version = [0] * job.world_size
        """Number of updates in the parameters that each worker has, by rank."""
        _spread(layout)

    def gradients_of(self, inputs: Any, targets: Any) -> torch.Tensor:
        recorder = self.job.recorder
        for _ in range(self.job.world_size - 1):
            with recorder.span("synchronize"):
                worker, gradients = self._end.take()
            with recorder.span("optimizer"):
                for parameter, gradient in zip(self._layout.parameters, gradients, strict=True):
                    parameter.grad = gradient
                self.optimizer.step()
            self._log.append((worker, self._version[worker]))
            self._version[worker] = len(self._log)
            with recorder.span("synchronize"):
                self._end.answer(worker, self._layout.values)
        return torch.zeros(())

    def apply(self) -> None:
        """Discard the gradients. `gradients_of` has already made every update."""
        self.optimizer.zero_grad(set_to_none=True)

    def log(self) -> list[tuple[int, int]]:
        return list(self._log)

    def notes(self) -> list[Staleness]:
        """Return a record of the staleness of the gradients applied since the last call, if any."""
        ages = [
            number - version
            for number, (_, version) in enumerate(self._log[self._noted :], start=self._noted)
        ]
        self._noted = len(self._log)
        return [Staleness(counts=tuple(ages.count(age) for age in range(max(ages) + 1)))] if ages else []

    def close(self) -> None:
        self._end.close()


class WorkerReplica(OrderedReplica):
    """The replica of a rank other than 0. Its model has the server's parameters as of the worker's last exchange."""

    def __init__(self, job: Job, layout: BufferLayout, end: WorkerEnd) -> None:
        super().__init__(job)
        self._layout, self._end = layout, end
        _spread(layout)

    def gradients_of(self, inputs: Any, targets: Any) -> torch.Tensor:
        job = self.job
        with job.recorder.span("forward"):
            loss = job.loss(job.model(inputs), targets)
        with job.recorder.span("backward"):
            loss.backward()  # type: ignore[no-untyped-call]
        with job.recorder.span("synchronize"):
            parameters = self._layout.parameters
            gradients = [torch.zeros_like(each) if each.grad is None else each.grad for each in parameters]
            self._end.exchange(gradients, self._layout.values)
        return loss.detach()

    def apply(self) -> None:
        """Discard the gradients. The server has made the update, and its parameters have arrived."""
        self.optimizer.zero_grad(set_to_none=True)

    def log(self) -> list[tuple[int, int]]:
        return []

    def close(self) -> None:
        self._end.close()


def _spread(layout: BufferLayout) -> None:
    """Copy the server's parameters to all ranks, whose own may be older."""
    for value in layout.values:
        dist.broadcast(value, src=0)
