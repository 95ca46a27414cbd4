"""The exit codes of `ddpbench`, for `--help` and docs/commands.md."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator

from ddpbench.errors import DdpbenchError, OutputError

OK = 0
NOT_OK = 1
REQUEST = 2
IN_USE = 3
INTERRUPTED = 130
NOT_READ = 128 + signal.SIGPIPE
"""The exit code of a program that the kernel kills for writing to a closed pipe."""

MEANINGS = {
    OK: "all cases are ok or skipped",
    NOT_OK: "some case is not ok, a promise was broken, a result could not be written, or `bisect` has several "
    "commits left",
    REQUEST: "the request was wrong; nothing was started",
    IN_USE: "another command uses the cores, the GPUs or the run directory; nothing was started",
    INTERRUPTED: "interrupted; the same command with the run directory resumes",
    NOT_READ: "the program that read the output has ended, such as `head`",
}


@contextlib.contextmanager
def after_printing() -> Iterator[None]:
    """Let a command whose result is already printed end with `NOT_OK` if an output file cannot be written.

    Raises:
        DdpbenchError: an output cannot be written.
    """
    try:
        yield
    except OutputError as error:
        raise DdpbenchError(str(error)) from None
