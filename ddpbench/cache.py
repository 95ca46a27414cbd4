"""Cache a user's results that can be computed again from the same input, so that a failing cache costs only time.

Cached values are pickled, so the cache is never in a run directory, which may come from a stranger. Only entries of a
subfolder that this module made and marked are ever removed.
"""

from __future__ import annotations

import hashlib
import os
import pickle
import re
import stat
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any, BinaryIO

import psutil

FOLDER = "DDPBENCH_CACHE"
"""The environment variable with the folder in which to make the subfolder; if it is empty, nothing is cached."""
SUBFOLDER = "ddpbench-cache"
"""Name of the folder of entries. Its parent, `~/.cache` or the user's choice, may also have the user's own files."""
MARK = "CACHEDIR.TAG"
"""Name of the file that marks a folder of entries; backup programs know it (https://bford.info/cachedir/)."""
_MARK_TEXT = (
    b"Signature: 8a477f597d28d172789f06886806bc55\n"
    b"# Created by ddpbench, which removes old entries here. This folder can be deleted at any time.\n"
)
_ENTRY = b"ddpbench cache entry\n"
"""The first bytes of every entry."""
_ENDING = ".kept"
_UNFINISHED = re.compile(re.escape(_ENDING) + r"\.[0-9]+\.new$")
MOST_BYTES = 256 << 20
"""Largest size of all entries together, bytes. The least recently used entries are removed first. A run of a thousand
cases takes some MiB, and a figure takes up to 1 MiB.
"""
_DAY_S = 86_400
_PACKAGE = Path(__file__).resolve().parent


def cache_folder() -> Path | None:
    """Return the folder of entries, in `DDPBENCH_CACHE`, `XDG_CACHE_HOME` or `~/.cache`; None if caching is off."""
    if (own := os.environ.get(FOLDER)) is not None:
        return Path(own).absolute() / SUBFOLDER if own else None
    given = os.environ.get("XDG_CACHE_HOME", "")
    base = Path(given) if given.startswith("/") else Path(os.path.expanduser("~/.cache"))  # noqa: PTH111
    return base / SUBFOLDER if base.is_absolute() else None  # no home folder is known


def kept(name: str, stamp: bytes) -> Any:
    """Return the value that `keep` cached under this name and stamp; None if there is none."""
    if not stamp:
        return None
    name, head = name + _ENDING, _ENTRY + stamp
    try:
        with _opened() as folder, _read(folder, name) as file:
            if file.read(len(head)) != head:
                return None
            found = pickle.load(file)
            with suppress(OSError):
                os.utime(name, dir_fd=folder)  # so that entries in use stay
            return found
    except Exception:  # in any case, the value can be computed again
        return None


def keep(name: str, stamp: bytes, value: object) -> None:
    """Cache a value under a name and stamp, unless the stamp is empty."""
    if not stamp:
        return
    name += _ENDING
    temporary = f"{name}.{os.getpid()}.new"
    with suppress(Exception):
        data = _ENTRY + stamp + pickle.dumps(value)
        if len(data) > MOST_BYTES:
            return
        with _opened(make=True) as folder:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            descriptor = os.open(temporary, flags, 0o600, dir_fd=folder)
            try:
                with os.fdopen(descriptor, "wb") as file:
                    file.write(data)
                os.replace(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
            except OSError:  # a full disk
                os.unlink(temporary, dir_fd=folder)
                raise
            _prune(folder)


def _prune(folder: int) -> None:
    """Remove files of killed writers, and the least recently used entries beyond `MOST_BYTES`."""
    found = [(name, os.stat(name, dir_fd=folder, follow_symlinks=False)) for name in os.listdir(folder)]
    for name, of in found:
        if _UNFINISHED.search(name) and time.time() - of.st_mtime > _DAY_S and _is_entry(folder, name):
            os.unlink(name, dir_fd=folder)
    entries = [(name, of) for name, of in found if name.endswith(_ENDING)]
    if sum(of.st_size for _, of in entries) <= MOST_BYTES:
        return
    room = MOST_BYTES
    for name, of in sorted(entries, key=lambda each: -each[1].st_mtime):
        if _is_entry(folder, name):
            room -= of.st_size
            if room < 0:
                os.unlink(name, dir_fd=folder)


def _is_entry(folder: int, name: str) -> bool:
    """Return whether `keep` wrote the file, perhaps incompletely."""
    try:
        with _read(folder, name) as file:
            return _ENTRY.startswith(file.read(len(_ENTRY)))
    except OSError:
        return False


def _read(folder: int, name: str) -> BinaryIO:
    """Open a regular file of the folder, without blocking.

    Raises:
        OSError: the file does not exist, is not a regular file, is not this user's, or others can write to it.
    """
    descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    if not _is_ours(os.fstat(descriptor), stat.S_IFREG):
        os.close(descriptor)
        raise PermissionError(f"others can write {name}")
    return os.fdopen(descriptor, "rb")


@contextmanager
def _opened(*, make: bool = False) -> Iterator[int]:
    """Yield a descriptor of the cache folder, which stays valid if the path is replaced.

    Raises:
        OSError: the folder does not exist, was not made by this module, is not this user's, or others can write in it.
    """
    path = cache_folder()
    if path is None:
        raise FileNotFoundError("cannot determine a cache folder; set DDPBENCH_CACHE")
    if make:
        _make(path)
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if not _is_ours(os.fstat(descriptor), stat.S_IFDIR):
            raise PermissionError(f"others can write in {path}")
        if make and set(os.listdir(descriptor)) <= {MARK}:  # noqa: PTH208  a descriptor
            _mark(descriptor)
        with _read(descriptor, MARK) as file:
            if file.read(len(_MARK_TEXT)) != _MARK_TEXT:
                raise PermissionError(f"{path} was not made by ddpbench")
        yield descriptor
    finally:
        os.close(descriptor)


def _mark(folder: int) -> None:
    """Write `CACHEDIR.TAG` into a folder that is empty or has only an incomplete one."""
    with suppress(FileNotFoundError), _read(folder, MARK) as file:
        if not _MARK_TEXT.startswith(file.read()):
            return
    flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    with os.fdopen(os.open(MARK, flags, 0o600, dir_fd=folder), "wb") as file:
        file.write(_MARK_TEXT)


def _make(path: Path) -> None:
    """Make the folder and its parents, with access for this user alone.

    Under sudo, HOME may be another user's, so folders of other users are refused unless `DDPBENCH_CACHE` is set.

    Raises:
        OSError: the folder cannot be made, is inside another user's folder, or is in a missing home directory.
    """
    home = Path(os.path.expanduser("~"))  # noqa: PTH111  stays `~` if no home is known
    if path.is_relative_to(home) and not home.is_dir():
        raise FileNotFoundError(f"the home directory {home} does not exist")
    missing = [path, *path.parents]
    missing = missing[: next(number for number, one in enumerate(missing) if one.exists())]
    if missing and missing[-1].parent.stat().st_uid != os.geteuid() and not os.environ.get(FOLDER):
        raise PermissionError(f"{missing[-1].parent} is another user's")
    for one in reversed(missing):
        one.mkdir(mode=0o700, exist_ok=True)


def _is_ours(found: os.stat_result, kind: int) -> bool:
    return stat.S_IFMT(found.st_mode) == kind and found.st_uid == os.geteuid() and not found.st_mode & 0o022


def fingerprint(found: os.stat_result) -> tuple[int, ...]:
    """Return values from a file's status; any change to the file changes at least one of them.

    Among them is `st_ctime_ns`, which users cannot set.
    """
    return found.st_mode, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def code_stamp() -> bytes:
    """Return a digest of this package's code, Python's version, and the packages that affect results.

    Empty if caching is off, if a part cannot be determined, or if the code changed after this process began.
    """
    if cache_folder() is None:
        return b""
    try:
        digest = hashlib.sha256(
            repr((sys.version, *map(version, ("numpy", "pandas", "scipy", "matplotlib", "pillow")))).encode()
        )
        began_ns = psutil.Process().create_time() * 1e9
        for path in sorted(_PACKAGE.rglob("*.py")):
            found = path.lstat()
            if max(found.st_mtime_ns, found.st_ctime_ns) > began_ns:
                return b""
            digest.update(repr((os.fsencode(path), fingerprint(found))).encode())
    except Exception:  # a package without its metadata, a file that an editor has just removed
        return b""
    return digest.digest()
