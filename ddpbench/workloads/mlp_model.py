"""The perceptron of the workloads `mlp` and `two_branch`."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import nn
from torch.nn import functional

from ddpbench.workloads.piece import Piece


class Perceptron(nn.Module):
    """Linear layers with GELU between them, which map uint8 contexts [batch, context] to logits [batch, vocabulary]."""

    def __init__(self, *, context: int, hidden: tuple[int, ...], vocabulary: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise((context, *hidden)))
        self.head = nn.Linear(hidden[-1], vocabulary)

    def forward(self, context: torch.Tensor) -> torch.Tensor:
        x = self._numbers(context)
        for layer in self.layers:
            x = functional.gelu(layer(x))
        logits: torch.Tensor = self.head(x)
        return logits

    def stages(self) -> list[nn.Module]:
        """Return the model as modules to call one after another."""
        first, *others = (nn.Sequential(layer, nn.GELU()) for layer in self.layers)
        return [Piece(lambda context: first(self._numbers(context)), first), *others, self.head]

    def _numbers(self, context: torch.Tensor) -> torch.Tensor:
        """Return the bytes as numbers from -1 to 1, in the model's dtype."""
        return context.to(self.head.weight.dtype) / 127.5 - 1
