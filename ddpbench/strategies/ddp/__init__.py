"""The `ddp` strategy: DistributedDataParallel, and its options."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel

from ddpbench.spec import limits
from ddpbench.units import Unit


class DdpSwitches(BaseModel, extra="forbid", frozen=True):
    """DDP options that some models need, also under strategies that are built on DDP."""

    static_graph: bool = False
    """Tell DDP that the graph never changes, so that it searches for no unused parameters."""
    find_unused_parameters: bool = False
    """Search the graph in every step for parameters that the loss does not reach. DDP then keeps its first buckets."""


class DdpOptions(DdpSwitches, extra="forbid", frozen=True):
    """The choices of torch.nn.parallel.DistributedDataParallel, with its defaults."""

    gradient_as_bucket_view: bool = False
    """Let gradients share the memory of DDP's buckets instead of copying them."""
    broadcast_buffers: bool = True
    """Broadcast rank 0's buffers, such as BatchNorm's statistics, before every forward pass."""
    accumulate: Annotated[int, limits.PARTS, Unit("parts")] = 1
    """Split each batch into this many parts and communicate only in the last part's backward."""
    compression: Literal["none", "fp16", "bf16", "powersgd"] = "none"
    """Average gradients in fp16 or bf16, or send low-rank factors of gradient matrices and carry the error over
    (`powersgd`)."""
    matrix_approximation_rank: Annotated[int, limits.FACTOR_RANK, Unit("1")] = 1
    """Rank of PowerSGD's factors."""
    start_powersgd_iter: Annotated[int, limits.POWERSGD_START, Unit("steps")] = 2
    """Uncompressed warm-up steps before PowerSGD. torch's default is 1,000."""
