"""Read and write files of a run directory safely: no link leads out of it, and every read is bounded.

A run directory may come from a stranger. Only regular files of a limited size are read or written in it; links are
refused or replaced. A read never waits, for example for data from a pipe. `RunDir.held` protects against someone who
changes the directory at the same time.
"""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
import re
import secrets
import stat
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from ddpbench.errors import IdentityError, OutputError, UnreadableError
from ddpbench.planted import is_planted
from ddpbench.text_safety import on_one_line

MIB = 1 << 20
MOST_PLAN = 64 * MIB
"""Largest size of plan.json, bytes. A sweep's 100,000 launches take 7 MiB, and ten thousand cases take 12 MiB."""
MOST_NOTES = 16 * MIB
"""Most bytes of machine.json, sessions.json, fabric.json, merged.json and experiment.toml: thousands of
entries.
"""
MOST_OUTCOME = MIB
"""Largest size of outcome.json and launch.json, bytes, for 4,096 exit codes, a sentence and a line of a log."""
MOST_RECORDS = 256 * MIB
"""Largest size of a rank's records, bytes, for some 20 million steps. A launch of seconds has some KiB."""
MOST_LOG = 64 * MIB
"""Largest size of a rank's log that is copied, bytes."""

MOST_VALUES = 1 << 21
"""Largest number of values of a JSON document. The largest plan of a sweep has 700,000.

Three bytes of a file may take 64 bytes in memory.
"""

_PART = 1 << 16
_DEEPEST = 64
"""Largest number of levels of nested JSON. Documents that ddpbench writes have a handful."""
_TOO_DEEP = f"nested more than {_DEEPEST} levels deep"


def damaged(path: Path, what: str) -> IdentityError:
    """Return the error to raise for a file whose contents ddpbench cannot have written."""
    return IdentityError(f"{on_one_line(f'{path} is damaged: {what}')}; restore it from a copy")


def kind_of(mode: int) -> str:
    """Describe the kind of a file in words, from its mode, for example `a link` or `a folder`."""
    return f"a {noun_of(mode)}"


def noun_of(mode: int) -> str:
    """Name the kind of a file in one word, from its mode: link, folder, pipe, socket, file or device."""
    kinds = (
        (stat.S_ISLNK, "link"),
        (stat.S_ISDIR, "folder"),
        (stat.S_ISFIFO, "pipe"),
        (stat.S_ISSOCK, "socket"),
        (stat.S_ISREG, "file"),
    )
    return next((word for is_it, word in kinds if is_it(mode)), "device")


def open_file(path: Path, most: int | None) -> int:
    """Open a regular file for reading without ever blocking, and return the descriptor.

    Raises:
        FileNotFoundError: the file does not exist.
        UnreadableError: it is not a regular file, or has more than `most` bytes.
        OSError: it cannot be opened.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.ENXIO):
            raise
        raise UnreadableError(_refusal(path, kind_of(path.lstat().st_mode))) from None
    except ValueError as error:  # a NUL in its name
        raise UnreadableError(f"{str(path)!r}: {error}") from None
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode) or (most is not None and found.st_size > most):
        os.close(descriptor)
        if stat.S_ISREG(found.st_mode):
            raise _too_large(path, found.st_size, most)
        raise UnreadableError(_refusal(path, kind_of(found.st_mode)))
    return descriptor


def check_default(folder: Path, advice: str) -> Path:
    """Check that this default folder was not created by another user, who could then run code as this user.

    Raises:
        OutputError: another user has created the folder; the message ends with `advice`.
    """
    try:
        planted = is_planted(folder)
    except OSError:  # the folder does not exist, or cannot be reached, which a later write will report
        planted = False
    if planted:
        raise OutputError(f"{folder} is another user's, in a folder that everybody can write to: {advice}")
    return folder


def create_file(path: Path, mode: int = 0o666) -> BinaryIO:
    """Create a file and return it, open for writing. The umask is applied to `mode`.

    Raises:
        FileExistsError: the name is already used.
        OSError: the file cannot be created.
    """
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode), "wb")


_ROOM_BYTES = 1 << 16
"""Number of bytes that `check_room` writes, which is more than a writer buffers."""


def check_room(folder: Path) -> None:
    """Check that a folder's disk has room; a process that cannot write may die without a report.

    Raises:
        OSError: the disk is full, or no file can be created in the folder.
    """
    path = _unfinished(folder)
    try:
        with create_file(path) as file:
            file.write(bytes(_ROOM_BYTES))
    finally:
        path.unlink(missing_ok=True)


def open_to_append(path: Path) -> BinaryIO:
    """Open a regular file for appending without ever blocking. A missing file is created.

    Raises:
        OutputError: the path is a link, a pipe, a socket or a device.
        OSError: the file cannot be opened.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        descriptor = os.open(path, flags, 0o666)
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.ENXIO):
            raise
        raise OutputError(_not_written(path, kind_of(path.lstat().st_mode))) from None
    if not stat.S_ISREG(found := os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OutputError(_not_written(path, kind_of(found)))
    return os.fdopen(descriptor, "ab")


def _not_written(path: Path, kind: str) -> str:
    return f"{path} is {kind}; in a run directory a regular file is written there: remove it"


def _check_replaceable(path: Path) -> None:
    """Check that a file can be written here: nothing, a regular file, or a link.

    Raises:
        OutputError: the path is a pipe, a socket, a device or a folder.
        OSError: its folder cannot be reached.
    """
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISREG(mode) and not stat.S_ISLNK(mode):
        raise OutputError(_not_written(path, kind_of(mode)))


def write_anew(path: Path, content: str | bytes) -> None:
    """Write a file at a path, in place of any file or link. A link's target stays unchanged.

    Raises:
        OutputError: the path is a pipe, a socket, a device or a folder.
        OSError: the file cannot be written.
    """
    _check_replaceable(path)
    path.unlink(missing_ok=True)
    with create_file(path) as file:
        file.write(content.encode() if isinstance(content, str) else content)


_UNFINISHED = re.compile(r"\.ddpbench-[0-9a-f]{16}\.new", re.ASCII)
_LEFT_S = 86_400
"""Age, in seconds, from which an unfinished file is assumed to have no writer any more."""


def _unfinished(folder: Path, key: str = "") -> Path:
    return folder / f".ddpbench-{key or secrets.token_hex(8)}.new"


def is_unfinished(name: str) -> bool:
    """Return whether a file's name is one of this module's for unfinished files."""
    return _UNFINISHED.fullmatch(name) is not None


@contextlib.contextmanager
def replacing(path: Path, mode: int = 0o666) -> Iterator[BinaryIO]:
    """Yield a new file, which is renamed to `path` when the body ends, or removed if the body fails.

    Each writer has a file, and the last one to end wins. Files left by writers at least a day ago are removed; on a
    shared disk, a writer's process may be on another host, so the age decides.

    Raises:
        OSError: the file cannot be written; the file at `path` is then unchanged.
    """
    new = _unfinished(path.parent)
    try:
        with create_file(new, mode) as file:
            now = os.fstat(file.fileno()).st_mtime  # by the disk's clock, like the times of other files
            yield file
        new.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            new.unlink()
        raise
    _remove_left(path.parent, now)


def _remove_left(folder: Path, now: float) -> None:
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if not _UNFINISHED.fullmatch(entry.name):
                continue
            with contextlib.suppress(OSError):
                found = entry.stat(follow_symlinks=False)
                old = now - found.st_mtime > _LEFT_S and found.st_uid == os.geteuid()
                if old and stat.S_ISREG(found.st_mode):
                    os.unlink(entry.path)  # noqa: PTH108


def write_atomically(
    path: Path, content: str | bytes, *, flushed: bool = True, private: bool = False
) -> None:
    """Write a new file, flush it to the disk and rename it to `path`, so that a reader never sees half a file.

    Pass `flushed=False` only for files that can be regenerated: a power cut may empty them. Only the owner can read a
    `private` file.

    Raises:
        OutputError: the path is a pipe, a socket, a device or a folder.
        OSError: the file cannot be written.
    """
    _check_replaceable(path)
    with replacing(path, 0o600 if private else 0o666) as file:
        _fill(file, content, flushed=flushed)


def _fill(file: BinaryIO, content: str | bytes, *, flushed: bool = True) -> None:
    file.write(content.encode() if isinstance(content, str) else content)
    if flushed:
        file.flush()
        os.fsync(file.fileno())


def write_numbered(path: Path, number: int, content: bytes, is_taken: Callable[[], bool]) -> bool:
    """Write a file unless its number is taken; return whether it was written.

    A number is taken if another writer uses it, if `is_taken` returns True, or if `path` exists.

    Raises:
        OSError: the file cannot be written.
    """
    claim = _unfinished(path.parent, f"{number:016d}")
    try:
        file = create_file(claim)
    except FileExistsError:
        return False
    try:
        with file:
            _fill(file, content)
        if is_taken():  # checked while this writer's claim keeps others from using the number
            return False
        try:
            os.link(claim, path)  # link() does not replace a file
        except FileExistsError:
            return False
        except OSError:  # a file system without hard links
            claim.replace(path)
        return True
    finally:
        claim.unlink(missing_ok=True)


def field_lines(data: Mapping[str, Any]) -> str:
    """Return a JSON object as text with one field per line, as in a launch's files.

    `json.dumps` with `indent` creates reference cycles, and a long sweep's memory would grow.
    """
    return json.dumps(data, separators=(",\n ", ": ")) + "\n"


def _refusal(path: Path, kind: str) -> str:
    return f"{path} is {kind}; a run directory must have a regular file there"


def _too_large(path: Path, size: int, most: int | None) -> UnreadableError:
    return UnreadableError(f"{path} has {size:,} bytes; such a file has {most:,} at most")


def _parts(path: Path, most: int, part_bytes: int) -> Iterator[bytes]:
    """Yield a file's contents in parts.

    Raises the same errors as `open_file`, also if the file grows beyond `most` bytes meanwhile.
    """
    descriptor = open_file(path, most)
    try:
        count = 0
        while part := os.read(descriptor, part_bytes):
            count += len(part)
            if count > most:
                raise _too_large(path, max(count, os.fstat(descriptor).st_size), most)
            yield part
    finally:
        os.close(descriptor)


def read_bytes(path: Path, most: int) -> bytes:
    """Return a file's contents.

    Raises the same errors as `open_file`, also if the file grows beyond `most` bytes meanwhile.
    """
    return b"".join(_parts(path, most, _PART))


def read_text(path: Path, most: int) -> str:
    """Return a file's contents as text.

    Raises:
        FileNotFoundError: the file does not exist.
        UnreadableError: it is not a regular file, has more than `most` bytes, or is not UTF-8.
        OSError: it cannot be read.
    """
    try:
        return read_bytes(path, most).decode("utf-8")
    except UnicodeDecodeError as error:
        raise UnreadableError(
            f"{path} is not a text in UTF-8: {error.reason} at byte {error.start}"
        ) from None


def copy_file(source: Path, target: Path, most: int) -> None:
    """Copy a file's contents to a new file. Raise the same errors as `read_bytes` and `create_file`.

    Nothing is created if the source cannot be opened. The new file is removed if the contents cannot be copied.
    """
    parts = _parts(source, most, MIB)
    first = next(parts, b"")
    with create_file(target) as copy:
        try:
            copy.write(first)
            copy.writelines(parts)
        except BaseException:
            target.unlink()
            raise


def first_line(path: Path, most: int) -> tuple[bytes, int]:
    """Return the first line of a file, without its end, and the file's size in bytes.

    A line longer than `MIB` bytes is cut. The file must have at most `most` bytes. Raises the same errors as
    `open_file`.
    """
    with os.fdopen(open_file(path, most), "rb") as file:
        size = os.fstat(file.fileno()).st_size
        return file.readline(MIB).removesuffix(b"\n"), size


def most_of(name: str) -> int:
    """Return the largest size (bytes) that a file of this name may have in a launch's folder."""
    return {".jsonl": MOST_RECORDS, ".log": MOST_LOG}.get(Path(name).suffix, MOST_OUTCOME)


def read_end(path: Path, most: int) -> bytes:
    """Return the last `most` bytes of a file of any size, or all if it has fewer.

    Raises the same errors as `open_file`.
    """
    with os.fdopen(open_file(path, None), "rb", buffering=0) as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - most))
        return file.read(most) or b""


def parse_json(data: bytes | str, *, finite: bool = True, most: int = MOST_VALUES) -> Any:
    """Parse a JSON value, and check that it is safe to use.

    Integers must fit in 64 bits, strings must be valid Unicode without NULs, nesting is limited, and so is the number
    of values (`most`, by commas and brackets). Numbers must be finite unless `finite=False`, for files of other
    programs, whose parts `check_finite` can check.

    Raises:
        ValueError: the data are not such a value; the message has the reason.
    """
    text = data.decode("utf-8") if isinstance(data, bytes) else data
    if (count := sum(map(text.count, ",[{"))) > most:
        raise ValueError(f"it has {count:,} values; must be {most:,} at most")
    try:
        number = _finite if finite else float
        value = json.loads(text, parse_int=_whole, parse_float=number, parse_constant=number)
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None
    _check_depth(value)
    if "\\u" in text:
        _check_texts(value)
    return value


def _whole(digits: str) -> int:
    if len(digits) > 19 or abs(value := int(digits)) >= 2**63:
        raise ValueError(f"a whole number of {len(digits.lstrip('-')):,} digits")
    return value


def _finite(number: str) -> float:
    if not math.isfinite(value := float(number)):
        raise ValueError(f"{number} is not a finite number")
    return value


def _check_depth(value: Any) -> None:
    level = [value] if isinstance(value, dict | list) else []
    for _ in range(_DEEPEST):
        level = [
            inner
            for outer in level
            for inner in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(inner, dict | list)
        ]
        if not level:
            return
    raise ValueError(_TOO_DEEP)


def _check_texts(value: Any) -> None:
    for one in _values_in(value):
        if isinstance(one, str) and ("\0" in one or any("\ud800" <= char <= "\udfff" for char in one)):
            raise ValueError(f"a text that cannot be shown: {one[:40]!r}")


def check_finite(value: Any) -> None:
    """Check that all numbers in a JSON value are finite.

    Raises:
        ValueError: a number is infinite or NaN.
    """
    for one in _values_in(value):
        if isinstance(one, float) and not math.isfinite(one):
            raise ValueError(f"{one} is not a finite number")


def _values_in(value: Any) -> Iterator[Any]:
    left = [value]
    while left:
        one = left.pop()
        if isinstance(one, dict):
            left += [*one.keys(), *one.values()]
        elif isinstance(one, list):
            left += one
        else:
            yield one
