"""The `ddp` strategy: torch's DistributedDataParallel, with its buckets' transfers noted on demand."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from ddpbench.strategies.base import Job, Replica, Strategy

if TYPE_CHECKING:
    import torch
    from torch._C._distributed_c10d import GradBucket

    from ddpbench.measure.clock import Mark

REBUILD_BY_STEP = 4
"""Without find_unused_parameters buckets are rebuilt in the second forward pass and the logger tells so in
the third; a reducer that has not done it by the end of this step never will."""


class DdpOptions(BaseModel, extra="forbid", frozen=True):
    """The choices of torch.nn.parallel.DistributedDataParallel, with its defaults."""

    gradient_as_bucket_view: bool = False
    """Gradients live in the buckets instead of beside them: less memory."""
    static_graph: bool = False
    """The same parameters are used in every step; DDP need not look."""
    find_unused_parameters: bool = False
    """Walks the graph in every step for parameters that the loss does not reach, and keeps the buckets as
    they were built: gradients may then become ready out of the buckets' order."""
    broadcast_buffers: bool = True
    """Rank 0's buffers, such as BatchNorm's running statistics, are sent out before every forward pass, and
    so count as `forward`."""


class Ddp(Strategy[DdpOptions]):
    """Gradients leave in buckets, all-reduced while backward goes on (Li et al., VLDB 2020)."""

    name = "ddp"
    summary = "DistributedDataParallel: buckets of gradients are all-reduced while backward goes on"
    options = DdpOptions
    algorithm = "all_reduce"
    schedule = "overlapped"
    uses_buckets = True

    def build(self, job: Job, options: DdpOptions) -> Replica:
        return DdpReplica(job, options)


class DdpReplica(Replica):
    """A model under DDP. Its instrumented twin has a communication hook; the timed one has none."""

    def __init__(self, job: Job, options: DdpOptions) -> None:
        from torch.nn.parallel import DistributedDataParallel

        super().__init__(job)
        cap, shrink = job.case.bucket_cap_mb, job.case.shrink
        # Newer torch renames this option and warns of the old name: its default is left unsaid.
        buffers: dict[str, Any] = {} if options.broadcast_buffers else {"broadcast_buffers": False}
        wrapper = DistributedDataParallel
        if cap == "default" and shrink != 1:
            from ddpbench.strategies.ddp_shrunk import shrunk

            wrapper = shrunk(shrink)
        self._ddp: DistributedDataParallel | None = wrapper(
            job.model,
            bucket_cap_mb=cap / shrink if isinstance(cap, int | float) else None,
            gradient_as_bucket_view=options.gradient_as_bucket_view,
            static_graph=options.static_graph,
            find_unused_parameters=options.find_unused_parameters,
            **buffers,
        )
        self._rebuilds = options.static_graph or not options.find_unused_parameters
        self._steps = 0
        self._rebuilt = False
        self._hook: _StampingHook | None = None
        if job.recorder.active:
            hook = self._hook = _StampingHook(job)
            # DDP insists on the parameter's name and compares annotations, which are strings here: a
            # lambda has none.
            self._ddp.register_comm_hook(None, lambda _state, bucket: hook.all_reduce(bucket))

    def gradients_of(self, inputs: Any, targets: Any) -> torch.Tensor:
        assert self._ddp is not None
        job, recorder = self.job, self.job.recorder
        with recorder.span("forward"):
            loss = job.loss(self._ddp(inputs), targets)
        if self._hook is None:
            loss.backward()  # type: ignore[no-untyped-call]
        else:
            self._hook.start_step()
            start = recorder.mark()
            loss.backward()  # type: ignore[no-untyped-call]
            returned = recorder.mark()
            # The last bucket leaves when the last gradient is there: the rank's own computation ends.
            recorder.add_span("backward", start, self._hook.last_start)
            recorder.add_span("synchronize", self._hook.last_start, returned)
        self._steps += 1
        return loss.detach()

    def bucket_bytes(self) -> tuple[int, ...] | None:
        """Of the last step as the hook saw them; without a hook as the reducer logged them last.

        None before the reducer has logged any.
        """
        if self._hook is not None:
            return tuple(self._hook.sizes) or None
        logged = self._logged()
        text = str(logged.get("rebuilt_bucket_sizes") or logged.get("bucket_sizes") or "")
        return tuple(int(size) for size in text.split(",")) if text else None

    def ready(self) -> bool:
        """Whether buckets have been rebuilt in the order of the gradients, or never will be."""
        if not self._rebuilt:
            never = not self._rebuilds or self._steps >= REBUILD_BY_STEP
            self._rebuilt = self._steps >= 2 and (never or bool(self._logged().get("has_rebuilt_buckets")))
        return self._rebuilt

    def close(self) -> None:
        if self._ddp is None:
            return
        # Others may still refer to this replica: its reducer must stop listening to the parameters now.
        self._ddp._remove_autograd_hooks()  # type: ignore[no-untyped-call]
        self._ddp = self._hook = None
        for parameter in self.job.model.parameters():
            parameter.grad = None  # may be a view of the reducer's buckets

    def _logged(self) -> dict[str, Any]:
        assert self._ddp is not None
        logged: dict[str, Any] = self._ddp._get_ddp_logging_data()  # type: ignore[no-untyped-call]
        return logged


class _StampingHook:
    """Does what DDP does without a hook, bit for bit, and notes when each bucket left and came back."""

    def __init__(self, job: Job) -> None:
        self._recorder = job.recorder
        # Without a hook the reducer multiplies gradients by the reciprocal while it copies them into the
        # bucket (reducer.cpp, mark_variable_ready_dense). Dividing the bucket, as torch's allreduce_hook
        # does, gives other bits where the world size is no power of two.
        self._scale = 1.0 / job.world_size
        self.sizes: list[int] = []
        self.last_start: Mark = None

    def start_step(self) -> None:
        """Forgets the step before."""
        self.sizes = []

    def all_reduce(self, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        """Sends a bucket on its way; the future holds the averaged gradients."""
        import torch.distributed as dist

        recorder, number = self._recorder, bucket.index()
        buffer = bucket.buffer().mul_(self._scale)
        size = buffer.numel() * buffer.element_size()
        self.sizes.append(size)
        start = self.last_start = recorder.mark()
        work = dist.all_reduce(buffer, async_op=True)
        assert work is not None

        def arrived(future: torch.futures.Future[list[torch.Tensor]]) -> torch.Tensor:
            # On CUDA the current stream is here one that waits for the transfer, so the mark is its end.
            recorder.add_transfer(bucket=number, op="all_reduce", size=size, start=start, end=recorder.mark())
            return future.value()[0]

        averaged: torch.futures.Future[torch.Tensor] = work.get_future().then(arrived)
        return averaged
