"""An experiment's settings as validated models, such as the base of all cases, and the budget."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import tomli_w
from pydantic import BaseModel, BeforeValidator, Field

from ddpbench.spec import limits
from ddpbench.spec.case import BucketSetting, Recovery
from ddpbench.spec.claims import Claim
from ddpbench.spec.fabric import FabricSettings
from ddpbench.spec.target_loss import TargetLoss
from ddpbench.units import Unit

Duration = Unit("s", type="duration")


def _as_text(value: Any) -> Any:
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


class Variable(BaseModel, frozen=True):
    """An environment variable of ranks: a text, or a whole number, which becomes one."""

    value: Annotated[str, BeforeValidator(_as_text)]


class Base(BaseModel, extra="forbid", frozen=True):
    """The settings every case starts from; each of them may also be an axis."""

    workload: str = "gpt:nano"
    """Model, data, loss and optimizer: a name from `ddpbench list`, `replay:PROFILE`, or your class as
    `train.py:Measured` or `package.module:Measured`."""
    strategy: str = "ddp"
    """Division of training among ranks: a name from `ddpbench list`, or your class as `mine.py:TopK`."""
    algorithm: str = "default"
    """Collective [algorithm](strategies.md) for gradients, if the strategy leaves a choice. For `ddp` also your class
    as `mine.py:MyRing`."""
    schedule: Literal["default", "overlapped", "after_backward"] = "default"
    """Time at which gradients are sent, during backward or after it, if the strategy leaves a choice."""
    backend: Literal["auto", "gloo", "nccl", "mpi", "ucc"] = "auto"
    """Communication library. `auto` is nccl on GPUs and gloo on CPUs."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Device of each rank. `auto` is cuda if the machine has GPUs and no network is emulated."""
    world_size: Annotated[int, limits.RANKS, Unit("ranks")] | Literal["auto"] = 1
    """Number of ranks. `auto`, for [axes] only, is 1, 2, 4 ... up to the available cores or GPUs."""
    threads_per_rank: Annotated[int, limits.THREADS, Unit("threads")] | Literal["all"] = 1
    """Compute threads of each rank. `all`, for [axes] only, is `single` with all available cores."""
    loader_workers: Annotated[int, limits.LOADER_WORKERS, Unit("processes")] = 0
    """DataLoader worker processes of each rank."""
    bucket_cap_mb: BucketSetting = "default"
    """Size at which DDP closes a gradient bucket. DDP's default is 25 MiB after a first bucket of 1 MiB."""
    local_batch: Annotated[int, limits.LOCAL_BATCH, Unit("samples")] | None = None
    """Batch per rank, for weak scaling only. Unset: the workload's `batch`, or else 8."""
    global_batch: Annotated[int, limits.GLOBAL_BATCH, Unit("samples")] | None = None
    """Batch of the whole job, for strong scaling only, which requires it."""
    scaling: Literal["weak", "strong"] = "weak"
    """Batch that stays fixed as ranks are added: the local one (`weak`) or the global one (`strong`)."""
    dtype: Literal["default", "float32", "float64", "bfloat16"] = "default"
    """Type that parameters and batches are cast to. `default` is float32, and no cast for your own class."""
    precision: Literal["full", "bf16", "fp16"] = "full"
    """Autocast type of forward and loss. `full` means no autocast."""
    data: Literal["loader", "memory"] = "loader"
    """Source of batches: a DataLoader, or device memory filled before the warm-up."""
    evaluation: Annotated[bool, Field(strict=True)] = False
    """Also time evaluation (forward and loss without gradients) in every launch."""
    checkpoint: Annotated[bool, Field(strict=True)] = False
    """Also time checkpoints of model and optimizer in every launch."""
    checkpoint_dir: str = ""
    """Folder for timed checkpoints and snapshots, which are deleted. Empty: the run directory."""
    recovery: Recovery = "off"
    """Also train with snapshots in every launch and cause one [failure](recovery.md) of this kind."""
    snapshot_every: Annotated[int, limits.SNAPSHOT_STEPS, Unit("steps")] = 50
    """Steps between snapshots, for `recovery`."""
    agents: Annotated[int, limits.NODES, Unit("agents")] = 1
    """Number of torchrun agents, for `recovery`, each with equally many ranks."""
    collective_timeout: Annotated[float, limits.COLLECTIVE_TIMEOUT_S, Duration] = 10.0
    """Longest time that a rank waits in a collective, for `recovery`."""
    launcher: Literal["local", "spawn", "torchrun", "srun", "mpiexec", "ray", "slurm"] = "local"
    """Program that starts the ranks. `local` is a fork server. For `slurm` use `ddpbench submit`."""
    nodes: Annotated[int, limits.NODES, Unit("nodes")] = 1
    """Number of machines. More than 1 needs torchrun or Slurm. [fabric] sets emulated nodes."""
    seed: Annotated[int, limits.SEED] = 0
    """Seed of initial parameters and data."""
    replicate: Annotated[int, limits.REPLICATE] = 0
    """Number that distinguishes otherwise equal cases in an A/A test."""
    dilation: Annotated[float, limits.DILATION, Unit("1")] = 1.0
    """Factor that slows a replay's computation and links. Reported times are divided by it."""
    shrink: Annotated[int, limits.SHRINK, Unit("1")] = 1
    """Divisor of a replay's gradient bytes, bucket caps and link rates, to save memory. Reported sizes are multiplied
    by it."""

    @property
    def threads(self) -> int:
        """Return the number of compute threads of each rank; 1 for `all`."""
        return 1 if self.threads_per_rank == "all" else self.threads_per_rank


MIN_ROUNDS = 5
"""Fewest rounds from which anything is concluded; with fewer, reports say "too few rounds"."""
MOST_ROUNDS = int(limits.ROUNDS.high)
"""Most rounds of a sweep."""
MOST_INTERLEAVED_ROUNDS = 500
"""Most rounds of an interleaved comparison."""


class Budget(BaseModel, extra="forbid", frozen=True):
    """Measuring time, and when to stop. Durations are seconds or texts such as "10 min"."""

    rounds_min: Annotated[int, limits.ROUNDS, Unit("rounds")] = 5
    """Fewest rounds of a sweep. Fewer than 5 give no useful interval."""
    rounds_max: Annotated[int, limits.ROUNDS, Unit("rounds")] = 20
    """Most rounds of a sweep."""
    measured_s: Annotated[float, limits.MEASURED_S, Duration] = 2.0
    """Time of each launch spent in timed steps."""
    target_half_width: Annotated[float, limits.HALF_WIDTH, Unit("1")] = 0.02
    """Stop when the 95 % interval of every case's log ratio to its base case has at most this half-width."""
    total: Annotated[float, limits.TOTAL_S, Duration] = 600.0
    """Time limit of a sweep, which may end it before `rounds_min`."""
    hang_timeout: Annotated[float, limits.HANG_TIMEOUT_S, Duration] = 60.0
    """End a launch as hung if no rank completes a step for this long."""
    turns: Literal["launches", "blocks", "auto"] = "launches"
    """`blocks`: run a round's launches concurrently, with alternating blocks of steps; waiting ranks are stopped.

    `launches`: one by one, as always on GPUs, over emulated links, with loader workers or other launchers. `auto`:
    `blocks`, unless a compared case cannot alternate.
    """
    seed: Annotated[int, limits.SEED] | None = None
    """Seed of the order of launches within rounds. Unset: drawn for each run and recorded."""
    until_loss: Annotated[float, limits.UNTIL_LOSS, Unit("loss")] | None = None
    """Train a fresh model in every launch, after its timed steps, until the mean loss is this low."""
    until_steps: Annotated[int, limits.UNTIL_STEPS, Unit("steps")] = 2000
    """Give up on `until_loss` after this many steps."""
    until_s: Annotated[float, limits.UNTIL_S, Duration] = 60.0
    """Give up on `until_loss` after this long."""

    @property
    def target_loss(self) -> TargetLoss | None:
        """Return the loss to which launches train, and the limits of this training; None without such a loss."""
        if self.until_loss is None:
            return None
        return TargetLoss(loss=self.until_loss, steps=self.until_steps, seconds=self.until_s)


class Experiment(BaseModel, extra="forbid", frozen=True):
    """A validated experiment.

    Build it with `load_experiment` or `parse_experiment`, which check names against the catalog of strategies and
    workloads.
    """

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")]
    """Name of the experiment and its run directories. Unset: the file's name."""
    question: str = ""
    """Question that the experiment answers. The report opens with it."""
    scope: str = ""
    """Why these cases, and what else the answer may hold for. Left out if `--set` changes the cases."""
    base: Base = Base()
    """Settings that every case starts from."""
    axes: dict[str, list[Any]] = {}
    """Settings that vary, each with its values. The cases are all combinations."""
    exclude: list[dict[str, list[Any]]] = []
    """Combinations to leave out. An entry lists one or several values for each of its keys."""
    options: dict[str, dict[str, Any]] = {}
    """Options of strategies and workloads, in one table per name."""
    env: dict[str, str] = {}
    """Environment variables of every rank. An empty string removes a variable."""
    fabric: FabricSettings | None = None
    """Emulated network. Unset: ranks use the machine's own links."""
    budget: Budget = Budget()
    """Measuring time and stopping rules."""
    claims: list[Claim] = []
    """[Claims](claims.md) that the experiment decides."""

    @property
    def emulates(self) -> bool:
        """Return whether the experiment asks for a fabric, by its section or by an axis."""
        return self.fabric is not None or any(name.startswith("fabric.") for name in self.axes)

    def to_toml(self) -> str:
        """Return the experiment as TOML that `load_experiment` reads back to the same experiment."""
        linked = {name.partition(".")[2] for name in self.axes if name.startswith("fabric.")}
        base = set(self.axes)
        if (linked or self.fabric is not None) and "world_size" not in self.base.model_fields_set:
            base.add(
                "world_size"
            )  # follows from the fabric; if its default were written, that would be binding
        unset = {name: True for name in ("scope", "env", "claims") if not getattr(self, name)}
        exclude: Any = {"name": True, "base": base, "fabric": linked, **unset}
        data = self.model_dump(exclude_none=True, exclude=exclude)
        for claim in data.get("claims", ()):
            if not claim["history"]:
                del claim["history"]
        return tomli_w.dumps({"name": self.name, **data})
