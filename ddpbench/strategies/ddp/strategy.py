"""The `ddp` strategy: torch's DistributedDataParallel, with its buckets' transfers noted on demand."""

from __future__ import annotations

import inspect
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, Field

from ddpbench.collectives import TABLE as COLLECTIVES
from ddpbench.spec import Case
from ddpbench.strategies.base import Job, Promise, Replica, Strategy
from ddpbench.strategies.trees import chunk

if TYPE_CHECKING:
    import torch

    from ddpbench.strategies.ddp.hooks import BucketHook

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
    accumulate: int = Field(default=1, ge=1, strict=True)
    """Each batch is computed in so many parts, and only the last one's backward sends (`no_sync` before it)."""
    compression: Literal["none", "fp16", "bf16", "powersgd"] = "none"
    """Gradients are averaged in this type: half the bytes, and its rounding. Or their matrices are sent as products of
    two of low rank, and what that leaves out of a step is kept for the next (PowerSGD)."""
    matrix_approximation_rank: int = Field(default=1, ge=1, le=256, strict=True)
    """PowerSGD: that low rank."""
    start_powersgd_iter: int = Field(default=2, ge=2, le=16, strict=True)
    """PowerSGD: so many steps come first that are not compressed; they are part of the warm-up. torch's default is
    1,000, for the sake of the loss; less than 2 it does not allow, because buckets are rebuilt after the first."""


class Ddp(Strategy[DdpOptions]):
    """Gradients leave in buckets, all-reduced while backward goes on (Li et al., VLDB 2020).

    What is sent and when are settings: another algorithm, or the same buckets only after backward.
    """

    name = "ddp"
    role = "reference"
    display = "DDP"
    colour, marker = "#0072B2", "o"
    options = DdpOptions
    algorithm = "all_reduce"
    schedule = "overlapped"
    uses_buckets = True
    algorithms = ("all_reduce", *COLLECTIVES)
    schedules = ("overlapped", "after_backward")
    variants = (
        {"gradient_as_bucket_view": True},
        {"static_graph": True},
        {"find_unused_parameters": True},
        {"accumulate": 2},
        {"compression": "fp16"},
        {"compression": "bf16"},
        {"compression": "powersgd"},
        {"compression": "powersgd", "matrix_approximation_rank": 4},
    )

    def check(self, case: Case) -> str | None:
        options = DdpOptions.model_validate(case.options)
        parts = options.accumulate
        if parts > 1 and case.compute != "real":
            return "a replay's times are those of a whole batch: set accumulate = 1"
        if case.local_batch % parts:
            return f"accumulate = {parts} does not divide a local batch of {case.local_batch}"
        if case.algorithm in COLLECTIVES and case.device == "cuda":
            return (
                f"{case.algorithm} is made of point-to-point messages between ranks on the CPU, over gloo: on GPUs "
                'set algorithm = "all_reduce"'
            )
        if options.compression == "powersgd":
            return _powersgd_reason(case)
        return None

    def promise(self, options: DdpOptions) -> Promise:
        return "delayed" if options.compression == "powersgd" else "gradients"

    def build(self, job: Job, options: DdpOptions) -> Replica:
        if options.compression == "powersgd":
            from ddpbench.strategies.ddp.powersgd import PowerSgdReplica

            return PowerSgdReplica(job, options)
        return DdpReplica(job, options)


def _powersgd_reason(case: Case) -> str | None:
    """Return why PowerSGD cannot be had in this case, or None."""
    if case.dtype == "bfloat16":
        return (
            "PowerSGD orthogonalizes in the gradients' own type, and bfloat16 has too few digits for what it leaves "
            'out to be kept: set dtype = "float32"'
        )
    if case.precision == "fp16":
        return (
            "under fp16 autocast gradients may be infinite, and PowerSGD would keep the infinity for ever: set "
            'precision = "bf16" or "full"'
        )
    if case.algorithm in COLLECTIVES:
        return f'PowerSGD has all-reduces of its own and no {case.algorithm}: set algorithm = "all_reduce"'
    return None


def buffers_stay() -> dict[str, Any]:
    """DDP's argument for buffers that are not sent out in every forward; newer torch warns of its old name."""
    from torch.nn.parallel import DistributedDataParallel

    names = inspect.signature(DistributedDataParallel.__init__).parameters
    return {"forward_sync_buffers" if "forward_sync_buffers" in names else "broadcast_buffers": False}


class DdpReplica(Replica):
    """A model under DDP. With DDP's own algorithm and schedule only its instrumented twin has a communication hook."""

    def __init__(self, job: Job, options: DdpOptions) -> None:
        from torch.nn.parallel import DistributedDataParallel

        super().__init__(job)
        self._parts = options.accumulate
        cap, shrink = job.case.bucket_cap_mb, job.case.shrink
        buffers: dict[str, Any] = {} if options.broadcast_buffers else buffers_stay()
        wrapper = DistributedDataParallel
        if cap == "default" and shrink != 1:
            from ddpbench.strategies.ddp.shrunk import shrunk

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
        self._hook: BucketHook | None = None
        plain = (
            job.case.algorithm not in COLLECTIVES
            and job.case.schedule != "after_backward"
            and options.compression == "none"
        )
        if job.recorder.active or not plain:
            hook = self._hook = self._make_hook(job, options)
            self.unit_roundoff = hook.unit_roundoff
            # DDP insists on the parameter's name and compares annotations, which are strings here: a
            # lambda has none.
            self._ddp.register_comm_hook(None, lambda _state, bucket: hook.aggregate(bucket))

    def _make_hook(self, job: Job, options: DdpOptions) -> BucketHook:
        from ddpbench.strategies.ddp.hooks import BucketHook

        return BucketHook(job, options.compression)

    def gradients_of(self, inputs: Any, targets: Any) -> torch.Tensor:
        assert self._ddp is not None
        recorder = self.job.recorder
        *before, last = chunk((inputs, targets), self._parts) if self._parts > 1 else [(inputs, targets)]
        losses = []
        with self._ddp.no_sync() if before else nullcontext():
            for part in before:
                losses.append(self._loss(*part))
                with recorder.span("backward"):
                    losses[-1].backward()  # type: ignore[no-untyped-call]
        loss = self._loss(*last)
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
        return sum((part.detach() for part in losses), loss.detach())

    def _loss(self, inputs: Any, targets: Any) -> torch.Tensor:
        """Return the loss of a part of the batch, as it counts in the whole's mean."""
        assert self._ddp is not None
        with self.job.recorder.span("forward"):
            loss = self.job.loss(self._ddp(inputs), targets)
            return loss / self._parts if self._parts > 1 else loss

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
        """Return whether buckets have been rebuilt in the order of the gradients, or never will be."""
        if not self._rebuilt:
            never = not self._rebuilds or self._steps >= REBUILD_BY_STEP
            self._rebuilt = self._steps >= 2 and (never or bool(self._logged().get("has_rebuilt_buckets")))
        return self._rebuilt

    def close(self) -> None:
        if self._ddp is None:
            return
        # Others may still refer to this replica: its reducer must stop listening to the parameters now.
        self._ddp._remove_autograd_hooks()  # type: ignore[no-untyped-call]
        if self._hook is not None:
            self._hook.close()
        self._ddp = self._hook = None
        for parameter in self.job.model.parameters():
            parameter.grad = None  # may be a view of the reducer's buckets

    def _logged(self) -> dict[str, Any]:
        assert self._ddp is not None
        logged: dict[str, Any] = self._ddp._get_ddp_logging_data()  # type: ignore[no-untyped-call]
        return logged
