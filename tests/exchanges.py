"""A user who can rename in a folder: exchanges a new folder with another before its maker can open it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any


class Exchanging:
    """Replaces `os.mkdir`: makes a folder, and exchanges it with another at once."""

    def __init__(self, folder: Path, start: str, other: str) -> None:
        """Exchange once a new folder whose name begins with `start` with `other`, both in `folder`."""
        self._folder, self._start, self._other = folder, start, other
        self._mkdir = os.mkdir
        self.done = False

    def __call__(self, path: Any, *words: Any, **named: Any) -> None:
        """Make a folder as `os.mkdir` does, and exchange it if it is the expected one."""
        self._mkdir(path, *words, **named)
        new = self._folder / Path(path).name
        if not self.done and new.name.startswith(self._start) and new.exists():
            self.done = True
            aside = new.with_name("aside")
            new.rename(aside)
            (self._folder / self._other).rename(new)
            aside.rename(self._folder / self._other)
