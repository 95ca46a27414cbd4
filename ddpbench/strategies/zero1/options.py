"""The options of the `zero1` strategy."""

from __future__ import annotations

from pydantic import BaseModel


class Zero1Options(BaseModel, extra="forbid", frozen=True):
    """The choices of torch.distributed.optim.ZeroRedundancyOptimizer, and one of DDP's."""

    parameters_as_bucket_view: bool = False
    """Each rank's parameters lie in one memory, which is broadcast at once; otherwise one by one."""
    gradient_as_bucket_view: bool = False
    """Gradients live in DDP's buckets instead of beside them: less memory."""
