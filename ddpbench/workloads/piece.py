"""Make a module of some of a model's layers, for use as a pipeline stage."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn


class Piece(nn.Module):
    """A module made of a function and the modules that it uses; the model's parameter names stay unchanged."""

    def __init__(self, act: Callable[..., Any], *parts: nn.Module) -> None:
        """Store the function `act`, which must use no other parameters than the parameters of `parts`."""
        super().__init__()
        self.parts = nn.ModuleList(parts)
        self._act = act

    def forward(self, *inputs: Any) -> Any:
        return self._act(*inputs)
