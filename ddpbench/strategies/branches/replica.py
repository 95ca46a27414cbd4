"""The replica of one branch of a model; rank 0 also has the head."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from ddpbench.collectives.exchange import gather_values, name_of_type, shape_of, type_of_numbers
from ddpbench.strategies.base import Job
from ddpbench.strategies.messages import begin
from ddpbench.strategies.piece_replica import PieceReplica

_MOST_DESCRIBED = 4096
"""Largest size of a message that describes the dtype and shape of an output, in bytes."""


def _description(sent: Any) -> tuple[list[int], torch.dtype]:
    """Parse shape and dtype of a rank's message. Raise errors that `gather_values` handles."""
    name, shape = sent
    return shape_of(shape), type_of_numbers(name)


class BranchesReplica(PieceReplica):
    """Replica that trains one branch. All ranks take the full batch, but only rank 0 uses its targets."""

    def __init__(self, job: Job) -> None:
        branches: list[nn.Module]
        branches, head = job.model.branches()  # type: ignore[operator]
        first, *others = branches
        pieces = [nn.ModuleList([first, head]), *others]
        super().__init__(job, pieces, pieces[job.rank])
        self._branch, self._head = branches[job.rank], head
        self.knows_loss = job.rank == 0
        self._buffers: list[torch.Tensor] | None = None
        """Receive buffers. Rank 0 has one for each other rank's output, by rank. Every other rank has one for the
        gradient of its output."""

    def gradients_of(self, inputs: Any, targets: Any) -> torch.Tensor:
        return self._joined(inputs, targets) if self.job.rank == 0 else self._apart(inputs)

    def _joined(self, inputs: Any, targets: Any) -> torch.Tensor:
        recorder = self.job.recorder
        under_way = self._receive()
        with recorder.span("forward"):
            own = self._branch(inputs)
        if self._buffers is None:
            self._prepare(own)
            under_way = self._receive()
        with recorder.span("synchronize"):
            for message in under_way:
                message.wait()
        assert self._buffers is not None
        with recorder.span("forward"):
            leaves = [output.detach().requires_grad_() for output in (own, *self._buffers)]
            loss = self.job.loss(self._head(leaves), targets)
        with recorder.span("backward"):
            loss.backward()  # type: ignore[no-untyped-call]
            slopes = [torch.zeros_like(leaf) if leaf.grad is None else leaf.grad for leaf in leaves]
            under_way = [
                begin(recorder, "send", slope, rank, 2 * rank + 1)
                for rank, slope in enumerate(slopes)
                if rank
            ]
            own.backward(slopes[0])
        with recorder.span("synchronize"):
            for message in under_way:
                message.wait()
        return loss.detach()

    def _apart(self, inputs: Any) -> torch.Tensor:
        recorder, rank = self.job.recorder, self.job.rank
        with recorder.span("forward"):
            own = self._branch(inputs)
        if self._buffers is None:
            self._prepare(own)
        assert self._buffers is not None
        with recorder.span("synchronize"):
            (slope,) = self._buffers
            sent = begin(recorder, "send", own.detach().contiguous(), 0, 2 * rank)
            received = begin(recorder, "receive", slope, 0, 2 * rank + 1)
            sent.wait()
            received.wait()
        with recorder.span("backward"):
            own.backward(slope)
        return torch.zeros((), device=self.job.device)

    def _prepare(self, own: torch.Tensor) -> None:
        """Allocate the receive buffers, whose shapes all ranks exchange."""
        own_description = [name_of_type(own.dtype), [*own.shape]]
        described = gather_values(own_description, _description, device=own.device, most=_MOST_DESCRIBED)
        others = described[1:] if self.job.rank == 0 else [described[self.job.rank]]
        self._buffers = [torch.empty(shape, dtype=dtype, device=own.device) for shape, dtype in others]

    def _receive(self) -> list[Any]:
        return [
            begin(self.job.recorder, "receive", buffer, rank, 2 * rank)
            for rank, buffer in enumerate(self._buffers or (), start=1)
        ]
