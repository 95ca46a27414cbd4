"""The `fsdp` strategy: fully_shard, and its options."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel

from ddpbench.spec import limits
from ddpbench.units import Unit


class FsdpOptions(BaseModel, extra="forbid", frozen=True):
    """The choices of torch.distributed.fsdp.fully_shard."""

    wrap: Literal["blocks", "whole"] = "blocks"
    """The unit that is sharded and gathered: each child of the outermost ModuleLists and Sequentials (`blocks`), or
    the whole model."""
    reshard_after_forward: bool = True
    """Free a block's parameters after its forward and gather them again for its backward (ZeRO-3); false keeps them,
    which sends less and needs more memory, as in ZeRO-2."""
    replicas: Annotated[int, limits.REPLICAS, Unit("replicas")] = 1
    """Number of replicas of the model (hybrid sharding): neighbouring ranks hold the shards of one, and gradients of
    equal shards are all-reduced between replicas."""
