"""A module for a piece of a model that has no separate module. Imports torch when imported."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn


class Piece(nn.Module):
    """Some modules of a model with a function that computes with them; parameter names in the model do not change."""

    def __init__(self, act: Callable[..., Any], *parts: nn.Module) -> None:
        """Take the function `act`, which must use no parameters other than those of `parts`."""
        super().__init__()
        self.parts = nn.ModuleList(parts)
        self._act = act

    def forward(self, *inputs: Any) -> Any:
        return self._act(*inputs)
