"""The two roles of `async_server`: a server that updates, and workers that compute. Imports torch at once.

A transport has an end for each (`ServerEnd`, `WorkerEnd`). Both put all parameters of a number type into one buffer.

In a step each worker sends one gradient and waits until it has been applied and the new parameters have arrived. The
server's step ends when it has applied as many gradients as there are workers, no matter from which workers. Over equal
numbers of steps no rank waits for something that is never sent: while the server waits, fewer gradients have come than
the workers' steps need, so some worker has yet to send, and it waits for no one but the server. A worker is ahead of
another by at most the rest of a block of steps, at whose end all ranks synchronize.
"""

from __future__ import annotations

from itertools import groupby
from typing import Any, Protocol

import torch
import torch.distributed as dist

from ddpbench.records import Staleness
from ddpbench.strategies.base import Job, OrderedReplica


class BufferLayout:
    """The arrangement of trained parameters in buffers: one buffer per number type, in the model's order."""

    def __init__(self, model: torch.nn.Module) -> None:
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        trained.sort(key=lambda parameter: str(parameter.dtype))  # stable
        self.parameters: list[torch.Tensor] = list(trained)
        self.values = [parameter.detach() for parameter in trained]
        """Views of the same memory, outside autograd."""
        self._groups = [list(group) for _, group in groupby(trained, key=lambda parameter: parameter.dtype)]
        self.size = sum(parameter.numel() * parameter.element_size() for parameter in trained)
        """Bytes of a gradient, and of the parameters."""

    def buffers(self) -> list[torch.Tensor]:
        """Return new buffers, one per number type."""
        return [
            torch.zeros(sum(each.numel() for each in group), dtype=group[0].dtype) for group in self._groups
        ]

    def views(self, buffers: list[torch.Tensor]) -> list[torch.Tensor]:
        """Return the buffers' parts in the shapes of `parameters`, and in their order."""
        found: list[torch.Tensor] = []
        for buffer, group in zip(buffers, self._groups, strict=True):
            parts = torch.split(buffer, [each.numel() for each in group])
            found += [part.view(each.shape) for part, each in zip(parts, group, strict=True)]
        return found


class Parcel:
    """Buffers and their views, for one gradient or one set of parameters in transfer."""

    def __init__(self, layout: BufferLayout) -> None:
        self.buffers = layout.buffers()
        self.views = layout.views(self.buffers)


class ServerEnd(Protocol):
    """The server's end of a transport."""

    def take(self) -> tuple[int, list[torch.Tensor]]:
        """Wait for the next gradient; return the worker's rank and the parts, as `BufferLayout.views`.

        The parts belong to the caller until it takes the next gradient.
        """

    def answer(self, worker: int, parameters: list[torch.Tensor]) -> None:
        """Send the current parameters to the worker whose gradient was taken last, without waiting."""

    def close(self) -> None:
        """Release what carries messages; all ranks call it together."""


class WorkerEnd(Protocol):
    """A worker's end of a transport."""

    def exchange(self, gradients: list[torch.Tensor], parameters: list[torch.Tensor]) -> None:
        """Send the gradients, and fill `parameters` with the server's after it has applied them."""

    def close(self) -> None:
        """Release what carries messages; all ranks call it together."""


class ServerReplica(OrderedReplica):
    """Rank 0: parameters and optimizer, and a log of the updates."""

    draws = False
    knows_loss = False

    def __init__(self, job: Job, layout: BufferLayout, end: ServerEnd) -> None:
        super().__init__(job)
        self._layout, self._end = layout, end
        self._log: list[tuple[int, int]] = []
        self._noted = 0
        self._version = [0] * job.world_size
        """Number of updates that each worker's parameters have."""
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
        """Do nothing: every update was made when its gradient arrived."""
        self.optimizer.zero_grad(set_to_none=True)

    def log(self) -> list[tuple[int, int]]:
        return list(self._log)

    def notes(self) -> list[Staleness]:
        """Return how stale the gradients applied since the last call were."""
        ages = [
            number - version
            for number, (_, version) in enumerate(self._log[self._noted :], start=self._noted)
        ]
        self._noted = len(self._log)
        return [Staleness(counts=tuple(ages.count(age) for age in range(max(ages) + 1)))] if ages else []

    def close(self) -> None:
        self._end.close()


class WorkerReplica(OrderedReplica):
    """Any other rank: a model whose parameters are the server's as of its last exchange."""

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
        """Drop the gradients: the server made the update, and its parameters have arrived."""
        self.optimizer.zero_grad(set_to_none=True)

    def log(self) -> list[tuple[int, int]]:
        return []

    def close(self) -> None:
        self._end.close()


def _spread(layout: BufferLayout) -> None:
    """Start all ranks from the server's parameters: those of workers may be older."""
    for value in layout.values:
        dist.broadcast(value, src=0)
