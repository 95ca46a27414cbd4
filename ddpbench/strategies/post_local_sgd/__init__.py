"""The `post_local_sgd` strategy: post-local SGD, and its options."""

from __future__ import annotations

from typing import Annotated

from ddpbench.spec import limits
from ddpbench.strategies.ddp import DdpSwitches
from ddpbench.units import Unit


class PostLocalSgdOptions(DdpSwitches, extra="forbid", frozen=True):
    """The choices of torch's PostLocalSGDState and PeriodicModelAverager, and some of DDP's."""

    period: Annotated[int, limits.AVERAGING_PERIOD, Unit("steps")] = 4
    """Steps from one averaging of parameters to the next; at most 10, as many as the smallest timed block has."""
    start_local_sgd_iter: Annotated[int, limits.LOCAL_SGD_START, Unit("steps")] = 2
    """Steps with gradients averaged as in DDP before ranks train apart, part of the warm-up."""
    within_nodes: bool = True
    """Average gradients among the ranks of a node in every step, if there are several nodes with several ranks."""
