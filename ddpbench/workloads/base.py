"""The interface of a workload: a model, its data, its loss and its optimizer. Defines no workload."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, TypeVar

from pydantic import BaseModel

from ddpbench.spec import Case, NoOptions, Pieces

if TYPE_CHECKING:
    import torch
    from torch.utils.data import Dataset

    from ddpbench.measure.pacer import Pacer

OptionsT = TypeVar("OptionsT", bound=BaseModel)


class Workload(ABC, Generic[OptionsT]):
    """A training job's contents. One file each, and one line in `ddpbench.workloads.TABLE`.

    `size` is what follows the colon of a name such as `gpt:nano`, or "". Methods below `check` run in a
    rank and may import torch; the model and the data must be the same in every rank for the same seed.
    """

    name: ClassVar[str]
    options: type[OptionsT]
    batch_statistics: ClassVar[bool] = False
    """The model has layers such as BatchNorm whose output depends on the entire batch."""
    whole_batches: ClassVar[bool] = False
    """The model maps an entire batch to its loss; `loss` only averages over replicas."""

    owns_step: bool = False
    """It makes its own steps, with forward, backward and update; `loss` is not called then. Its model has an attribute
    `network`, with which the step is called."""

    evaluates: bool = True
    """Its model and `loss` compute the loss of a batch without a step, which evaluation times."""

    compute: Literal["real", "replayed", "synthetic"] = "real"
    """`real` if it trains; otherwise it replays the times of a profile, measured (`replayed`) or made (`synthetic`)."""
    has_loss: ClassVar[bool] = True
    """Its loss is meaningful; a replay's is an arbitrary number."""
    default_batch: int | None = None
    """The local batch if an experiment sets none."""
    pacer: Pacer | None = None
    """The object that times a replay, in a rank."""
    sample_bytes: int | None = None
    """Input bytes of a sample, where input is fetched over a network; None: those of its tensors."""
    imports: ClassVar[tuple[str, ...]] = ()
    """Modules that its model takes long to import: a fork server imports them once, for all ranks."""

    def __init__(self, size: str = "") -> None:
        self.size = size

    def for_case(self, case: Case, rank: int, launch: int = 0) -> Workload[OptionsT]:
        """Return the workload for a rank of a case's launch, if it depends on any of these."""
        return self

    def check(self, case: Case) -> str | None:
        """Return why the workload cannot run this case, or None. Called without torch."""
        return None

    def pieces(self, kind: Pieces) -> int:
        """Return into how many `stages` (layers in a row) or `branches` (side by side) its model can be cut; 0: it
        cannot.

        Called without torch. A model that can be cut has a method of that name: `stages() -> list[torch.nn.Module]`,
        which called in turn are the model; `branches() -> (list[Module], Module)`, the branches, which all take the
        inputs, and the head, which takes the list of their outputs.
        """
        return 0

    @abstractmethod
    def model(self, options: OptionsT) -> torch.nn.Module:
        """Return a fresh model, on the CPU, in the default dtype; initialised from torch's global generator."""

    @abstractmethod
    def dataset(self, options: OptionsT) -> Dataset[Any]:
        """Return the training data, of `(inputs, targets)` pairs; each may be a tensor or hold several.

        A map-style dataset is the same in every rank, and its samples are divided among ranks. An iterable dataset
        yields its own rank's share: the variables RANK and WORLD_SIZE name the rank (as does `torch.distributed`,
        once iteration begins). It may be endless.
        """

    @abstractmethod
    def loss(self, outputs: Any, targets: Any) -> torch.Tensor:
        """Return the mean loss over the batch's samples, a scalar."""

    def step(
        self, model: torch.nn.Module, network: torch.nn.Module, batch: Any, optimizers: Any
    ) -> torch.Tensor:
        """Make a full step of `model`, whose `network` a strategy may have wrapped; return its loss. `owns_step`."""
        raise NotImplementedError(f"{type(self).__name__} makes no steps itself")

    def optimizers(self, parameters: Any, options: OptionsT) -> Any:
        """Return the third argument of `step`: an optimizer, or a tuple, list or dict of optimizers and their
        schedulers."""
        return self.optimizer(parameters, options)

    def loader(self, options: OptionsT, rank: int, world_size: int, batch: int) -> Iterable[Any] | None:
        """Return batches of `batch` samples for one process of `world_size`, which repeat with each iteration.

        None: `loader_workers` processes make them from `dataset`.
        """
        return None

    def samples_in(self, batch: Any) -> int | None:
        """Return how many samples a batch of a user's loader has; None: the length of its first tensor."""
        return None

    def collate(self, samples: list[Any]) -> Any:
        """Return a batch of the dataset's samples; with loader workers the workload is pickled for them."""
        from torch.utils.data import default_collate

        return default_collate(samples)

    def optimizer(self, parameters: Any, options: OptionsT) -> torch.optim.Optimizer:
        """Return the optimizer over these parameters."""
        import torch

        return torch.optim.SGD(parameters, lr=0.01, momentum=0.9)


__all__ = ["NoOptions", "Workload"]
