"""Replicas for one stage of a pipeline, and for a single rank with all stages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import Schedule1F1B, ScheduleGPipe
from torch.nn.parallel import DistributedDataParallel

from ddpbench.measure.clock import Mark
from ddpbench.measure.recorder import NullRecorder, Recorder
from ddpbench.spec import Case
from ddpbench.strategies.base import Job, Replica
from ddpbench.strategies.ddp.hooks import NEVER, BucketHook
from ddpbench.strategies.ddp.reducers import Reducers
from ddpbench.strategies.ddp.replica import buffers_stay
from ddpbench.strategies.messages import Message
from ddpbench.strategies.piece_replica import PieceReplica
from ddpbench.strategies.pipeline import PipelineOptions
from ddpbench.strategies.pipeline.stage import CheckedStage
from ddpbench.strategies.trees import chunk

_ORDERS = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B}


def dealt(layers: int, stages: int) -> list[range]:
    """Divide `layers` layers among `stages` stages, and return each stage's range of consecutive layers.

    If the layers don't divide evenly, the first stages have one layer more.
    """
    size, more = divmod(layers, stages)
    starts = [stage * size + min(stage, more) for stage in range(stages + 1)]
    return [range(*ends) for ends in pairwise(starts)]


def sends_are_timed(case: Case) -> bool:
    """Return whether the sender, and not only the receiver, must record when a message ends.

    Between hosts, whose clocks differ, the receiver's record is not enough.
    """
    return case.nodes > 1 and not case.fabric


class OneStageReplica(Replica):
    """Replica with all layers in one rank. It accumulates the gradients of a batch's microbatches."""

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
    """Replica for one of several stages. Only the first stage uses the batch's inputs, and only the last its targets.

    With several pipelines, neighbouring ranks form a pipeline, and DDP averages each stage's gradients over pipelines.
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
            kind = TimedSends if sends_are_timed(job.case) else NotedStage
            noted = kind(own, stage, stages, job.device, group=within)
            noted.among(pipeline, pipelines, self._reducers)
            self._stage: CheckedStage = noted
        else:
            self._stage = CheckedStage(own, stage, stages, job.device, group=within)
        self._schedule = _ORDERS[options.order](self._stage, options.microbatches, loss_fn=self._loss)
        self._rehearsed = False

    def _averaging(
        self, stage: nn.Module, across: dist.ProcessGroup, number: Callable[[int], int]
    ) -> Reducers:
        """Average a stage's gradients over the pipelines with DDP.

        `number` maps a bucket's index to one that is unique among stages."""
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
        stage.begin(self.job.recorder)
        loss = self._step(inputs, targets)
        stage.end()
        return loss

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
        """Make a first step, in which torch learns the messages' shapes, and undo its effects.

        Torch computes with uninitialized memory, which must not stay in BatchNorm's running statistics.
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
            # Only now: after the forward in which torch finds out what is sent, DDP would expect a backward, and take
            # the first microbatch's for it. From here on, torch lets DDP average only in the last backward.
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
    """Make a group per row of ranks, and return this rank's. All ranks call this together."""
    own, _ = dist.new_subgroups_by_enumeration(rows, timeout=NEVER)  # type: ignore[no-untyped-call]
    found: dist.ProcessGroup = own
    return found


class NotedStage(CheckedStage):
    """A stage that records its computation for each microbatch, and its messages to and from its neighbours.

    The time between two computations is recorded as `synchronize`: waiting for others, and torch's own work. During a
    step only times are stored, because any delay of a stage delays all stages. Received messages need no record: torch
    requests them early, and they have arrived when their computation starts.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._recorder: Recorder = NullRecorder()
        self._mark = self._recorder.mark
        self._noted: list[tuple[str, tuple[int, int] | None, Mark, Mark]] = []
        """The step so far, in order. For each computation: its name, its direction and microbatch, its start and end.

        For sent messages, the name is `_SENDS`, and both times are right before torch sends them. Direction and
        microbatch are None if the messages record themselves.
        """
        self._sent: dict[int, list[int]] = {}
        """Sizes in bytes of the messages that a microbatch sends, by direction (0 for forward, 1 for backward)."""
        self._received: dict[int, list[int]] | None = None
        """Sizes in bytes of the messages that a microbatch receives, by direction. None until torch knows them."""
        self._notes_messages = self.device.type != "cuda"  # on a GPU messages run on separate streams
        self._begun: Mark = None
        self._pipeline, self._pipelines = 0, 1
        self._reducers: Reducers | None = None

    def among(self, pipeline: int, pipelines: int, reducers: Reducers | None) -> None:
        """Set this stage's pipeline, the number of pipelines, and the reducers that average gradients over
        pipelines.
        """
        self._pipeline, self._pipelines, self._reducers = pipeline, pipelines, reducers

    def begin(self, recorder: Recorder) -> None:
        """Begin to record a step. Call this only after the first step, in which torch learns the messages' shapes."""
        if self._received is None:
            asked = (self.get_fwd_recv_ops, self.get_bwd_recv_ops) if self._notes_messages else ()
            self._received = {direction: sizes_of(ops_of(0)) for direction, ops_of in enumerate(asked)}
        self._recorder, self._mark = recorder, recorder.mark
        self._noted = []
        self._begun = self._mark()

    def end(self) -> None:
        """End the current step. Its records are made later."""
        ended, recorder = self._mark(), self._recorder
        recorder.add_later(partial(self._note, recorder, self._noted, self._begun, ended))
        self._recorder, self._noted = NullRecorder(), []

    def _note(
        self,
        recorder: Recorder,
        noted: Sequence[tuple[str, tuple[int, int] | None, Mark, Mark]],
        since: Mark,
        ended: Mark,
    ) -> None:
        assert self._received is not None
        free = since  # start of the next message
        for name, piece, start, end in noted:
            if name == _SENDS:
                if piece is not None:  # the receiver records the end
                    self._add(recorder, piece, self._sent[piece[0]], start, start, sends=True)
                free = start
                continue
            recorder.add_span("synchronize", since, start)
            recorder.add_span(name, start, end)
            if piece is not None:
                self._add(recorder, piece, self._received.get(piece[0], ()), free, start, sends=False)
            since = free = end
        recorder.add_span("synchronize", since, ended)

    def _add(
        self,
        recorder: Recorder,
        piece: tuple[int, int],
        sizes: Sequence[int],
        start: Mark,
        end: Mark,
        *,
        sends: bool,
    ) -> None:
        for size in sizes:
            recorder.add_transfer(
                bucket=self._bucket(piece, sends=sends),
                op="send",
                size=size,
                start=start,
                end=end,
                sent=size if sends else None,
                ranks=2,
            )

    def _bucket(self, piece: tuple[int, int], *, sends: bool) -> int:
        """Return a number for a microbatch's messages, the same on both sides and unique within a step."""
        assert self.chunks is not None
        backward, microbatch = piece
        boundary = self.stage_index - (sends if backward else not sends)
        bucket = (2 * boundary + backward) * self.chunks + microbatch
        return bucket * self._pipelines + self._pipeline

    def starts(self) -> Mark:
        """Return the current time, as the start of a computation."""
        return self._mark()

    def ends(self, name: str, start: Mark) -> None:
        """Record a computation that started at `start`, waited for no message, and has just ended."""
        self._noted.append((name, None, start, self._mark()))

    def forward_one_chunk(self, fwd_chunk_id: int, *args: Any, **kwargs: Any) -> Any:
        start = self._mark()
        found = CheckedStage.forward_one_chunk(self, fwd_chunk_id, *args, **kwargs)
        self._noted.append(("forward", (0, fwd_chunk_id), start, self._mark()))
        return found

    def backward_one_chunk(self, bwd_chunk_id: int, *args: Any, **kwargs: Any) -> Any:
        reducers = self._reducers
        before = None if reducers is None else reducers.last_sent()
        start = self._mark()
        found = CheckedStage.backward_one_chunk(self, bwd_chunk_id, *args, **kwargs)
        end = self._mark()
        if reducers is not None and (sent := reducers.last_sent()) is not before:
            end = sent  # the last bucket leaves when the last gradient is ready
        self._noted.append(("backward", (1, bwd_chunk_id), start, end))
        return found

    def scale_grads(self, grad_scale_factor: int) -> None:
        start = self._mark()
        super().scale_grads(grad_scale_factor)
        self._noted.append(("backward", None, start, self._mark()))

    def get_fwd_send_ops(self, fwd_chunk_id: int) -> list[dist.P2POp]:
        ops = CheckedStage.get_fwd_send_ops(self, fwd_chunk_id)
        if ops and self._notes_messages:
            if 0 not in self._sent:
                self._sent[0] = sizes_of(ops)
            now = self._mark()
            self._noted.append((_SENDS, (0, fwd_chunk_id), now, now))
        return ops

    def get_bwd_send_ops(self, bwd_chunk_id: int) -> list[dist.P2POp]:
        ops = CheckedStage.get_bwd_send_ops(self, bwd_chunk_id)
        if ops and self._notes_messages:
            if 1 not in self._sent:
                self._sent[1] = sizes_of(ops)
            now = self._mark()
            self._noted.append((_SENDS, (1, bwd_chunk_id), now, now))
        return ops


_SENDS = "sends"


def sizes_of(ops: Sequence[dist.P2POp]) -> list[int]:
    """Return the size of each message (bytes). All microbatches have the same sizes, because they are equal parts."""
    return [op.tensor.nbytes for op in ops]


class TimedSends(NotedStage):
    """A stage whose sent messages record their start and, if it can be observed, their end."""

    def get_fwd_send_ops(self, fwd_chunk_id: int) -> list[dist.P2POp]:
        return self._timed(CheckedStage.get_fwd_send_ops(self, fwd_chunk_id), (0, fwd_chunk_id))

    def get_bwd_send_ops(self, bwd_chunk_id: int) -> list[dist.P2POp]:
        return self._timed(CheckedStage.get_bwd_send_ops(self, bwd_chunk_id), (1, bwd_chunk_id))

    def _timed(self, ops: list[dist.P2POp], piece: tuple[int, int]) -> list[dist.P2POp]:
        if not ops or not self._recorder.active or not self._notes_messages:
            return ops
        now = self._mark()
        self._noted.append((_SENDS, None, now, now))
        for op in ops:
            own = (op.tensor, op.peer, op.group, op.tag)
            op.op = Message(self._recorder, op.op, own, bucket=self._bucket(piece, sends=True))
        return ops
