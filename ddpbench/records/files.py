"""A run directory's files, opened with care: none leads out of it, blocks its reader, or is without end.

A run directory may come from a stranger. What is read in one is a regular file of a sane size, and what is written is
a regular file of it; links are refused or replaced, wherever they lead. Whatever writes in one does so from here.
Nothing here defends against someone who changes it meanwhile: `RunDir.held` does, for a directory of this user's.
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
from ddpbench.texts import on_one_line

MIB = 1 << 20
MOST_PLAN = 64 * MIB
"""Bytes of plan.json: a sweep's 100,000 launches take 7 MiB, ten thousand cases 12."""
MOST_NOTES = 16 * MIB
"""Of machine.json, sessions.json, fabric.json, merged.json and experiment.toml: thousands of entries."""
MOST_OUTCOME = MIB
"""Of outcome.json and launch.json: 4,096 exit codes, a sentence, a line of a log."""
MOST_RECORDS = 256 * MIB
"""Of a rank's records: some 20 million steps. A launch of seconds has some KiB."""
MOST_LOG = 64 * MIB
"""Of a rank's log, where it is copied."""

MOST_VALUES = 1 << 21
"""Values of a JSON document: three bytes of a file may take 64 in memory, and a sweep's largest plan has 700,000."""

_PART = 1 << 16
_DEEPEST = 64
"""How deep its JSON may be nested; what is written has a handful of levels."""
_TOO_DEEP = f"nested more than {_DEEPEST} levels deep"


def damaged(path: Path, what: str) -> IdentityError:
    """The error of a file of a run directory that holds what nobody wrote."""
    return IdentityError(f"{on_one_line(f'{path} is damaged: {what}')}; restore it from a copy")


def kind_of(mode: int) -> str:
    """What a path is that is no regular file, in words."""
    return f"a {noun_of(mode)}"


def noun_of(mode: int) -> str:
    """Return the same in one word: link, folder, pipe, socket, file or device."""
    kinds = (
        (stat.S_ISLNK, "link"),
        (stat.S_ISDIR, "folder"),
        (stat.S_ISFIFO, "pipe"),
        (stat.S_ISSOCK, "socket"),
        (stat.S_ISREG, "file"),
    )
    return next((word for is_it, word in kinds if is_it(mode)), "device")


def open_file(path: Path, most: int | None) -> int:
    """Return a descriptor of a regular file of `most` bytes or fewer, if it is a number; never waits.

    Raises:
        FileNotFoundError: there is none.
        UnreadableError: it is a link, a folder, a pipe, a socket, a device or too large.
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
            raise UnreadableError(f"{path} has {found.st_size:,} bytes; such a file has {most:,} at most")
        raise UnreadableError(_refusal(path, kind_of(found.st_mode)))
    return descriptor


def check_default(folder: Path, advice: str) -> Path:
    """Return a folder of the working directory that no user has named, unless another one has planted it.

    Its owner can put something else in the place of what is written there, and so run code as this user.

    Raises:
        OutputError: it is planted; what to do.
    """
    try:
        planted = is_planted(folder)
    except OSError:  # it is not there; or cannot be reached, as writing will say
        planted = False
    if planted:
        raise OutputError(f"{folder} is another user's, in a folder that everybody can write: {advice}")
    return folder


def create_file(path: Path, mode: int = 0o666) -> BinaryIO:
    """Return a new file, open for writing. `mode` is what the umask leaves of it.

    Raises:
        FileExistsError: there is one, or a link, wherever it leads.
        OSError: it cannot be made.
    """
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode), "wb")


_ROOM_BYTES = 1 << 16
"""More than a writer holds back before it writes."""


def check_room(folder: Path) -> None:
    """Sees that a folder's disk has room: who cannot write does not always live to say so.

    Raises:
        OSError: it has none.
    """
    path = _unfinished(folder)
    try:
        with create_file(path) as file:
            file.write(bytes(_ROOM_BYTES))
    finally:
        path.unlink(missing_ok=True)


def open_to_append(path: Path) -> BinaryIO:
    """Return a regular file, made if it is missing, open for writing at its end; never waits.

    Raises:
        OutputError: it is a link, a pipe, a socket or a device.
        OSError: it cannot be opened.
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


def _not_written(path: Path, found: str) -> str:
    return f"{path} is {found}; in a run directory a regular file is written there: remove it"


def _check_replaceable(path: Path) -> None:
    """Refuse to replace what is neither a file nor a link.

    Raises:
        OutputError: it is a pipe, a socket, a device or a folder.
        OSError: its folder cannot be reached.
    """
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISREG(mode) and not stat.S_ISLNK(mode):
        raise OutputError(_not_written(path, kind_of(mode)))


def write_anew(path: Path, content: str | bytes) -> None:
    """Writes a file in place of whatever file or link has its name; what a link leads to stays as it is.

    Raises:
        OutputError: a pipe, a socket, a device or a folder has its name.
        OSError: it cannot be written.
    """
    _check_replaceable(path)
    path.unlink(missing_ok=True)
    with create_file(path) as file:
        file.write(content.encode() if isinstance(content, str) else content)


_UNFINISHED = re.compile(r"\.ddpbench-[0-9a-f]{16}\.new", re.ASCII)
_LEFT_S = 86_400
"""Seconds after which nobody writes an unfinished file any more."""


def _unfinished(folder: Path, key: str = "") -> Path:
    """Return a name for a file that is being written: another one each time, or that of a key."""
    return folder / f".ddpbench-{key or secrets.token_hex(8)}.new"


def is_unfinished(name: str) -> bool:
    """Return whether a file has the name of one that is being written."""
    return _UNFINISHED.fullmatch(name) is not None


@contextlib.contextmanager
def replacing(path: Path, mode: int = 0o666) -> Iterator[BinaryIO]:
    """Gives a new file, which takes the name of another as a whole when the body ends; of one that fails nothing stays.

    Each of several writers of one file has its own file: the last to end has the name. Whoever has written one removes
    what killed writers left in the folder a day ago or longer. A process id in the name would say no more: on a shared
    disk it may be another host's.

    Raises:
        OSError: it cannot be written; the other one is as it was.
    """
    new = _unfinished(path.parent)
    try:
        with create_file(new, mode) as file:
            now = os.fstat(file.fileno()).st_mtime  # by the disk's clock, as that of the others
            yield file
        new.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            new.unlink()
        raise
    _remove_left(path.parent, now)


def _remove_left(folder: Path, now: float) -> None:
    """Removes this user's unfinished files of writers that were killed."""
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
    """Writes beside, flushes to the disk, then renames, so that a reader never sees half a file.

    Unless `flushed`, a power cut may leave an empty file: for what can be made again. Nobody else may read what is
    `private`.

    Raises:
        OutputError: a pipe, a socket, a device or a folder has its name.
        OSError: it cannot be written.
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
    """Writes a file as a whole under a number that only one file of its folder may have; returns whether it is there.

    It is not where another writer is at this number, where the number `is_taken`, or where a file has the name: try
    the next number.

    Raises:
        OSError: it cannot be written.
    """
    claim = _unfinished(path.parent, f"{number:016d}")
    try:
        file = create_file(claim)
    except FileExistsError:
        return False
    try:
        with file:
            _fill(file, content)
        if is_taken():  # looked for under the claim: nobody else gives this number meanwhile
            return False
        try:
            os.link(claim, path)  # which replaces nothing
        except FileExistsError:
            return False
        except OSError:  # a file system without hard links
            claim.replace(path)
        return True
    finally:
        claim.unlink(missing_ok=True)


def field_lines(data: Mapping[str, Any]) -> str:
    """Return a JSON object as a launch's files have it: a field a line.

    With an indent, `json.dumps` makes functions anew that hold each other: a long sweep would grow between collections.
    """
    return json.dumps(data, separators=(",\n ", ": ")) + "\n"


def _refusal(path: Path, found: str) -> str:
    return f"{path} is {found}; in a run directory a regular file is expected there"


def read_bytes(path: Path, most: int) -> bytes:
    """Return a file's contents; raises as `open_file`."""
    descriptor = open_file(path, most)
    try:
        parts = []
        while part := os.read(descriptor, _PART):
            parts.append(part)
        return b"".join(parts)
    finally:
        os.close(descriptor)


def read_text(path: Path, most: int) -> str:
    """Return a file's contents as text.

    Raises:
        FileNotFoundError: there is none.
        UnreadableError: it is no such file, or no UTF-8.
        OSError: it cannot be read.
    """
    try:
        return read_bytes(path, most).decode("utf-8")
    except UnicodeDecodeError as error:
        raise UnreadableError(
            f"{path} is not a text in UTF-8: {error.reason} at byte {error.start}"
        ) from None


def copy_file(source: Path, target: Path, most: int) -> None:
    """Copies a file's contents to a new file; raises as `open_file`."""
    with os.fdopen(open_file(source, most), "rb", buffering=0) as file, create_file(target) as copy:
        while part := file.read(MIB):
            copy.write(part)


def most_of(name: str) -> int:
    """Return how many bytes a file of a launch's folder may have."""
    return {".jsonl": MOST_RECORDS, ".log": MOST_LOG}.get(Path(name).suffix, MOST_OUTCOME)


def read_end(path: Path, most: int) -> bytes:
    """Return the last bytes of a file of any size, at most so many; raises as `open_file`."""
    with os.fdopen(open_file(path, None), "rb", buffering=0) as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - most))
        return file.read(most) or b""


def parse_json(data: bytes | str, *, finite: bool = True, most: int = MOST_VALUES) -> Any:
    """Return a JSON value with numbers of 64 bits, none infinite, and texts that can be shown: Unicode, no NULs.

    It has at most `most` values; commas and brackets within texts count too.

    Unless `finite`, infinite numbers and NaN are read too: for files that other programs write. `check_finite` finds
    them in a part of such a file.

    Raises:
        ValueError: it is none; the message says where and why.
    """
    text = data.decode("utf-8") if isinstance(data, bytes) else data
    if (count := sum(map(text.count, ",[{"))) > most:
        raise ValueError(f"it has {count:,} values, and {most:,} are the most")
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
    """Refuse a JSON value that holds an infinite number or NaN.

    Raises:
        ValueError: it does.
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
