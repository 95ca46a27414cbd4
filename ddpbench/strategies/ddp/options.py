"""The options of the `ddp` strategy."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, Field


class DdpOptions(BaseModel, extra="forbid", frozen=True):
    """The choices of torch.nn.parallel.DistributedDataParallel, with its defaults."""

    gradient_as_bucket_view: bool = False
    """Gradients live in the buckets instead of beside them: less memory."""
    static_graph: bool = False
    """The same parameters are used in every step; DDP need not look."""
    find_unused_parameters: bool = False
    """Walks the graph in every step for parameters that the loss does not reach, and keeps the buckets as
    they were built: gradients may then become ready out of the buckets' order."""
    broadcast_buffers: bool = True
    """Rank 0's buffers, such as BatchNorm's running statistics, are sent out before every forward pass, and
    so count as `forward`."""
    accumulate: int = Field(default=1, ge=1, strict=True)
    """Each batch is computed in so many parts, and only the last one's backward sends (`no_sync` before it)."""
    compression: Literal["none", "fp16", "bf16", "powersgd"] = "none"
    """Gradients are averaged in this type: half the bytes, and its rounding. Or their matrices are sent as products of
    two of low rank, and what that leaves out of a step is kept for the next (PowerSGD)."""
    matrix_approximation_rank: int = Field(default=1, ge=1, le=256, strict=True)
    """PowerSGD: that low rank."""
    start_powersgd_iter: int = Field(default=2, ge=2, le=16, strict=True)
    """PowerSGD: so many steps come first that are not compressed; they are part of the warm-up. torch's default is
    1,000, for the sake of the loss; less than 2 it does not allow, because buckets are rebuilt after the first."""
