"""DDP communication hook that aggregates buckets by a given algorithm and schedule."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from ddpbench.collectives import is_collective
from ddpbench.strategies.base import Job
from ddpbench.user_files import is_import_path, short_name

if TYPE_CHECKING:
    from torch._C._distributed_c10d import GradBucket

    from ddpbench.collectives.background import Background
    from ddpbench.measure.clock import Mark

NEVER = timedelta(hours=24)
"""Time-out of process groups, long enough that ddpbench's watchdog ends a hang first."""
_TYPES = {"none": None, "fp16": torch.float16, "bf16": torch.bfloat16}
Summed = torch.futures.Future[torch.Tensor]


class BucketHook:
    """Averages DDP's buckets over ranks, and records when each was sent and came back.

    With the library's all-reduce, the result is bit-equal to DDP's without a hook. With the schedule `after_backward`,
    buckets wait for the last gradient, so no transfer overlaps with computation.
    """

    def __init__(
        self,
        job: Job,
        compression: str = "none",
        *,
        among: dist.ProcessGroup | None = None,
        number: Callable[[int], int] = int,
    ) -> None:
        """Prepare the hook for averaging over all ranks, or over the ranks of `among`.

        `compression` names the type in which buckets are sent and added up, or is `none`. With `among`, the library's
        all-reduce averages buckets, and `number` makes their numbers unique among groups.
        """
        self._recorder = job.recorder
        self._type = _TYPES[compression]
        self.unit_roundoff = torch.finfo(self._type).eps / 2 if self._type is not None else 0.0
        # Without a hook, the reducer multiplies gradients by the reciprocal while it copies them into the
        # bucket (reducer.cpp, mark_variable_ready_dense). Dividing the bucket, as torch's allreduce_hook
        # does, rounds differently if the world size is not a power of two.
        self._scale = 1.0 / (job.world_size if among is None else among.size())
        self._among, self._number = among, number
        self._waits = job.case.schedule == "after_backward"
        self._waiting: list[tuple[GradBucket, torch.Tensor, Summed]] = []
        self._group: dist.ProcessGroup | None = None
        if is_collective(job.case.algorithm) and job.distributed:
            self._group = dist.new_group(timeout=NEVER)  # separates DDP's own messages from the collectives'
        self._background = _background(job, self._group)
        self._op = _operation(job.case.algorithm)
        self.sizes: list[int] = []
        self._left = 0
        self.last_start: Mark = None

    def start_step(self) -> None:
        """Forget the bucket sizes and numbers of the previous step."""
        self.sizes = []
        self._left = 0

    def aggregate(self, bucket: GradBucket) -> Summed:
        """Send a bucket, now or once the schedule allows. Return a future for the averaged gradients."""
        whole = bucket.buffer()
        if self._scale != 1:
            whole.mul_(self._scale)
        buffer = whole if self._type is None else whole.to(self._type)
        self.sizes.append(whole.numel() * whole.element_size())
        if not self._waits:
            return self._restored(whole, self._sent(bucket, buffer))
        devices = [buffer.device] if buffer.is_cuda else None
        averaged: Summed = torch.futures.Future(devices=devices)  # type: ignore[arg-type]
        self._waiting.append((bucket, buffer, averaged))
        if bucket.is_last():
            waiting, self._waiting = self._waiting, []
            for one, kept, promised in waiting:
                self._sent(one, kept).add_done_callback(_pass_on(promised))
        # The C++ reducer would use an exception that Python set on a future as a value. `then` turns it into an error.
        kept_word: Summed = averaged.then(lambda future: future.value())
        return self._restored(whole, kept_word)

    def _restored(self, whole: torch.Tensor, averaged: Summed) -> Summed:
        """Return a future for the average in the bucket's own type and memory, as the reducer expects."""
        if self._type is None:
            return averaged
        restored: Summed = averaged.then(lambda future: whole.copy_(future.value()))
        return restored

    def close(self) -> None:
        """End the background thread and destroy the hook's process group, if there are any."""
        if self._background is not None:
            self._background.close()
        if self._group is not None:
            dist.destroy_process_group(self._group)
            self._group = None

    def _sent(self, bucket: GradBucket, buffer: torch.Tensor) -> Summed:
        # Buckets are sent in the order of their indices; numbers continue over several modules or backwards in a step.
        recorder, number = self._recorder, self._number(self._left)
        ranks = None if self._among is None else self._among.size()
        self._left += 1
        start = self.last_start = recorder.mark()
        begun: Mark = None
        size = buffer.numel() * buffer.element_size()

        def begins() -> None:
            nonlocal begun
            begun = recorder.mark()

        def done(sent: int | None) -> None:
            # On CUDA the current stream waits for the transfer here, so the mark is the transfer's end.
            end = recorder.mark()
            recorder.add_transfer(
                bucket=number,
                op=self._op,
                size=size,
                start=start,
                end=end,
                sent=sent,
                ranks=ranks,
                begun=begun,
            )

        if self._background is not None:
            noted = (done, begins) if recorder.active else ()
            return self._background.all_reduce(buffer, *noted)
        return _library_all_reduce(buffer, done, self._among)


def _operation(algorithm: str) -> str:
    if is_import_path(algorithm):
        return f"{short_name(algorithm)}/together"
    return algorithm if is_collective(algorithm) else "all_reduce"


def _library_all_reduce(
    buffer: torch.Tensor, done: Callable[[None], None], among: dist.ProcessGroup | None
) -> Summed:
    work = dist.all_reduce(buffer, group=among, async_op=True)
    assert work is not None

    def arrived(future: torch.futures.Future[list[torch.Tensor]]) -> torch.Tensor:
        done(None)
        return future.value()[0]

    summed: Summed = work.get_future().then(arrived)
    return summed


def _background(job: Job, group: dist.ProcessGroup | None) -> Background | None:
    """Return a thread for ddpbench's or a user's algorithm, or None for the library's all-reduce."""
    if not is_collective(job.case.algorithm):
        return None
    from ddpbench.collectives import load_collective
    from ddpbench.collectives.background import Background
    from ddpbench.collectives.transport import Transport

    transport = Transport(group)
    return Background(load_collective(job.case.algorithm)(transport, ranks_per_node=job.case.ranks_per_node))


def _pass_on(promised: Summed) -> Callable[[Summed], None]:
    def passed(future: Summed) -> None:
        try:
            value = future.value()
        except Exception as error:
            promised.set_exception(error)  # type: ignore[arg-type]  # torch names the wrong type
        else:
            promised.set_result(value)

    return passed
