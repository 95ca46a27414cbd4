"""A rank's replica whose model Ray Train's `prepare_model` wraps in DDP, unless there is only one rank."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from ddpbench.strategies.base import Job
from ddpbench.strategies.ddp import DdpOptions
from ddpbench.strategies.ddp.replica import DdpReplica, switches

if TYPE_CHECKING:
    from torch import nn


class RayTrainReplica(DdpReplica):
    """The `ddp` strategy's replica, with a model that `prepare_model` has wrapped.

    The constructor raises a RuntimeError in a process that is not a worker of Ray Train.
    """

    def _wrapper(self, job: Job, options: DdpOptions) -> Callable[[nn.Module], nn.Module]:
        from ray.train.torch import prepare_model

        cap = job.case.bucket_cap_mb
        named: dict[str, Any] = {"bucket_cap_mb": cap} if isinstance(cap, int | float) else {}
        return partial(
            prepare_model,
            move_to_device=job.device,
            parallel_strategy_kwargs={**switches(options), **named},
        )
