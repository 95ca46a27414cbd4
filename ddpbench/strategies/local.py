"""A replica that trains by itself: what `single` and `independent` have in common."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ddpbench.strategies.base import Replica

if TYPE_CHECKING:
    import torch


class LocalReplica(Replica):
    """Forward and backward of the bare model; nothing is aggregated."""

    def gradients_of(self, inputs: Any, targets: Any) -> torch.Tensor:
        job = self.job
        with job.recorder.span("forward"):
            loss = job.loss(job.model(inputs), targets)
        with job.recorder.span("backward"):
            loss.backward()  # type: ignore[no-untyped-call]
        return loss.detach()
