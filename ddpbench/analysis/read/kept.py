"""What was read of a large run, kept in the user's own cache: nobody waits twice for the same records.

A stamp of every file that it was read from, and of the code that read it, says whether it still holds: as `make` and
`git status` go by times and sizes. It is pickled, so it is not in the run directory, which may come from a stranger.
"""

from __future__ import annotations

import hashlib
import os
import pickle
import stat
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from ddpbench.analysis.read.launches import CaseRun
from ddpbench.errors import UnreadableError
from ddpbench.records import RunDir, write_atomically
from ddpbench.records.files import MIB, read_bytes

MOST_RUNS = 50
"""The runs read last are kept: a thousand cases take 8 MiB."""
_MOST_BYTES = 1024 * MIB
_PACKAGE = Path(__file__).resolve().parents[2]


def cache_folder() -> Path:
    """Return where what was read is kept: beneath `XDG_CACHE_HOME`, or `~/.cache`."""
    given = os.environ.get("XDG_CACHE_HOME", "")
    base = Path(given) if given.startswith("/") else Path("~/.cache").expanduser()
    return base / "ddpbench" / "read"


class Kept:
    """The place of a run in the cache, as its files are now: make it before they are read."""

    def __init__(self, run: RunDir) -> None:
        self._file = cache_folder() / f"{hashlib.sha256(os.fsencode(run.path.resolve())).hexdigest()[:32]}.pickle"
        self._stamp = _stamp(run)

    def cases(self) -> list[CaseRun] | None:
        """Return what was kept of these very files; None where that is nothing."""
        if not _is_ours(self._file.parent):
            return None
        try:
            data = read_bytes(self._file, _MOST_BYTES)
        except (OSError, UnreadableError):
            return None
        if data[: len(self._stamp)] != self._stamp:
            return None
        try:
            found: list[CaseRun] = pickle.loads(memoryview(data)[len(self._stamp) :])
        except Exception:  # a file cut short: whatever pickle makes of it, the records are still there
            return None
        os.utime(self._file)  # what is used stays
        return found

    def keep(self, cases: Sequence[CaseRun]) -> None:
        """Keeps them, where there is a place; not being able to costs the next reader time, and nothing else."""
        folder = self._file.parent
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not _is_ours(folder):
                return
            write_atomically(self._file, self._stamp + pickle.dumps(list(cases)), flushed=False, private=True)
            by_age = sorted(folder.glob("*.pickle"), key=lambda path: path.stat().st_mtime_ns)
            for path in by_age[:-MOST_RUNS]:
                path.unlink(missing_ok=True)
        except OSError:
            return


def _is_ours(folder: Path) -> bool:
    """Return whether it is a folder that nobody else can have written in."""
    try:
        found = folder.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o022


def _stamp(run: RunDir) -> bytes:
    """Return a digest of all that what is read depends on, as far as names, sizes and times tell."""
    digest = hashlib.sha256()

    def add(*parts: object) -> None:
        digest.update(repr(parts).encode("utf-8", "surrogateescape"))

    add(sys.version, np.__version__, str(_PACKAGE), str(run.path), str(run.path.resolve()))
    for path in sorted(_PACKAGE.rglob("*.py")):
        add(str(path), *_told(path.lstat()))
    for path in (run.plan, run.machine, run.sessions, run.merged, run.fabrics, run.experiment, run.packed):
        try:
            add(path.name, *_told(path.lstat()))
        except OSError:
            add(path.name)
    for name, found in _beneath(run.cases):
        add(name, *_told(found))
    return digest.hexdigest().encode() + b"\n"


def _told(found: os.stat_result) -> tuple[int, ...]:
    """Return what changes with a file: the time of its last change is the kernel's, which nobody sets."""
    return found.st_mode, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def _beneath(folder: Path | str) -> Iterator[tuple[str, os.stat_result]]:
    """Yield all that lies in a folder, in an order of its own; links are not followed, as they are not when read."""
    try:
        with os.scandir(folder) as entries:
            found = sorted(entries, key=lambda entry: entry.name)
    except OSError:
        return
    for entry in found:
        yield entry.path, entry.stat(follow_symlinks=False)
        if entry.is_dir(follow_symlinks=False):
            yield from _beneath(entry.path)
