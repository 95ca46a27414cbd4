"""The `replay` workload: a profile's parameters, and its times slept instead of computed.

    workload = "replay:path/to/profile.json"       what `ddpbench profile` wrote
    workload = "replay:resnet50-v100"              a profile that comes with ddpbench

Ranks give the strategy real gradients at the profiled moments and use no core in between.
"""

from __future__ import annotations

import math
import random
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, Field

from ddpbench.measure.pacer import Pacer, Pass
from ddpbench.spec import Case
from ddpbench.workloads.base import Workload
from ddpbench.workloads.profile import read_profile
from ddpbench.workloads.shipped import profile_path

if TYPE_CHECKING:
    import torch
    from torch.utils.data import Dataset

LEAST_SAMPLES = 4096
STEPS_A_PASS = 64
"""The made-up data hold at least so many samples, and so many steps of the whole job."""
GRAIN = 2e-3
"""A gradient whose moment is nearer than this share of a step is not waited for: each sleep costs a wake-up."""
MOST_TOGETHER = 3
"""So many gradients come from one node at most: of more autograd takes some out of order."""


class ReplayOptions(BaseModel, extra="forbid", frozen=True):
    """What can be chosen of a replay."""

    slow_rank: int | None = Field(default=None, ge=0)
    """This rank computes `slow_factor` times slower than the profile says."""
    slow_factor: float = Field(default=1.0, gt=0, le=1000)
    jitter: float = Field(default=0.0, ge=0, le=1)
    """Relative standard deviation of a rank's computation from step to step (lognormal, its mean kept)."""


class Replay(Workload[ReplayOptions]):
    """A profile as a workload. Its gradients are real tensors, linear in made-up data; its loss is none."""

    name = "replay"
    options = ReplayOptions
    has_loss = False

    def __init__(self, size: str = "") -> None:
        """Reads the profile.

        Raises:
            ValueError: it is not there, or is not a profile.
        """
        super().__init__(size)
        self.profile = read_profile(profile_path(size))
        self.compute = "synthetic" if self.profile.source == "synthetic" else "replayed"
        self.default_batch = self.profile.local_batch
        self.sample_bytes = self.profile.sample_bytes
        self.rhythm = Rhythm(self, Case(workload=f"replay:{size}", strategy="single"), 0)

    def for_case(self, case: Case, rank: int, launch: int = 0) -> Replay:
        self.rhythm = Rhythm(self, case, rank, launch)
        self.pacer = self.rhythm.pacer
        return self

    def check(self, case: Case) -> str | None:
        profile = self.profile
        options = ReplayOptions.model_validate(case.workload_options)
        if case.device == "cuda":
            return 'a replay sleeps on the CPU for whatever device was profiled: set device = "cpu"'
        if case.evaluation or case.checkpoint:
            return "a replay has no loss: there is nothing to evaluate, and no training to save"
        if case.precision != "full":
            return (
                f"a replay's times are those of its profile (precision {profile.precision}): "
                f'set precision = "full", or profile under {case.precision}'
            )
        if case.dtype != profile.dtype:
            return f'the profile is of {profile.dtype} parameters: set dtype = "{profile.dtype}"'
        if case.local_batch != profile.local_batch:
            batch = profile.local_batch
            if case.scaling == "strong":
                return (
                    f"the profile's times are for a local batch of {batch}, and strong scaling gives {case.world_size} "
                    f'ranks {case.local_batch}: set scaling = "weak"'
                )
            return f"the profile's times are for a local batch of {batch}: set local_batch = {batch}, or leave it out"
        if options.slow_rank is not None and options.slow_rank >= case.world_size > 1:
            return f"slow_rank = {options.slow_rank}, and there are ranks 0 to {case.world_size - 1}"
        return None

    def model(self, options: ReplayOptions) -> torch.nn.Module:
        from ddpbench.workloads.replay_model import ReplayModel

        return ReplayModel(self.rhythm)

    def dataset(self, options: ReplayOptions) -> Dataset[Any]:
        from ddpbench.workloads.replay_model import Numbers

        case = self.rhythm.case
        return Numbers(max(LEAST_SAMPLES, STEPS_A_PASS * case.global_batch), case.seed)

    def collate(self, samples: Any) -> Any:
        return samples  # `Numbers` gives whole batches

    def loss(self, outputs: Any, targets: Any) -> torch.Tensor:
        """Return the mean of zeros; only its gradient matters."""
        mean: torch.Tensor = outputs.mean()
        return mean

    def optimizer(self, parameters: Any, options: ReplayOptions) -> torch.optim.Optimizer:
        from ddpbench.workloads.replay_model import PacedSGD

        return PacedSGD(parameters, self.rhythm)

    def __reduce__(self) -> tuple[Any, ...]:
        return Replay, (self.size,)  # a loader worker needs only `collate`


class Rhythm:
    """A profile's times in one rank of a case: dilated, slowed for a straggler, jittering from step to step."""

    def __init__(self, workload: Replay, case: Case, rank: int, launch: int = 0) -> None:
        self.profile, self.case, self.rank = workload.profile, case, rank
        self.pacer = Pacer()
        self._options = ReplayOptions.model_validate(case.workload_options)
        self._launch = launch
        self._random: dict[int, random.Random] = {}
        self._spread = math.sqrt(math.log1p(self._options.jitter**2))
        self._scale = self._base(rank)
        profile = workload.profile
        self.forward_ns = 1e9 * profile.forward_s.mean
        self.end_ns = self.forward_ns + 1e9 * profile.backward_s.mean
        self.ready_ns = [self.forward_ns + 1e9 * p.ready_s.mean for p in profile.parameters]
        self.optimizer_ns = 1e9 * profile.optimizer_s.mean
        self.pacer.update_due_ns = round(self._scale * self.optimizer_ns)
        self.grain_ns = GRAIN * 1e9 * profile.step_s

    def begin(self, replica: int | None = None) -> Pass:
        """Return the pass over a batch that starts now, of this rank or of a replica that one process holds."""
        rank = self.rank if replica is None else replica
        scale = self._base(rank)
        if self._spread:
            draws = self._random.setdefault(rank, random.Random(f"{self.case.seed}/{self._launch}/{rank}"))
            scale *= math.exp(draws.gauss(-(self._spread**2) / 2, self._spread))
        if rank == self.rank:
            self._scale = scale
        return self.pacer.begin(scale)

    def update(self) -> Pass:
        """Return the update that starts now; as slow as the batch before it."""
        return self.pacer.begin(self._scale)

    def elements(self, number: int) -> int:
        """Return how many numbers a parameter has here: its own, divided by `shrink`, and at least one."""
        return -(-self.profile.parameters[number].elements // self.case.shrink)

    def together(self) -> list[tuple[int, ...]]:
        """Parameters, by number, in the order in which their gradients are ready: those of one moment together."""
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
        straggles = rank == self._options.slow_rank and self.case.world_size > 1  # never the base case
        return self.case.dilation * (self._options.slow_factor if straggles else 1.0)

    def __deepcopy__(self, memo: Any) -> Rhythm:
        return self  # a copy of a model runs in the same rank
