"""Compute from a profile when one rank of a replay must finish each part of a step."""

from __future__ import annotations

import math
import random
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BaseModel

from ddpbench.measure.pacer import Pacer, Pass
from ddpbench.spec import Case, limits
from ddpbench.units import Unit

if TYPE_CHECKING:
    pass

from ddpbench.workloads.profile import Profile

GRAIN = 2e-3
"""Gradients that are due within this fraction of a step's time are returned together, because each wait costs a
wake-up.
"""
MOST_TOGETHER = 3
"""Maximum number of gradients from one autograd node. If there were more, autograd would change their order."""


class ReplayOptions(BaseModel, extra="forbid", frozen=True):
    """Options of a replay."""

    slow_rank: Annotated[int, limits.SLOW_RANK] | None = None
    """Rank that computes slower than the profile. Unset: none."""
    slow_factor: Annotated[float, limits.SLOW_FACTOR, Unit("1")] = 1.0
    """Factor by which `slow_rank` is slower."""
    jitter: Annotated[float, limits.JITTER, Unit("1")] = 0.0
    """Relative standard deviation of computation time between steps (lognormal)."""


class Rhythm:
    """A profile's times for one rank of a case, with time dilation, a straggler's slowdown and jitter."""

    def __init__(self, profile: Profile, case: Case, rank: int, launch: int = 0) -> None:
        self.profile, self.case, self.rank = profile, case, rank
        self.pacer = Pacer()
        self._options = ReplayOptions.model_validate(case.workload_options)
        self._launch = launch
        self._random: dict[int, random.Random] = {}
        self._spread = math.sqrt(math.log1p(self._options.jitter**2))
        self._scale = self._base(rank)
        self.forward_ns = 1e9 * profile.forward_s.mean
        self.end_ns = self.forward_ns + 1e9 * profile.backward_s.mean
        self.ready_ns = [self.forward_ns + 1e9 * p.ready_s.mean for p in profile.parameters]
        self.optimizer_ns = 1e9 * profile.optimizer_s.mean
        self.pacer.update_due_ns = round(self._scale * self.optimizer_ns)
        self.grain_ns = GRAIN * 1e9 * profile.step_s

    def begin(self, replica: int | None = None) -> Pass:
        """Begin a pass over a batch now, and return it.

        `replica` is the replica's number if this process has several.
        """
        rank = self.rank if replica is None else replica
        scale = self._base(rank)
        if self._spread:
            draws = self._random.setdefault(rank, random.Random(f"{self.case.seed}/{self._launch}/{rank}"))
            scale *= math.exp(draws.gauss(-(self._spread**2) / 2, self._spread))
        if rank == self.rank:
            self._scale = scale
        return self.pacer.begin(scale)

    def update(self) -> Pass:
        """Begin an update now, and return it. It has the same slowdown and jitter as the preceding pass."""
        return self.pacer.begin(self._scale)

    def elements(self, number: int) -> int:
        """Return the number of elements of parameter `number`: the profile's, divided by `case.shrink`, rounded up."""
        return -(-self.profile.parameters[number].elements // self.case.shrink)

    def together(self) -> list[tuple[int, ...]]:
        """Return groups of parameter indices whose gradients are returned together, in the order of readiness."""
        found: list[tuple[int, ...]] = []
        for number in self.profile.order:
            first = found[-1] if found else ()
            near = first and self.ready_ns[number] - self.ready_ns[first[0]] <= self.grain_ns
            if near and len(first) < MOST_TOGETHER:
                found[-1] = (*first, number)
            else:
                found.append((number,))
        return found

    def _base(self, rank: int) -> float:
        # The base case, with one rank, has no straggler.
        straggles = rank == self._options.slow_rank and self.case.world_size > 1
        return self.case.dilation * (self._options.slow_factor if straggles else 1.0)

    def __deepcopy__(self, memo: Any) -> Rhythm:
        return self  # a copy of a model runs in the same rank
