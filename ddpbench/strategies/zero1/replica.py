"""A rank's model under DDP and torch's ZeroRedundancyOptimizer. Imports torch at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.distributed.optim import ZeroRedundancyOptimizer

from ddpbench.measure.recorder import Recorder
from ddpbench.strategies.base import Job, local_bytes, state_bytes
from ddpbench.strategies.ddp import DdpOptions
from ddpbench.strategies.ddp.replica import DdpReplica
from ddpbench.strategies.zero1 import Zero1Options


class Zero1Replica(DdpReplica):
    """A model under DDP that is whole on every rank, of whose optimizer this rank has a share."""

    def __init__(self, job: Job, options: Zero1Options) -> None:
        of_ddp = options.model_dump(include=set(DdpOptions.model_fields))
        super().__init__(job, DdpOptions(**of_ddp))
        self._whole = self.optimizer
        """The workload's optimizer, which keeps its settings and loses what other ranks update."""
        whole: Any = self._whole

        def shared_out(optimizer: torch.optim.Optimizer) -> SharedOutOptimizer:
            return SharedOutOptimizer(
                [{**group, "params": _updated(group["params"])} for group in optimizer.param_groups],
                optimizer_class=_cut_down(optimizer),
                parameters_as_bucket_view=options.parameters_as_bucket_view,
                recorder=job.recorder if job.recorder.active else None,
            )

        self.optimizer = shared_out(whole) if job.step is None else whole.replaced(shared_out)

    def held_bytes(self) -> tuple[int, int, int]:
        parameters, gradients, _ = super().held_bytes()
        return parameters, gradients, state_bytes(self._whole)


def _updated(parameters: list[torch.Tensor]) -> list[torch.Tensor]:
    """Return the parameters to share out. Frozen ones of another type, which torch would refuse, are left out."""
    if len({each.dtype for each in parameters}) == 1:
        return list(parameters)
    return [each for each in parameters if each.requires_grad] or list(parameters)


def _cut_down(optimizer: torch.optim.Optimizer) -> Callable[..., torch.optim.Optimizer]:
    """What ZeroRedundancyOptimizer takes for a class: called with this rank's groups it gives the optimizer, whose
    own they are from then on. So optimizers of any class and any number of groups keep their settings."""

    def made(groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
        optimizer.param_groups = groups
        own = {parameter for group in groups for parameter in group["params"]}
        for parameter in [each for each in optimizer.state if each not in own]:
            del optimizer.state[parameter]
        return optimizer

    return made


class SharedOutOptimizer(ZeroRedundancyOptimizer):
    """torch's own, whose broadcasts are noted, by the rank that sends, as a `synchronize` span within the update."""

    def __init__(self, groups: Any, *, recorder: Recorder | None, **settings: Any) -> None:
        self._recorder = recorder
        self._known: list[dict[str, Any]] = []
        super().__init__(groups, **settings)
        self.register_step_pre_hook(self._take_over)
        self.register_step_post_hook(self._remember)
        self._remember()

    def _take_over(self, *_: Any) -> None:
        """Takes over settings that a scheduler has changed in the workload's own optimizer, which it was made for.

        torch's step copies this one's settings to it, and would undo them.
        """
        inner: Any = getattr(self, "optim")  # noqa: B009
        for outer, own, known in zip(self.param_groups, inner.param_groups, self._known, strict=False):
            outer.update({key: own[key] for key, value in known.items() if own[key] != value})

    def _remember(self, *_: Any) -> None:
        self._known = [
            {key: value for key, value in group.items() if key != "params"} for group in self.param_groups
        ]

    def _sync_params(self) -> None:
        recorder = self._recorder
        if recorder is None:
            super()._sync_params()  # type: ignore[misc]  # the stub has only what is public
            return
        begin = recorder.mark()
        zero: Any = self
        sent = [
            (rank, recorder.mark(), zero._broadcast_params_from_rank(rank)) for rank in range(zero.world_size)
        ]
        for rank, start, works in sent:
            for work in works:
                work.wait()
            shares = zero._partition_parameters()[rank]
            size = local_bytes(parameter for group in shares for parameter in group["params"])
            end = recorder.mark()
            recorder.add_transfer(bucket=rank, op="broadcast", size=size, start=start, end=end, root=rank)
        recorder.add_span("synchronize", begin, recorder.mark())
