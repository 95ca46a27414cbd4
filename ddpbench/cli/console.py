"""The rich console that shows progress."""

from __future__ import annotations

from rich.console import Console


class Progressive(Console):
    """A console on standard error or output. When the reader closes the pipe, the command ends like any other."""

    def __init__(self, width: int | None = None, *, stderr: bool = True) -> None:
        super().__init__(stderr=stderr, width=width, highlight=False, emoji=False)

    def on_broken_pipe(self) -> None:
        """Raise BrokenPipeError: rich would exit with code 1, and `cli.run` returns the right code."""
        self.quiet = True
        raise BrokenPipeError
