"""The interface of workloads: a model, data, a loss and an optimizer."""

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
    """A thing to train: a model, data, a loss and an optimizer. Each has a file and a line in `workloads.TABLE`.

    `size` is what follows the colon of a name such as `gpt:nano`, or "". `for_case`, `check` and `pieces` are also
    called without torch; other methods run in a rank and may import it. The model and the data must be the same in
    every rank for the same seed.
    """

    name: ClassVar[str]
    options: type[OptionsT]
    batch_statistics: ClassVar[bool] = False
    """True if the model has layers such as BatchNorm, whose output depends on the entire batch."""
    whole_batches: ClassVar[bool] = False
    """True if the model maps a batch to its loss, so that `loss` only averages over replicas."""

    owns_step: bool = False
    """True if the workload makes its own steps: forward, backward and update. `loss` is not called then, and `step` is
    called with the model's attribute `network`, which a strategy may have wrapped."""

    evaluates: bool = True
    """True if the model and `loss` compute a batch's loss without making a step, so that evaluation can be timed."""

    compute: Literal["real", "replayed", "synthetic"] = "real"
    """`real` if the workload computes; else it replays a profile, measured (`replayed`) or made up (`synthetic`)."""
    has_loss: ClassVar[bool] = True
    """True if the loss is meaningful; a replay's is an arbitrary number."""
    default_batch: int | None = None
    """The local batch size if an experiment sets none."""
    pacer: Pacer | None = None
    """In a rank of a replay, the object that keeps the profile's times."""
    sample_bytes: int | None = None
    """A sample's input bytes if the input is fetched over a network; None for the bytes of the sample's tensors."""
    imports: ClassVar[tuple[str, ...]] = ()
    """Modules that are slow to import, which a fork server imports once for all ranks."""

    def __init__(self, size: str = "") -> None:
        self.size = size

    def for_case(self, case: Case, rank: int, launch: int = 0) -> Workload[OptionsT]:
        """Return the workload for a rank in a launch of a case: by default `self`, for all ranks alike."""
        return self

    def check(self, case: Case) -> str | None:
        """Return words on why the workload cannot run this case, or None. Called without torch."""
        return None

    def pieces(self, kind: Pieces) -> int:
        """Return into how many `stages` (layers in a row) or `branches` (side by side) the model can be cut, or 0.

        Called without torch. A model that can be cut has a method `stages() -> list[Module]` or
        `branches() -> (list[Module], Module)`. Stages, called one after the other, compute the model. Branches all
        take the inputs, and the second module, the head, takes the list of their outputs.
        """
        return 0

    @abstractmethod
    def model(self, options: OptionsT) -> torch.nn.Module:
        """Return a new model on the CPU, in the default dtype, initialised from torch's global generator."""

    @abstractmethod
    def dataset(self, options: OptionsT) -> Dataset[Any]:
        """Return the training data, a dataset of pairs `(inputs, targets)`; each is a tensor or contains several.

        A map-style dataset must be the same in every rank; its samples are divided among ranks. An iterable dataset
        must yield only the samples of its own rank, and may be endless. The environment variables RANK and WORLD_SIZE
        tell the rank, as does `torch.distributed` once iteration has begun.
        """

    @abstractmethod
    def loss(self, outputs: Any, targets: Any) -> torch.Tensor:
        """Return the mean loss over the batch's samples, a scalar."""

    def step(
        self, model: torch.nn.Module, network: torch.nn.Module, batch: Any, optimizers: Any
    ) -> torch.Tensor:
        """Make a full training step and return its loss; called only if `owns_step`.

        `network` is `model.network`, or the strategy's wrapper around it.
        """
        raise NotImplementedError(f"{type(self).__name__} makes no steps itself")

    def optimizers(self, parameters: Any, options: OptionsT) -> Any:
        """Return the last argument of `step`: an optimizer, or a tuple, list or dict of optimizers and schedulers."""
        return self.optimizer(parameters, options)

    def loader(self, options: OptionsT, rank: int, world_size: int, batch: int) -> Iterable[Any] | None:
        """Return an iterable over batches of `batch` samples for this rank; each iteration starts again.

        Return None if the harness is to load batches from `dataset`.
        """
        return None

    def samples_in(self, batch: Any) -> int | None:
        """Return how many samples a batch of a user's loader has; None for the length of the batch's first tensor."""
        return None

    def collate(self, samples: list[Any]) -> Any:
        """Return a batch made of samples of the dataset. Loader workers get a pickled copy of the workload for this."""
        from torch.utils.data import default_collate

        return default_collate(samples)

    def optimizer(self, parameters: Any, options: OptionsT) -> torch.optim.Optimizer:
        """Return an optimizer for these parameters."""
        import torch

        return torch.optim.SGD(parameters, lr=0.01, momentum=0.9)


__all__ = ["NoOptions", "Workload"]
