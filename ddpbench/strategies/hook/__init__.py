"""A communication hook of DDP as a strategy: a user's class averages the full buckets."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar

from ddpbench.spec import Case
from ddpbench.strategies.base import Job, OptionsT, Promise, Replica, Strategy, dense_reason
from ddpbench.strategies.ddp import DdpSwitches as HookOptions
from ddpbench.strategies.ddp.strategy import accumulate_reason

if TYPE_CHECKING:
    import torch
    from torch._C._distributed_c10d import GradBucket


class HookStrategy(Strategy[OptionsT]):
    """DDP whose buckets a hook averages; its gradients are proved to be those of one process.

    `hook` is called as torch calls a hook that is registered with `register_comm_hook`, in every step: in the thread
    of the backward pass, once per bucket, in the same order on all ranks. DDP's options (`static_graph`,
    `find_unused_parameters`, `gradient_as_bucket_view`, `broadcast_buffers`, `accumulate`) do the same as for `ddp`
    if the class's options have fields of these names; `HookOptions` has the first two.
    """

    algorithm = "hook"
    schedule = "overlapped"
    uses_buckets = True
    unit_roundoff: ClassVar[float] = 0.0
    """Relative rounding of gradients by the hook itself: 2^-11 if it sends them in fp16, 0 if it sends them as is.

    It is relative to each number. If numbers are rounded toward zero more than once, give the sum of these roundings.
    At most 1/8, that of fp8 with two bits of mantissa: a proof of coarser gradients would accept wrong ones."""

    @abstractmethod
    def hook(self, state: Any, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        """Begin to average a bucket over all ranks.

        `bucket.buffer()` holds this rank's own gradients, one-dimensional. The returned future holds their average over
        ranks, of the same length and type; its value may be the buffer itself.
        """

    def state(self, job: Job, options: OptionsT) -> Any:
        """Return the state that `hook` is called with, made once in every rank: by default the options."""
        return options

    def sent_bytes(self, state: Any, bucket: GradBucket) -> int:
        """Return how much of a bucket a rank sent, bytes, once `hook` has been called: by default the full bucket.

        If all ranks gather numbers, it is one rank's share. Reports show it as the size of the transfer.
        """
        buffer = bucket.buffer()
        return buffer.numel() * buffer.element_size()

    def check(self, case: Case) -> str | None:
        return accumulate_reason(case)

    def step_reason(self, case: Case) -> str | None:
        return None

    def model_reason(self, case: Case, *, closure: str, sparse: bool) -> str | None:
        return dense_reason(self.name) if sparse else None

    def build(self, job: Job, options: OptionsT) -> Replica:
        from ddpbench.strategies.hook.replica import HookReplica

        return HookReplica(job, self, options)


class CompensatedHookStrategy(HookStrategy[OptionsT]):
    """A hook that leaves something out of a bucket, keeps it and sends it later: error feedback.

    It promises `delayed`. Its first steps (`exact_steps`) are averaged in full, without the hook: DDP rebuilds its
    buckets in the second step, and what is kept of a bucket belongs to that bucket.
    """

    exact_steps: ClassVar[int] = 2

    @abstractmethod
    def kept(self, state: Any, index: int) -> torch.Tensor:
        """Return what this rank has kept of the bucket with that `index()`, with the length of its `buffer()`.

        It is part of the rank's own gradient, before any division by the number of ranks. Called only in proofs.
        """

    def promise(self, options: OptionsT) -> Promise:
        return "delayed"

    def check(self, case: Case) -> str | None:
        if case.precision == "fp16":
            return (
                "under fp16 autocast gradients are scaled by a factor that changes, and what is kept back would be of "
                'another one: set precision = "bf16" or "full"'
            )
        return super().check(case)

    def step_reason(self, case: Case) -> str | None:
        return Strategy.step_reason(self, case)

    def build(self, job: Job, options: OptionsT) -> Replica:
        from ddpbench.strategies.hook.replica import CompensatedHookReplica

        return CompensatedHookReplica(job, self, options)


__all__ = ["CompensatedHookStrategy", "HookOptions", "HookStrategy"]
