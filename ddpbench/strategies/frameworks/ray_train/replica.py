"""A rank's replica as Ray Train's `prepare_model` makes it: DDP at several ranks, the bare model at one."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from ddpbench.strategies.base import Job, Replica
from ddpbench.strategies.ddp.reducers import Reducers
from ddpbench.strategies.ddp.replica import buffers_stay
from ddpbench.strategies.frameworks.ray_train.options import RayTrainOptions
from ddpbench.strategies.trees import chunk

if TYPE_CHECKING:
    import torch
    from torch import nn

    from ddpbench.strategies.own_step import OwnStep


class RayTrainReplica(Replica):
    """A model that `prepare_model` has wrapped. Only its instrumented twin has a communication hook."""

    def __init__(self, job: Job, options: RayTrainOptions) -> None:
        """Wraps the model.

        Raises:
            RuntimeError: this process is no worker of Ray Train's.
        """
        from ray.train.torch import prepare_model
        from torch.nn.parallel import DistributedDataParallel

        from ddpbench.strategies.own_step import each_part, network_of

        super().__init__(job)
        self._parts = options.accumulate
        named: dict[str, Any] = {
            "gradient_as_bucket_view": options.gradient_as_bucket_view,
            "static_graph": options.static_graph,
            "find_unused_parameters": options.find_unused_parameters,
            **({} if options.broadcast_buffers else buffers_stay()),
        }
        cap = job.case.bucket_cap_mb
        if isinstance(cap, int | float):
            named["bucket_cap_mb"] = cap
        ddps: list[DistributedDataParallel] = []

        def wrap(module: nn.Module) -> nn.Module:
            wrapped: nn.Module = prepare_model(
                module, move_to_device=job.device, parallel_strategy_kwargs=dict(named)
            )
            if isinstance(wrapped, DistributedDataParallel):
                ddps.append(wrapped)
            return wrapped

        self._wrapped = wrap(job.model) if job.step is None else each_part(network_of(job), wrap)
        self._own: OwnStep | None = None
        hook = None
        if job.recorder.active and ddps:
            from ddpbench.strategies.ddp.hooks import BucketHook

            hook = BucketHook(job)
        rebuilds = options.static_graph or not options.find_unused_parameters
        self._reducers = Reducers(ddps, hook, rebuilds=rebuilds)

    def gradients_of(self, inputs: Any, targets: Any) -> torch.Tensor:
        recorder = self.job.recorder
        *before, last = chunk((inputs, targets), self._parts) if self._parts > 1 else [(inputs, targets)]
        losses = []
        with self._apart() if before else nullcontext():
            for part in before:
                losses.append(self._loss(*part))
                with recorder.span("backward"):
                    losses[-1].backward()  # type: ignore[no-untyped-call]
        loss = self._loss(*last)
        if self._reducers.ddps:
            self._reducers.backward(recorder, loss.backward)
        else:
            self._reducers.start_step()
            with recorder.span("backward"):
                loss.backward()  # type: ignore[no-untyped-call]
        return sum((part.detach() for part in losses), loss.detach())

    def own_step(self, batch: Any) -> torch.Tensor:
        if self._own is None:
            from ddpbench.strategies.own_step import OwnStep

            optimizers: Any = self.optimizer
            self._own = OwnStep(self.job, self._wrapped, optimizers, last_sent=self._reducers.last_sent)
        self._reducers.start_step()
        return self._own(batch)

    def _apart(self) -> Any:
        """Return the context in which gradients stay a rank's own."""
        return self._reducers.ddps[0].no_sync() if self._reducers.ddps else nullcontext()

    def _loss(self, inputs: Any, targets: Any) -> torch.Tensor:
        """Return the loss of a part of the batch, as it counts in the whole's mean."""
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
