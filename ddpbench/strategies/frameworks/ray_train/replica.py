"""A rank's replica as Ray Train's `prepare_model` makes it: DDP at several ranks, the bare model at one."""

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
    """The loop of bare DDP around a model that `prepare_model` has wrapped.

    Making one raises a RuntimeError in a process that is not a worker of Ray Train.
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
