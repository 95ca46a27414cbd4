"""A rank's replica under DistributedDataParallel, with its buckets' transfers noted on demand."""

from __future__ import annotations

import inspect
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from ddpbench.collectives import TABLE as COLLECTIVES
from ddpbench.strategies.base import Job, Replica
from ddpbench.strategies.ddp.options import DdpOptions
from ddpbench.strategies.trees import chunk

if TYPE_CHECKING:
    import torch
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

    from ddpbench.strategies.ddp.hooks import BucketHook
    from ddpbench.strategies.own_step import OwnStep

REBUILD_BY_STEP = 4
"""Without find_unused_parameters buckets are rebuilt in the second forward pass and the logger tells so in
the third; a reducer that has not done it by the end of this step never will."""


def buffers_stay() -> dict[str, Any]:
    """DDP's argument for buffers that are not sent out in every forward; newer torch warns of its old name."""
    from torch.nn.parallel import DistributedDataParallel

    names = inspect.signature(DistributedDataParallel.__init__).parameters
    return {"forward_sync_buffers" if "forward_sync_buffers" in names else "broadcast_buffers": False}


class DdpReplica(Replica):
    """A model under DDP. With DDP's own algorithm and schedule only its instrumented twin has a communication hook."""

    def __init__(self, job: Job, options: DdpOptions) -> None:
        from torch.nn.parallel import DistributedDataParallel

        from ddpbench.strategies.own_step import each_part, network_of

        super().__init__(job)
        self._parts = options.accumulate
        cap, shrink = job.case.bucket_cap_mb, job.case.shrink
        buffers: dict[str, Any] = {} if options.broadcast_buffers else buffers_stay()
        wrapper = DistributedDataParallel
        if cap == "default" and shrink != 1:
            from ddpbench.strategies.ddp.shrunk import shrunk

            wrapper = shrunk(shrink)
        self._ddps: list[DistributedDataParallel] = []
        """One, but for a workload whose own step calls several modules."""

        def wrap(module: nn.Module) -> nn.Module:
            self._ddps.append(
                wrapper(
                    module,
                    bucket_cap_mb=cap / shrink if isinstance(cap, int | float) else None,
                    gradient_as_bucket_view=options.gradient_as_bucket_view,
                    static_graph=options.static_graph,
                    find_unused_parameters=options.find_unused_parameters,
                    **buffers,
                )
            )
            return self._ddps[-1]

        self._wrapped = wrap(job.model) if job.step is None else each_part(network_of(job), wrap)
        self._own: OwnStep | None = None
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
            for ddp in self._ddps:
                ddp.register_comm_hook(None, lambda _state, bucket: hook.aggregate(bucket))

    def _make_hook(self, job: Job, options: DdpOptions) -> BucketHook:
        from ddpbench.strategies.ddp.hooks import BucketHook

        return BucketHook(job, options.compression)

    def gradients_of(self, inputs: Any, targets: Any) -> torch.Tensor:
        recorder = self.job.recorder
        *before, last = chunk((inputs, targets), self._parts) if self._parts > 1 else [(inputs, targets)]
        losses = []
        with self._ddps[0].no_sync() if before else nullcontext():
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

    def own_step(self, batch: Any) -> torch.Tensor:
        hook = self._hook
        if self._own is None:
            from ddpbench.strategies.own_step import OwnStep

            optimizers: Any = self.optimizer
            last_sent = (lambda: hook.last_start) if hook is not None else (lambda: None)
            self._own = OwnStep(self.job, self._wrapped, optimizers, last_sent=last_sent)
        if hook is not None:
            hook.start_step()
        self._steps += 1
        return self._own(batch)

    def _loss(self, inputs: Any, targets: Any) -> torch.Tensor:
        """Return the loss of a part of the batch, as it counts in the whole's mean."""
        with self.job.recorder.span("forward"):
            loss = self.job.loss(self._wrapped(inputs), targets)
            return loss / self._parts if self._parts > 1 else loss

    def bucket_bytes(self) -> tuple[int, ...] | None:
        """Of the last step as the hook saw them; without a hook as the reducer logged them last.

        None before the reducer has logged any.
        """
        if self._hook is not None:
            return tuple(self._hook.sizes) or None
        sizes: list[int] = []
        for logged in self._logged():
            text = str(logged.get("rebuilt_bucket_sizes") or logged.get("bucket_sizes") or "")
            sizes += [int(size) for size in text.split(",")] if text else []
        return tuple(sizes) or None

    def ready(self) -> bool:
        """Return whether buckets have been rebuilt in the order of the gradients, or never will be."""
        if not self._rebuilt:
            never = not self._rebuilds or self._steps >= REBUILD_BY_STEP
            self._rebuilt = self._steps >= 2 and (
                never or all(logged.get("has_rebuilt_buckets") for logged in self._logged())
            )
        return self._rebuilt

    def close(self) -> None:
        if not self._ddps:
            return
        # Others may still refer to this replica: its reducer must stop listening to the parameters now.
        for ddp in self._ddps:
            ddp._remove_autograd_hooks()  # type: ignore[no-untyped-call]
        if self._hook is not None:
            self._hook.close()
        self._ddps = []
        self._wrapped, self._hook, self._own = self.job.model, None, None
        for parameter in self.job.model.parameters():
            parameter.grad = None  # may be a view of the reducer's buckets

    def _logged(self) -> list[dict[str, Any]]:
        return [ddp._get_ddp_logging_data() for ddp in self._ddps]  # type: ignore[no-untyped-call]
