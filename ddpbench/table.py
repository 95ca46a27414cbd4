"""An entry of the strategies', workloads' and algorithms' tables: what can be told of a thing without importing it."""

from __future__ import annotations

import importlib
from typing import Any, NamedTuple


class Entry(NamedTuple):
    """Where a strategy, workload or algorithm is, and what lists say of it."""

    path: str
    """`module:Class`."""
    summary: str
    sizes: tuple[str, ...] = ()
    """What may follow a workload's name and a colon; the first is meant where none does."""

    def load(self) -> Any:
        """Import the class."""
        module, _, attribute = self.path.partition(":")
        return getattr(importlib.import_module(module), attribute)
