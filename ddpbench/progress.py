"""The type of the functions that long work calls to report its progress."""

from __future__ import annotations

from collections.abc import Callable

OnProgress = Callable[[str, int, int], None]
"""Takes the name of the work, how much of it is done, and how much there is in total; 0 of 0 if unknown."""


def ignore_progress(what: str, done: int, of: int) -> None:
    """Do nothing, for callers that show no progress."""
