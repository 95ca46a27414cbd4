"""Check whether another user may have planted a path, or can put something in its place."""

from __future__ import annotations

import os
import pwd
import stat
from pathlib import Path


def is_planted(path: Path) -> bool:
    """Return whether another user (except root) owns a path in a folder that all can write, such as /tmp.

    Raises:
        OSError: the path does not exist, or cannot be reached.
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
    """Return whether an entry of an open folder may be planted (see `is_planted`). `owner` is the entry's user id."""
    if owner in (os.geteuid(), 0):
        return False
    return bool(os.fstat(folder).st_mode & stat.S_IWOTH) and owner != shown_as(folder)


def other_owner(folder: int) -> str:
    """Return the name of the user who owns an open folder; empty if it is the current user or a trusted root.

    The owner of a newly created file counts as the current user, because bind mounts and file servers may show a
    different user id.
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
    """Return the user id that an open folder shows for this user's new files; None if none can be made."""
    import tempfile

    try:
        with tempfile.TemporaryFile(dir=f"/proc/self/fd/{folder}") as own:
            return os.fstat(own.fileno()).st_uid
    except OSError:
        return None


def exchangeable_above(path: Path) -> Path | None:
    """Return the nearest folder above a path in which everybody can replace entries, and whose owner is another user.

    Raises:
        OSError: a folder cannot be reached.
    """
    return next(
        (one for one in path.resolve().parents if _lets_rename(one) and one.stat().st_uid != os.geteuid()),
        None,
    )


def exchangeable_in(folder: Path) -> Path | None:
    """Return the nearest folder, at or above `folder`, in which everybody can replace other users' entries.

    Raises:
        OSError: a folder cannot be reached.
    """
    resolved = folder.resolve()
    return next((one for one in (resolved, *resolved.parents) if _lets_rename(one)), None)


def _lets_rename(folder: Path) -> bool:
    mode = folder.stat().st_mode
    return bool(mode & stat.S_IWOTH) and not mode & stat.S_ISVTX


def is_decoy(word: str) -> bool:
    """Return whether a word is also a path that another user planted in the working directory.

    For words that may be a path or a name; `./NAME` always means the path.
    """
    if word != Path(word).name or word == "..":
        return False
    try:
        return is_planted(Path(word))
    except (OSError, ValueError):  # the path does not exist, or the word cannot be a path
        return False
