"""A rank's stage of a pipeline, and the single stage of one rank. Imports torch at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.nn.parallel import DistributedDataParallel

from ddpbench.measure.clock import Mark
from ddpbench.measure.recorder import NullRecorder, Recorder
from ddpbench.strategies.base import Job, Replica
from ddpbench.strategies.ddp.hooks import NEVER, BucketHook
from ddpbench.strategies.ddp.reducers import Reducers
from ddpbench.strategies.ddp.replica import buffers_stay
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
    """One stage of several. The first takes the batch's inputs, the last its targets; those between take nothing.

    Of several pipelines the first ranks are the first, and a stage's gradients are averaged by its DDP.
    """

    def __init__(self, job: Job, options: PipelineOptions) -> None:
        layers: list[nn.Module] = job.model.stages()  # type: ignore[operator]
        stages, pipelines = job.world_size // options.replicas, options.replicas
        pipeline, stage = divmod(job.rank, stages)
        pieces = [
            nn.Sequential(*(layers[number] for number in numbers)) for numbers in dealt(len(layers), stages)
        ]
        own = pieces[stage]
        super().__init__(job, pieces, own)
        self.draws = stage in (0, stages - 1)
        self.knows_loss = stage == stages - 1
        self._groups: list[dist.ProcessGroup] = []
        self._reducers: Reducers | None = None
        within: dist.ProcessGroup | None = None
        if pipelines > 1:
            ranks = torch.arange(job.world_size).view(pipelines, stages)
            within, across = (_group(rows.tolist()) for rows in (ranks, ranks.T))
            self._groups = [within, across]
            if any(parameter.requires_grad for parameter in own.parameters()):
                self._reducers = self._averaging(own, across, lambda number: number * stages + stage)
        if job.recorder.active:
            noted = NotedStage(own, stage, stages, job.device, group=within)
            noted.among(pipeline, pipelines, self._reducers)
            self._stage: PipelineStage = noted
        else:
            self._stage = PipelineStage(own, stage, stages, job.device, group=within)
        self._schedule = _ORDERS[options.order](self._stage, options.microbatches, loss_fn=self._loss)
        self._rehearsed = False

    def _averaging(
        self, stage: nn.Module, across: dist.ProcessGroup, number: Callable[[int], int]
    ) -> Reducers:
        """Return the stage's DDP, over the ranks of the other pipelines that have the same one.

        `number` makes of a bucket's number one that no other stage's has.
        """
        ddp = DistributedDataParallel(stage, process_group=across, **buffers_stay())
        hook = BucketHook(self.job, among=across, number=number) if self.job.recorder.active else None
        return Reducers([ddp], hook)

    def gradients_of(self, inputs: Any, targets: Any) -> torch.Tensor:
        if not self._rehearsed:
            self._rehearse(inputs, targets)
        if self._reducers is not None:
            self._reducers.start_step()
        stage = self._stage
        if not isinstance(stage, NotedStage):
            return self._step(inputs, targets)
        with stage.noting(self.job.recorder):
            return self._step(inputs, targets)

    def ready(self) -> bool:
        return self._reducers is None or self._reducers.ready()

    def close(self) -> None:
        if self._reducers is not None:
            self._reducers.close()
            self._reducers = None
        for group in self._groups:
            dist.destroy_process_group(group)
        self._groups = []

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
        if self._reducers is not None:
            # Not before: the forward in which torch finds out what is sent would have DDP expect a backward, and it
            # would take the first microbatch's for that one. From here torch lets it average in the last one alone.
            (self._stage.submod,) = self._reducers.ddps
        self._rehearsed = True

    def _loss(self, outputs: Any, targets: Any) -> torch.Tensor:
        stage = self._stage
        if not isinstance(stage, NotedStage):
            return self.job.loss(outputs, targets)
        start = stage.starts()
        loss = self.job.loss(outputs, targets)
        stage.ends("forward", start)
        return loss


def _group(rows: list[list[int]]) -> dist.ProcessGroup:
    """Return the group of this rank's row; all ranks make those of all rows together."""
    own, _ = dist.new_subgroups_by_enumeration(rows, timeout=NEVER)  # type: ignore[no-untyped-call]
    found: dist.ProcessGroup = own
    return found


class NotedStage(PipelineStage):
    """A stage that notes what it computes of each microbatch, and what it sends to its neighbours.

    What lies between two computations is `synchronize`: waiting for a neighbour, or for the other pipelines, and
    torch's own work.
    """

    _recorder: Recorder = NullRecorder()
    _computed: Mark = None
    _pipeline, _pipelines = 0, 1
    _reducers: Reducers | None = None

    def among(self, pipeline: int, pipelines: int, reducers: Reducers | None) -> None:
        """Which of so many pipelines its own is, and what averages its gradients over them."""
        self._pipeline, self._pipelines, self._reducers = pipeline, pipelines, reducers

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
        start, before = self.starts(), self._last_sent()
        found = super().backward_one_chunk(*args, **kwargs)
        if (sent := self._last_sent()) is before:
            self.ends("backward", start)
        else:  # the last bucket leaves when the last gradient is there
            self._recorder.add_span("backward", start, sent)
            self._computed = sent
        return found

    def _last_sent(self) -> Mark:
        return None if self._reducers is None else self._reducers.last_sent()

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
        bucket = bucket * self._pipelines + self._pipeline
        for op in ops:
            own = (op.tensor, op.peer, op.group, op.tag)
            op.op = Message(self._recorder, op.op, own, bucket=bucket)
        return ops
