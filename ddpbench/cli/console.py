"""The rich console that shows progress."""

from __future__ import annotations

from rich.console import Console


class Progressive(Console):
    """A console on standard error or output. If the reader closes the pipe, BrokenPipeError ends the command."""

    def __init__(self, width: int | None = None, *, stderr: bool = True) -> None:
        super().__init__(stderr=stderr, width=width, highlight=False, emoji=False)

    def on_broken_pipe(self) -> None:
        """Raise BrokenPipeError, for which `cli.run` returns the right exit code. Rich would exit with code 1."""
        self.quiet = True
        raise BrokenPipeError
