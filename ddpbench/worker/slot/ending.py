"""The end of a slot: its exit codes, and the sentence that says why."""

from __future__ import annotations

from ddpbench.errors import LaunchError
from ddpbench.records import explain_os_error

EXIT_OK = 0
EXIT_NOT_OK = 1
EXIT_REQUEST = 2
EXIT_INTERRUPTED = 130


class StoppedError(LaunchError):
    """Another slot had to leave, and reported why; `code` is the exit code for all."""

    def __init__(self, reason: str, code: int) -> None:
        super().__init__(reason)
        self.code = code


def explained(error: Exception) -> str:
    """Return an error as one sentence."""
    if isinstance(error, OSError):
        where = f"{error.filename}: " if error.filename else ""
        return f"{where}{explain_os_error(error)}"
    return str(error)
