"""An experiment's settings as validated values: what every case starts from, and the budget."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import tomli_w
from pydantic import BaseModel, BeforeValidator, Field

from ddpbench.spec.fabric import FabricSettings
from ddpbench.spec.goal import Goal
from ddpbench.units import parse_seconds


def _seconds(value: object) -> object:
    if isinstance(value, str | int | float) and not isinstance(value, bool):
        return parse_seconds(value)
    return value


MAX_RANKS = 4096
"""The most ranks of one job: as many as the watchdog's page has room for."""
Positive = Annotated[int, Field(gt=0, strict=True)]
Natural = Annotated[int, Field(ge=0, strict=True)]
Ranks = Annotated[int, Field(gt=0, le=MAX_RANKS, strict=True)]
Seed = Annotated[int, Field(ge=0, lt=2**32, strict=True)]
Duration = Annotated[float, BeforeValidator(_seconds), Field(gt=0, allow_inf_nan=False)]
BucketSetting = Literal["default"] | Annotated[float, Field(gt=0, allow_inf_nan=False, strict=True)]


class Base(BaseModel, extra="forbid", frozen=True):
    """The settings every case starts from; each of them may also be an axis."""

    workload: str = "gpt:nano"
    strategy: str = "ddp"
    algorithm: str = "default"
    """How gradients are aggregated, where the strategy leaves a choice; `default`: as the strategy does."""
    schedule: Literal["default", "overlapped", "after_backward"] = "default"
    """When they are sent, where the strategy leaves a choice: while backward goes on, or after it."""
    backend: Literal["auto", "gloo", "nccl"] = "auto"
    device: Literal["auto", "cpu", "cuda"] = "auto"
    world_size: Ranks | Literal["auto"] = 1
    threads_per_rank: Positive = 1
    loader_workers: Natural = 0
    bucket_cap_mb: BucketSetting = "default"
    local_batch: Positive | None = None
    global_batch: Positive | None = None
    scaling: Literal["weak", "strong"] = "weak"
    dtype: Literal["float32", "float64", "bfloat16"] = "float32"
    precision: Literal["full", "bf16", "fp16"] = "full"
    data: Literal["loader", "memory"] = "loader"
    evaluation: Annotated[bool, Field(strict=True)] = False
    checkpoint: Annotated[bool, Field(strict=True)] = False
    checkpoint_dir: str = ""
    """Where snapshots are written for a moment; empty: into the run directory. The disk is part of the cost."""
    launcher: Literal["local", "torchrun"] = "local"
    nodes: Positive = 1
    seed: Seed = 0
    replicate: Natural = 0
    dilation: Annotated[float, Field(ge=1, allow_inf_nan=False, strict=True)] = 1.0
    """A replay's computation, and the fabric's links, this many times slower; reported times are divided by it."""
    shrink: Positive = 1
    """A replay's gradient bytes, bucket caps and links divided by this: large models then fit the memory."""


class Budget(BaseModel, extra="forbid", frozen=True):
    """How long to measure, and when to stop. Durations are seconds or texts such as "10 min"."""

    rounds_min: Positive = 5
    rounds_max: Positive = 20
    measured_s: Duration = 2.0
    """Timed steps' share of one launch, seconds."""
    target_half_width: Annotated[float, Field(gt=0, lt=1)] = 0.02
    """Stop once every case's 95 % interval, of its log ratio to its base case, is this narrow."""
    total: Duration = 600.0
    """No further round is begun that would end after this; `rounds_min` rounds are run whatever it says."""
    hang_timeout: Duration = 60.0
    """A launch of which no rank has made a step for this long is ended as hung."""
    seed: Natural | None = None
    """Decides the order of launches within each round; without it one is drawn for each run, and recorded."""
    until_loss: Annotated[float, Field(gt=0, allow_inf_nan=False, strict=True)] | None = None
    """Every launch trains once more, after its measured steps, from a fresh model until the loss is as low as this."""
    until_steps: Positive = 2000
    """It gives up after so many steps,"""
    until_s: Duration = 60.0
    """or so many seconds."""

    @property
    def goal(self) -> Goal | None:
        """The loss that launches train down to, where they shall."""
        if self.until_loss is None:
            return None
        return Goal(loss=self.until_loss, steps=self.until_steps, seconds=self.until_s)


class Experiment(BaseModel, extra="forbid", frozen=True):
    """A validated experiment. Built by `load_experiment` or `parse_experiment`; both know the catalog."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
    question: str = ""
    base: Base = Base()
    axes: dict[str, list[Any]] = {}
    exclude: list[dict[str, list[Any]]] = []
    options: dict[str, dict[str, Any]] = {}
    fabric: FabricSettings | None = None
    budget: Budget = Budget()

    @property
    def emulates(self) -> bool:
        """Whether it asks for a fabric, in its section or as an axis."""
        return self.fabric is not None or any(name.startswith("fabric.") for name in self.axes)

    def to_toml(self) -> str:
        """Return the experiment as TOML that `load_experiment` reads back to the same experiment."""
        linked = {name.partition(".")[2] for name in self.axes if name.startswith("fabric.")}
        base = set(self.axes)
        if (linked or self.fabric is not None) and "world_size" not in self.base.model_fields_set:
            base.add("world_size")  # it follows from the fabric; given, even as its default, it would hold
        exclude: Any = {"name": True, "base": base, "fabric": linked}
        data = self.model_dump(exclude_none=True, exclude=exclude)
        return tomli_w.dumps({"name": self.name, **data})
