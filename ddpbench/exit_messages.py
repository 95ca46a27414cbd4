"""Print a process's last messages, without blocking or failing in any state of its streams."""

from __future__ import annotations

import contextlib
import os
import select
import sys
import traceback

from ddpbench.text_safety import clean


def tell(text: str) -> None:
    """Print to standard error why this process ends, unless that would block. Control characters are replaced.

    Only the last `PIPE_BUF` bytes are sure to fit.
    """
    with contextlib.suppress(OSError):
        if text and select.select([], [2], [], 0)[1]:
            os.write(2, f"{clean(text)}\n".encode()[-select.PIPE_BUF :])


def explained(error: BaseException) -> int:
    """Return the exit code for an exception, after printing its traceback.

    A SystemExit with a code other than 1 prints nothing, because the code says why the process ends.
    """
    code = error.code if isinstance(error, SystemExit) else None
    if isinstance(code, int) and code != 1:
        return code
    tell("".join(traceback.format_exception(error)).rstrip())
    return 1


def flush() -> None:
    """Flush standard output and standard error, as far as possible."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(
            AttributeError, OSError, ValueError
        ):  # closed by the process that started this one
            stream.flush()
