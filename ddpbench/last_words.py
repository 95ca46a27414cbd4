"""What a process says when it ends, whatever its streams are: nothing of this waits or fails. Standard library only."""

from __future__ import annotations

import contextlib
import os
import select
import sys
import traceback


def tell(text: str) -> None:
    """Says why this process leaves, unless that would have to wait for a reader.

    What can be written to has room for `PIPE_BUF` bytes: of a longer text the end is said.
    """
    with contextlib.suppress(OSError):
        if text and select.select([], [2], [], 0)[1]:
            os.write(2, f"{text}\n".encode(errors="backslashreplace")[-select.PIPE_BUF :])


def explained(error: BaseException) -> int:
    """Return the exit code of what ended with this, and say what it was; of an exit by its code that is enough.

    A 1 says nothing: whatever fails ends so.
    """
    code = error.code if isinstance(error, SystemExit) else None
    if isinstance(code, int) and code != 1:
        return code
    tell("".join(traceback.format_exception(error)).rstrip())
    return 1


def flush() -> None:
    """Has all that was printed written, as far as that can be."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, OSError, ValueError):  # closed by whoever started this
            stream.flush()
