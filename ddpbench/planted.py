"""Tells whether another user may have put a path where this one finds it. It imports nothing of ddpbench."""

from __future__ import annotations

import os
import stat
from pathlib import Path


def is_planted(path: Path) -> bool:
    """Return whether a path is another user's in a folder in which everybody can write, such as /tmp.

    They may have put it there for this user to find.

    Raises:
        OSError: it is not there, or cannot be reached.
    """
    folder, found = path.absolute().parent.stat(), path.lstat()
    return bool(folder.st_mode & stat.S_IWOTH) and found.st_uid not in (os.geteuid(), folder.st_uid)


def is_decoy(word: str) -> bool:
    """Return whether a word that may mean something else is also the name of a path that another user planted here.

    Whoever means the path writes `./NAME`.
    """
    if word != Path(word).name or word == "..":
        return False
    try:
        return is_planted(Path(word))
    except (OSError, ValueError):  # it is not there, or no path has such a name
        return False
