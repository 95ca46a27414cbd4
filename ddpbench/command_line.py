"""The command that this process carries out, for records.

The command line of a program that calls ddpbench from Python is not recorded, because it may contain secrets.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from ddpbench.text_safety import command

_NOTED: list[str] = []
"""The commands that are carried out, the innermost last."""


@contextmanager
def carrying_out(*program: str, words: Sequence[str]) -> Iterator[None]:
    """Make `command_line` return this command within the context; `words` are the program's arguments."""
    _NOTED.append(command(*program, *words))
    try:
        yield
    finally:
        _NOTED.pop()


def command_line() -> str | None:
    """Return the command line, quoted for a shell; None in a program that calls ddpbench from Python."""
    return _NOTED[-1] if _NOTED else None
