"""The `fsdp` strategy: fully_shard, and its options."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel

from ddpbench.spec import limits
from ddpbench.units import Unit


class FsdpOptions(BaseModel, extra="forbid", frozen=True):
    """The choices of torch.distributed.fsdp.fully_shard."""

    wrap: Literal["blocks", "whole"] = "blocks"
    """Unit of sharding: each child of the outermost ModuleLists and Sequentials (`blocks`), or the whole model."""
    reshard_after_forward: bool = True
    """Free a block's parameters after forward and gather them again for backward (ZeRO-3). `false` keeps them (ZeRO-2):
    less traffic, more memory."""
    replicas: Annotated[int, limits.REPLICAS, Unit("replicas")] = 1
    """Number of model replicas (hybrid sharding), each sharded over neighbouring ranks."""
