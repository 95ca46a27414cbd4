"""A rank's replica under DDP with a user's communication hook, whose transfers can be recorded."""

from __future__ import annotations

from contextlib import suppress
from operator import index
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import torch

from ddpbench.strategies.base import CompensatedReplica, Job
from ddpbench.strategies.ddp import DdpOptions
from ddpbench.strategies.ddp.hooks import BucketHook, Summed
from ddpbench.strategies.ddp.replica import DdpReplica
from ddpbench.strategies.trees import as_real
from ddpbench.text_safety import shortened, with_article

if TYPE_CHECKING:
    from torch._C._distributed_c10d import GradBucket

_OF_DDP = (
    *("gradient_as_bucket_view", "static_graph", "find_unused_parameters", "broadcast_buffers"),
    "accumulate",
)


class _Hooks(Protocol):
    name: ClassVar[str]
    unit_roundoff: ClassVar[float]

    def state(self, job: Job, options: Any) -> Any: ...

    def hook(self, state: Any, bucket: GradBucket) -> Summed: ...

    def sent_bytes(self, state: Any, bucket: GradBucket) -> int: ...


class _CompensatedHooks(_Hooks, Protocol):
    exact_steps: ClassVar[int]

    def kept(self, state: Any, index: int) -> torch.Tensor: ...


def _ddp_options(options: Any) -> DdpOptions:
    own = type(options).model_fields
    return DdpOptions.model_validate({name: getattr(options, name) for name in _OF_DDP if name in own})


class UserHook(BucketHook):
    """Passes every bucket to a user's hook. In the first `exact_steps` steps it averages buckets without the hook."""

    def __init__(self, job: Job, strategy: _Hooks, state: Any, exact_steps: int) -> None:
        super().__init__(job)
        self._strategy, self.state, self._exact_steps = strategy, state, exact_steps
        self._steps = 0
        self.parameters: dict[int, list[torch.Tensor]] = {}
        """The parameters of each bucket that was passed to the hook, by the bucket's index."""
        self._looked_at: set[int] = set()
        """Numbers of the buckets whose result has been checked."""

    @property
    def begun(self) -> bool:
        """True if buckets of the current step are passed to the user's hook."""
        return self._steps > self._exact_steps

    def start_step(self) -> None:
        super().start_step()
        self._steps += 1

    def aggregate(self, bucket: GradBucket) -> Summed:
        if not self.begun:
            return super().aggregate(bucket)
        buffer, recorder, number = bucket.buffer(), self._recorder, self._left
        self.sizes.append(buffer.numel() * buffer.element_size())
        self.parameters[bucket.index()] = bucket.parameters()
        self._left += 1
        start = self.last_start = recorder.mark()
        averaged: Summed = self._strategy.hook(self.state, bucket)
        if not isinstance(averaged, torch._C.Future):  # the base of torch.futures.Future
            raise TypeError(
                f"{self._strategy.name}: its hook() returned {with_article(type(averaged).__name__)}; it must return a "
                "torch.futures.Future that will hold the averaged bucket"
            )
        if not recorder.active and number in self._looked_at:
            return averaged
        self._looked_at.add(number)
        size = self._sent_bytes(bucket)

        def arrived(future: Summed) -> torch.Tensor:
            value = future.value()
            recorder.add_transfer(bucket=number, op="hook", size=size, start=start, end=recorder.mark())
            return self._checked(value, buffer)

        noted: Summed = averaged.then(arrived)
        return noted

    def _sent_bytes(self, bucket: GradBucket) -> int:
        """Return the bytes sent for a bucket, as the user's strategy reports them.

        Raises:
            TypeError: the strategy's answer is not a possible size.
        """
        answer: Any = self._strategy.sent_bytes(self.state, bucket)
        with suppress(TypeError, ValueError, RuntimeError):  # not a whole number
            size = index(answer)
            if size >= 0:
                return size
        raise TypeError(
            f"{self._strategy.name}: its sent_bytes() returned {shortened(answer)}; it must return a whole number of "
            "bytes, 0 or more"
        )

    def _checked(self, value: Any, buffer: torch.Tensor) -> torch.Tensor:
        """Return a user's result if it fits the bucket.

        Raises:
            TypeError: the value is not a tensor of the bucket's dtype and length.
        """
        if (
            isinstance(value, torch.Tensor)
            and value.dtype == buffer.dtype
            and value.numel() == buffer.numel()
        ):
            return value
        what = (
            f"a tensor of {value.numel():,} numbers of type {str(value.dtype).removeprefix('torch.')}"
            if isinstance(value, torch.Tensor)
            else with_article(type(value).__name__)
        )
        wanted = f"{buffer.numel():,} of type {str(buffer.dtype).removeprefix('torch.')}"
        raise TypeError(
            f"{self._strategy.name}: the future of its hook() holds {what}; the bucket has {wanted}"
        )


class HookReplica(DdpReplica):
    """A model under DDP with a user's hook, which also runs in timed steps."""

    exact_steps = 0

    def __init__(self, job: Job, strategy: _Hooks, options: Any) -> None:
        self.strategy, self._options = strategy, options
        super().__init__(job, _ddp_options(options))
        self.unit_roundoff = strategy.unit_roundoff

    def _needs_hook(self, job: Job, options: DdpOptions) -> bool:
        return True

    def _make_hook(self, job: Job, options: DdpOptions) -> BucketHook:
        state = self.strategy.state(job, self._options)
        self._hook = UserHook(job, self.strategy, state, self.exact_steps)
        return self._hook


class CompensatedHookReplica(HookReplica, CompensatedReplica):
    """A model under DDP with a user's hook that stores the parts of gradients that it leaves out."""

    strategy: _CompensatedHooks

    def __init__(self, job: Job, strategy: _CompensatedHooks, options: Any) -> None:
        self.exact_steps = strategy.exact_steps
        super().__init__(job, strategy, options)

    def ready(self) -> bool:
        """Return whether buckets are final and the user's hook has begun to average them."""
        return super().ready() and self._hook.begun

    def kept(self) -> dict[str, torch.Tensor]:
        """Return the parts of gradients that this rank has stored, by the parameters' names.

        Raises:
            TypeError: the strategy's `kept` did not return a tensor.
            ValueError: the tensor's length differs from the bucket's.
        """
        names: dict[torch.Tensor, str] = {each: name for name, each in self.job.model.named_parameters()}
        found: dict[str, torch.Tensor] = {}
        for number, parameters in self._hook.parameters.items():
            memory: Any = self.strategy.kept(self._hook.state, number)
            if not isinstance(memory, torch.Tensor):
                raise TypeError(
                    f"{self.strategy.name}: its kept() returned {shortened(memory)} for bucket {number}; it must "
                    "return a tensor as long as the bucket"
                )
            memory = as_real(memory).reshape(-1)
            sizes = [as_real(parameter).numel() for parameter in parameters]
            if len(memory) != sum(sizes):
                raise ValueError(
                    f"{self.strategy.name}: kept() returned {len(memory):,} numbers for bucket {number}, which has "
                    f"{sum(sizes):,}"
                )
            parts = torch.split(memory, sizes)
            found |= {names[each]: _as(each, part) for each, part in zip(parameters, parts, strict=True)}
        return found


def _as(parameter: torch.Tensor, part: torch.Tensor) -> torch.Tensor:
    """Reshape a bucket's part like its parameter; buckets store complex numbers as pairs of reals."""
    if not parameter.is_complex():
        return part.view_as(parameter)
    return torch.view_as_complex(
        part.clone().view(*parameter.shape, 2)
    )  # a pair may begin anywhere in a bucket
