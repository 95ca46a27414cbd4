"""A piece of a model that does not have its own module. Imports torch at once, so only models import it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn


class Piece(nn.Module):
    """Modules of a model with the computation on them; their parameters keep their names in the model."""

    def __init__(self, act: Callable[..., Any], *parts: nn.Module) -> None:
        """`act` computes with `parts`, and with nothing else that has parameters."""
        super().__init__()
        self.parts = nn.ModuleList(parts)
        self._act = act

    def forward(self, *inputs: Any) -> Any:
        return self._act(*inputs)
