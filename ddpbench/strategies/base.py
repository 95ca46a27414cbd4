"""The interface of a strategy: options and a check that need no torch, and a replica that trains."""

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
    "gradients": "every step's gradients, and the update made of them, are those of one process over the same samples",
    "delayed": "what compression leaves out of a step's gradients is kept and sent later: the sums over steps, with "
    "what is still kept, are those of one process, and further steps send of what is kept",
    "averaged": "after each averaging all replicas are equal: to the average of as many processes that trained apart "
    "since the one before",
    "ordered": "every gradient is applied once, computed at the version its worker had: one process that redoes the "
    "server's log has the same parameters",
}


COARSEST_ROUNDOFF = 0.125
"""The largest unit roundoff of a type that gradients are sent in: fp8 with two bits of mantissa (e5m2)."""


class CannotTrainError(Exception):
    """Raised if this strategy cannot train the model that it was given; the message says why.

    A replica raises it, alike on every rank, when it is built or in its first step: the case is then skipped.
    """


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """All that a strategy needs to build a rank's replica.

    `model` is on `device` already and equal on all ranks; `loss(outputs, targets)` is a mean over samples;
    `make_optimizer` builds the workload's optimizer for any parameters. The default process group exists when
    `distributed` is true, and only the strategy uses it.
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
    """Recorder of spans and transfers; in timed steps one that records nothing (`recorder.active` is false). A strategy
    whose recording costs more than a function call installs it only when the recorder is active."""
    step: Callable[[torch.nn.Module, Any, Any], torch.Tensor] | None = None
    """`step(network, batch, optimizers)`, for a workload that makes its own steps: forward, backward and update.
    `network` is `model.network`, as the strategy wraps it; `loss` is not called then, and `make_optimizer` returns
    `ddpbench.strategies.own_step.Optimizers`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelFound:
    """Properties of a model, found by trying it, that may keep a strategy from training it."""

    trained: tuple[str, ...]
    """The number types of its trained parameters, by name."""
    mixed_within_blocks: bool = False
    """True if some block (a child of a ModuleList or Sequential), or the rest of the model, has more than one type."""
    dropped_blocks: tuple[str, ...] = ()
    """Blocks that some steps leave out and others do not, as under LayerDrop, by name."""
    updates_in_backward: bool = False
    """True if optimizers step during a backward, as from hooks of parameters."""
    unreached: tuple[str, ...] = ()
    """Names of parameters whose gradients no backward makes and the class does not average itself."""
    empty: tuple[str, ...] = ()
    """Names of trained parameters without elements."""
    over_one_memory: tuple[str, ...] = ()
    """Names of two trained parameters that share memory, as after `a.data = b.data`."""

    @property
    def are_mixed(self) -> bool:
        """Return whether there is more than one number type."""
        return len(self.trained) > 1

    @property
    def are_complex(self) -> bool:
        """Return whether some number types are complex."""
        return any(name.startswith("complex") for name in self.trained)

    @property
    def or_cast(self) -> str:
        """Return the end of a piece of advice: a cast makes real parameters alike; complex ones would stay complex."""
        return "" if self.are_complex else ', or set dtype = "float32", which casts them'

    @property
    def words(self) -> str:
        """Return the number types in words, such as `bfloat16 and float32`."""
        return series_of(self.trained)


class Replica(ABC):
    """A model under a strategy, in one rank. One step is `gradients_of(batch)`, then `apply()`."""

    unit_roundoff: float = 0.0
    """Relative rounding of gradients by aggregation itself: 2^-11 where they are sent in fp16. 0: sent as they are.

    At most `COARSEST_ROUNDOFF`."""

    draws: bool = True
    """True if this rank takes batches; if not, `gradients_of` is called with None twice."""
    knows_loss: bool = True
    """True if `gradients_of` returns a loss of this rank: a server or an inner stage has no loss."""

    notes_update: bool = False
    """True if `apply` notes its own spans, because a part of it is not the optimizer's: averaging over ranks."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.optimizer = job.make_optimizer(job.model.parameters())

    def own_step(self, batch: Any) -> torch.Tensor:
        """Make forward, backward, aggregation and update of one batch, by the workload's own step.

        Return the rank's loss, detached. Only for strategies that have no `step_reason`.
        """
        raise NotImplementedError(f"{type(self).__name__} cannot make a workload's own steps")

    @abstractmethod
    def gradients_of(self, inputs: Any, targets: Any) -> torch.Tensor:
        """Make forward, backward and aggregation of one batch; return the rank's loss, detached.

        Afterwards every parameter's `.grad` holds the gradient for the optimizer. Notes its parts with
        `job.recorder.span(...)`.
        """

    def apply(self) -> None:
        """Update the parameters and drop the gradients."""
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    def gradients(self) -> list[torch.Tensor]:
        """Return the aggregated gradients after `gradients_of`, in the order of `model.parameters()`."""
        return [p.grad for p in self.job.model.parameters() if p.grad is not None]

    def watch_steps(self) -> Callable[[], str]:
        """Begin to look for parts of a model's steps that the strategy leaves out; called only in proofs.

        Return a function that says what was left out, why, and what to do; an empty text as long as nothing was.
        """
        return str

    def take_turns(self, begin: Callable[[int], None]) -> bool:
        """Let replicas in one process make their forward in turn, each after `begin` with its number; only in proofs.

        This way their random draws can be repeated. Return whether the replicas take turns; False where they cannot.
        """
        return False

    def refresh_model(self) -> None:
        """Bring `job.model` up to date where a framework trains another model; called before its values are read."""
        return

    def own_parameters(self) -> dict[str, torch.Tensor]:
        """Return full copies of the trained parameters that this rank has a part in, by the model's names.

        All ranks call it together: shards are gathered.
        """
        return {
            name: parameter.detach().clone()
            for name, parameter in self.job.model.named_parameters()
            if parameter.requires_grad
        }

    def own_gradients(self) -> dict[str, torch.Tensor]:
        """Return the aggregated gradients of `own_parameters`, zeros for one that took no part; until the next step."""
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
        """Return the bytes of parameters, gradients and optimizer state on this rank; after `gradients_of`."""
        parameters = list(self.job.model.parameters())
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        return local_bytes(parameters), local_bytes(gradients), state_bytes(self.optimizer)

    def bucket_bytes(self) -> Sequence[int] | None:
        """Return the sizes of the gradient buckets as last used, bytes; None if the strategy has no buckets."""
        return None

    def ready(self) -> bool:
        """Return whether one-time work (such as rebuilding buckets) is done, so that steps are alike from here."""
        return True

    def notes(self) -> Sequence[Record]:
        """Return the strategy's records of the steps since the last call; called between blocks of steps."""
        return ()

    def close(self) -> None:
        """Release hooks on the model and threads, so that another replica can be built on it."""
        return


class PeriodicReplica(Replica):
    """A replica that promises `averaged`: it trains alone, or in groups, and averages parameters periodically."""

    @abstractmethod
    def due(self, step: int) -> tuple[list[list[int]], bool]:
        """Return, for a step counted from 0, the groups of ranks whose gradients are averaged, and whether all ranks'
        parameters are averaged after its update."""


class CompensatedReplica(Replica):
    """A replica that promises `delayed`: it keeps what compression left out of its gradient.

    Under fp16, gradients are scaled by a factor that changes. Let the strategy's `check` refuse fp16, or keep unscaled
    gradients.
    """

    exact_steps: int
    """Number of first steps whose gradients are not compressed; 0 if every step's are."""

    @abstractmethod
    def kept(self) -> dict[str, torch.Tensor]:
        """Return what this rank has kept so far, by the parameters' names: zeros where nothing is kept."""


class OrderedReplica(Replica):
    """A replica that promises `ordered`: a server applies the gradients in the order in which they come.

    Rank 0 is the server; another rank has the parameters right after its own last update.
    """

    @abstractmethod
    def log(self) -> list[tuple[int, int]]:
        """Return, on rank 0, for every update in turn: the rank whose gradient it was, and how many updates that rank's
        parameters had when it computed the gradient. Empty on other ranks."""


def hooked_parameters(model: torch.nn.Module) -> list[str]:
    """Return the names of the parameters that have hooks, which may change their gradients."""
    return [
        name
        for name, each in model.named_parameters()
        if each._backward_hooks or getattr(each, "_post_accumulate_grad_hooks", None)
    ]


def local_bytes(tensors: Iterable[torch.Tensor]) -> int:
    """Return the bytes of tensors in this process: of a sharded tensor only its shard's."""
    total = 0
    for tensor in tensors:
        part = tensor.to_local() if hasattr(tensor, "to_local") else tensor
        total += part.numel() * part.element_size()
    return total


def state_bytes(optimizer: torch.optim.Optimizer) -> int:
    """Return the bytes of an optimizer's state in this process, such as momenta."""
    import torch

    return local_bytes(
        value for state in optimizer.state.values() for value in state.values() if torch.is_tensor(value)
    )


def dense_reason(sender: str) -> str:
    """Return why a strategy that sends gradients in full cannot send sparse ones, and what to do."""
    return (
        f"{sender} sends gradients whole, and some of this model's are sparse: leave out sparse=True of its "
        "embeddings, or use ddp with all_reduce and no compression"
    )


def parts_reason(strategy: str, closure: str) -> str:
    """Return why a strategy that divides the update among ranks cannot use such an optimizer, and what to do."""
    return (
        f"{strategy} divides the update among ranks, and {closure} computes one of all parameters together: use ddp or "
        "master, or another optimizer"
    )


def memory_reason(strategy: str, found: ModelFound) -> str | None:
    """Return why a strategy that gives each parameter separate memory cannot train such a model, or None."""
    if not found.over_one_memory:
        return None
    first, second = (name.removeprefix("network.") for name in found.over_one_memory)
    return (
        f"parameters {first} and {second} lie over one memory, and {strategy} would train each apart: have both be one "
        "nn.Parameter, or use ddp or master"
    )


def replicas_reason(case: Case, replicas: int) -> str | None:
    """Return why a case's ranks cannot form that many replicas of two or more ranks each, or None."""
    if replicas == 1:
        return None
    if case.world_size % replicas:
        return f"replicas = {replicas} does not divide {counted(case.world_size, 'rank')} evenly: set one that does"
    if replicas == case.world_size:
        return (
            f"{replicas} replicas of one rank each are plain data parallelism, with nothing to divide within them: "
            "take ddp, or fewer replicas"
        )
    return None


class Strategy(ABC, Generic[OptionsT]):
    """A way to train on several devices. One file each, and one line in `ddpbench.strategies.TABLE`."""

    name: ClassVar[str]
    options: type[OptionsT]
    algorithm: ClassVar[str] = ""
    """The way gradients are aggregated: `all_reduce`, `master`, ... Empty: they are not."""
    schedule: ClassVar[Literal["", "overlapped", "after_backward"]] = ""
    algorithms: ClassVar[tuple[str, ...]] = ()
    """Values that a case may give the setting `algorithm`; empty: there is nothing to choose."""
    own_algorithms: ClassVar[bool] = False
    """True if a case may also name a user's class derived from `Collective`."""
    schedules: ClassVar[tuple[str, ...]] = ()
    """Values that a case may give the setting `schedule`; empty: there is nothing to choose."""
    uses_buckets: ClassVar[bool] = False
    uses_backend: ClassVar[bool] = True
    shows_transfers_on_gpus: ClassVar[bool] = True
    """True if its transfers between GPUs can be timed; False if a library makes them on streams that it hides."""
    one_process: ClassVar[bool] = False
    """All `world_size` devices belong to one process."""
    aggregates: ClassVar[bool] = True
    """Gradients after a step equal those of one process over all ranks' shards; proved before timing."""
    replicas_equal: ClassVar[bool] = True
    """All ranks' parameters are bit-equal after any number of steps; checked at the end."""
    sends_parameters: ClassVar[bool] = False
    """An update sends parameters to all ranks: they are equal even where gradients were not averaged."""
    whole_batches: ClassVar[bool] = False
    """The ranks that train one replica of the model take the same batch, as the stages of a pipeline do: the job's
    full batch, or that replica's share (`dealt`)."""
    whole_state: ClassVar[bool] = True
    """Every rank holds the full model and optimizer: checkpoints and evaluation are those of any replica."""
    pieces: ClassVar[Pieces] = ""
    """The kind of pieces that the model is cut into, one per rank (`piece_count`): `stages` or `branches`. Empty: the
    model is not cut."""
    variants: ClassVar[tuple[Mapping[str, Any], ...]] = ()
    """Options, other than the defaults, with which the strategy is proved separately."""
    imports: ClassVar[tuple[str, ...]] = ()
    """Modules of a framework that take long to import: a fork server imports them once, for all ranks."""
    framework: ClassVar[str] = ""
    """The framework that trains, by its name in `ddpbench.strategies.frameworks.installed.FRAMEWORKS`."""
    launcher: ClassVar[str] = ""
    """The launcher of its ranks, if a framework insists on its own: a case to be started on this machine has this one,
    and none runs under another."""
    engine: ClassVar[str] = "torch"
    """The library that computes the model. Independent ranks compute with torch, and bound only strategies that do."""
    note: ClassVar[str] = ""
    """A caveat that a report must print next to the strategy's numbers."""
    role: ClassVar[StrategyRole] = ""
    """`base`: every speed-up is over it; `bound`: none trains faster; `reference`: others are compared with it."""
    display: ClassVar[str] = ""
    """Its name in figures and tables; empty: `name`, with spaces."""
    spoken: ClassVar[str] = ""
    """Its name in a sentence, if different."""
    on_cpu: ClassVar[str] = ""
    """Text added to its name on a CPU, where it is an equivalent of itself."""
    colour: ClassVar[str] = ""
    """`#RRGGBB` in figures; optional, as `marker`, one of matplotlib's codes."""
    marker: ClassVar[str] = ""

    def promise(self, options: OptionsT) -> Promise:
        """Return what is proved about the strategy with these options."""
        return "gradients" if self.aggregates else "nothing"

    def period(self, options: OptionsT) -> int:
        """Return the number of steps after which its ranks' exchange repeats; blocks of steps hold full periods."""
        return 1

    def trainers(self, world_size: int) -> int:
        """Return how many of the ranks train on samples; those that do not, such as a server, are the first."""
        return world_size

    def dealt(self, case: Case, rank: int) -> tuple[int, int]:
        """Return which share of a step's samples a rank takes, and into how many equal shares they are divided.

        Ranks of one share all take all of it; every share has a rank. A rank's own part of a step, from which rates are
        computed, is always `case.local_batch`, regardless of the share.
        """
        if self.whole_batches:
            return 0, 1
        trainers = self.trainers(case.world_size)
        return max(0, rank - (case.world_size - trainers)), trainers

    def parts(self, case: Case) -> int:
        """Return into how many equal parts the job's full batch is cut, each with a mean loss."""
        return case.world_size

    def accumulated(self, options: OptionsT) -> int:
        """Return into how many parts a rank cuts its batch, each with its own mean loss, for one update."""
        return int(getattr(options, "accumulate", 1))

    def piece_count(self, case: Case) -> int:
        """Return into how many pieces the model is cut; called after `check` returned None."""
        return case.world_size

    def check(self, case: Case) -> str | None:
        """Return why the strategy cannot run this case, or None. Called without torch."""
        return None

    def float64_reason(self, options: OptionsT) -> str:
        """Return why the strategy cannot train in float64, so that only float32 is proved; empty if it can."""
        return ""

    def step_reason(self, case: Case) -> str | None:
        """Return why the strategy cannot run a workload that makes its own steps, or None. Called without torch."""
        return f"{self.name} aggregates between its backward and its update: it needs loss(), and no step()"

    def model_reason(self, case: Case, *, closure: str, sparse: bool) -> str | None:
        """Return why the strategy cannot train a model with these properties, or None. Called without torch.

        `closure` names an optimizer that recomputes the loss itself, empty if no optimizer does; `sparse`: some
        gradients hold only the rows of a batch.
        """
        return None

    def found_reason(self, case: Case, found: ModelFound) -> str | None:
        """Return why the strategy cannot train a model with these properties, or None. Called without torch."""
        return None

    @abstractmethod
    def build(self, job: Job, options: OptionsT) -> Replica:
        """Return the rank's replica. Import torch here."""


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
