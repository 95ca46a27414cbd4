"""The options of `ray_train`: Ray Train starts the ranks, and its prepare_model wraps the model."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel

from ddpbench.spec import limits
from ddpbench.units import Unit


class RayTrainOptions(BaseModel, extra="forbid", frozen=True):
    """Options that `prepare_model` passes to DDP, with DDP's defaults, and the option `accumulate`."""

    gradient_as_bucket_view: bool = False
    """Let gradients share the memory of DDP's buckets instead of copying them."""
    static_graph: bool = False
    """Tell DDP that the graph never changes, so that it searches for no unused parameters."""
    find_unused_parameters: bool = False
    """Search the graph in every step for parameters that the loss does not reach. DDP then keeps its first buckets."""
    broadcast_buffers: bool = True
    """Broadcast rank 0's buffers, such as BatchNorm's statistics, before every forward pass."""
    accumulate: Annotated[int, limits.PARTS, Unit("parts")] = 1
    """Split each batch into this many parts and communicate only in the last part's backward."""
