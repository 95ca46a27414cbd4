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
        recorder = self.job.recorder
        with recorder.span("forward"):
            loss = self._loss(inputs, targets)
        with recorder.span("backward"):
            loss.backward()  # type: ignore[no-untyped-call]
        return loss.detach()

    def _loss(self, inputs: Any, targets: Any) -> torch.Tensor:
        return self.job.loss(self.job.model(inputs), targets)
