"""The `ddp` strategy: DistributedDataParallel, and its options."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel

from ddpbench.spec import limits
from ddpbench.units import Unit


class DdpSwitches(BaseModel, extra="forbid", frozen=True):
    """The choices that some models need of DDP, and of what is built on it."""

    static_graph: bool = False
    """Tell DDP that the graph is the same in every step, so that it does not search it for unused parameters."""
    find_unused_parameters: bool = False
    """Search the graph in every step for parameters that the loss does not reach; DDP then keeps its first buckets, and
    gradients may become ready in another order."""


class DdpOptions(DdpSwitches, extra="forbid", frozen=True):
    """The choices of torch.nn.parallel.DistributedDataParallel, with its defaults."""

    gradient_as_bucket_view: bool = False
    """Let gradients share the memory of the buckets instead of copying them."""
    broadcast_buffers: bool = True
    """Broadcast rank 0's buffers, such as BatchNorm's running statistics, before every forward pass, as part of it."""
    accumulate: Annotated[int, limits.PARTS, Unit("parts")] = 1
    """Split each batch into this many parts and communicate only in the last one's backward (`no_sync`)."""
    compression: Literal["none", "fp16", "bf16", "powersgd"] = "none"
    """Average gradients in fp16 or bf16, or send gradient matrices as low-rank factors and carry the error over to the
    next step (`powersgd`)."""
    matrix_approximation_rank: Annotated[int, limits.FACTOR_RANK, Unit("1")] = 1
    """Rank of PowerSGD's factors."""
    start_powersgd_iter: Annotated[int, limits.POWERSGD_START, Unit("steps")] = 2
    """Uncompressed steps before PowerSGD starts, part of the warm-up; torch's default is 1,000, and its minimum 2."""
