"""What a workload is: a model, its data, its loss and its optimizer. No workload is here."""

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
    """The model has layers such as BatchNorm whose output depends on the whole batch."""
    whole_batches: ClassVar[bool] = False
    """The model takes a whole batch and gives its loss; `loss` only averages over replicas."""

    owns_step: bool = False
    """It makes its steps itself, with forward, backward and update; `loss` is not called then. Its model has what the
    step is given as `network`."""

    evaluates: bool = True
    """Its model and `loss` give the loss of a batch without a step, which evaluation times."""

    compute: Literal["real", "replayed", "synthetic"] = "real"
    """Whether it trains, or replays the times of a profile that was measured or made."""
    has_loss: ClassVar[bool] = True
    """Its loss says something; a replay's is a number of no meaning."""
    default_batch: int | None = None
    """The local batch where an experiment gives none."""
    pacer: Pacer | None = None
    """What keeps a replay in time, in a rank."""
    sample_bytes: int | None = None
    """Input bytes of a sample, where input is fetched over a network; None: those of its tensors."""
    imports: ClassVar[tuple[str, ...]] = ()
    """Modules that its model takes long to import: a fork server does it once, for all ranks."""

    def __init__(self, size: str = "") -> None:
        self.size = size

    def for_case(self, case: Case, rank: int, launch: int = 0) -> Workload[OptionsT]:
        """Return the workload as a rank of a case's launch has it, where it depends on any of them."""
        return self

    def check(self, case: Case) -> str | None:
        """Return why the workload cannot run this case, or None. Called without torch."""
        return None

    def pieces(self, kind: Pieces) -> int:
        """Into how many `stages` (layers in a row) or `branches` (side by side) its model can be cut; 0: it cannot.

        Called without torch. A model that can be has a method of that name: `stages() -> list[torch.nn.Module]`, which
        called in turn are the model; `branches() -> (list[Module], Module)`, the branches, which all take the inputs,
        and the head, which takes the list of their outputs.
        """
        return 0

    @abstractmethod
    def model(self, options: OptionsT) -> torch.nn.Module:
        """Return a fresh model, on the CPU, in the default dtype; initialised from torch's global generator."""

    @abstractmethod
    def dataset(self, options: OptionsT) -> Dataset[Any]:
        """Return the training data, of `(inputs, targets)` pairs; each may be a tensor or hold several.

        A map-style dataset is the same in every rank, and dealt out to them. An iterable one yields its own
        rank's share: the variables RANK and WORLD_SIZE say whose (`torch.distributed` does too, once it is
        iterated over). It may be endless.
        """

    @abstractmethod
    def loss(self, outputs: Any, targets: Any) -> torch.Tensor:
        """Return the mean loss over the batch's samples, a scalar."""

    def step(
        self, model: torch.nn.Module, network: torch.nn.Module, batch: Any, optimizers: Any
    ) -> torch.Tensor:
        """Make a whole step of `model`, whose `network` a strategy may have wrapped; return its loss. `owns_step`."""
        raise NotImplementedError(f"{type(self).__name__} makes no steps itself")

    def optimizers(self, parameters: Any, options: OptionsT) -> Any:
        """Return what `step` is given: one optimizer, or a tuple, list or dict of some and of their schedulers."""
        return self.optimizer(parameters, options)

    def loader(self, options: OptionsT, rank: int, world_size: int, batch: int) -> Iterable[Any] | None:
        """Batches of `batch` samples for a process of `world_size`, over again with each iteration.

        None: they are made from `dataset`, by `loader_workers` processes.
        """
        return None

    def samples_in(self, batch: Any) -> int | None:
        """Return how many samples a batch of an own loader has; None: as many as its first tensor is long."""
        return None

    def collate(self, samples: list[Any]) -> Any:
        """Return a batch of the dataset's samples; with loader workers the workload goes to them by pickle."""
        from torch.utils.data import default_collate

        return default_collate(samples)

    def optimizer(self, parameters: Any, options: OptionsT) -> torch.optim.Optimizer:
        """Return the optimizer over these parameters."""
        import torch

        return torch.optim.SGD(parameters, lr=0.01, momentum=0.9)


__all__ = ["NoOptions", "Workload"]
