"""The owner of removals: a folder is removed if it is this user's, as a whole, or this process has made it.

A name alone shows neither: in a shared folder another user can give a folder any name, and put one into it that is this
user's. So a folder is opened, never through a link, its owner is checked, and its contents are removed through the open
folder. Another user's entries stay, with all that is in them, and are reported. The standard library only.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from ddpbench import planted
from ddpbench.exit_messages import tell


@dataclass(frozen=True, slots=True)
class Identity:
    """Identity of a folder, independent of its name."""

    device: int
    inode: int

    @classmethod
    def of(cls, status: os.stat_result) -> Identity:
        """Return the identity of a folder from its status."""
        return cls(status.st_dev, status.st_ino)


_WRITABLE = stat.S_IWGRP | stat.S_IWOTH
"""Write permission of others, also through a list of who may (ACL), which shows as the group's."""
_APART_NS = 5_000_000_000
"""Largest difference between a disk's times of files and of folders."""


class ExchangedError(OSError):
    """A folder that was just made is not the one that has its name now."""

    def __init__(self, path: str) -> None:
        super().__init__(
            errno.ESTALE,
            "another folder was put in its place while it was made: work in a folder in which nobody else can rename",
            path,
        )


def make_folder(name: str, folder: int, mode: int = 0o777) -> int:
    """Make a folder in an open one, and return it open; it is proved to be the new one.

    A user who can rename there could have put another in its place, even one of this user's. Such a folder is older
    than this call (by 5 s or more of the disk's own clock), or holds something, or is another user's: it is left as it
    is.

    Raises:
        FileExistsError: something has the name.
        ExchangedError: another folder was put in its place.
        OSError: it cannot be made.
    """
    before = _now(folder) if _others_rename_in(folder) else None
    os.mkdir(name or ".", mode, dir_fd=folder)
    if before is None:
        return os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    try:
        made = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR):
            raise ExchangedError(name) from None
        raise
    try:
        found = os.fstat(made)
        new = found.st_mtime_ns >= before - _APART_NS and _is_mine(found, folder)
        if not new or os.listdir(made):  # noqa: PTH208
            raise ExchangedError(name)
    except BaseException:
        os.close(made)
        raise
    return made


def make(path: Path, mode: int = 0o777) -> Identity:
    """Make a folder at a path as `make_folder` does; return its identity. Raises the same."""
    with _placed(path.parent) as parent:
        try:
            folder = make_folder(path.name, parent, mode)
        except OSError as error:
            error.filename = str(path)
            raise
        try:
            return Identity.of(os.fstat(folder))
        finally:
            os.close(folder)


class TemporaryFolder:
    """A folder that this process makes in one for temporary files, or in another, and that it alone removes."""

    def __init__(self, prefix: str, parent: Path | str | None = None) -> None:
        """Make it, with mode 700.

        Raises:
            OSError: it cannot be made.
        """
        self.path = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
        self.made = Identity.of(self.path.lstat())

    def remove(self, now_at: Path | None = None) -> None:
        """Remove it with all that is in it, unless another has its name; `now_at` is its path if it was moved."""
        remove_tree(now_at or self.path, made=self.made)


def remove_tree(path: Path, *, made: Identity | None = None, private: bool = False) -> bool:
    """Remove this user's folder with all in it, as far as possible; return whether nothing has its name now.

    Another user's folder or file is left, and reported. If `made` is given, only that folder is removed. A folder that
    another process has made where everybody can write is `private`: it is left if others may write in it. Otherwise
    nobody can have replaced it by another of this user's: the kernel moves a folder only for users who may write in it.
    """
    try:
        with _placed(path.parent) as parent:
            return _Removal(parent, path).remove_root(made=made, private=private)
    except FileNotFoundError:
        return True
    except OSError:
        return False


def empty(folder: int, path: Path) -> None:
    """Remove the contents of an open folder that this process has made; messages name it by `path`."""
    with contextlib.suppress(OSError), _listed(".", folder) as listed:
        _Removal(listed, path).empty(listed, path)


def remove_in(path: Path, made: Identity | None, wanted: Callable[[str], bool]) -> None:
    """Remove entries of a folder whose names are `wanted`, as `remove_tree`; none if it is not the one `made`."""
    with contextlib.suppress(OSError), _placed(path) as place, _listed(".", place) as folder:
        if made in (None, Identity.of(os.fstat(folder))):
            _Removal(folder, path).empty(folder, path, wanted)


def remove_folder(name: str, folder: int, made: Identity) -> None:
    """Remove an empty folder of an open one if it is the one that was made."""
    with contextlib.suppress(OSError):
        if Identity.of(os.stat(name, dir_fd=folder, follow_symlinks=False)) == made:
            os.rmdir(name, dir_fd=folder)


def remove_files(folder: Path, starts: tuple[str, ...]) -> None:
    """Remove this user's files with these prefixes from a folder that everybody can write to; never a folder."""
    with (
        contextlib.suppress(OSError),  # if it is missing or unreadable, nothing was put there either
        _placed(folder) as place,
        _listed(".", place) as listed,
    ):
        for name in os.listdir(listed):  # noqa: PTH208
            if name.startswith(starts):
                with contextlib.suppress(OSError):
                    found = os.stat(name, dir_fd=listed, follow_symlinks=False)
                    kept = stat.S_ISDIR(found.st_mode) or stat.S_ISLNK(found.st_mode)
                    if not kept and _is_mine(found, listed):
                        os.unlink(name, dir_fd=listed)


def is_own_folder(path: Path) -> bool:
    """Return whether a path is a folder of this user's, and no link, in which nobody else may write."""
    try:
        found = path.lstat()
        with _placed(path.parent) as parent:
            return stat.S_ISDIR(found.st_mode) and not found.st_mode & _WRITABLE and _is_mine(found, parent)
    except OSError:
        return False


class _Removal:
    """Removals of one call, and the user who owns them."""

    def __init__(self, folder: int, path: Path) -> None:
        """Take `folder`, which is open and shows how its disk sees this user; `path` is what the call was given."""
        self._folder, self._path = folder, path
        self._owners = {os.geteuid()}
        self._looked = False

    def remove_root(self, *, made: Identity | None, private: bool) -> bool:
        """Remove the folder that was asked for; return whether nothing has its name now."""
        name = self._path.name
        with _listed(name, self._folder) as folder:
            found = os.fstat(folder)
            if made not in (None, Identity.of(found)):
                return False
            if private and found.st_mode & _WRITABLE:
                return self._leave(self._path)
            if not self._is_mine(found):
                return self._leave(self._path)
            self.empty(folder, self._path)
        os.rmdir(name, dir_fd=self._folder)
        return True

    def empty(self, folder: int, path: Path, wanted: Callable[[str], bool] = lambda _: True) -> None:
        """Remove the contents of an open folder of this user's, at this path."""
        with os.scandir(folder) as listed:
            entries = [(one.name, one.is_dir(follow_symlinks=False)) for one in listed if wanted(one.name)]
        for name, is_folder in entries:
            with contextlib.suppress(OSError, RecursionError):  # another process may remove them, too
                if is_folder:
                    self._remove_folder(name, folder, path / name)
                elif self._is_mine(os.stat(name, dir_fd=folder, follow_symlinks=False)):
                    os.unlink(name, dir_fd=folder)
                else:
                    self._leave(path / name)

    def _remove_folder(self, name: str, parent: int, path: Path) -> None:
        with _listed(name, parent) as folder:
            if not self._is_mine(os.fstat(folder)):
                self._leave(path)
                return
            self.empty(folder, path)
        os.rmdir(name, dir_fd=parent)

    def _is_mine(self, found: os.stat_result) -> bool:
        if found.st_uid not in self._owners and not self._looked:
            self._looked = True
            shown = planted.shown_as(self._folder)
            self._owners |= set() if shown is None else {shown}
        return found.st_uid in self._owners

    def _leave(self, path: Path) -> bool:
        tell(f"ddpbench: {path} is left: another user may have put it there")
        return False


def _others_rename_in(folder: int) -> bool:
    """Return whether another user can replace what this one makes in an open folder.

    Members of a folder's group are trusted, and root is.
    """
    found = os.fstat(folder)
    open_to_all = found.st_mode & stat.S_IWOTH and not found.st_mode & stat.S_ISVTX
    return bool(open_to_all) or found.st_uid not in (os.geteuid(), 0)


def _is_mine(found: os.stat_result, folder: int) -> bool:
    return found.st_uid == os.geteuid() or found.st_uid == planted.shown_as(folder)


def _now(folder: int) -> int:
    """Return the time by a folder's disk, nanoseconds.

    Raises:
        OSError: nothing can be made in it.
    """
    with tempfile.TemporaryFile(dir=f"/proc/self/fd/{folder}") as file:
        return os.fstat(file.fileno()).st_mtime_ns


@contextlib.contextmanager
def _placed(path: Path) -> Iterator[int]:
    """Hold a folder open as a place for others."""
    yield from _closed(os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC))


@contextlib.contextmanager
def _listed(name: str, folder: int) -> Iterator[int]:
    """Hold a folder in an open one open, to list it."""
    yield from _closed(
        os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    )


def _closed(descriptor: int) -> Iterator[int]:
    try:
        yield descriptor
    finally:
        os.close(descriptor)
