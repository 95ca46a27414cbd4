"""The model of the `two_branch` workload."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn
from torch.nn import functional

from ddpbench.workloads.mlp_model import Perceptron


class Head(nn.Module):
    """Joins the branches by concatenation, GELU and a linear layer.

    Maps the branches' outputs, each [batch, units], to logits [batch, vocabulary].
    """

    def __init__(self, features: int, vocabulary: int) -> None:
        super().__init__()
        self.logits = nn.Linear(features, vocabulary)

    def forward(self, outputs: Sequence[torch.Tensor]) -> torch.Tensor:
        logits: torch.Tensor = self.logits(functional.gelu(torch.cat(list(outputs), 1)))
        return logits


class Branched(nn.Module):
    """Perceptrons that all get the same context, and a head that joins them.

    Maps uint8 contexts [batch, context] to logits [batch, vocabulary]. `units` has the width of each layer of a branch.
    """

    def __init__(self, *, branches: int, context: int, units: tuple[int, ...], vocabulary: int) -> None:
        super().__init__()
        *hidden, last = units
        self.sides = nn.ModuleList(
            Perceptron(context=context, hidden=tuple(hidden), vocabulary=last) for _ in range(branches)
        )
        self.head = Head(branches * last, vocabulary)

    def forward(self, context: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.head([side(context) for side in self.sides])
        return logits

    def branches(self) -> tuple[list[nn.Module], nn.Module]:
        """Return the branches, which take the inputs, and the head, which takes the list of the branches' outputs."""
        return list(self.sides), self.head
