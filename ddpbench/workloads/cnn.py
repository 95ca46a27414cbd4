"""The `cnn` workload: a small convolutional network on real handwritten digits."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BaseModel

from ddpbench.spec import Case, Pieces, limits
from ddpbench.units import Unit
from ddpbench.workloads.base import Workload
from ddpbench.workloads.digits import CLASSES, read_digits

if TYPE_CHECKING:
    import torch
    from torch.utils.data import Dataset

CHANNELS = {"small": (16, 32), "large": (64, 128)}
HIDDEN_UNITS = {"small": 64, "large": 512}


class CnnOptions(BaseModel, extra="forbid", frozen=True):
    """Options of the `cnn` workload."""

    learning_rate: Annotated[float, limits.LEARNING_RATE, Unit("1")] = 0.05
    """Learning rate."""


class Cnn(Workload[CnnOptions]):
    """Two convolutions and two linear layers on 1,797 scanned digits of 8 x 8 pixels, which come with scikit-learn."""

    name = "cnn"
    options = CnnOptions

    def check(self, case: Case) -> str | None:
        if importlib.util.find_spec("sklearn") is None:
            return "its digits come with scikit-learn, which is not installed; run: pip install 'ddpbench[digits]'"
        return None

    def pieces(self, kind: Pieces) -> int:
        return 4 if kind == "stages" else 0

    def model(self, options: CnnOptions) -> torch.nn.Module:
        from ddpbench.workloads.cnn_model import DigitsNet

        return DigitsNet(channels=CHANNELS[self.size], hidden=HIDDEN_UNITS[self.size], classes=CLASSES)

    def dataset(self, options: CnnOptions) -> Dataset[Any]:
        return read_digits()  # type: ignore[return-value]

    def loss(self, outputs: Any, targets: Any) -> torch.Tensor:
        from torch.nn import functional

        return functional.cross_entropy(outputs, targets)

    def optimizer(self, parameters: Any, options: CnnOptions) -> torch.optim.Optimizer:
        import torch

        return torch.optim.SGD(parameters, lr=options.learning_rate, momentum=0.9)
