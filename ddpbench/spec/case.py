"""Define a case, which is one combination of an experiment's settings, with an id made from its contents."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Annotated, Any, Literal

from pydantic import Field

from ddpbench.spec import environment, limits
from ddpbench.spec.axis import ALL, axis
from ddpbench.spec.documents import MAX_CHARACTERS
from ddpbench.units import Unit, counted
from ddpbench.user_files import is_import_path, short_name

Scaling = Literal["weak", "strong"]
BucketSetting = Literal["default"] | Annotated[float, limits.BUCKET_CAP_MB, Unit("MiB")]
BucketCap = BucketSetting | None
Recovery = Literal["off", "uninterrupted", "exception", "SIGKILL", "SIGSTOP", "snapshot", "agent", "leave"]
Text = Annotated[str, Field(max_length=MAX_CHARACTERS)]
"""A text within the length limit for texts in an experiment. Figures and tables repeat it with each number of a case.
"""
Precision = Literal["full", "bf16", "fp16"]
DataSource = Literal["loader", "memory"]
OWN_TYPES = "own"
"""The `dtype` of a case whose model and batches keep the types that the user's class gives them."""
BASE = "single"
"""The strategy of every base case."""
ON_THIS_MACHINE = ("local", "spawn", "torchrun")
"""Launchers on one machine. A strategy that has its own launcher uses its own launcher instead."""
OF_FRAMEWORKS = ("ray",)
"""Launchers that belong to a framework."""
_NOTHING = object()
_NOT_IN_ID = ("experiment", "strategy_traits")
"""Fields that do not change what is trained: the experiment's name, and the traits that a strategy states."""
_FOR_FILES = re.compile(r"[^A-Za-z0-9_]")
_SWITCHES = {"static_graph": False, "find_unused_parameters": False}
_OPTIONS_ADDED_LATER: dict[str, dict[str, Any]] = {
    "ddp": {
        "accumulate": 1,
        "compression": "none",
        "matrix_approximation_rank": 1,
        "start_powersgd_iter": 2,
    },
    "fsdp": {"replicas": 1},
    "pipeline": {"replicas": 1},
    "zero1": _SWITCHES,
    "post_local_sgd": _SWITCHES,
}
"""Options of strategies that early versions lacked, with their defaults. The id leaves out an option at its default."""
_USUAL = {"ddp": ("all_reduce", "overlapped")}
"""Default algorithm and schedule of strategies that offer a choice. Texts about a case do not mention the defaults."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """A configuration of a training job. The fields' types and limits also hold for plans on disk
    (`ddpbench.records.plan`).

    `bucket_cap_mb` is in MiB as in DDP. The value `"default"` is DDP's default (25 MiB after a first bucket of 1 MiB),
    and None means that the strategy has no buckets. `local_batch` is the number of samples per step of one rank, and
    `global_batch` the number per step of the whole job. `options_json` has the strategy's options and
    `workload_options_json` the workload's, both sorted and with defaults filled in. `replicate` distinguishes otherwise
    equal cases that are compared with each other on purpose (`ddpbench noise`).

    `dtype` is the type of parameters and gradients, or `own` if a user's model keeps its types. A `precision` other
    than `full` runs forward and loss under autocast to that type. `data` says whether batches come through a DataLoader
    or are in the device's memory. If `evaluation` or `checkpoint` is set, a launch also times an evaluation or a
    checkpoint after its timed steps. Checkpoints go to a folder in `checkpoint_dir`. If `checkpoint_dir` is empty, they
    go to a folder in the launch's folder.

    `fabric` names the emulated links between ranks (`ddpbench.spec.fabric.Links`), with nominal rates; it is empty for
    the machine's own links. `compute` says whether ranks train (`real`), replay a measured profile (`replayed`) or
    replay a `synthetic` one. With `dilation` k, computation and links are k times slower, and reported times are
    divided by k. With `shrink` m, gradient bytes, bucket caps and link rates are all divided by m.

    `env_json` has the requested environment variables, sorted; the value of a variable to unset is an empty text.

    Unless `recovery` is `off`, a launch has an additional part that trains with a snapshot every `snapshot_every`
    steps. `recovery` names the failure that is caused in this part. The part's ranks are divided among `agents` agents
    of torchrun, and wait up to `collective_timeout` seconds for each other.

    `strategy` may be an import path of a user's class, such as `mine.py:TopK`. `strategy_traits` then has the traits
    that the class declares (`ddpbench.spec.stated.StatedTraits`); it is empty for strategies of ddpbench.
    """

    experiment: Text = ""
    workload: Annotated[Text, Field(min_length=1)]
    strategy: Annotated[Text, Field(min_length=1)]
    algorithm: Text = ""
    schedule: Text = ""
    options_json: str = "{}"
    workload_options_json: str = "{}"
    backend: Text = axis(
        "gloo", "variant", "Backend", "collective library; empty if the strategy uses none", str
    )
    device: Literal["cpu", "cuda"] = axis(
        "cpu",
        "panel",
        "Device",
        "cpu or cuda",
        lambda device: "CPU" if device == "cpu" else "GPU",
        decides=ALL,
    )
    launcher: Text = "local"
    world_size: Annotated[int, Field(ge=1, le=limits.MAX_RANKS), Unit("ranks")] = axis(
        1, "scale", "Ranks", "number of ranks", lambda ranks: counted(ranks, "rank"), decides=["compute"]
    )
    nodes: Annotated[int, limits.NODES] = 1
    ranks_per_node: Annotated[int, limits.RANKS_PER_NODE] = 1
    threads_per_rank: Annotated[int, limits.THREADS, Unit("threads")] = axis(
        1,
        "panel",
        "Threads",
        "compute threads of each rank",
        lambda threads: f"{counted(threads, 'thread')} per rank",
        decides=["compute"],
    )
    loader_workers: Annotated[int, limits.LOADER_WORKERS] = 0
    bucket_cap_mb: BucketCap = None
    local_batch: Annotated[int, limits.GLOBAL_BATCH] = 8
    global_batch: Annotated[int, limits.SAMPLES] = 8
    scaling: Scaling = axis(
        "weak",
        "panel",
        "Scaling",
        "weak: the local batch is fixed; strong: the global batch is fixed",
        lambda value: f"{value} scaling",
    )
    dtype: Text = "float32"
    fabric: Text = ""
    compute: Literal["real", "replayed", "synthetic"] = axis(
        "real",
        "panel",
        "Computation",
        "real, replayed (measured profile) or synthetic (profile from published times)",
        lambda kind: f"{kind} computation",
        decides=["state", "compute"],
        always_shown=lambda kind: kind != "real",
    )
    dilation: Annotated[float, limits.DILATION, Unit("1")] = axis(
        1.0,
        "panel",
        "Dilation",
        "factor by which computation and links are slowed; reported times are divided by it",
        lambda factor: f"dilated x{factor:g}",
        decides=["compute"],
        always_shown=lambda factor: factor != 1,
    )
    seed: Annotated[int, Field(ge=0, lt=1 << 32)] = axis(
        0,
        "panel",
        "Seed",
        "seed of initial parameters and data",
        lambda value: f"seed {value}",
        decides=["loss"],
    )
    replicate: Annotated[int, limits.REPLICATE] = axis(
        0,
        "variant",
        "Replicate",
        "number that distinguishes equal cases in an A/A test",
        lambda value: f"replicate {value}",
    )
    precision: Precision = axis(
        "full",
        "panel",
        "Precision",
        "full, or the autocast type of forward and loss",
        lambda kind: "full precision" if kind == "full" else f"{kind} autocast",
        decides=["loss", "compute"],
        always_shown=lambda kind: kind != "full",
    )
    data: DataSource = "loader"
    evaluation: bool = axis(
        False,
        "panel",
        "Evaluation",
        "launches also time evaluation",
        lambda on: "with evaluation" if on else "without evaluation",
    )
    checkpoint: bool = axis(
        False,
        "panel",
        "Checkpoints",
        "launches also time checkpoints",
        lambda on: "with checkpoints" if on else "without checkpoints",
    )
    checkpoint_dir: Text = axis(
        "",
        "panel",
        "Checkpoints in",
        "folder for the timed checkpoints; empty for the run directory",
        lambda folder: f"checkpoints in {folder or 'the run'}",
    )
    env_json: str = environment.NONE
    recovery: Recovery = "off"
    snapshot_every: Annotated[int, limits.SNAPSHOT_STEPS, Unit("steps")] = axis(
        50,
        "panel",
        "Snapshots",
        "steps between snapshots, for recovery",
        lambda steps: f"a snapshot every {counted(steps, 'step')}",
    )
    agents: Annotated[int, limits.NODES] = axis(
        1,
        "panel",
        "Agents",
        "torchrun agents, for recovery",
        lambda count: counted(count, "agent"),
    )
    collective_timeout: Annotated[float, limits.SECONDS_OF_COLLECTIVES, Unit("s")] = axis(
        10.0,
        "panel",
        "Timeout",
        "seconds that a rank waits in a collective, for recovery",
        lambda seconds: f"collectives time out after {seconds:g} s",
    )
    shrink: Annotated[int, Field(ge=1, le=limits.MOST_SHRINK), Unit("1")] = axis(
        1,
        "panel",
        "Shrink",
        "divisor of gradient bytes, bucket caps and link rates; reported sizes are multiplied by it",
        lambda divisor: f"shrunk /{divisor}" if divisor != 1 else "not shrunk",
        decides=["compute"],
        always_shown=lambda divisor: divisor != 1,
    )
    strategy_traits: Text = field(default="", compare=False)

    @property
    def case_id(self) -> str:
        """Return a short readable name with a digest of all fields that determine what is trained and how."""
        contents = self._contents()
        for name in _NOT_IN_ID:
            del contents[name]
        for name in _ADDED_LATER:
            if contents[name] == _DEFAULTS[name]:
                del contents[name]
        if added := _OPTIONS_ADDED_LATER.get(self.strategy):
            options = {key: value for key, value in self.options.items() if added.get(key, _NOTHING) != value}
            contents["options_json"] = json.dumps(options, sort_keys=True)
        digest = hashlib.sha256(json.dumps(contents, sort_keys=True).encode()).hexdigest()[:8]
        parts = [self.strategy, f"w{self.world_size}"]
        if is_import_path(self.strategy):
            parts[0] = _FOR_FILES.sub("_", self.strategy_name)[:60]
        if self.bucket_cap_mb is not None:
            cap = self.bucket_cap_mb
            parts.append("bdefault" if cap == "default" else f"b{cap:g}")
        return "-".join([*parts, digest])

    def too_few(self, samples: int) -> str:
        """Return why a dataset of this many samples is too small for one step; empty if it is large enough."""
        if samples >= self.global_batch:
            return ""
        return (
            f"the dataset has {samples} samples; one step of this case needs {self.global_batch}: use a smaller batch "
            "or more data"
        )

    def _contents(self) -> dict[str, Any]:
        """Return all fields, without `asdict`'s deep copies, which take too long for a thousand cases."""
        return {name: getattr(self, name) for name in self.__slots__}

    @property
    def strategy_name(self) -> str:
        """Return the strategy's name; for a class in a user's file, without the file."""
        return short_name(self.strategy)

    @property
    def label(self) -> str:
        """Return a few words for a progress line: strategy, world size, bucket cap, and some unusual settings."""
        words = [self.strategy_name, f"{self.world_size} rank{'s' if self.world_size != 1 else ''}"]
        words[1:1] = self.chosen
        if self.bucket_cap_mb is not None:
            cap = self.bucket_cap_mb
            words.append("default buckets" if cap == "default" else f"{cap:g} MiB buckets")
        if self.nodes > 1:
            words.append(f"{self.nodes} x {self.ranks_per_node}")
        if self.fabric:
            words.append(f"{self.fabric}, emulated")
        if self.dilation != 1:
            words.append(f"dilated x{self.dilation:g}")
        if self.shrink != 1:
            words.append(f"shrunk /{self.shrink}")
        if self.precision != "full":
            words.append(self.precision)
        if self.data == "memory":
            words.append("data in memory")
        elif self.loader_workers:
            words.append(f"{self.loader_workers} loader worker{'s' if self.loader_workers != 1 else ''}")
        if self.recovery != "off":
            words.append(self.recovery)
        if self.launcher in OF_FRAMEWORKS:
            words.append(f"launched by {self.launcher}")
        return " · ".join(words)

    @property
    def times_transfers(self) -> bool:
        """Return whether the end of a transfer can be timed.

        It cannot with gloo and GPU memory, because gloo does not report when its threads finish.
        """
        return not (self.backend == "gloo" and self.device == "cuda")

    @property
    def known_algorithm(self) -> str:
        """Return the algorithm that predicts bytes and times; empty if the library or a user's class chooses.

        gloo's all-reduce is a ring for all sizes. MPI, NCCL and UCC choose by message size and layout.
        """
        chooses = self.algorithm == "all_reduce" and self.backend != "gloo"
        return "" if chooses or is_import_path(self.algorithm) else self.algorithm

    @property
    def chosen(self) -> list[str]:
        """Return the names of the algorithm and the schedule. A name that is the strategy's default is left out."""
        usual = _USUAL.get(self.strategy)
        asked = zip((short_name(self.algorithm), self.schedule), usual, strict=True) if usual else ()
        return [word.replace("_", " ") for word, own in asked if word not in ("", own)]

    @property
    def options(self) -> dict[str, Any]:
        """Return the strategy's options as a dictionary."""
        loaded: dict[str, Any] = json.loads(self.options_json)
        return loaded

    @property
    def workload_with_options(self) -> str:
        """Return the workload's name and options, because options may change the model."""
        given = self.workload_options_json
        return self.workload if given == "{}" else f"{self.workload} {given}"

    @property
    def workload_options(self) -> dict[str, Any]:
        """Return the workload's options as a dictionary."""
        loaded: dict[str, Any] = json.loads(self.workload_options_json)
        return loaded

    @property
    def env(self) -> dict[str, str]:
        """Return the environment variables as a dictionary."""
        loaded: dict[str, str] = json.loads(self.env_json)
        return loaded

    def baseline(self) -> Case:
        """Return the base case for the speed-up: `single` at world size 1.

        It has the same workload, dtype, threads per rank, device, launcher and environment (except transport
        variables), and the same local batch (weak scaling) or global batch (strong scaling) (Hoefler & Belli, SC'15,
        rule 1: state the base case). Launchers change the step time by a few percent.
        """
        batch = self.local_batch if self.scaling == "weak" else self.global_batch
        return replace(
            self,
            strategy=BASE,
            algorithm="",
            schedule="",
            options_json="{}",
            backend="",
            world_size=1,
            nodes=1,
            ranks_per_node=1,
            bucket_cap_mb=None,
            local_batch=batch,
            global_batch=batch,
            fabric="",
            replicate=0,
            env_json=environment.own_json(self.env_json),
            recovery="off",
            strategy_traits="",
            **UNUSED_RECOVERY,
        )

    @property
    def proof_key(self) -> str:
        """Return a key that is equal for cases with the same results, for which one proof is valid.

        It lacks recovery, and a fabric's link rates and dilation.
        """
        alike = replace(self, recovery="off", **UNUSED_RECOVERY) if self.recovery != "off" else self
        return replace(alike, fabric="links", dilation=1.0).case_id if self.fabric else alike.case_id

    def to_json(self) -> dict[str, Any]:
        """Return the case as a JSON object, including its id."""
        return {"case_id": self.case_id, **self._contents()}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Case:
        """Return the case from an object that `to_json` made.

        Unknown keys are ignored, so that old code can read new plans.
        """
        return cls(**{name: data[name] for name in cls.__slots__ if name in data})


_DEFAULTS: dict[str, Any] = {one.name: one.default for one in fields(Case)}
UNUSED_RECOVERY = {name: _DEFAULTS[name] for name in ("snapshot_every", "agents", "collective_timeout")}
"""Settings that only recovery uses, with their defaults. A case without recovery has these defaults."""
_COMPARED = [one.name for one in fields(Case) if one.compare]
_ADDED_LATER = _COMPARED[_COMPARED.index("replicate") + 1 :]
"""Fields that early versions lacked. At their defaults they are left out of the id, so that old runs' ids remain valid.
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class PlannedCase:
    """A case of the matrix. If it will not run, `skip_reason` says why."""

    case: Case
    skip_reason: str | None = None
    added_as_baseline: bool = False
    oversubscribed: bool = False
    stands_for: tuple[BucketCap, ...] = ()
    """Other requested bucket caps, MiB, which make the same buckets and are not run."""
    caps_worth: tuple[float, ...] = ()
    """Caps that would make different buckets, MiB, as a suggestion; empty unless `stands_for` has caps."""
    combinations: Sequence[Mapping[str, Any]] = field(default=(), compare=False, repr=False)
    """Combinations of settings from which the case was made. Claims select cases by these combinations.

    A plan on disk lacks them.
    """
