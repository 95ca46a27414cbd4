"""The `two_branch` workload: two perceptrons with the same inputs, joined by a head, on real text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BaseModel

from ddpbench.spec import Pieces, limits
from ddpbench.units import Unit
from ddpbench.workloads.base import Workload
from ddpbench.workloads.mlp import CONTEXT_BYTES
from ddpbench.workloads.text import VOCABULARY, Contexts, read_text

if TYPE_CHECKING:
    import torch
    from torch.utils.data import Dataset

BRANCHES = 2
LAYERS = 3
UNITS = {"small": 256, "large": 2048}


class TwoBranchOptions(BaseModel, extra="forbid", frozen=True):
    """Options of the `two_branch` workload."""

    text: list[str] = []
    """Text files to train on. Empty: the source of Python's standard library."""
    learning_rate: Annotated[float, limits.LEARNING_RATE, Unit("1")] = 0.05
    """Learning rate."""


class TwoBranch(Workload[TwoBranchOptions]):
    """A model from 64 bytes of context to 256 logits: two branches of three layers of 256 or 2048 (`large`) units."""

    name = "two_branch"
    options = TwoBranchOptions

    def pieces(self, kind: Pieces) -> int:
        return BRANCHES if kind == "branches" else 0

    def model(self, options: TwoBranchOptions) -> torch.nn.Module:
        from ddpbench.workloads.two_branch_model import Branched

        units = (UNITS[self.size],) * LAYERS
        return Branched(branches=BRANCHES, context=CONTEXT_BYTES, units=units, vocabulary=VOCABULARY)

    def dataset(self, options: TwoBranchOptions) -> Dataset[Any]:
        return Contexts(read_text(options.text, at_least=CONTEXT_BYTES + 1), CONTEXT_BYTES)  # type: ignore[return-value]

    def loss(self, outputs: Any, targets: Any) -> torch.Tensor:
        from torch.nn import functional

        return functional.cross_entropy(outputs, targets)

    def optimizer(self, parameters: Any, options: TwoBranchOptions) -> torch.optim.Optimizer:
        import torch

        return torch.optim.SGD(parameters, lr=options.learning_rate, momentum=0.9)
