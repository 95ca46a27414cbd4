"""A temporary folder that is removed however this process ends.

A small process, `python -m ddpbench.guarded_folder PATH DEVICE INODE`, waits until its pipe is closed, and removes it.
"""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import time
from contextlib import AbstractContextManager
from pathlib import Path

from ddpbench.helper_process import child_environment
from ddpbench.removal import Identity, TemporaryFolder, remove_tree

REMOVING_S = 30.0
"""Time for which to retry removing a folder, seconds; processes that end at the same time may still write in it."""
WAIT_S = 2.0
"""Seconds that this process waits for the guard to remove what this process could not remove."""


class GuardedFolder(AbstractContextManager[Path]):
    """A temporary folder with mode 700, as a context manager; `as` binds its path."""

    def __init__(self, prefix: str, parent: Path | None = None) -> None:
        self._prefix, self._parent = prefix, parent
        self._kept = False
        self._folder: TemporaryFolder | None = None
        self._guard: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Path:
        """Make the folder; return its path.

        Raises:
            OSError: the folder cannot be made.
        """
        self._folder = TemporaryFolder(self._prefix, self._parent)
        made = self._folder.made
        with contextlib.suppress(
            OSError
        ):  # then the folder is removed only if this process leaves the context
            # In a new session, which neither Ctrl-C nor the end of a terminal reaches.
            self._guard = subprocess.Popen(
                [
                    *(sys.executable, "-P", "-m", "ddpbench.guarded_folder", str(self._folder.path)),
                    *(str(made.device), str(made.inode)),
                ],
                env=child_environment(),
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        return self._folder.path

    def keep(self) -> None:
        """Don't remove the folder when the context ends, because the user will want to read its files."""
        self._kept = True

    def __exit__(self, *_: object) -> None:
        removed = self._folder is None or self._kept or self._folder.remove()
        if self._guard is None:
            return
        if removed:
            self._guard.kill()
            self._guard.communicate()
        elif self._guard.stdin is not None:
            self._guard.stdin.close()  # something still writes in the folder: the guard tries again for a while
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._guard.wait(WAIT_S)


def _await_end_and_remove(path: Path, made: Identity) -> None:
    """Wait until the process that made the folder has ended, and remove it."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # this process ends soon after the other in any case
    sys.stdin.buffer.read()
    deadline = time.monotonic() + REMOVING_S
    while not remove_tree(path, made=made) and time.monotonic() < deadline:
        time.sleep(0.1)


if __name__ == "__main__":
    _await_end_and_remove(Path(sys.argv[1]).absolute(), Identity(int(sys.argv[2]), int(sys.argv[3])))
