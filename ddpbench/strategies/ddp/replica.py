"""A rank's replica under DistributedDataParallel, with a hook that can record the transfers of its buckets."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from ddpbench.collectives import is_collective
from ddpbench.strategies.base import Job, Replica
from ddpbench.strategies.ddp import DdpOptions
from ddpbench.strategies.ddp.reducers import Reducers
from ddpbench.strategies.trees import chunk

if TYPE_CHECKING:
    import torch
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

    from ddpbench.strategies.ddp.hooks import BucketHook
    from ddpbench.strategies.own_step import OwnStep


def buffers_stay() -> dict[str, Any]:
    """Return the DDP argument that turns off broadcasting buffers. Its name depends on torch's version."""
    from torch.nn.parallel import DistributedDataParallel

    names = inspect.signature(DistributedDataParallel.__init__).parameters
    return {"forward_sync_buffers" if "forward_sync_buffers" in names else "broadcast_buffers": False}


def switches(options: DdpOptions) -> dict[str, Any]:
    """Return the DDP arguments for the options that are passed to DDP unchanged."""
    return {
        "gradient_as_bucket_view": options.gradient_as_bucket_view,
        "static_graph": options.static_graph,
        "find_unused_parameters": options.find_unused_parameters,
        **({} if options.broadcast_buffers else buffers_stay()),
    }


class DdpReplica(Replica):
    """A model under DDP, with a communication hook if steps are recorded or if algorithm or schedule need it."""

    def __init__(self, job: Job, options: DdpOptions) -> None:
        from torch.nn.parallel import DistributedDataParallel

        from ddpbench.strategies.own_step import each_part, network_of

        super().__init__(job)
        self._parts = options.accumulate
        ddps: list[DistributedDataParallel] = []
        """The DDP modules. A workload's own step may call several."""
        make = self._wrapper(job, options)

        def wrap(module: nn.Module) -> nn.Module:
            wrapped = make(module)
            if isinstance(wrapped, DistributedDataParallel):
                ddps.append(wrapped)
            return wrapped

        self._wrapped = wrap(job.model) if job.step is None else each_part(network_of(job), wrap)
        self._own: OwnStep | None = None
        needs_hook = job.recorder.active or self._needs_hook(job, options)
        hook = self._make_hook(job, options) if ddps and needs_hook else None
        if hook is not None:
            self.unit_roundoff = hook.unit_roundoff
        rebuilds = options.static_graph or not options.find_unused_parameters
        self._reducers = Reducers(ddps, hook, rebuilds=rebuilds)

    def _wrapper(self, job: Job, options: DdpOptions) -> Callable[[nn.Module], nn.Module]:
        from torch.nn.parallel import DistributedDataParallel

        cap, shrink = job.case.bucket_cap_mb, job.case.shrink
        wrapper = DistributedDataParallel
        if cap == "default" and shrink != 1:
            from ddpbench.strategies.ddp.shrunk import shrunk

            wrapper = shrunk(shrink)
        return partial(
            wrapper,
            bucket_cap_mb=cap / shrink if isinstance(cap, int | float) else None,
            **switches(options),
        )

    def _needs_hook(self, job: Job, options: DdpOptions) -> bool:
        return (
            is_collective(job.case.algorithm)
            or job.case.schedule == "after_backward"
            or options.compression != "none"
        )

    def _make_hook(self, job: Job, options: DdpOptions) -> BucketHook:
        from ddpbench.strategies.ddp.hooks import BucketHook

        return BucketHook(job, options.compression)

    def gradients_of(self, inputs: Any, targets: Any) -> torch.Tensor:
        recorder = self.job.recorder
        *before, last = chunk((inputs, targets), self._parts) if self._parts > 1 else [(inputs, targets)]
        losses = []
        if before:
            with self._reducers.apart():
                for part in before:
                    losses.append(self._loss(*part))
                    with recorder.span("backward"):
                        losses[-1].backward()  # type: ignore[no-untyped-call]
        loss = self._loss(*last)
        self._reducers.backward(recorder, loss.backward)
        mean = loss.detach()
        return sum((part.detach() for part in losses), mean) if before else mean

    def own_step(self, batch: Any) -> torch.Tensor:
        if self._own is None:
            from ddpbench.strategies.own_step import OwnStep

            optimizers: Any = self.optimizer
            self._own = OwnStep(self.job, self._wrapped, optimizers, last_sent=self._reducers.last_sent)
        self._reducers.start_step()
        return self._own(batch)

    def _loss(self, inputs: Any, targets: Any) -> torch.Tensor:
        with self.job.recorder.span("forward"):
            loss = self.job.loss(self._wrapped(inputs), targets)
            return loss / self._parts if self._parts > 1 else loss

    def bucket_bytes(self) -> tuple[int, ...] | None:
        return self._reducers.bucket_bytes()

    def ready(self) -> bool:
        """Return whether buckets have been rebuilt in the order of the gradients, or never will be."""
        return self._reducers.ready()

    def close(self) -> None:
        self._reducers.close()
        self._wrapped, self._own = self.job.model, None
