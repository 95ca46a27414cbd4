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
    """Model, data, loss and optimizer to train: a name from `ddpbench list`, `replay:PROFILE`, or a class in your own
    file such as `train.py:Measured`, or in a package of the working directory or installed:
    `package.module:Measured`."""
    strategy: str = "ddp"
    """Division of training among ranks and aggregation of gradients: a name from `ddpbench list`, or a class in your
    own file such as `mine.py:TopK`."""
    algorithm: str = "default"
    """Collective algorithm for gradients, if the strategy leaves a choice; `default` is the strategy's own. For `ddp`
    also a class in your own file such as `mine.py:MyRing`."""
    schedule: Literal["default", "overlapped", "after_backward"] = "default"
    """When gradients are sent, if the strategy leaves a choice: during backward or after it; `default` is the
    strategy's own."""
    backend: Literal["auto", "gloo", "nccl", "mpi", "ucc"] = "auto"
    """Collective library; `auto` is nccl on GPUs and gloo on CPUs."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Device of each rank; `auto` is cuda if the machine has GPUs and the network is not emulated, else cpu."""
    world_size: Annotated[int, limits.RANKS, Unit("ranks")] | Literal["auto"] = 1
    """Number of ranks; `auto`, allowed in [axes] only, is 1, 2, 4 ... up to the cores or GPUs available."""
    threads_per_rank: Annotated[int, limits.THREADS, Unit("threads")] | Literal["all"] = 1
    """Compute threads of each rank; `all`, allowed in [axes] only, is `single` with a thread for each core at hand: one
    process on as many cores as all ranks have."""
    loader_workers: Annotated[int, limits.LOADER_WORKERS, Unit("processes")] = 0
    """DataLoader worker processes of each rank."""
    bucket_cap_mb: BucketSetting = "default"
    """Size at which DDP closes a gradient bucket; `default` is DDP's own, 25 MiB after a first bucket of 1 MiB."""
    local_batch: Annotated[int, limits.LOCAL_BATCH, Unit("samples")] | None = None
    """Batch per rank, for weak scaling only; if not set, the workload's own (`batch` of your class), or else 8."""
    global_batch: Annotated[int, limits.GLOBAL_BATCH, Unit("samples")] | None = None
    """Batch of the whole job, for strong scaling only, which requires it."""
    scaling: Literal["weak", "strong"] = "weak"
    """Batch that stays fixed as ranks are added: the local batch (`weak`) or the global batch (`strong`)."""
    dtype: Literal["default", "float32", "float64", "bfloat16"] = "default"
    """Type that parameters and batches are cast to (complex ones to the complex type of that precision); `default` is
    float32, and no cast for a class in your own file: its model and batches keep their types."""
    precision: Literal["full", "bf16", "fp16"] = "full"
    """Autocast type of forward and loss; `full` means without autocast."""
    data: Literal["loader", "memory"] = "loader"
    """Source of batches: a DataLoader, or memory of the device, filled before the warm-up."""
    evaluation: Annotated[bool, Field(strict=True)] = False
    """Also time evaluation (forward and loss without gradients) in every launch."""
    checkpoint: Annotated[bool, Field(strict=True)] = False
    """Also time checkpoints of model and optimizer in every launch."""
    checkpoint_dir: str = ""
    """Folder for timed checkpoints and the snapshots of `recovery`, which are deleted; the run directory if empty."""
    recovery: Recovery = "off"
    """Also train with snapshots in every launch and have this fail, once, at a planned step; torchrun then restarts all
    ranks. SIGKILL, SIGSTOP and exception hit the last rank, snapshot kills rank 0 while it writes one, agent kills
    torchrun's on the last node, leave lets a node go and come back; uninterrupted trains without a failure."""
    snapshot_every: Annotated[int, limits.SNAPSHOT_STEPS, Unit("steps")] = 50
    """Steps from one snapshot to the next where `recovery` is measured."""
    agents: Annotated[int, limits.NODES, Unit("agents")] = 1
    """Agents of torchrun, each with the same number of ranks, where `recovery` is measured: each stands for a node."""
    collective_timeout: Annotated[float, limits.COLLECTIVE_TIMEOUT_S, Duration] = 10.0
    """Time that a rank waits for others in a collective where `recovery` is measured; torch's own is 10 min or more."""
    launcher: Literal["local", "spawn", "torchrun", "srun", "mpiexec", "ray", "slurm"] = "local"
    """Starter of the ranks: a fork server, torch's mp.spawn, torchrun, srun, mpiexec or Ray Train's TorchTrainer.
    slurm: see ddpbench submit. A strategy that insists on its own launcher (`ray_train`) has that in place of local,
    spawn and torchrun."""
    nodes: Annotated[int, limits.NODES, Unit("nodes")] = 1
    """Number of machines; more than 1 needs torchrun or Slurm. [fabric] sets emulated nodes."""
    seed: Annotated[int, limits.SEED] = 0
    """Seed of initial parameters and data."""
    replicate: Annotated[int, limits.REPLICATE] = 0
    """Number that distinguishes otherwise equal cases in an A/A test."""
    dilation: Annotated[float, limits.DILATION, Unit("1")] = 1.0
    """Factor by which a replay's computation and its links are slowed; reported times are divided by it."""
    shrink: Annotated[int, limits.SHRINK, Unit("1")] = 1
    """Divisor of a replay's gradient bytes, bucket caps and link rates, which lets large models fit in memory; reported
    sizes are multiplied by it."""

    @property
    def threads(self) -> int:
        """Return the number of compute threads of each rank; 1 for `all`."""
        return 1 if self.threads_per_rank == "all" else self.threads_per_rank


MIN_ROUNDS = 5
"""Fewest rounds from which anything is concluded; with fewer, reports say "too few rounds"."""
MOST_ROUNDS = int(limits.ROUNDS.high)
"""Most rounds of a sweep."""
MOST_ROUNDS_IN_TURN = 500
"""Most rounds of a comparison whose sides are measured in turn."""


class Budget(BaseModel, extra="forbid", frozen=True):
    """Measuring time, and when to stop. Durations are seconds or texts such as "10 min"."""

    rounds_min: Annotated[int, limits.ROUNDS, Unit("rounds")] = 5
    """Fewest rounds of a sweep; fewer than 5 give no useful interval."""
    rounds_max: Annotated[int, limits.ROUNDS, Unit("rounds")] = 20
    """Most rounds of a sweep."""
    measured_s: Annotated[float, limits.MEASURED_S, Duration] = 2.0
    """Time of each launch spent in timed steps."""
    target_half_width: Annotated[float, limits.HALF_WIDTH, Unit("1")] = 0.02
    """Stop once the 95 % interval of every case's log ratio to its base case has at most this half-width."""
    total: Annotated[float, limits.TOTAL_S, Duration] = 600.0
    """Limit of a sweep's time: nothing is started that would end after it, even if `rounds_min` are not done."""
    hang_timeout: Annotated[float, limits.HANG_TIMEOUT_S, Duration] = 60.0
    """End a launch as hung if none of its ranks completes a step for this long."""
    seed: Annotated[int, limits.SEED] | None = None
    """Seed of the order of launches within rounds; if not set, drawn for each run and recorded."""
    until_loss: Annotated[float, limits.UNTIL_LOSS, Unit("loss")] | None = None
    """Train a fresh model in every launch, after its timed steps, until the mean loss is this low."""
    until_steps: Annotated[int, limits.UNTIL_STEPS, Unit("steps")] = 2000
    """Give up on `until_loss` after this many steps."""
    until_s: Annotated[float, limits.UNTIL_S, Duration] = 60.0
    """Give up on `until_loss` after this long."""

    @property
    def target_loss(self) -> TargetLoss | None:
        """Return the loss to which launches train, with the limits of this training; None if they do not."""
        if self.until_loss is None:
            return None
        return TargetLoss(loss=self.until_loss, steps=self.until_steps, seconds=self.until_s)


class Experiment(BaseModel, extra="forbid", frozen=True):
    """A validated experiment. Built by `load_experiment` or `parse_experiment`; both know the catalog."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")]
    """Name of the experiment, with which run directories begin; if not set, the file's name without `.toml`."""
    question: str = ""
    """Question that the experiment answers; the report opens with it."""
    scope: str = ""
    """Why just these workloads, sizes and settings, and for what else the answer may hold; the report repeats it. Where
    `--set` changes the cases it is left out, unless that gives another."""
    base: Base = Base()
    """Settings that every case starts from."""
    axes: dict[str, list[Any]] = {}
    """Values of each setting that varies; the cases are all combinations."""
    exclude: list[dict[str, list[Any]]] = []
    """Combinations to leave out: those that match every key of an entry; a key may list several values."""
    options: dict[str, dict[str, Any]] = {}
    """Options of strategies and workloads, each in a table of that name."""
    env: dict[str, str] = {}
    """Environment variables of every rank, set before it imports anything; an empty text leaves one unset."""
    fabric: FabricSettings | None = None
    """Emulated network; if not set, ranks use the machine's own links."""
    budget: Budget = Budget()
    """Measuring time, and when to stop."""
    claims: list[Claim] = []
    """Claims of others, to be decided by this experiment's cases: see [Claims](claims.md)."""

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
