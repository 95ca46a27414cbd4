"""How far long work is: told by whoever does it, shown by whoever asked for it."""

from __future__ import annotations

from collections.abc import Callable

Told = Callable[[str, int, int], None]
"""Takes what is being done, how much of it is done, and how much there is; 0 of 0: it is not counted."""


def to_nobody(what: str, done: int, of: int) -> None:
    """Shows nothing."""
