"""The `mlp` workload: a multilayer perceptron that predicts the next byte of real text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BaseModel

from ddpbench.spec import Pieces, limits
from ddpbench.units import Unit
from ddpbench.workloads.base import Workload
from ddpbench.workloads.text import VOCABULARY, Contexts, read_text

if TYPE_CHECKING:
    import torch
    from torch.utils.data import Dataset

CONTEXT_BYTES = 64
HIDDEN_LAYERS = 3
HIDDEN_UNITS = {"small": 256, "large": 2048}


class MlpOptions(BaseModel, extra="forbid", frozen=True):
    """Options of the `mlp` workload."""

    text: list[str] = []
    """Text files to train on. Empty: the source of Python's standard library."""
    learning_rate: Annotated[float, limits.LEARNING_RATE, Unit("1")] = 0.05
    """Learning rate."""


class Mlp(Workload[MlpOptions]):
    """A perceptron from 64 bytes of context to 256 logits, with three hidden layers of 256 or 2048 (`large`) units."""

    name = "mlp"
    options = MlpOptions

    def pieces(self, kind: Pieces) -> int:
        return HIDDEN_LAYERS + 1 if kind == "stages" else 0

    def model(self, options: MlpOptions) -> torch.nn.Module:
        from ddpbench.workloads.mlp_model import Perceptron

        hidden = (HIDDEN_UNITS[self.size],) * HIDDEN_LAYERS
        return Perceptron(context=CONTEXT_BYTES, hidden=hidden, vocabulary=VOCABULARY)

    def dataset(self, options: MlpOptions) -> Dataset[Any]:
        return Contexts(read_text(options.text, at_least=CONTEXT_BYTES + 1), CONTEXT_BYTES)  # type: ignore[return-value]

    def loss(self, outputs: Any, targets: Any) -> torch.Tensor:
        from torch.nn import functional

        return functional.cross_entropy(outputs, targets)

    def optimizer(self, parameters: Any, options: MlpOptions) -> torch.optim.Optimizer:
        import torch

        return torch.optim.SGD(parameters, lr=options.learning_rate, momentum=0.9)
