"""Open folders one level at a time and keep them open, so that the folder that is used is the one that was checked."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from ddpbench.errors import DdpbenchError, OutputError
from ddpbench.planted import is_planted_in
from ddpbench.removal import Identity, empty, make_folder, remove_folder

_MOST_LINKS = 40
"""Largest number of symbolic links to follow, as in the kernel."""


_OPEN = Path("/proc/self/fd")


class HeldFolder:
    """A folder that is kept open, with those above it, so that a rename does not matter.

    It begins as the root folder, and `enter` changes it to a subfolder.
    """

    def __init__(self) -> None:
        self._folders = [os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)]
        self._names: list[str] = []
        self._left: list[int] = []
        """Descriptors of folders that were left by `..` or by a link, still to be closed."""
        self._made: list[tuple[int, str, Identity]] = []

    @property
    def path(self) -> Path:
        """Return the folder's path at the time of entering, with links resolved. The path is for messages only."""
        return Path("/", *self._names)

    @property
    def descriptor(self) -> int:
        """Return the folder's file descriptor, opened with O_PATH."""
        return self._folders[-1]

    @property
    def itself(self) -> Path:
        """Return a path that leads to this folder while it is open, even after a rename."""
        return _OPEN / str(self.descriptor)

    def close(self) -> None:
        """Close the folder and those above it."""
        for folder in (*self._folders, *self._left):
            os.close(folder)

    def enter(self, path: Path, *, make: bool = False) -> None:
        """Make this object hold the folder at an absolute path, which may contain `..`. `make` creates missing folders.

        Raises:
            OutputError: the path goes through a link that another user created, in a shared folder such as /tmp or in
                their own folder there.
            OSError: a part of the path is missing, is not a folder or cannot be reached; the links form a loop; or a
                folder that this call created was replaced.
        """
        if path.parts[:4] == _OPEN.parts and len(path.parts) > 4:  # open already, so don't read the link
            held = Path(*path.parts[:5])
            self._folders.append(os.open(held, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC))
            self._names.append(str(held.relative_to("/")))
            path = Path("/", *path.parts[5:])
        parts, links = [*reversed(path.parts[1:])], 0
        while parts:
            part = parts.pop()
            if part == "..":
                if self._names:
                    self._names.pop()
                    self._left.append(self._folders.pop())
                continue
            target = self._enter(part, make=make)
            if target is None:
                continue
            links += 1
            if links > _MOST_LINKS:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
            if target.is_absolute():
                self._left += self._folders[1:]
                del self._folders[1:], self._names[:]
            parts += reversed([one for one in target.parts if one != "/"])

    def _enter(self, name: str, *, make: bool) -> Path | None:
        """Enter a subfolder and return None, or the target if it is a link. Raises the same errors as `enter`."""
        with self._named(name):
            try:
                folder = self._open(name)
            except FileNotFoundError:
                if not make:
                    raise
                try:
                    folder = make_folder(name, self.descriptor)
                    self._made.append((self.descriptor, name, Identity.of(os.fstat(folder))))
                except FileExistsError:
                    folder = self._open(name)
            except OSError as error:
                if error.errno not in (errno.ENOTDIR, errno.ELOOP) or (target := self.target(name)) is None:
                    raise
                return target
        self._folders.append(folder)
        self._names.append(name)
        return None

    def _open(self, name: str) -> int:
        # Without O_DIRECTORY, folders that are mounted on demand would not be mounted.
        return os.open(
            name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=self.descriptor
        )

    def target(self, name: str) -> Path | None:
        """Return the target of a link in this folder; None for anything else.

        Raises:
            OutputError: another user created the link, in a shared folder such as /tmp or in their own folder there.
            OSError: the link cannot be read.
        """
        try:
            with self._named(name):
                link = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=self.descriptor)
        except FileNotFoundError:
            return None
        try:
            found = os.fstat(link)
            if not stat.S_ISLNK(found.st_mode):
                return None
            self._check_owner(self.path / name, found.st_uid)
            return Path(os.readlink("", dir_fd=link))
        finally:
            os.close(link)

    def _check_owner(self, link: Path, owner: int) -> None:
        if is_planted_in(self.descriptor, owner):
            raise OutputError(
                f"{link} is a link of another user in a folder that everybody can write to: give another name"
            )
        if owner in (os.geteuid(), 0):
            return
        for depth, (above, folder) in enumerate(zip(self._folders, self._folders[1:], strict=False), 1):
            if is_planted_in(above, os.fstat(folder).st_uid):
                raise OutputError(
                    f"{link} is a link of another user, below their folder {Path('/', *self._names[:depth])}, "
                    "which is in a folder that everybody can write to: give another name"
                )

    def remove_made(self) -> None:
        """Remove the folders that `enter` created, except those that are not empty."""
        for folder, name, made in reversed(self._made):
            remove_folder(name, folder, made)

    @contextlib.contextmanager
    def _named(self, name: str) -> Iterator[None]:
        """Name the full path of `name` in OSErrors of the body."""
        try:
            yield
        except OSError as error:
            error.filename = str(self.path / name)
            raise


@contextlib.contextmanager
def held_folder(path: Path) -> Iterator[HeldFolder]:
    """Yield the folder at a path, which stays open until the body ends.

    Raises:
        OutputError: the path goes through a link that another user created, in a shared folder such as /tmp or in their
            own folder there.
        OSError: the folder is missing, is not a folder or cannot be reached; or the links form a loop.
    """
    with contextlib.closing(HeldFolder()) as folder:
        folder.enter(path.absolute())
        yield folder


def check_links(path: Path) -> None:
    """Check that a path has no link that another user created in a shared folder such as /tmp.

    The kernel refuses such links only at the end of a path and in folders with the sticky bit. To write to the path,
    use `held_folder` or `new_folder` instead.

    Raises:
        OutputError: the path has such a link.
        OSError: the links form a loop, or a folder cannot be reached.
    """
    with contextlib.suppress(FileNotFoundError, NotADirectoryError), held_folder(path):
        pass


@contextlib.contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """Create a folder and those above it, and yield a path that leads to it even after a rename.

    Errors in the body name the given path. If the body fails, new empty folders are removed.

    Raises:
        OutputError: the path goes through a link that another user created, in a shared folder such as /tmp or in their
            own folder there.
        OSError: the folder cannot be created, or is not a folder.
    """
    with contextlib.closing(HeldFolder()) as held:
        try:
            held.enter(folder.absolute(), make=True)
            with errors_naming(held.itself, folder):
                yield held.itself
        except BaseException:
            held.remove_made()
            raise


class MadeFolder:
    """A new folder that is kept open, so that writes and removals reach it even after a rename."""

    def __init__(self, parent: Path, name: str) -> None:
        """Create the folder `name` in `parent`.

        Raises:
            OSError: the folder cannot be created, for example because the name is already used, or was replaced just
                after the creation.
        """
        self._parent, self._name = os.open(parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC), name
        try:
            self._descriptor = make_folder(name, self._parent)
        except OSError as error:
            os.close(self._parent)
            error.filename = str(parent / name)
            raise

    @property
    def itself(self) -> Path:
        """Return a path that leads to this folder while it is open, even after a rename."""
        return _OPEN / str(self._descriptor)

    def close(self) -> None:
        """Close the folder and its parent."""
        os.close(self._descriptor)
        os.close(self._parent)

    def remove(self) -> None:
        """Remove the folder with its contents, or as much as can be removed."""
        empty(self._descriptor, self.itself)
        remove_folder(self._name, self._parent, Identity.of(os.fstat(self._descriptor)))

    def rename(self, name: str) -> None:
        """Rename the folder within its parent.

        Raises:
            OutputError: another file or folder had replaced this folder under its old name, and was renamed instead.
            OSError: it cannot be renamed.
        """
        os.rename(self._name, name, src_dir_fd=self._parent, dst_dir_fd=self._parent)
        self._name = name
        found = os.stat(name, dir_fd=self._parent, follow_symlinks=False)
        if not os.path.samestat(os.fstat(self._descriptor), found):
            raise OutputError(f"{name} was replaced while it was written: give another name")


@contextlib.contextmanager
def errors_naming(itself: Path, path: Path) -> Iterator[None]:
    """In errors that the body raises, replace the path `itself` of an open folder by `path`, which the user knows."""
    try:
        yield
    except OSError as error:
        for name in ("filename", "filename2"):
            if isinstance(said := getattr(error, name), str):
                setattr(error, name, said.replace(str(itself), str(path)))
        raise
    except DdpbenchError as error:
        if str(itself) not in str(error):
            raise
        raise error.reworded(str(error).replace(str(itself), str(path))) from None
