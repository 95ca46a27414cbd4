"""A temporary folder that is removed however this process ends.

A small process waits for this one's end, which closes a pipe between them, and removes the folder then. Run as
`python -m ddpbench.guarded_folder PATH DEVICE INODE`, this module is that process.
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
"""Time within which a folder is removed, seconds: processes that end at the same time may still write in it."""


class GuardedFolder(AbstractContextManager[Path]):
    """A folder with mode 700. Use it as a context, which gives its path."""

    def __init__(self, prefix: str, parent: Path | None = None) -> None:
        """Take `prefix`, with which its name begins, and where to make it, if not in the temporary directory."""
        self._prefix, self._parent = prefix, parent
        self._kept = False
        self._folder: TemporaryFolder | None = None
        self._guard: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Path:
        """Make it; return its path.

        Raises:
            OSError: it cannot be made.
        """
        self._folder = TemporaryFolder(self._prefix, self._parent)
        made = self._folder.made
        with contextlib.suppress(OSError):  # then it goes only if this process ends in order
            # In a new session: neither Ctrl-C nor the end of a terminal reaches it.
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
        """Leave the folder when the context ends: it holds what the user is to read."""
        self._kept = True

    def __exit__(self, *_: object) -> None:
        if self._folder is not None and not self._kept:
            self._folder.remove()
        if self._guard is not None:
            self._guard.kill()
            self._guard.communicate()


def _await_end_and_remove(path: Path, made: Identity) -> None:
    """Wait until the process that made the folder has ended, and remove it."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # it ends soon after the other, however that ends
    sys.stdin.buffer.read()
    deadline = time.monotonic() + REMOVING_S
    while not remove_tree(path, made=made) and time.monotonic() < deadline:
        time.sleep(0.1)


if __name__ == "__main__":
    _await_end_and_remove(Path(sys.argv[1]).absolute(), Identity(int(sys.argv[2]), int(sys.argv[3])))
