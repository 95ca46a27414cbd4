"""Entries of the tables of strategies, workloads and algorithms, which are read without importing their classes."""

from __future__ import annotations

import importlib
from typing import Any, NamedTuple


class Entry(NamedTuple):
    """The import path of a strategy, workload or algorithm, and the facts about it that lists show."""

    path: str
    """`module:Class`."""
    summary: str
    sizes: tuple[str, ...] = ()
    """Sizes of a workload, which may follow its name after a colon; the first is the default."""

    def load(self) -> Any:
        """Import and return the class."""
        module, _, attribute = self.path.partition(":")
        return getattr(importlib.import_module(module), attribute)
