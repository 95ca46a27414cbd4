"""Base classes for strategies in which a user's communication hook averages DDP's buckets."""

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
    """DDP with a hook that averages buckets. A proof checks that the gradients equal one process's gradients.

    `hook` is called as torch calls a hook of `register_comm_hook`: in the thread of the backward pass, once per bucket,
    in the same order on all ranks. Fields of the options with the names of DDP's (`static_graph`,
    `find_unused_parameters`, `gradient_as_bucket_view`, `broadcast_buffers`, `accumulate`) do the same as for `ddp`.
    `HookOptions` has the first two.
    """

    algorithm = "hook"
    schedule = "overlapped"
    uses_buckets = True
    unit_roundoff: ClassVar[float] = 0.0
    """Relative rounding error that the hook adds to gradients, for example 2^-11 if it sends them in fp16.

    The error is relative to each number. If numbers are rounded toward zero more than once, give the sum of these
    errors. The maximum is 1/8, that of fp8 with two bits of mantissa; with more, a proof would accept wrong gradients.
    """

    @abstractmethod
    def hook(self, state: Any, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        """Begin to average a bucket over all ranks, and return a future for the average.

        `bucket.buffer()` is a one-dimensional tensor of this rank's own gradients. The returned future's value must be
        a tensor of the same length and dtype with the average of these gradients over ranks. It may be the buffer
        itself.
        """

    def state(self, job: Job, options: OptionsT) -> Any:
        """Return the state for `hook`, by default the options. Called once in every rank."""
        return options

    def sent_bytes(self, state: Any, bucket: GradBucket) -> int:
        """Return the number of bytes that a rank sent for a bucket, by default the bucket's size. Called after `hook`.

        If the hook all-gathers, return the size of one rank's part. Reports show the result as the size of the
        transfer.
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
    """A hook with error feedback, which stores what it leaves out of a bucket and sends it later.

    The promise is `delayed`. The first `exact_steps` steps are averaged without the hook, because DDP rebuilds its
    buckets in the second step.
    """

    exact_steps: ClassVar[int] = 2

    @abstractmethod
    def kept(self, state: Any, index: int) -> torch.Tensor:
        """Return the values that this rank has stored for the bucket with this `index()`. Called only in proofs.

        The tensor is as long as the bucket's `buffer()`, of parts of the rank's own gradients, not divided by the
        ranks.
        """

    def promise(self, options: OptionsT) -> Promise:
        return "delayed"

    def check(self, case: Case) -> str | None:
        if case.precision == "fp16":
            return (
                "under fp16 autocast the scale of gradients changes, so a kept remainder would have the wrong "
                'scale: set precision = "bf16" or "full"'
            )
        return super().check(case)

    def step_reason(self, case: Case) -> str | None:
        return Strategy.step_reason(self, case)

    def build(self, job: Job, options: OptionsT) -> Replica:
        from ddpbench.strategies.hook.replica import CompensatedHookReplica

        return CompensatedHookReplica(job, self, options)


__all__ = ["CompensatedHookStrategy", "HookOptions", "HookStrategy"]
