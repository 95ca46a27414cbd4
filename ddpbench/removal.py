"""Remove folders, but only if this user owns them or this process made them.

A folder's name proves neither: in a shared folder, another user can choose any name, and move a folder of this user's
there. So each folder is opened, never through a link, its owner is checked, and it is emptied through the open folder.
Another user's entries stay and are reported.
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
from ddpbench.text_safety import on_one_line


@dataclass(frozen=True, slots=True)
class Identity:
    """The identity of a folder, independent of its name."""

    device: int
    inode: int

    @classmethod
    def of(cls, status: os.stat_result) -> Identity:
        """Return the identity of a folder from its status."""
        return cls(status.st_dev, status.st_ino)


_WRITABLE = stat.S_IWGRP | stat.S_IWOTH
"""Mode bits of others' write permission; a permission in an access list (ACL) shows as the group's."""
_APART_NS = 5_000_000_000
"""Largest difference to allow between a disk's times for new files and for new folders, nanoseconds."""


class ExchangedError(OSError):
    """A folder that was just made has been replaced by a different one."""

    def __init__(self, path: str) -> None:
        super().__init__(
            errno.ESTALE,
            "another folder replaced it while it was being made: work in a folder where nobody else "
            "can rename files",
            path,
        )


def make_folder(name: str, folder: int, mode: int = 0o777) -> int:
    """Make a subfolder of an open folder, and return its descriptor after checking that it is the new one.

    A user who can rename entries could have replaced it. A subfolder is a replacement, and left as it is, if another
    user owns it, if it is not empty, or if it is 5 s older than this call on the disk's clock.

    Raises:
        FileExistsError: something has the name already.
        ExchangedError: the new folder was replaced.
        OSError: the folder cannot be made.
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
    """Make a folder at a path as `make_folder` does, with the same exceptions; return its identity."""
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
    """A folder that this process makes, in `parent` or the temporary directory, and removes."""

    def __init__(self, prefix: str, parent: Path | str | None = None) -> None:
        """Make the folder with mode 700.

        Raises:
            OSError: the folder cannot be made.
        """
        self.path = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
        self.made = Identity.of(self.path.lstat())

    def remove(self, now_at: Path | None = None) -> bool:
        """Remove the folder and its contents, unless something else has its name; return whether its path is free.

        `now_at` is its path if it was moved.
        """
        return remove_tree(now_at or self.path, made=self.made)


def remove_tree(path: Path, *, made: Identity | None = None, private: bool = False) -> bool:
    """Remove a folder of this user's with its contents, as far as possible; return whether the path is free now.

    Other users' entries are left, and reported. With `made`, only the folder of that identity is removed. With
    `private`, a folder in which other users may write is left, because they could have moved it there.
    """
    try:
        with _placed(path.parent) as parent:
            return _Removal(parent, path).remove_root(made=made, private=private)
    except FileNotFoundError:
        return True
    except OSError:
        return False


def empty(folder: int, path: Path) -> None:
    """Remove the contents of an open folder that this process has made; messages name the folder as `path`."""
    with contextlib.suppress(OSError), _listed(".", folder) as listed:
        _Removal(listed, path).empty(listed, path)


def remove_in(path: Path, made: Identity | None, wanted: Callable[[str], bool]) -> None:
    """Remove the entries of a folder whose names `wanted` accepts, in the same way as `remove_tree`.

    If `made` is given, do nothing to a folder with a different identity.
    """
    with contextlib.suppress(OSError), _placed(path) as place, _listed(".", place) as folder:
        if made in (None, Identity.of(os.fstat(folder))):
            _Removal(folder, path).empty(folder, path, wanted)


def remove_folder(name: str, folder: int, made: Identity) -> None:
    """Remove the empty subfolder `name` of an open folder if its identity is `made`."""
    with contextlib.suppress(OSError):
        if Identity.of(os.stat(name, dir_fd=folder, follow_symlinks=False)) == made:
            os.rmdir(name, dir_fd=folder)


def remove_files(folder: Path, starts: tuple[str, ...], since_ns: int = 0) -> None:
    """Remove this user's files with names that begin with one of `starts`, from a folder open to all users.

    Files last changed before `since_ns`, nanoseconds since 1970, are left.
    """
    with (
        contextlib.suppress(OSError),  # if the folder is missing or unreadable, there is nothing to remove
        _placed(folder) as place,
        _listed(".", place) as listed,
    ):
        for name in os.listdir(listed):  # noqa: PTH208
            if name.startswith(starts):
                with contextlib.suppress(OSError):
                    found = os.stat(name, dir_fd=listed, follow_symlinks=False)
                    kept = stat.S_ISDIR(found.st_mode) or stat.S_ISLNK(found.st_mode)
                    if not kept and found.st_mtime_ns >= since_ns and _is_mine(found, listed):
                        os.unlink(name, dir_fd=listed)


def is_own_folder(path: Path) -> bool:
    """Return whether a path is this user's folder, not a link, and closed to writes by others."""
    try:
        found = path.lstat()
        with _placed(path.parent) as parent:
            return stat.S_ISDIR(found.st_mode) and not found.st_mode & _WRITABLE and _is_mine(found, parent)
    except OSError:
        return False


class _Removal:
    """Removes files for one call; holds the uids treated as the current user's."""

    def __init__(self, folder: int, path: Path) -> None:
        """`folder` is open and on the same disk as `path`, which is to be removed or emptied."""
        self._folder, self._path = folder, path
        self._owners = {os.geteuid()}
        self._looked = False

    def remove_root(self, *, made: Identity | None, private: bool) -> bool:
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
        name = on_one_line(str(path))  # chosen by the other user
        tell(f"ddpbench: {name} was not removed, because another user may have put it there")
        return False


def _others_rename_in(folder: int) -> bool:
    """Return whether another user than root and the folder's group can replace files in it."""
    found = os.fstat(folder)
    open_to_all = found.st_mode & stat.S_IWOTH and not found.st_mode & stat.S_ISVTX
    return bool(open_to_all) or found.st_uid not in (os.geteuid(), 0)


def _is_mine(found: os.stat_result, folder: int) -> bool:
    return found.st_uid == os.geteuid() or found.st_uid == planted.shown_as(folder)


def _now(folder: int) -> int:
    """Return the time by the clock of the folder's disk, nanoseconds.

    Raises:
        OSError: no file can be made in the folder.
    """
    with tempfile.TemporaryFile(dir=f"/proc/self/fd/{folder}") as file:
        return os.fstat(file.fileno()).st_mtime_ns


@contextlib.contextmanager
def _placed(path: Path) -> Iterator[int]:
    """Yield a descriptor for opening entries even if the folder cannot be listed."""
    yield from _closed(os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC))


@contextlib.contextmanager
def _listed(name: str, folder: int) -> Iterator[int]:
    """Yield a descriptor for listing a subfolder of an open folder."""
    yield from _closed(
        os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    )


def _closed(descriptor: int) -> Iterator[int]:
    try:
        yield descriptor
    finally:
        os.close(descriptor)
