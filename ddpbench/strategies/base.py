"""What a strategy is: options and a check that need no torch, and a replica that trains."""

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
Role = Literal["", "base", "bound", "reference"]
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
"""The largest unit roundoff of what gradients are sent in: fp8's, with two bits of mantissa (e5m2)."""


class CannotTrainError(Exception):
    """This strategy cannot train the model that it was given, and the message says why.

    A replica raises it, alike on every rank, when it is built or in its first step: the case is then skipped.
    """


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """All that a strategy needs to build a rank's replica.

    `model` is on `device` already and equal on all ranks; `loss(outputs, targets)` is a mean over samples;
    `make_optimizer` builds the workload's optimizer for any parameters. The default process group exists
    when `distributed` is true, and never belongs to anyone but the strategy.
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
    """Where spans and transfers are noted; in timed steps one that notes nothing (`recorder.active` is
    false). A strategy whose noting costs more than a function call installs it only when it is active."""
    step: Callable[[torch.nn.Module, Any, Any], torch.Tensor] | None = None
    """`step(network, batch, optimizers)`, where the workload makes its steps itself: forward, backward and update.
    `network` is `model.network`, as the strategy wraps it; `loss` is not called then, and `make_optimizer` gives
    `ddpbench.strategies.own_step.Optimizers`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelFound:
    """Properties of a model, found by trying it, for which strategies may be unable to train it."""

    trained: tuple[str, ...]
    """The number types of its trained parameters, by name."""
    mixed_within_blocks: bool = False
    """True if some block (a child of a ModuleList or Sequential), or the rest of the model, has more than one type."""
    dropped_blocks: tuple[str, ...] = ()
    """Blocks that some steps leave out and others do not, as under LayerDrop, by name."""
    updates_in_backward: bool = False
    """True if optimizers step while a backward is under way, as from hooks of parameters."""
    unreached: tuple[str, ...] = ()
    """Parameters whose gradients no backward makes and the class does not average itself, by name."""
    empty: tuple[str, ...] = ()
    """Trained parameters without an element, by name."""
    over_one_memory: tuple[str, ...] = ()
    """Two parameters with elements in the same place of memory, by name, as after `a.data = b.data`; trained ones."""

    @property
    def are_mixed(self) -> bool:
        """Return whether there is more than one."""
        return len(self.trained) > 1

    @property
    def are_complex(self) -> bool:
        """Return whether some are complex."""
        return any(name.startswith("complex") for name in self.trained)

    @property
    def or_cast(self) -> str:
        """The end of an advice: a cast makes real parameters alike; complex ones would stay complex."""
        return "" if self.are_complex else ', or set dtype = "float32", which casts them'

    @property
    def words(self) -> str:
        """Such as `bfloat16 and float32`."""
        return series_of(self.trained)


class Replica(ABC):
    """A model under a strategy, in one rank. One step is `gradients_of(batch)`, then `apply()`."""

    unit_roundoff: float = 0.0
    """Relative rounding of gradients by aggregation itself: 2^-11 where they are sent in fp16. 0: as they are.

    At most `COARSEST_ROUNDOFF`."""

    draws: bool = True
    """Whether this rank takes batches; where it does not, `gradients_of` is given None twice."""
    knows_loss: bool = True
    """Whether the loss that `gradients_of` returns is one of this rank's: a server or an inner stage has none."""

    notes_update: bool = False
    """Whether `apply` notes its own spans, because a part of it is not the optimizer's: averaging over ranks."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.optimizer = job.make_optimizer(job.model.parameters())

    def own_step(self, batch: Any) -> torch.Tensor:
        """Forward, backward, aggregation and update of one batch, as the workload's own step makes them.

        Returns the rank's loss, detached. Only of strategies that have no `step_reason`.
        """
        raise NotImplementedError(f"{type(self).__name__} makes no steps of a workload's own")

    @abstractmethod
    def gradients_of(self, inputs: Any, targets: Any) -> torch.Tensor:
        """Forward, backward and aggregation of one batch; returns the rank's loss, detached.

        Afterwards every parameter's `.grad` holds what the optimizer shall use. Notes its parts with
        `job.recorder.span(...)`.
        """

    def apply(self) -> None:
        """Updates the parameters and drops the gradients."""
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    def gradients(self) -> list[torch.Tensor]:
        """Return the aggregated gradients after `gradients_of`, in the order of `model.parameters()`."""
        return [p.grad for p in self.job.model.parameters() if p.grad is not None]

    def watch_steps(self) -> Callable[[], str]:
        """Begin to look for what the strategy leaves out of a model's steps; called in proofs alone.

        What is returned gives that in words, with its reason and what to do, empty so far as there is nothing.
        """
        return str

    def take_turns(self, begin: Callable[[int], None]) -> bool:
        """Have replicas in one process go forward in turn, each after `begin` with its number; called in proofs alone.

        So what they draw at random can be drawn again. Return whether they do: not where they cannot.
        """
        return False

    def refresh_model(self) -> None:
        """Bring `job.model` up to date where a framework trains another one; called before its values are read."""
        return

    def own_parameters(self) -> dict[str, torch.Tensor]:
        """Copies of the trained parameters that this rank has a part in, by the model's names and each whole.

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
        """Return the names of the parameters that the next update leaves out, for want of a gradient."""
        return {name for name, parameter in self.job.model.named_parameters() if parameter.grad is None}

    def held_bytes(self) -> tuple[int, int, int]:
        """Return what this rank holds of parameters, gradients and optimizer state, bytes; after `gradients_of`."""
        parameters = list(self.job.model.parameters())
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        return local_bytes(parameters), local_bytes(gradients), state_bytes(self.optimizer)

    def bucket_bytes(self) -> Sequence[int] | None:
        """Sizes of the gradient buckets as last used, bytes; None where the strategy has none."""
        return None

    def ready(self) -> bool:
        """Return whether one-time work (such as rebuilding buckets) is done, so that steps are alike from here."""
        return True

    def notes(self) -> Sequence[Record]:
        """Return what the strategy has to tell of the steps since the last call; asked for between blocks of steps."""
        return ()

    def close(self) -> None:
        """Lets go of hooks on the model and of threads, so that another replica may be built on it."""
        return


class PeriodicReplica(Replica):
    """One that promises `averaged`: it trains apart, or in groups, and averages parameters now and then."""

    @abstractmethod
    def due(self, step: int) -> tuple[list[list[int]], bool]:
        """Of a step, counted from 0: the groups of ranks whose gradients are averaged, and whether all ranks'
        parameters are averaged after its update."""


class CompensatedReplica(Replica):
    """One that promises `delayed`: what compression left out of its own gradient is kept.

    Under fp16 gradients are scaled by a factor that changes. Let the strategy's `check` refuse fp16, or keep back
    unscaled gradients.
    """

    exact_steps: int
    """So many steps come first whose gradients are not compressed; 0 if every step's are."""

    @abstractmethod
    def kept(self) -> dict[str, torch.Tensor]:
        """Return what this rank has kept back so far, by the parameters' names: zeros where that is nothing."""


class OrderedReplica(Replica):
    """One that promises `ordered`: a server applies the gradients in the order in which they come.

    Rank 0 is the server; another rank has the parameters right after its own last update.
    """

    @abstractmethod
    def log(self) -> list[tuple[int, int]]:
        """Rank 0's: of every update in turn, whose gradient it was (a rank), and how many updates that rank's
        parameters had had when it computed it. Empty on other ranks."""


def hooked_parameters(model: torch.nn.Module) -> list[str]:
    """Return the names of the parameters that have hooks, which may change their gradients."""
    return [
        name
        for name, each in model.named_parameters()
        if each._backward_hooks or getattr(each, "_post_accumulate_grad_hooks", None)
    ]


def local_bytes(tensors: Iterable[torch.Tensor]) -> int:
    """Return bytes of tensors as far as they are in this process: of a sharded one its shard's."""
    total = 0
    for tensor in tensors:
        part = tensor.to_local() if hasattr(tensor, "to_local") else tensor
        total += part.numel() * part.element_size()
    return total


def state_bytes(optimizer: torch.optim.Optimizer) -> int:
    """Return bytes of an optimizer's state in this process, such as momenta."""
    import torch

    return local_bytes(
        value for state in optimizer.state.values() for value in state.values() if torch.is_tensor(value)
    )


def dense_reason(sender: str) -> str:
    """Return why a sender of whole gradients cannot have sparse ones, and what to do."""
    return (
        f"{sender} sends gradients whole, and some of this model's are sparse: leave out sparse=True of its "
        "embeddings, or use ddp with all_reduce and no compression"
    )


def parts_reason(strategy: str, closure: str) -> str:
    """Return why a strategy that divides the update among ranks cannot have such an optimizer, and what to do."""
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
    """Return why so many replicas cannot share the ranks of a case, each of two or more, or None."""
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
    """How gradients are aggregated: `all_reduce`, `master`, ... Empty: they are not."""
    schedule: ClassVar[Literal["", "overlapped", "after_backward"]] = ""
    algorithms: ClassVar[tuple[str, ...]] = ()
    """All that a case may ask for with the setting `algorithm`; empty: there is no choice."""
    own_algorithms: ClassVar[bool] = False
    """True if a case may also ask for a user's own class that derives from `Collective`."""
    schedules: ClassVar[tuple[str, ...]] = ()
    """All that a case may ask for with the setting `schedule`; empty: there is no choice."""
    uses_buckets: ClassVar[bool] = False
    uses_backend: ClassVar[bool] = True
    shows_transfers_on_gpus: ClassVar[bool] = True
    """Whether its transfers between GPUs can be timed: not where a library makes them on streams that it hides."""
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
    whole, or that replica's share (`dealt`)."""
    whole_state: ClassVar[bool] = True
    """Every rank holds the whole model and optimizer: checkpoints and evaluation are those of any replica."""
    pieces: ClassVar[Pieces] = ""
    """What the model is cut into, a piece a rank (`piece_count`): `stages` or `branches`. Empty: it stays whole."""
    variants: ClassVar[tuple[Mapping[str, Any], ...]] = ()
    """Options beside the defaults that make it another thing to prove."""
    imports: ClassVar[tuple[str, ...]] = ()
    """Modules of a framework that take long to import: a fork server does it once, for all ranks."""
    framework: ClassVar[str] = ""
    """The framework whose own way this is, by its name in `ddpbench.strategies.frameworks.installed.FRAMEWORKS`."""
    launcher: ClassVar[str] = ""
    """What starts its ranks, where a framework insists on its own launcher: a case that is to be
    started on this machine has this one, and none runs under another."""
    engine: ClassVar[str] = "torch"
    """What computes the model. Independent ranks compute with torch, and bound only strategies that do."""
    note: ClassVar[str] = ""
    """What a report must say beside the strategy's numbers."""
    role: ClassVar[Role] = ""
    """`base`: every speed-up is over it; `bound`: none trains faster; `reference`: others are held against it."""
    display: ClassVar[str] = ""
    """Its name in figures and tables; empty: `name`, with spaces."""
    spoken: ClassVar[str] = ""
    """Its name in a sentence, where that is another."""
    on_cpu: ClassVar[str] = ""
    """What is added to its name on a CPU, where it is an equivalent of itself."""
    colour: ClassVar[str] = ""
    """`#RRGGBB` in figures; optional, as `marker`, one of matplotlib's codes."""
    marker: ClassVar[str] = ""

    def promise(self, options: OptionsT) -> Promise:
        """Return what is proved of the strategy with these options."""
        return "gradients" if self.aggregates else "nothing"

    def period(self, options: OptionsT) -> int:
        """After how many steps what its ranks exchange repeats; blocks of steps hold whole periods."""
        return 1

    def trainers(self, world_size: int) -> int:
        """Return how many of the ranks train on samples; those that do not, such as a server, are the first."""
        return world_size

    def dealt(self, case: Case, rank: int) -> tuple[int, int]:
        """Return which share of a step's samples a rank takes, and into how many equal shares they are dealt.

        Ranks of one share all take the whole of it; every share has a rank. What a rank counts as its own part of a
        step, of which rates are made, is `case.local_batch` whatever it takes.
        """
        if self.whole_batches:
            return 0, 1
        trainers = self.trainers(case.world_size)
        return max(0, rank - (case.world_size - trainers)), trainers

    def parts(self, case: Case) -> int:
        """Into how many equal parts the job's whole batch goes, each with a mean loss of its own."""
        return case.world_size

    def accumulated(self, options: OptionsT) -> int:
        """Return into how many parts a rank cuts its batch, each with its own mean loss, for one update."""
        return int(getattr(options, "accumulate", 1))

    def piece_count(self, case: Case) -> int:
        """Return into how many pieces the model is cut, where it is; asked for once `check` has no objection."""
        return case.world_size

    def check(self, case: Case) -> str | None:
        """Return why the strategy cannot run this case, or None. Called without torch."""
        return None

    def float64_reason(self, options: OptionsT) -> str:
        """Return why the strategy cannot train in float64, so that float32 alone is proved; empty where it can."""
        return ""

    def step_reason(self, case: Case) -> str | None:
        """Return why the strategy cannot run a workload that makes its steps itself, or None. Called without torch."""
        return f"{self.name} aggregates between a backward and an update of its own: it needs loss(), and no step()"

    def model_reason(self, case: Case, *, closure: str, sparse: bool) -> str | None:
        """Return why the strategy cannot train a model that is as trying it showed, or None. Called without torch.

        `closure` names an optimizer that computes the loss again itself, empty where there is none; `sparse`: some
        gradients hold nothing but a batch's rows.
        """
        return None

    def found_reason(self, case: Case, found: ModelFound) -> str | None:
        """Return why the strategy cannot train a model of which this was found, or None. Called without torch."""
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
    "Role",
    "Strategy",
    "hooked_parameters",
]
