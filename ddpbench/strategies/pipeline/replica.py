"""A rank's stage of a pipeline, and the single stage of one rank. Imports torch at once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

from ddpbench.measure.clock import Mark
from ddpbench.measure.recorder import NullRecorder, Recorder
from ddpbench.strategies.base import Job, Replica
from ddpbench.strategies.messages import Message
from ddpbench.strategies.piece_replica import PieceReplica
from ddpbench.strategies.pipeline.options import PipelineOptions
from ddpbench.strategies.trees import chunk

_ORDERS = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B}


def dealt(layers: int, stages: int) -> list[range]:
    """Return the layers of each stage: consecutive, and one more in the first ones where they do not divide."""
    size, more = divmod(layers, stages)
    starts = [stage * size + min(stage, more) for stage in range(stages + 1)]
    return [range(*ends) for ends in pairwise(starts)]


class OneStageReplica(Replica):
    """All layers in one rank: the microbatches in turn, whose gradients add up to the batch's."""

    def __init__(self, job: Job, options: PipelineOptions) -> None:
        super().__init__(job)
        self._count = options.microbatches

    def gradients_of(self, inputs: Any, targets: Any) -> torch.Tensor:
        recorder = self.job.recorder
        total = torch.zeros((), device=self.job.device)
        for own, wanted in chunk((inputs, targets), self._count):
            with recorder.span("forward"):
                loss = self.job.loss(self.job.model(own), wanted) / self._count
            with recorder.span("backward"):
                loss.backward()  # type: ignore[no-untyped-call]
            total = total + loss.detach()
        return total


class PipelineReplica(PieceReplica):
    """One stage of several. The first takes the batch's inputs, the last its targets; those between take nothing."""

    def __init__(self, job: Job, options: PipelineOptions) -> None:
        layers: list[nn.Module] = job.model.stages()  # type: ignore[operator]
        pieces = [
            nn.Sequential(*(layers[number] for number in numbers))
            for numbers in dealt(len(layers), job.world_size)
        ]
        own = pieces[job.rank]
        super().__init__(job, pieces, own)
        self.draws = job.rank in (0, job.world_size - 1)
        self.knows_loss = job.rank == job.world_size - 1
        kind = NotedStage if job.recorder.active else PipelineStage
        self._stage = kind(own, job.rank, job.world_size, job.device)
        self._schedule = _ORDERS[options.order](self._stage, options.microbatches, loss_fn=self._loss)
        self._rehearsed = False

    def gradients_of(self, inputs: Any, targets: Any) -> torch.Tensor:
        if not self._rehearsed:
            self._rehearse(inputs, targets)
        stage = self._stage
        if not isinstance(stage, NotedStage):
            return self._step(inputs, targets)
        with stage.noting(self.job.recorder):
            return self._step(inputs, targets)

    def _step(self, inputs: Any, targets: Any) -> torch.Tensor:
        stage = self._stage
        given = (inputs,) if stage.is_first else ()
        losses: list[torch.Tensor] = []
        self._schedule.step(
            *given, target=targets if stage.is_last else None, losses=losses, return_outputs=False
        )
        if not losses:
            return torch.zeros((), device=self.job.device)
        return torch.stack([loss.detach() for loss in losses]).mean()

    def _rehearse(self, inputs: Any, targets: Any) -> None:
        """A step that leaves nothing behind: in its first one torch finds out what stages send one another.

        It does so by computing with whatever lies in memory, which must not stay in BatchNorm's running statistics.
        """
        module = self._stage.submod
        kept = [(buffer, buffer.clone()) for buffer in module.buffers()]
        devices = [self.job.device] if self.job.device.type == "cuda" else []
        with torch.random.fork_rng(devices):
            self._step(inputs, targets)
        for buffer, value in kept:
            buffer.copy_(value)
        self.optimizer.zero_grad(set_to_none=True)
        self._rehearsed = True

    def _loss(self, outputs: Any, targets: Any) -> torch.Tensor:
        stage = self._stage
        if not isinstance(stage, NotedStage):
            return self.job.loss(outputs, targets)
        start = stage.starts()
        loss = self.job.loss(outputs, targets)
        stage.ends("forward", start)
        return loss


class NotedStage(PipelineStage):
    """A stage that notes what it computes of each microbatch, and what it sends to its neighbours.

    What lies between two computations is `synchronize`: waiting for a neighbour, and torch's own work.
    """

    _recorder: Recorder = NullRecorder()
    _computed: Mark = None

    @contextmanager
    def noting(self, recorder: Recorder) -> Iterator[None]:
        """A step to be noted."""
        self._recorder, self._computed = recorder, recorder.mark()
        yield
        recorder.add_span("synchronize", self._computed, recorder.mark())
        self._recorder = NullRecorder()

    # Own computation, and what there was since the one before. No context manager: many microbatches are in a step.
    def starts(self) -> Mark:
        """Own computation starts, at the moment that is returned."""
        start = self._recorder.mark()
        self._recorder.add_span("synchronize", self._computed, start)
        return start

    def ends(self, name: str, start: Mark) -> None:
        """Own computation of this name ends, which started then."""
        self._computed = self._recorder.mark()
        self._recorder.add_span(name, start, self._computed)

    def forward_one_chunk(self, *args: Any, **kwargs: Any) -> Any:
        start = self.starts()
        found = super().forward_one_chunk(*args, **kwargs)
        self.ends("forward", start)
        return found

    def backward_one_chunk(self, *args: Any, **kwargs: Any) -> Any:
        start = self.starts()
        found = super().backward_one_chunk(*args, **kwargs)
        self.ends("backward", start)
        return found

    def scale_grads(self, grad_scale_factor: int) -> None:
        start = self.starts()
        super().scale_grads(grad_scale_factor)
        self.ends("backward", start)

    def get_fwd_recv_ops(self, fwd_chunk_id: int) -> list[dist.P2POp]:
        return self._noted(super().get_fwd_recv_ops(fwd_chunk_id), self.stage_index - 1, 0, fwd_chunk_id)

    def get_fwd_send_ops(self, fwd_chunk_id: int) -> list[dist.P2POp]:
        return self._noted(super().get_fwd_send_ops(fwd_chunk_id), self.stage_index, 0, fwd_chunk_id)

    def get_bwd_recv_ops(self, bwd_chunk_id: int) -> list[dist.P2POp]:
        return self._noted(super().get_bwd_recv_ops(bwd_chunk_id), self.stage_index, 1, bwd_chunk_id)

    def get_bwd_send_ops(self, bwd_chunk_id: int) -> list[dist.P2POp]:
        return self._noted(super().get_bwd_send_ops(bwd_chunk_id), self.stage_index - 1, 1, bwd_chunk_id)

    def _noted(
        self, ops: list[dist.P2POp], boundary: int, backward: int, microbatch: int
    ) -> list[dist.P2POp]:
        """Return the messages with their start and end noted, where they are not streams of a GPU."""
        if not self._recorder.active or self.device.type == "cuda":
            return ops
        assert self.chunks is not None
        bucket = (2 * boundary + backward) * self.chunks + microbatch
        for op in ops:
            own = (op.tensor, op.peer, op.group, op.tag)
            op.op = Message(self._recorder, op.op, own, bucket=bucket)
        return ops
