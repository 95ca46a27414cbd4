"""An experiment's settings as validated values: what every case starts from, and the budget."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import tomli_w
from pydantic import BaseModel, BeforeValidator, Field

from ddpbench.spec.fabric import FabricSettings
from ddpbench.spec.target_loss import TargetLoss
from ddpbench.units import Unit, parse_seconds


def _seconds(value: object) -> object:
    if isinstance(value, str | int | float) and not isinstance(value, bool):
        return parse_seconds(value)
    return value


MAX_RANKS = 4096
"""The most ranks of one job: as many as the watchdog's page has room for."""
Positive = Annotated[int, Field(gt=0, strict=True)]
Natural = Annotated[int, Field(ge=0, strict=True)]
Ranks = Annotated[int, Field(gt=0, le=MAX_RANKS, strict=True), Unit("ranks")]
Seed = Annotated[int, Field(ge=0, lt=2**32, strict=True)]
Duration = Annotated[
    float, BeforeValidator(_seconds), Field(gt=0, allow_inf_nan=False), Unit("s", type="duration")
]
BucketSetting = (
    Literal["default"] | Annotated[float, Field(gt=0, allow_inf_nan=False, strict=True), Unit("MiB")]
)


class Base(BaseModel, extra="forbid", frozen=True):
    """The settings every case starts from; each of them may also be an axis."""

    workload: str = "gpt:nano"
    """Model, data, loss and optimizer to train: a name from `ddpbench list`, `replay:PROFILE`, or a class in your own
    file such as `train.py:Measured`."""
    strategy: str = "ddp"
    """How training is divided among ranks and gradients are aggregated."""
    algorithm: str = "default"
    """Collective algorithm for gradients, if the strategy leaves a choice; `default` is the strategy's own."""
    schedule: Literal["default", "overlapped", "after_backward"] = "default"
    """When gradients are sent, if the strategy leaves a choice: during backward or after it; `default` is the
    strategy's own."""
    backend: Literal["auto", "gloo", "nccl"] = "auto"
    """Collective library; `auto` is nccl on GPUs and gloo on CPUs."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Device of each rank; `auto` is cuda if the machine has GPUs and the network is not emulated, else cpu."""
    world_size: Ranks | Literal["auto"] = 1
    """Number of ranks; `auto`, allowed in [axes] only, is 1, 2, 4 ... up to the cores or GPUs available."""
    threads_per_rank: Annotated[Positive, Unit("threads")] = 1
    """Compute threads of each rank."""
    loader_workers: Annotated[Natural, Unit("processes")] = 0
    """DataLoader worker processes of each rank."""
    bucket_cap_mb: BucketSetting = "default"
    """Size at which DDP closes a gradient bucket; `default` is DDP's own, 25 MiB after a first bucket of 1 MiB."""
    local_batch: Annotated[Positive, Unit("samples")] | None = None
    """Batch per rank, for weak scaling only; if not set, the workload's own (`batch` of your own class), or else 8."""
    global_batch: Annotated[Positive, Unit("samples")] | None = None
    """Batch of the whole job, for strong scaling only, which requires it."""
    scaling: Literal["weak", "strong"] = "weak"
    """What stays fixed as ranks are added: the local batch (`weak`) or the global batch (`strong`)."""
    dtype: Literal["float32", "float64", "bfloat16"] = "float32"
    """Type of parameters and gradients."""
    precision: Literal["full", "bf16", "fp16"] = "full"
    """Autocast type of forward and loss; `full` is no autocast."""
    data: Literal["loader", "memory"] = "loader"
    """Where batches come from: a DataLoader, or memory of the device, filled before the warm-up."""
    evaluation: Annotated[bool, Field(strict=True)] = False
    """Also time evaluation (forward and loss without gradients) in every launch."""
    checkpoint: Annotated[bool, Field(strict=True)] = False
    """Also time checkpoints of model and optimizer in every launch."""
    checkpoint_dir: str = ""
    """Folder for the timed checkpoints, which are deleted afterwards; the run directory if empty."""
    launcher: Literal["local", "torchrun"] = "local"
    """What starts the ranks: ddpbench, on this machine only, or torchrun."""
    nodes: Annotated[Positive, Unit("nodes")] = 1
    """Number of machines; more than 1 needs torchrun. [fabric] sets emulated nodes."""
    seed: Seed = 0
    """Seed of initial parameters and data."""
    replicate: Natural = 0
    """Number that distinguishes otherwise equal cases in an A/A test."""
    dilation: Annotated[float, Field(ge=1, allow_inf_nan=False, strict=True), Unit("1")] = 1.0
    """Factor by which a replay's computation and its links are slowed; reported times are divided by it."""
    shrink: Annotated[Positive, Unit("1")] = 1
    """Divisor of a replay's gradient bytes, bucket caps and link rates, which lets large models fit in memory; reported
    sizes are multiplied by it."""


MIN_ROUNDS = 5
"""Under this many rounds nothing is concluded: "too few rounds"."""


class Budget(BaseModel, extra="forbid", frozen=True):
    """How long to measure, and when to stop. Durations are seconds or texts such as "10 min"."""

    rounds_min: Annotated[Positive, Unit("rounds")] = 5
    """Fewest rounds of a sweep; fewer than 5 give no useful interval."""
    rounds_max: Annotated[Positive, Unit("rounds")] = 20
    """Most rounds of a sweep."""
    measured_s: Duration = 2.0
    """Time of each launch spent in timed steps."""
    target_half_width: Annotated[float, Field(gt=0, lt=1), Unit("1")] = 0.02
    """Stop once the 95 % interval of every case's log ratio to its base case has at most this half-width."""
    total: Duration = 600.0
    """Limit of a sweep's time: nothing is started that would end after it, even if `rounds_min` are not done."""
    hang_timeout: Duration = 60.0
    """End a launch as hung if none of its ranks completes a step for this long."""
    seed: Natural | None = None
    """Seed of the order of launches within rounds; if not set, drawn for each run and recorded."""
    until_loss: Annotated[float, Field(gt=0, allow_inf_nan=False, strict=True), Unit("loss")] | None = None
    """Train a fresh model in every launch, after its timed steps, until the mean loss is this low."""
    until_steps: Annotated[Positive, Unit("steps")] = 2000
    """Give up on `until_loss` after this many steps."""
    until_s: Duration = 60.0
    """Give up on `until_loss` after this long."""

    @property
    def target_loss(self) -> TargetLoss | None:
        """The loss that launches train down to, where they shall."""
        if self.until_loss is None:
            return None
        return TargetLoss(loss=self.until_loss, steps=self.until_steps, seconds=self.until_s)


class Experiment(BaseModel, extra="forbid", frozen=True):
    """A validated experiment. Built by `load_experiment` or `parse_experiment`; both know the catalog."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
    """Name of the experiment, with which run directories begin; if not set, the file's name without `.toml`."""
    question: str = ""
    """Question that the experiment answers; the report opens with it."""
    base: Base = Base()
    """Settings that every case starts from."""
    axes: dict[str, list[Any]] = {}
    """Values of each setting that varies; the cases are all combinations."""
    exclude: list[dict[str, list[Any]]] = []
    """Combinations to leave out: those that match every key of an entry; a key may list several values."""
    options: dict[str, dict[str, Any]] = {}
    """Options of strategies and workloads, each in a table of that name."""
    fabric: FabricSettings | None = None
    """Emulated network; if not set, ranks use the machine's own links."""
    budget: Budget = Budget()
    """How long to measure and when to stop."""

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
