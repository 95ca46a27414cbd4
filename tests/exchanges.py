"""A user who can rename in a folder: exchanges a new folder with another before its maker can open it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any


class Exchanging:
    """Takes the place of `os.mkdir`: makes a folder, and gives its name to another at once."""

    def __init__(self, folder: Path, start: str, other: str) -> None:
        """A new folder whose name begins with `start` is exchanged with `other`, both in `folder`; once."""
        self._folder, self._start, self._other = folder, start, other
        self._mkdir = os.mkdir
        self.done = False

    def __call__(self, path: Any, *words: Any, **named: Any) -> None:
        """Make a folder as `os.mkdir` does, and exchange it if it is the one that is waited for."""
        self._mkdir(path, *words, **named)
        new = self._folder / Path(path).name
        if not self.done and new.name.startswith(self._start) and new.exists():
            self.done = True
            aside = new.with_name("aside")
            new.rename(aside)
            (self._folder / self._other).rename(new)
            aside.rename(self._folder / self._other)
