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
    """Base class of workloads, each of which has a model, data, a loss and an optimizer.

    `size` is the part after the colon of a name such as `gpt:nano`, or "". `for_case`, `check` and `pieces` must not
    import torch. For the same seed, the model and the data must be the same in every rank.
    """

    name: ClassVar[str]
    options: type[OptionsT]
    batch_statistics: ClassVar[bool] = False
    """True if the model has layers such as BatchNorm, whose output depends on the entire batch."""
    whole_batches: ClassVar[bool] = False
    """True if the model's forward takes a batch and returns its loss, so that `loss` only averages over replicas."""

    owns_step: bool = False
    """True if the workload makes its own steps (forward, backward and update). Training then calls `step` instead of
    `loss`, with the model's attribute `network`, which a strategy may have wrapped.
    """

    evaluates: bool = True
    """True if a batch's loss can be computed without a training step, so that evaluation can be timed."""

    compute: Literal["real", "replayed", "synthetic"] = "real"
    """`real` if the workload computes. Otherwise it replays a profile, either measured (`replayed`) or `synthetic`."""
    has_loss: ClassVar[bool] = True
    """True if the loss is meaningful; the loss of a replay is an arbitrary number."""
    default_batch: int | None = None
    """Local batch size, if an experiment sets none."""
    pacer: Pacer | None = None
    """Object that makes a replay's ranks take the profile's times; None for other workloads."""
    sample_bytes: int | None = None
    """Input bytes of a sample when data are read over a network; None for the bytes of the sample's tensors."""
    imports: ClassVar[tuple[str, ...]] = ()
    """Modules that are slow to import, which a fork server imports once for all ranks."""

    def __init__(self, size: str = "") -> None:
        self.size = size

    def for_case(self, case: Case, rank: int, launch: int = 0) -> Workload[OptionsT]:
        """Return the workload for `rank` in launch number `launch` of a case; by default `self`."""
        return self

    def check(self, case: Case) -> str | None:
        """Return why the workload cannot run this case, or None if it can. Called without torch."""
        return None

    def pieces(self, kind: Pieces) -> int:
        """Return into how many `stages` (successive parts) or `branches` (parallel parts) the model can be cut, or 0.

        Called without torch. A model that can be cut has a method `stages() -> list[Module]` or `branches() ->
        (list[Module], Module)`. Calling the stages one after another computes the model. Each branch gets the model's
        inputs, and the second item of the tuple, the head, gets the list of the branches' outputs.
        """
        return 0

    @abstractmethod
    def model(self, options: OptionsT) -> torch.nn.Module:
        """Return a new model on the CPU, in the default dtype, initialised by torch's global random generator."""

    @abstractmethod
    def dataset(self, options: OptionsT) -> Dataset[Any]:
        """Return the training data, as a dataset of pairs `(inputs, targets)`.

        Inputs and targets are each a tensor or contain several tensors. A map-style dataset must be the same in every
        rank, and its samples are divided among ranks. An iterable dataset must yield only its own rank's samples, and
        may be endless. An iterable dataset can learn its rank from the environment variables RANK and WORLD_SIZE. Once
        iteration has begun, it can also ask `torch.distributed`.
        """

    @abstractmethod
    def loss(self, outputs: Any, targets: Any) -> torch.Tensor:
        """Return the loss as a scalar tensor, the mean over the batch's samples."""

    def step(
        self, model: torch.nn.Module, network: torch.nn.Module, batch: Any, optimizers: Any
    ) -> torch.Tensor:
        """Make a full training step and return its loss; called only if `owns_step`.

        `network` is `model.network`, or a strategy's wrapper around it. `optimizers` is the result of
        `self.optimizers`.
        """
        raise NotImplementedError(f"{type(self).__name__} makes no steps itself")

    def optimizers(self, parameters: Any, options: OptionsT) -> Any:
        """Return the last argument of `step`: an optimizer, or a tuple, list or dict of optimizers and schedulers."""
        return self.optimizer(parameters, options)

    def loader(self, options: OptionsT, rank: int, world_size: int, batch: int) -> Iterable[Any] | None:
        """Return an iterable over this rank's batches of `batch` samples; each iteration starts from the first batch.

        Return None if the harness is to load batches from `dataset`.
        """
        return None

    def samples_in(self, batch: Any) -> int | None:
        """Return the number of samples in a batch of a user's loader; None means the length of its first tensor."""
        return None

    def collate(self, samples: list[Any]) -> Any:
        """Return a batch made from samples of the dataset.

        Loader workers call this method on a pickled copy of the workload.
        """
        from torch.utils.data import default_collate

        return default_collate(samples)

    def optimizer(self, parameters: Any, options: OptionsT) -> torch.optim.Optimizer:
        """Return an optimizer for these parameters; the default is SGD with momentum."""
        import torch

        return torch.optim.SGD(parameters, lr=0.01, momentum=0.9)


__all__ = ["NoOptions", "Workload"]
