"""What a workload is: a model, its data, its loss and its optimizer. No workload is here."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from pydantic import BaseModel

from ddpbench.spec import Case, NoOptions

if TYPE_CHECKING:
    import torch
    from torch.utils.data import Dataset

OptionsT = TypeVar("OptionsT", bound=BaseModel)


class Workload(ABC, Generic[OptionsT]):
    """A training job's contents. One file each, and one line in `ddpbench.workloads.TABLE`.

    `size` is what follows the colon of a name such as `gpt:nano`, or "". Methods below `check` run in a
    rank and may import torch; the model and the data must be the same in every rank for the same seed.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    options: type[OptionsT]
    sizes: ClassVar[tuple[str, ...]] = ()
    batch_statistics: ClassVar[bool] = False
    """The model has layers such as BatchNorm whose output depends on the whole batch."""

    def __init__(self, size: str = "") -> None:
        self.size = size

    def check(self, case: Case) -> str | None:
        """Why the workload cannot run this case, or None. Called without torch."""
        return None

    @abstractmethod
    def model(self, options: OptionsT) -> torch.nn.Module:
        """A fresh model, on the CPU, in the default dtype; initialised from torch's global generator."""

    @abstractmethod
    def dataset(self, options: OptionsT) -> Dataset[Any]:
        """The training data: a map-style dataset of `(inputs, targets)` pairs, the same in every rank."""

    @abstractmethod
    def loss(self, outputs: Any, targets: Any) -> torch.Tensor:
        """The mean loss over the batch's samples, a scalar."""

    def optimizer(self, parameters: Any, options: OptionsT) -> torch.optim.Optimizer:
        """The optimizer over these parameters."""
        import torch

        return torch.optim.SGD(parameters, lr=0.01, momentum=0.9)


__all__ = ["NoOptions", "Workload"]
