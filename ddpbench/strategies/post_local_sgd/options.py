"""The options of the `post_local_sgd` strategy."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, Field

from ddpbench.units import Unit


class PostLocalSgdOptions(BaseModel, extra="forbid", frozen=True):
    """The choices of torch's PostLocalSGDState and PeriodicModelAverager."""

    period: Annotated[int, Unit("steps")] = Field(default=4, ge=2, le=10, strict=True)
    """Steps from one averaging of parameters to the next; at most 10, as many as the smallest timed block has."""
    start_local_sgd_iter: Annotated[int, Unit("steps")] = Field(default=2, ge=0, le=16, strict=True)
    """Steps with gradients averaged as in DDP before ranks train apart, part of the warm-up."""
    within_nodes: bool = True
    """Average gradients among the ranks of a node in every step, if there are several nodes with several ranks."""
