"""A rank's replica under DDP with torch's ZeroRedundancyOptimizer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook

from ddpbench.causes import exception_words, users_line
from ddpbench.measure.recorder import Recorder
from ddpbench.strategies.base import CannotTrainError, Job, local_bytes, state_bytes
from ddpbench.strategies.ddp import DdpOptions
from ddpbench.strategies.ddp.replica import DdpReplica
from ddpbench.strategies.zero1 import Zero1Options


class Zero1Replica(DdpReplica):
    """A model under DDP. Every rank has the complete model, and its own part of the optimizer's state."""

    def __init__(self, job: Job, options: Zero1Options) -> None:
        of_ddp = options.model_dump(include=set(DdpOptions.model_fields))
        super().__init__(job, DdpOptions(**of_ddp))
        self._whole = self.optimizer
        """The workload's optimizer with its settings, but without the parameters that other ranks update."""
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
    """Return the parameters to divide, without frozen ones among several dtypes, which torch refuses."""
    if len({each.dtype for each in parameters}) == 1:
        return list(parameters)
    return [each for each in parameters if each.requires_grad] or list(parameters)


def _cut_down(optimizer: torch.optim.Optimizer) -> Callable[..., torch.optim.Optimizer]:
    """Return a stand-in for the optimizer's class, which cuts `optimizer` down to this rank's groups.

    Optimizers of any class and number of groups thus keep their settings.
    """

    def made(groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
        optimizer.param_groups = groups
        own = {parameter for group in groups for parameter in group["params"]}
        for parameter in [each for each in optimizer.state if each not in own]:
            del optimizer.state[parameter]
        return optimizer

    return made


@contextmanager
def _stepped_within(outer: torch.optim.Optimizer) -> Iterator[list[torch.optim.Optimizer]]:
    """Yield a list of the optimizers other than `outer` that step in the enclosed code."""
    found: list[torch.optim.Optimizer] = []

    def note(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        if optimizer is not outer:
            found.append(optimizer)

    hook = register_optimizer_step_pre_hook(note)
    try:
        yield found
    finally:
        hook.remove()


def _held(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    return [each for group in optimizer.param_groups for each in group["params"]]


class SharedOutOptimizer(ZeroRedundancyOptimizer):
    """torch's ZeroRedundancyOptimizer, whose broadcasts are recorded as transfers and as a `synchronize` span."""

    def __init__(self, groups: Any, *, recorder: Recorder | None, **settings: Any) -> None:
        self._recorder = recorder
        self._known: list[dict[str, Any]] = []
        self._has_stepped = False
        super().__init__(groups, **settings)
        self.register_step_pre_hook(self._take_over)
        self.register_step_post_hook(self._remember)
        self._remember()

    def _take_over(self, *_: Any) -> None:
        """Copy settings that a scheduler changed from the workload's optimizer; torch's step would undo them."""
        inner: Any = getattr(self, "optim")  # noqa: B009
        for outer, own, known in zip(self.param_groups, inner.param_groups, self._known, strict=False):
            outer.update({key: own[key] for key, value in known.items() if own[key] != value})

    def _remember(self, *_: Any) -> None:
        self._known = [
            {key: value for key, value in group.items() if key != "params"} for group in self.param_groups
        ]

    def _local_step(
        self, gradients: Any = None, closure: Callable[[], float] | None = None, **settings: Any
    ) -> float | None:
        """Update this rank's part; the first update checks that only this part changed.

        Raises:
            CannotTrainError: the optimizer steps other optimizers, with parameters that other ranks update.
            RuntimeError: the optimizer cannot update only a part of its parameters.
        """
        zero: Any = self
        made = super()._local_step
        watch: AbstractContextManager[list[torch.optim.Optimizer]] = (
            nullcontext([]) if self._has_stepped else _stepped_within(zero.optim)
        )
        try:
            with watch as within:
                loss: float | None = made(gradients=gradients, closure=closure, **settings)
        except (MemoryError, torch.OutOfMemoryError):
            raise
        except Exception as error:
            # The closure may have raised this error, or the CPU's allocator, for lack of memory.
            if closure is not None or "allocate memory" in str(error):
                raise
            who = type(zero.optim).__name__
            raise RuntimeError(
                f"zero1 gives each rank a part of the parameters to update, but {who} fails with a part (does it "
                "keep a list of all parameters, or a value for each?): "
                f"{exception_words(error)}{users_line(error)}"
            ) from None
        if not self._has_stepped:
            self._has_stepped = True
            self._check_within(within)
        return loss

    def _check_within(self, within: list[torch.optim.Optimizer]) -> None:
        zero: Any = self
        shared = {id(each) for each in _held(self)} - {id(each) for each in _held(zero.optim)}
        found = [one for one in within if any(id(each) in shared for each in _held(one))]
        several = torch.tensor(float(bool(found)), device=zero._default_device)
        dist.all_reduce(several, op=dist.ReduceOp.MAX, group=zero.process_group)
        if several:
            outer, inner = (type(one).__name__ for one in (zero.optim, (found or within or [zero.optim])[0]))
            raise CannotTrainError(
                f"zero1 gives each rank a part of the parameters to update, but {outer} steps another optimizer, "
                f"{inner}, which updates all parameters on each rank: return {inner}, with a scheduler if its "
                "learning rate changes, or use fsdp or ddp"
            )

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
