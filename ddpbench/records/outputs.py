"""Write files that the user names, such as the output of `--html FILE` or a script that `init --write` changes.

A regular file is replaced completely, or stays unchanged. Pipes, terminals and devices are written to. Folders, sockets
and block devices are refused. `-` is standard output.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from ddpbench.errors import OutputError, UnreadableError
from ddpbench.planted import is_planted_in
from ddpbench.records.files import MOST_PLAN, kind_of, noun_of, parse_json, read_bytes, replacing
from ddpbench.records.held import errors_naming, held_folder
from ddpbench.records.rundir import explain_os_error, is_marked, is_of_run
from ddpbench.records.submission_dir import is_of_submission

STANDARD_OUTPUT = Path("-")
_STREAMS = {"/dev/stdout": 1, "/dev/stderr": 2}
_DESCRIPTOR = re.compile(
    r"(?:/dev/fd|/proc/(?:self|thread-self|(?P<process>\d+))(?:/task/\d+)?/fd)/(?P<number>\d+)"
)
_MOST_LINKS = 40
"""Most symbolic links to follow, the same as in the kernel."""
_MARKS = {"plan.json": "cases", "comparison.json": "order", "submission.json": "sizes"}
"""Files that mark a directory as ddpbench's. For each file, the value is a key that the file has in addition to
`schema_version`.
"""
_SIDES = frozenset({"base", "new"})
"""Names of the two run directories in a comparison's directory."""
_READ = frozenset(
    {*_MARKS, "experiment.toml", "machine.json", "fabric.json", "sessions.json", "merged.json", "job.key"}
    | {"records.tar.xz", "cases"}
)
"""Files and folders of a marked directory (`_MARKS`) that are read from it and cannot be regenerated."""
_KEPT_ATTRIBUTES = ("user.", "system.posix_acl_access")


def write_output(path: Path, content: str | bytes) -> None:
    """Write an output to the place that the user named: `-`, a pipe, a device or a regular file.

    Raises:
        OutputError: the output cannot be written; a regular file is then unchanged.
        OSError: standard output cannot be written.
        BrokenPipeError: the pipe has no reader.
    """
    data = content.encode() if isinstance(content, str) else content
    if path == STANDARD_OUTPUT:
        try:
            sys.stdout.flush()
            sys.stdout.buffer.write(data)
            sys.stdout.buffer.flush()
        except BrokenPipeError:
            raise
        except OSError as error:  # its message names no file
            error.filename = "standard output"
            raise
        return
    try:
        with _checked(path) as target:
            if isinstance(target, int):
                sys.stdout.flush()
                sys.stderr.flush()
                descriptor = os.dup(target)
            elif target.is_replaced:
                _replace(target, data)
                return
            else:
                descriptor = _opened_stream(target)
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise OutputError(f"{path} cannot be written: {explain_os_error(error)}") from None


def check_output(path: Path) -> None:
    """Check that an output can be written, before work is done for it. This function opens and creates nothing.

    Raises:
        OutputError: the path is a folder, a socket or a block device, or its folder is missing or cannot be written.
    """
    if path == STANDARD_OUTPUT:
        return
    try:
        with _checked(path):
            pass
    except OSError as error:
        raise OutputError(f"{path} cannot be written: {explain_os_error(error)}") from None


def is_stream(path: Path) -> bool:
    """Return whether an output goes to `-`, a pipe, a terminal or a device. Any file name is allowed for these."""
    if path == STANDARD_OUTPUT:
        return True
    try:
        with _target(path) as target:
            return isinstance(target, int) or _is_stream(target.mode)
    except OSError:
        return False


def replace_user_file(path: Path, content: bytes) -> None:
    """Replace the contents of a user's regular file, and keep its mode and owner. A link to the file stays a link.

    Raises:
        OutputError: the path is not a regular file, or cannot be written; it is then unchanged.
    """
    try:
        with _checked(path) as target:
            if isinstance(target, int) or not stat.S_ISREG(target.mode or 0):
                raise OutputError(f"{path} is not a regular file: give the path of a regular file")
            _replace(target, content)
    except OSError as error:
        raise OutputError(f"{path} cannot be written: {explain_os_error(error)}; it is unchanged") from None


@dataclass(frozen=True, slots=True)
class _Target:
    """A name in an open folder, so that output reaches this folder even after a rename."""

    folder: int
    itself: Path
    """A path that leads to the folder even if it is renamed."""
    path: Path
    """The path with all links resolved, for messages."""
    found: os.stat_result | None
    """Status of the file with this name, which is not a link; None if the name is free."""

    @property
    def mode(self) -> int | None:
        return None if self.found is None else self.found.st_mode

    @property
    def is_replaced(self) -> bool:
        """Return whether the output becomes a new file: the name is free or a regular file's."""
        return self.found is None or stat.S_ISREG(self.found.st_mode)


def _is_stream(mode: int | None) -> bool:
    return mode is not None and (stat.S_ISFIFO(mode) or stat.S_ISCHR(mode))


@contextlib.contextmanager
def _checked(path: Path) -> Iterator[_Target | int]:
    """Yield an output's destination: an inherited descriptor, or a file name and its open folder.

    Raises:
        OutputError: the file with this name cannot be an output, or the folder is missing or cannot be written.
        OSError: the destination cannot be reached or written.
    """
    with contextlib.ExitStack() as stack:
        try:
            target = stack.enter_context(_target(path))
        except (FileNotFoundError, NotADirectoryError) as error:
            raise OutputError(f"{path} cannot be written: there is no directory {error.filename}") from None
        if isinstance(target, int):
            yield target
            return
        if not target.is_replaced and not _is_stream(mode := target.mode or 0):
            what = "a block device" if stat.S_ISBLK(mode) else kind_of(mode)
            raise OutputError(f"{path} is {what}: name a file, a pipe or - for standard output")
        if target.is_replaced and (run := _run_read_from(target.path)) is not None:
            what = "is" if target.found is not None else "would be"
            raise OutputError(f"{path} {what} a file of the run {run}: name another file")
        if target.found is not None:
            _check_planted(target, target.found)
            if not os.access(target.itself / target.path.name, os.W_OK):
                raise PermissionError(13, "Permission denied", str(target.path))
        if target.is_replaced and not os.access(target.itself, os.W_OK | os.X_OK):
            raise OutputError(
                f"{path} cannot be written: you have no permission to write in {target.path.parent}, where a "
                "temporary file is written first and then renamed"
            )
        with errors_naming(target.itself, target.path.parent):
            yield target


def _opened_stream(target: _Target) -> int:
    """Open a pipe or a device for writing.

    Raises:
        OutputError: the target is no longer a pipe or a device.
        OSError: it cannot be opened.
    """
    flags = os.O_WRONLY | os.O_NOCTTY | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(target.path.name, flags, dir_fd=target.folder)
    if not _is_stream(mode := os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise _has_become(target, mode)
    return descriptor


def _has_become(target: _Target, mode: int) -> OutputError:
    return OutputError(f"{target.path} has just become {kind_of(mode)}: give another name")


def _run_read_from(file: Path) -> Path | None:
    for folder in file.parents:
        if file.relative_to(folder).parts[0] in _READ and any(
            _has(folder / mark, _MARKS[mark]) for mark in _MARKS
        ):
            return folder
    return None


def without_own(files: Iterable[Path]) -> list[Path]:
    """Return the files except those that ddpbench has written into directories of runs, comparisons or submissions."""

    @cache
    def is_own(folder: Path) -> bool:
        return is_marked(folder) or any(_has(folder / mark, key) for mark, key in _MARKS.items())

    def written(file: Path) -> bool:
        named = (folder for folder in file.parents if _is_own_name(file.relative_to(folder).parts[0]))
        return any(map(is_own, named))

    return [file for file in files if not written(file)]


def _is_own_name(name: str) -> bool:
    return name in _MARKS or name in _SIDES or is_of_run(name) or is_of_submission(name)


def _has(mark: Path, key: str) -> bool:
    """Return whether a file has both `key` and `schema_version`, as no other program's does."""
    try:
        data = parse_json(read_bytes(mark, MOST_PLAN))
    except (OSError, ValueError, UnreadableError):
        return False
    return isinstance(data, dict) and key in data and "schema_version" in data


@contextlib.contextmanager
def _target(path: Path) -> Iterator[_Target | int]:
    """Yield the descriptor behind a path such as /dev/fd/63, or the file to which links lead.

    Raises:
        OutputError: the shell has not opened such a descriptor, or another user created a link in a shared folder.
        OSError: the links form a loop, or a folder is missing or cannot be reached.
    """
    here = (
        path.absolute()
    )  # does not resolve `..`, which may come after a link; resolve() would follow /proc/self/fd/1
    for _ in range(_MOST_LINKS):
        if (number := _descriptor(here)) is not None:
            yield number
            return
        with held_folder(here.parent) as folder:
            here = folder.path / (here.name or ".")
            if (number := _descriptor(here)) is not None:
                yield number
                return
            if (link := folder.target(here.name)) is None:
                yield _Target(
                    folder.descriptor, folder.itself, here, _found(here.name or ".", folder.descriptor)
                )
                return
            here = here.parent / link
    raise OSError(40, "Too many levels of symbolic links", str(path))


def _found(name: str, folder: int) -> os.stat_result | None:
    try:
        return os.lstat(name, dir_fd=folder)
    except FileNotFoundError:
        return None


def _descriptor(path: Path) -> int | None:
    text = str(path)
    match = _DESCRIPTOR.fullmatch(text)
    if text not in _STREAMS and (match is None or match["process"] not in (None, str(os.getpid()))):
        return None
    number = _STREAMS[text] if match is None else int(match["number"])
    try:
        inherited = number < 3 or os.get_inheritable(number)  # others were opened by this process
    except (OSError, OverflowError):
        inherited = False
    if not inherited:
        raise OutputError(
            f"{path} cannot be written: the shell has opened no descriptor {number} for this command; name a file"
        )
    return number


def _check_planted(target: _Target, found: os.stat_result) -> None:
    """Refuse another user's file or pipe in a folder like /tmp, whose owner could change what is written.

    Raises:
        OutputError: the target is such a file or pipe.
    """
    if not stat.S_ISCHR(found.st_mode) and is_planted_in(target.folder, found.st_uid):
        raise OutputError(
            f"{target.path} is another user's {noun_of(found.st_mode)} in a folder that everybody "
            "can write: give another name"
        )


def _replace(target: _Target, data: bytes) -> None:
    """Write a new file next to the target, flush it to the disk and rename it over the target.

    Raises:
        OutputError: the target has become something other than a regular file.
        OSError: the new file cannot be written; the target is then unchanged.
    """
    name = target.path.name
    with replacing(target.itself / name, 0o666 if target.found is None else 0o600) as file:
        if target.found is not None:
            _keep_attributes(file.fileno(), target.itself / name, target.found)
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
        now = _found(name, target.folder)
        if now is not None and not stat.S_ISREG(now.st_mode):
            raise _has_become(target, now.st_mode)


def _keep_attributes(descriptor: int, target: Path, before: os.stat_result) -> None:
    """Give a new file the attributes of the one that it replaces, as far as possible."""
    mode = before.st_mode & 0o777
    now = os.fstat(descriptor)
    if (before.st_uid, before.st_gid) != (now.st_uid, now.st_gid):
        try:
            os.fchown(descriptor, before.st_uid, before.st_gid)
        except PermissionError:
            try:
                os.fchown(descriptor, -1, before.st_gid)
            except PermissionError:
                mode &= ~0o070  # the group's permissions were for a different group
    os.fchmod(descriptor, mode)
    with contextlib.suppress(OSError):  # a file system without extended attributes
        for name in os.listxattr(target, follow_symlinks=False):
            if name.startswith(_KEPT_ATTRIBUTES):
                os.setxattr(descriptor, name, os.getxattr(target, name, follow_symlinks=False))
