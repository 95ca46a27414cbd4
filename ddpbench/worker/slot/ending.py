"""A slot's exit codes, and the sentence that says why it ended."""

from __future__ import annotations

from ddpbench.errors import LaunchError
from ddpbench.records import explain_os_error

EXIT_OK = 0
EXIT_NOT_OK = 1
EXIT_REQUEST = 2
EXIT_INTERRUPTED = 130


class StoppedError(LaunchError):
    """A different slot had to stop and reported why. All slots exit with `code`."""

    def __init__(self, reason: str, code: int) -> None:
        super().__init__(reason)
        self.code = code


def explained(error: Exception) -> str:
    """Return an exception's message as one sentence."""
    if isinstance(error, OSError):
        where = f"{error.filename}: " if error.filename else ""
        return f"{where}{explain_os_error(error)}"
    return str(error)
