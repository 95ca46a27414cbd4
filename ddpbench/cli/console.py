"""Where progress is shown, by rich."""

from __future__ import annotations

from rich.console import Console


class Progressive(Console):
    """A console on standard error, or output. Where nobody reads it any more, the command ends as for any other."""

    def __init__(self, width: int | None = None, *, stderr: bool = True) -> None:
        super().__init__(stderr=stderr, width=width, highlight=False, emoji=False)

    def on_broken_pipe(self) -> None:
        """As `BrokenPipeError`, where rich would end the process with code 1: `cli.run` knows the right one."""
        self.quiet = True
        raise BrokenPipeError
