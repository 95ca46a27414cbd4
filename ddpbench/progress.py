"""Progress of long work: reported by the code that does it, shown by the code that asked for it."""

from __future__ import annotations

from collections.abc import Callable

OnProgress = Callable[[str, int, int], None]
"""Takes the name of the work, how much of it is done, and how much there is; 0 of 0 if it is not counted."""


def ignore_progress(what: str, done: int, of: int) -> None:
    """Show nothing."""
