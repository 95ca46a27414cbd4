"""The `replay` workload: it has a profile's parameters, and sleeps for the profiled times instead of computing.

    workload = "replay:path/to/profile.json"       a file that `ddpbench profile` wrote
    workload = "replay:resnet50-v100"              a profile that comes with ddpbench

Ranks pass real gradients to the strategy at the profiled times, and use no core in between.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ddpbench.errors import first_reason
from ddpbench.spec import Case
from ddpbench.workloads.base import Workload
from ddpbench.workloads.profile import read_profile
from ddpbench.workloads.rhythm import ReplayOptions, Rhythm
from ddpbench.workloads.shipped import profile_path

if TYPE_CHECKING:
    import torch
    from torch.utils.data import Dataset

LEAST_SAMPLES = 4096
"""Minimum number of synthetic samples."""
STEPS_A_PASS = 64
"""The synthetic samples are enough for at least this many steps with the global batch."""


class Replay(Workload[ReplayOptions]):
    """A profile as a workload. Its gradients are real tensors, linear in synthetic data; its loss is always 0."""

    name = "replay"
    options = ReplayOptions
    has_loss = False

    def __init__(self, size: str = "") -> None:
        """Read the profile that `size` names.

        Raises:
            ValueError: the file does not exist, or is not a profile.
        """
        super().__init__(size)
        self.profile = read_profile(profile_path(size))
        self.compute = "synthetic" if self.profile.source == "synthetic" else "replayed"
        self.default_batch = self.profile.local_batch
        self.sample_bytes = self.profile.sample_bytes
        self.rhythm = Rhythm(self.profile, Case(workload=f"replay:{size}", strategy="single"), 0)

    def for_case(self, case: Case, rank: int, launch: int = 0) -> Replay:
        self.rhythm = Rhythm(self.profile, case, rank, launch)
        self.pacer = self.rhythm.pacer
        return self

    def check(self, case: Case) -> str | None:
        profile = self.profile
        options = ReplayOptions.model_validate(case.workload_options)
        other_batch = case.local_batch != profile.local_batch
        times = f"the profile's times are for a local batch of {profile.local_batch}"
        return first_reason(
            (
                case.device == "cuda",
                'a replay sleeps on the CPU for any profiled device: set device = "cpu"',
            ),
            (
                case.evaluation or case.checkpoint,
                "a replay has no loss: there is nothing to evaluate, and no training to save",
            ),
            (
                case.precision != "full",
                (
                    f"a replay's times are those of its profile (precision {profile.precision}): "
                    f'set precision = "full", or profile under {case.precision}'
                ),
            ),
            (
                case.dtype != profile.dtype,
                f'the profile is of {profile.dtype} parameters: set dtype = "{profile.dtype}"',
            ),
            (
                other_batch and case.scaling == "strong",
                f'{times}, and strong scaling gives {case.world_size} ranks {case.local_batch}: set scaling = "weak"',
            ),
            (other_batch, f"{times}: set base.local_batch = {profile.local_batch}, or leave it out"),
            (
                options.slow_rank is not None and options.slow_rank >= case.world_size > 1,
                f"slow_rank = {options.slow_rank}, but there are only ranks 0 to {case.world_size - 1}",
            ),
        )

    def model(self, options: ReplayOptions) -> torch.nn.Module:
        from ddpbench.workloads.replay_model import ReplayModel

        return ReplayModel(self.rhythm)

    def dataset(self, options: ReplayOptions) -> Dataset[Any]:
        from ddpbench.workloads.replay_model import RandomSamples

        case = self.rhythm.case
        return RandomSamples(max(LEAST_SAMPLES, STEPS_A_PASS * case.global_batch), case.seed)

    def collate(self, samples: Any) -> Any:
        return samples  # `RandomSamples` returns full batches

    def loss(self, outputs: Any, targets: Any) -> torch.Tensor:
        """Return the mean of the outputs. It is always 0, because a replay needs only the gradient."""
        mean: torch.Tensor = outputs.mean()
        return mean

    def optimizer(self, parameters: Any, options: ReplayOptions) -> torch.optim.Optimizer:
        from ddpbench.workloads.replay_model import PacedSGD

        return PacedSGD(parameters, self.rhythm)

    def __reduce__(self) -> tuple[Any, ...]:
        return Replay, (self.size,)  # a loader worker needs only `collate`
