"""The `zero1` strategy: ZeroRedundancyOptimizer, and its options."""

from __future__ import annotations

from ddpbench.strategies.ddp import DdpSwitches


class Zero1Options(DdpSwitches, extra="forbid", frozen=True):
    """The choices of torch.distributed.optim.ZeroRedundancyOptimizer, and some of DDP's."""

    parameters_as_bucket_view: bool = False
    """Broadcast each rank's parameters as one buffer instead of one by one."""
    gradient_as_bucket_view: bool = False
    """Let gradients share the memory of DDP's buckets instead of copying them."""
