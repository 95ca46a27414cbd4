"""Checks whether another user may have planted a path, or can put something in its place.

It imports nothing of ddpbench.
"""

from __future__ import annotations

import os
import pwd
import stat
from pathlib import Path


def is_planted(path: Path) -> bool:
    """Return whether a path is another user's in a folder in which everybody can write, such as /tmp.

    That user may have put it there for this one to find, even in a folder of theirs: it is as open as /tmp.

    Raises:
        OSError: it does not exist, or cannot be reached.
    """
    owner = path.lstat().st_uid
    if owner in (os.geteuid(), 0):
        return False
    folder = os.open(path.absolute().parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        return is_planted_in(folder, owner)
    finally:
        os.close(folder)


def is_planted_in(folder: int, owner: int) -> bool:
    """Return whether an open folder with this user's (by id) entry is another user's that everybody can write to."""
    if owner in (os.geteuid(), 0):
        return False
    return bool(os.fstat(folder).st_mode & stat.S_IWOTH) and owner != shown_as(folder)


def other_owner(folder: int) -> str:
    """Return the name of the user that an open folder belongs to; empty if it is this one.

    Also empty for root's, if this user may write in it. Some file systems show another owner than the user who writes,
    as a bind mount or a server that maps users does: there a new file, which nobody else sees, shows who this user is.
    """
    owner = os.fstat(folder).st_uid
    if owner == os.geteuid() or (
        owner == 0 and os.access(f"/proc/self/fd/{folder}", os.W_OK, effective_ids=True)
    ):
        return ""
    if owner == shown_as(folder):
        return ""
    try:
        return pwd.getpwuid(owner).pw_name
    except KeyError:
        return f"user {owner}"


def shown_as(folder: int) -> int | None:
    """Return the owner of a file that this user makes in an open folder; None if none can be made."""
    import tempfile

    try:
        with tempfile.TemporaryFile(dir=f"/proc/self/fd/{folder}") as own:
            return os.fstat(own.fileno()).st_uid
    except OSError:
        return None


def exchangeable_above(path: Path) -> Path | None:
    """Return the first folder above a path that is another user's and in which everybody can replace entries.

    Raises:
        OSError: it cannot be reached.
    """
    return next(
        (one for one in path.resolve().parents if _lets_rename(one) and one.stat().st_uid != os.geteuid()),
        None,
    )


def exchangeable_in(folder: Path) -> Path | None:
    """Return the first of a folder and those above it in which everybody can replace others' entries.

    Raises:
        OSError: it cannot be reached.
    """
    resolved = folder.resolve()
    return next((one for one in (resolved, *resolved.parents) if _lets_rename(one)), None)


def _lets_rename(folder: Path) -> bool:
    mode = folder.stat().st_mode
    return bool(mode & stat.S_IWOTH) and not mode & stat.S_ISVTX


def is_decoy(word: str) -> bool:
    """Return whether a word that may mean something else is also the name of a path that another user planted here.

    To mean the path, users write `./NAME`.
    """
    if word != Path(word).name or word == "..":
        return False
    try:
        return is_planted(Path(word))
    except (OSError, ValueError):  # it does not exist, or no path has such a name
        return False
