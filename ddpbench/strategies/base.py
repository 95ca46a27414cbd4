"""The interface of a strategy, whose options and checks need no torch, and whose replica trains."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, TypeVar

from pydantic import BaseModel

from ddpbench.spec import Case, NoOptions, Pieces, Promise
from ddpbench.units import counted, series_of

if TYPE_CHECKING:
    import torch

    from ddpbench.measure.recorder import Recorder
    from ddpbench.records import Record

OptionsT = TypeVar("OptionsT", bound=BaseModel)
StrategyRole = Literal["", "base", "bound", "reference"]
PROMISES: dict[Promise, str] = {
    "nothing": "nothing is aggregated",
    "gradients": (
        "every step's gradients, and the update from them, equal those of one process over the same samples"
    ),
    "delayed": "compression keeps the omitted part of a step's gradients and sends it later: sums over steps, "
    "plus the part still kept, equal those of one process, and further steps send from the kept part",
    "averaged": "after each averaging all replicas equal the average of as many processes that trained apart "
    "since the previous averaging",
    "ordered": "every gradient is applied once, computed from the parameters that its worker had: one process "
    "that replays the server's log gets the same parameters",
}


COARSEST_ROUNDOFF = 0.125
"""Largest unit roundoff allowed for sent gradients: that of fp8 with two bits of mantissa (e5m2)."""


class CannotTrainError(Exception):
    """A strategy cannot train the given model; the message says why.

    A replica raises it on all ranks, when built or in its first step, and the case is skipped.
    """


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """Everything that a strategy needs to build a rank's replica.

    `model` is already on `device` and equal on all ranks. `loss(outputs, targets)` is a mean over samples.
    `make_optimizer` builds the workload's optimizer for any parameters. If `distributed` is true, the default process
    group exists, and only the strategy uses it.
    """

    case: Case
    model: torch.nn.Module
    loss: Callable[[Any, Any], torch.Tensor]
    make_optimizer: Callable[[Any], torch.optim.Optimizer]
    device: torch.device
    rank: int
    local_rank: int
    world_size: int
    distributed: bool
    recorder: Recorder
    """Recorder of spans and transfers. In timed steps it records nothing and `recorder.active` is false. If a
    strategy's recording costs more than a function call, install it only if the recorder is active."""
    step: Callable[[torch.nn.Module, Any, Any], torch.Tensor] | None = None
    """Function `step(network, batch, optimizers)` of a workload that makes its own steps (forward, backward and
    update), or None. It returns the loss. `network` is `model.network` or the strategy's wrapper of it. If there is a
    `step`, `loss` is not called, and `make_optimizer` returns `ddpbench.strategies.own_step.Optimizers`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelFound:
    """Properties of a model, found by trying it, that may prevent a strategy from training it."""

    trained: tuple[str, ...]
    """The names of the trained parameters' dtypes, such as `float32`."""
    mixed_within_blocks: bool = False
    """True if a block (a child of a ModuleList or Sequential), or the rest of the model, has several dtypes."""
    dropped_blocks: tuple[str, ...] = ()
    """Names of blocks that only some steps use, as with LayerDrop."""
    updates_in_backward: bool = False
    """True if optimizers step during backward, for example in hooks of parameters."""
    unreached: tuple[str, ...] = ()
    """Names of parameters whose gradients no backward() computes; empty if the class exchanges values between ranks."""
    empty: tuple[str, ...] = ()
    """Names of trained parameters without elements."""
    over_one_memory: tuple[str, ...] = ()
    """Names of two trained parameters that share memory, as after `a.data = b.data`."""

    @property
    def are_mixed(self) -> bool:
        """True if trained parameters have more than one dtype."""
        return len(self.trained) > 1

    @property
    def are_complex(self) -> bool:
        """True if some trained parameters are complex."""
        return any(name.startswith("complex") for name in self.trained)

    @property
    def or_cast(self) -> str:
        """End of a sentence: advice to cast parameters to float32; empty if some parameters are complex."""
        return "" if self.are_complex else ', or set dtype = "float32", which casts them'

    @property
    def words(self) -> str:
        """The trained parameters' dtypes as words, such as `bfloat16 and float32`."""
        return series_of(self.trained)


class Replica(ABC):
    """A model under a strategy, in one rank. A step is a call of `gradients_of(inputs, targets)`, then of `apply()`."""

    unit_roundoff: float = 0.0
    """Relative rounding error that aggregation adds to gradients: 2^-11 if they are sent in fp16, 0 if unchanged.

    At most `COARSEST_ROUNDOFF`."""

    draws: bool = True
    """True if this rank takes batches. If not, both arguments of `gradients_of` are None."""
    knows_loss: bool = True
    """True if `gradients_of` returns the loss. A server or an inner stage of a pipeline doesn't know the loss."""

    notes_update: bool = False
    """True if `apply` records its own spans, because it does more than the optimizer's step."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.optimizer = job.make_optimizer(job.model.parameters())

    def own_step(self, batch: Any) -> torch.Tensor:
        """Make a full training step with the workload's `step`, and return the rank's loss, detached.

        Called only if the strategy's `step_reason` returns None.
        """
        raise NotImplementedError(f"{type(self).__name__} cannot train with a workload's step()")

    @abstractmethod
    def gradients_of(self, inputs: Any, targets: Any) -> torch.Tensor:
        """Compute and aggregate the gradients of one batch. Return the rank's loss, detached.

        Afterwards every parameter's `.grad` is the gradient for the optimizer. Implementations record forward, backward
        and aggregation with `job.recorder.span(...)`.
        """

    def apply(self) -> None:
        """Update the parameters from their gradients, then discard the gradients."""
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    def gradients(self) -> list[torch.Tensor]:
        """Return the aggregated gradients after `gradients_of`, in the order of `model.parameters()`."""
        return [p.grad for p in self.job.model.parameters() if p.grad is not None]

    def watch_steps(self) -> Callable[[], str]:
        """Watch for parts of the model's steps that the strategy leaves out. Called only in proofs.

        Return a function that says what was left out, why, and what to do; "" if nothing was.
        """
        return str

    def take_turns(self, begin: Callable[[int], None]) -> bool:
        """Make replicas in one process compute forward in turn; return whether the strategy does this.

        Call `begin` with a replica's number before its forward, so that its random draws can be repeated. Only proofs
        call this.
        """
        return False

    def refresh_model(self) -> None:
        """Copy the trained values into `job.model`, for a framework that trains a different model.

        Called before the values are read.
        """
        return

    def own_parameters(self) -> dict[str, torch.Tensor]:
        """Return complete copies of the trained parameters, by the model's names.

        A rank returns every parameter of which it has at least a shard. All ranks call this together, because the
        shards of a parameter are gathered.
        """
        return {
            name: parameter.detach().clone()
            for name, parameter in self.job.model.named_parameters()
            if parameter.requires_grad
        }

    def own_gradients(self) -> dict[str, torch.Tensor]:
        """Return the aggregated gradients of `own_parameters`, by name, with zeros for a parameter without a gradient.

        The tensors stay valid until the next step.
        """
        import torch

        return {
            name: torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            for name, parameter in self.job.model.named_parameters()
            if parameter.requires_grad
        }

    def unused(self) -> set[str]:
        """Return the names of the parameters that the next update leaves out because they have no gradient."""
        return {name for name, parameter in self.job.model.named_parameters() if parameter.grad is None}

    def held_bytes(self) -> tuple[int, int, int]:
        """Return the sizes of parameters, gradients and optimizer state on this rank, after `gradients_of` (bytes)."""
        parameters = list(self.job.model.parameters())
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        return local_bytes(parameters), local_bytes(gradients), state_bytes(self.optimizer)

    def bucket_bytes(self) -> Sequence[int] | None:
        """Return the sizes of the gradient buckets in the last step (bytes), or None if the strategy has no buckets."""
        return None

    def ready(self) -> bool:
        """Return whether one-time work, such as rebuilding buckets, is done, so that later steps are alike."""
        return True

    def notes(self) -> Sequence[Record]:
        """Return the strategy's own records on the steps since the last call. Called between blocks of steps."""
        return ()

    def close(self) -> None:
        """Release threads, and hooks on the model, so that a new replica can be built from the same model."""
        return


class PeriodicReplica(Replica):
    """Replica for the promise `averaged`. Ranks train alone or in groups, and average parameters periodically."""

    @abstractmethod
    def due(self, step: int) -> tuple[list[list[int]], bool]:
        """Return which groups of ranks average gradients in a step, and whether all ranks then average parameters.

        `step` counts from 0.
        """


class CompensatedReplica(Replica):
    """Replica for the promise `delayed`, which sends the part of gradients that compression left out later.

    Under fp16, the factor that scales gradients changes. So the strategy's `check` must refuse fp16, or unscaled values
    must be stored.
    """

    exact_steps: int
    """Number of steps at the beginning whose gradients are not compressed."""

    @abstractmethod
    def kept(self) -> dict[str, torch.Tensor]:
        """Return the parts of gradients that this rank has stored and not yet sent, by the parameters' names."""


class OrderedReplica(Replica):
    """Replica for the promise `ordered`, under which a server applies gradients in the order of arrival.

    Rank 0 is the server. Any other rank has the parameters as of its last update.
    """

    @abstractmethod
    def log(self) -> list[tuple[int, int]]:
        """Return an entry (rank, version) for every update, in order. Empty on ranks other than 0.

        `rank` sent the gradient, for parameters that had received `version` updates.
        """


def hooked_parameters(model: torch.nn.Module) -> list[str]:
    """Return the names of the parameters that have hooks, which may change their gradients."""
    return [
        name
        for name, each in model.named_parameters()
        if each._backward_hooks or getattr(each, "_post_accumulate_grad_hooks", None)
    ]


def local_bytes(tensors: Iterable[torch.Tensor]) -> int:
    """Return the size of these tensors in this process (bytes). For a sharded tensor, only the local shard counts."""
    total = 0
    for tensor in tensors:
        part = tensor.to_local() if hasattr(tensor, "to_local") else tensor
        total += part.numel() * part.element_size()
    return total


def state_bytes(optimizer: torch.optim.Optimizer) -> int:
    """Return the size of an optimizer's state, such as momenta, in this process (bytes)."""
    import torch

    return local_bytes(
        value for state in optimizer.state.values() for value in state.values() if torch.is_tensor(value)
    )


def dense_reason(sender: str) -> str:
    """Say why `sender`, which sends dense gradients, cannot send sparse gradients, and what the user can do."""
    return (
        f"{sender} sends only dense gradients, but some of this model's are sparse: remove sparse=True "
        "from its embeddings, or use ddp with all_reduce and no compression"
    )


def parts_reason(strategy: str, closure: str) -> str:
    """Say why an optimizer with a closure cannot be used with a strategy that divides the update among ranks.

    `closure` names the optimizer.
    """
    return (
        f"{strategy} divides the update among ranks, but {closure} computes one update of all "
        "parameters: use ddp or master, or another optimizer"
    )


def memory_reason(strategy: str, found: ModelFound) -> str | None:
    """Return why a strategy that gives each parameter separate memory cannot train this model, or None."""
    if not found.over_one_memory:
        return None
    first, second = (name.removeprefix("network.") for name in found.over_one_memory)
    return (
        f"parameters {first} and {second} share memory, but {strategy} would train them separately: "
        "make them one nn.Parameter, or use ddp or master"
    )


def replicas_reason(case: Case, replicas: int) -> str | None:
    """Explain in words why a case's ranks cannot form `replicas` replicas of two or more ranks each, or return None."""
    if replicas == 1:
        return None
    if case.world_size % replicas:
        return (
            f"replicas = {replicas} does not divide {counted(case.world_size, 'rank')} evenly: set a number "
            "that does"
        )
    if replicas == case.world_size:
        return (
            f"{replicas} replicas of one rank each are plain data parallelism, with nothing to divide "
            "within them: use ddp, or fewer replicas"
        )
    return None


class Strategy(ABC, Generic[OptionsT]):
    """A way to train on several devices. `ddpbench.strategies.TABLE` has an entry for each strategy."""

    name: ClassVar[str]
    options: type[OptionsT]
    algorithm: ClassVar[str] = ""
    """The aggregation of gradients, such as `all_reduce` or `master`, or empty if they are not aggregated."""
    schedule: ClassVar[Literal["", "overlapped", "after_backward"]] = ""
    algorithms: ClassVar[tuple[str, ...]] = ()
    """Values allowed for the setting `algorithm`. Empty if users cannot choose one."""
    own_algorithms: ClassVar[bool] = False
    """True if the setting `algorithm` may also name a user's class derived from `Collective`."""
    schedules: ClassVar[tuple[str, ...]] = ()
    """Values allowed for the setting `schedule`. Empty if users cannot choose one."""
    uses_buckets: ClassVar[bool] = False
    uses_backend: ClassVar[bool] = True
    shows_transfers_on_gpus: ClassVar[bool] = True
    """True if transfers between GPUs can be timed, or False if a library makes them on separate streams."""
    one_process: ClassVar[bool] = False
    """True if all `world_size` devices belong to one process."""
    aggregates: ClassVar[bool] = True
    """True if gradients after a step equal those of one process over all ranks' samples. Proved before timing."""
    replicas_equal: ClassVar[bool] = True
    """True if all ranks' parameters are bit-equal after any number of steps. Checked at the end of a launch."""
    in_step: ClassVar[bool | None] = None
    """True if ranks wait for each other in every step, so that timed blocks of a few steps are exact. By default, it is
    as `replicas_equal`."""
    sends_parameters: ClassVar[bool] = False
    """True if an update sends parameters to all ranks, so that these are equal even if gradients were not averaged."""
    whole_batches: ClassVar[bool] = False
    """True if all ranks that train one replica of the model take the same batch, as the stages of a pipeline do. It is
    the full global batch, or the replica's part of it (see `dealt`)."""
    whole_state: ClassVar[bool] = True
    """True if every rank has the full model and optimizer, so that any rank can evaluate and write checkpoints."""
    pieces: ClassVar[Pieces] = ""
    """The kind of pieces into which the model is divided, one per rank: `stages` or `branches`. Empty if the model is
    not divided. See `piece_count`."""
    variants: ClassVar[tuple[Mapping[str, Any], ...]] = ()
    """Further sets of options for which the strategy is proved, in addition to the defaults."""
    imports: ClassVar[tuple[str, ...]] = ()
    """Modules of a framework that are slow to import, so that a fork server imports them once for all ranks."""
    framework: ClassVar[str] = ""
    """Name of the framework that trains, in `ddpbench.strategies.frameworks.installed.FRAMEWORKS`, or empty."""
    launcher: ClassVar[str] = ""
    """The only launcher that can start this strategy's ranks, or empty if any launcher can."""
    engine: ClassVar[str] = "torch"
    """The library that computes the model.

    Independent ranks use torch, so they are an upper bound only for strategies that use torch too.
    """
    note: ClassVar[str] = ""
    """A caveat that a report must print next to the strategy's numbers."""
    role: ClassVar[StrategyRole] = ""
    """`base` if speed-ups are computed relative to this strategy, `bound` if no strategy can train faster, or
    `reference` if other strategies are compared with it."""
    display: ClassVar[str] = ""
    """The strategy's name in figures and tables. If empty, `name` with spaces is used."""
    spoken: ClassVar[str] = ""
    """The strategy's name in a sentence, if it differs from the name in tables."""
    on_cpu: ClassVar[str] = ""
    """Text added to the name in results on a CPU, if the strategy is implemented differently on CPUs."""
    colour: ClassVar[str] = ""
    """Colour in figures as `#RRGGBB`; optional."""
    marker: ClassVar[str] = ""
    """Marker in figures as matplotlib's code; optional."""

    @property
    def waits_in_step(self) -> bool:
        """Return whether ranks wait for each other in every step."""
        return self.replicas_equal if self.in_step is None else self.in_step

    def promise(self, options: OptionsT) -> Promise:
        """Return the key of `PROMISES` whose statement is proved about the strategy with these options."""
        return "gradients" if self.aggregates else "nothing"

    def period(self, options: OptionsT) -> int:
        """Return the number of steps after which communication repeats. Blocks of steps contain only full periods."""
        return 1

    def trainers(self, world_size: int) -> int:
        """Return the number of ranks that train on samples. Ranks that do not, such as a server, are the first ones."""
        return world_size

    def dealt(self, case: Case, rank: int) -> tuple[int, int]:
        """Return which part of a step's samples this rank trains on, as (index of the part, number of equal parts).

        Several ranks may take one part, and some rank takes every part. Rates assume `case.local_batch` samples per
        rank and step.
        """
        if self.whole_batches:
            return 0, 1
        trainers = self.trainers(case.world_size)
        return max(0, rank - (case.world_size - trainers)), trainers

    def parts(self, case: Case) -> int:
        """Return the number of equal parts into which a step's global batch is split, each with its own mean loss."""
        return case.world_size

    def accumulated(self, options: OptionsT) -> int:
        """Return the number of parts into which a rank splits its batch for one update. Each has its own mean loss."""
        return int(getattr(options, "accumulate", 1))

    def piece_count(self, case: Case) -> int:
        """Return the number of pieces into which the model is divided. Called only if `check` returned None."""
        return case.world_size

    def check(self, case: Case) -> str | None:
        """Explain in words why the strategy cannot run this case, or return None if it can. Called without torch."""
        return None

    def float64_reason(self, options: OptionsT) -> str:
        """Explain in words why the proof can use only float32 and not float64, or return "" if it can use float64."""
        return ""

    def step_reason(self, case: Case) -> str | None:
        """Return why the strategy cannot run a workload that defines its own steps, or None if it can.

        Called without torch."""
        return f"{self.name} aggregates between its backward and its update: it needs loss(), and no step()"

    def model_reason(self, case: Case, *, closure: str, sparse: bool) -> str | None:
        """Return why the strategy cannot train a model with these properties, or None. Called without torch.

        `closure` names an optimizer that recomputes the loss, if there is one. `sparse` says that some gradients are
        sparse.
        """
        return None

    def found_reason(self, case: Case, found: ModelFound) -> str | None:
        """Return why the strategy cannot train a model with these properties, or None. Called without torch."""
        return None

    @abstractmethod
    def build(self, job: Job, options: OptionsT) -> Replica:
        """Return this rank's replica. Implementations import torch only in here."""


__all__ = [
    "PROMISES",
    "CannotTrainError",
    "CompensatedReplica",
    "Job",
    "ModelFound",
    "NoOptions",
    "OrderedReplica",
    "PeriodicReplica",
    "Promise",
    "Replica",
    "Strategy",
    "StrategyRole",
    "hooked_parameters",
]
