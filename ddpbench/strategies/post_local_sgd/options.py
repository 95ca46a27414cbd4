"""The options of the `post_local_sgd` strategy."""

from __future__ import annotations

from pydantic import BaseModel, Field


class PostLocalSgdOptions(BaseModel, extra="forbid", frozen=True):
    """The choices of torch's PostLocalSGDState and PeriodicModelAverager."""

    period: int = Field(default=4, ge=2, le=10, strict=True)
    """Parameters are averaged after every so many updates; at most as many as the smallest block that is timed has."""
    start_local_sgd_iter: int = Field(default=2, ge=0, le=16, strict=True)
    """So many steps come first whose gradients are averaged as DDP's are; they are part of the warm-up."""
    within_nodes: bool = True
    """Where a node has several ranks, and there are several nodes, gradients are averaged within the node."""
