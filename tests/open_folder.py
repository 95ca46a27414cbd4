"""A folder in which other users can work."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def open_folder() -> Iterator[Path]:
    """Make a folder that every user can reach and write, and remove it at the end.

    It is not below pytest's own folder: each session of pytest that begins closes that one to other users, so that
    a test of another session would lose access in the middle.
    """
    with tempfile.TemporaryDirectory(prefix="ddpbench-test-") as name:
        folder = Path(name)
        folder.chmod(0o777)
        yield folder
