"""Messages of a process at its end; nothing here waits or fails, in any state of its streams. Standard library only."""

from __future__ import annotations

import contextlib
import os
import select
import sys
import traceback


def tell(text: str) -> None:
    """Print why this process leaves, unless that would have to wait for a reader.

    A writable stream has room for `PIPE_BUF` bytes: of a longer text only the end is printed.
    """
    with contextlib.suppress(OSError):
        if text and select.select([], [2], [], 0)[1]:
            os.write(2, f"{text}\n".encode(errors="backslashreplace")[-select.PIPE_BUF :])


def explained(error: BaseException) -> int:
    """Return the exit code of this exception, and print what it was; an exit's code needs no message.

    A 1 says nothing: every failure ends with it.
    """
    code = error.code if isinstance(error, SystemExit) else None
    if isinstance(code, int) and code != 1:
        return code
    tell("".join(traceback.format_exception(error)).rstrip())
    return 1


def flush() -> None:
    """Flush all output, as far as possible."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(
            AttributeError, OSError, ValueError
        ):  # closed by the process that started this one
            stream.flush()
