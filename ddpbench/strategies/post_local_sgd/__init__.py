"""The `post_local_sgd` strategy: post-local SGD, and its options."""

from __future__ import annotations

from typing import Annotated

from ddpbench.spec import limits
from ddpbench.strategies.ddp import DdpSwitches
from ddpbench.units import Unit


class PostLocalSgdOptions(DdpSwitches, extra="forbid", frozen=True):
    """The choices of torch's PostLocalSGDState and PeriodicModelAverager, and some of DDP's."""

    period: Annotated[int, limits.AVERAGING_PERIOD, Unit("steps")] = 4
    """Steps from one averaging of parameters to the next."""
    start_local_sgd_iter: Annotated[int, limits.LOCAL_SGD_START, Unit("steps")] = 2
    """Warm-up steps with gradients averaged as in DDP, before ranks train apart."""
    within_nodes: bool = True
    """Average gradients among the ranks of a node in every step, if several nodes have several ranks."""
