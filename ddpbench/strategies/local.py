"""The replica of `single` and `independent`, which trains without other ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ddpbench.strategies.base import Replica

if TYPE_CHECKING:
    import torch

    from ddpbench.strategies.own_step import OwnStep


class LocalReplica(Replica):
    """Replica that trains the unwrapped model and aggregates nothing."""

    _own: OwnStep | None = None

    def own_step(self, batch: Any) -> torch.Tensor:
        if self._own is None:
            from ddpbench.strategies.own_step import OwnStep, network_of

            optimizers: Any = self.optimizer
            self._own = OwnStep(self.job, network_of(self.job), optimizers)
        return self._own(batch)

    def gradients_of(self, inputs: Any, targets: Any) -> torch.Tensor:
        job = self.job
        with job.recorder.span("forward"):
            loss = job.loss(job.model(inputs), targets)
        with job.recorder.span("backward"):
            loss.backward()  # type: ignore[no-untyped-call]
        return loss.detach()
