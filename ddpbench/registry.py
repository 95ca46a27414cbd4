"""An entry in the tables of strategies, workloads and algorithms: facts that need no import of the thing."""

from __future__ import annotations

import importlib
from typing import Any, NamedTuple


class Entry(NamedTuple):
    """The place of a strategy, workload or algorithm, and its facts for lists."""

    path: str
    """`module:Class`."""
    summary: str
    sizes: tuple[str, ...] = ()
    """Sizes that may follow a workload's name and a colon; without one, the first is meant."""

    def load(self) -> Any:
        """Import the class."""
        module, _, attribute = self.path.partition(":")
        return getattr(importlib.import_module(module), attribute)
