"""A rank's replica whose model and optimizer Lightning's Fabric prepares."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from ddpbench.strategies.base import Job
from ddpbench.strategies.frameworks.ddp_replica import DdpInsideReplica
from ddpbench.strategies.frameworks.imports import imported
from ddpbench.strategies.frameworks.lightning import LightningOptions
from ddpbench.strategies.frameworks.lightning.setup import arguments_of, environment_of
from ddpbench.strategies.frameworks.over_ddp import ddp_arguments
from ddpbench.strategies.frameworks.process_state import unchanged
from ddpbench.strategies.trees import chunk

if TYPE_CHECKING:
    import torch


class FabricReplica(DdpInsideReplica):
    """The training loop in Fabric's documentation, divided into `gradients_of` and `apply`."""

    def __init__(self, job: Job, options: LightningOptions) -> None:
        super().__init__(job)
        self._parts = options.accumulate
        lightning = imported("lightning", "lightning.fabric")
        strategies = imported("lightning", "lightning.fabric.strategies")
        with unchanged():
            strategy = strategies.DDPStrategy(
                parallel_devices=[job.device],
                cluster_environment=environment_of(job),
                **ddp_arguments(job.case, options),
            )
            self._fabric: Any = lightning.Fabric(**arguments_of(job, strategy, autocast=self.autocast))
            self._fabric.launch()
            self._prepared, self._prepared_optimizer = self._fabric.setup(self.bare, self.optimizer)
        self.watch(self._prepared, rebuilds=options.static_graph or not options.find_unused_parameters)

    def gradients_of(self, inputs: Any, targets: Any) -> torch.Tensor:
        fabric, recorder = self._fabric, self.job.recorder
        *before, last = chunk((inputs, targets), self._parts) if self._parts > 1 else [(inputs, targets)]
        losses = []
        for part in before:
            with fabric.no_backward_sync(self._prepared):
                losses.append(self._loss(*part))
                with recorder.span("backward"):
                    fabric.backward(losses[-1])
        loss = self._loss(*last)
        self.backward(partial(fabric.backward, loss))
        mean = loss.detach()
        return sum((part.detach() for part in losses), mean) if before else mean

    def _loss(self, inputs: Any, targets: Any) -> torch.Tensor:
        with self.job.recorder.span("forward"):
            loss = self.job.loss(self._prepared(inputs), targets)
            return loss / self._parts if self._parts > 1 else loss

    def apply(self) -> None:
        self._prepared_optimizer.step()
        self._prepared_optimizer.zero_grad()

    def close(self) -> None:
        self._fabric = self._prepared = self._prepared_optimizer = None
        super().close()
