"""A single all-reduce of all gradients after the whole backward pass, as a strategy of any kind."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ddpbench.strategies.base import Job, NoOptions, Replica, Strategy

if TYPE_CHECKING:
    import torch


class OneShot(Strategy[NoOptions]):
    """Sum all gradients at once."""

    options = NoOptions
    algorithm = "all_reduce"
    schedule = "after_backward"

    def build(self, job: Job, options: NoOptions) -> Replica:
        return OneShotReplica(job)


class OneShotReplica(Replica):
    """A rank's copy of the model."""

    def gradients_of(self, inputs: Any, targets: Any) -> torch.Tensor:
        import torch
        import torch.distributed as dist

        job, recorder = self.job, self.job.recorder
        with recorder.span("forward"):
            loss = job.loss(job.model(inputs), targets)
        with recorder.span("backward"):
            loss.backward()  # type: ignore[no-untyped-call]
        with recorder.span("synchronize"):
            flat = torch.cat([gradient.reshape(-1) for gradient in self.gradients()])
            start = recorder.mark()
            dist.all_reduce(flat)
            size = flat.numel() * flat.element_size()
            recorder.add_transfer(bucket=0, op="all_reduce", size=size, start=start, end=recorder.mark())
            flat /= job.world_size
            parts = torch.split(flat, [gradient.numel() for gradient in self.gradients()])
            for gradient, part in zip(self.gradients(), parts, strict=True):
                gradient.copy_(part.view_as(gradient))
        return loss.detach()
