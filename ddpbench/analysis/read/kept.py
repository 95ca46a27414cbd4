"""What was read of a large run, kept in the user's own cache: nobody waits twice for the same records.

A stamp of every file that it was read from, and of the code that read it, says whether it still holds: as `make` and
`git status` go by times and sizes.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence

from ddpbench.analysis.read.launches import CaseRun
from ddpbench.cache import cache_folder, code_stamp, keep, kept, told
from ddpbench.records import RunDir


class Kept:
    """The place of a run in the cache, as its files are now: make it before they are read."""

    def __init__(self, run: RunDir) -> None:
        self._name = hashlib.sha256(os.fsencode(run.path.resolve())).hexdigest()[:32]
        self._stamp = _stamp(run) if cache_folder() is not None else b""

    def cases(self) -> list[CaseRun] | None:
        """Return what was kept of these very files; None where that is nothing."""
        found: list[CaseRun] | None = kept("run", self._name, self._stamp)
        return found

    def keep(self, cases: Sequence[CaseRun]) -> None:
        """Keeps what was read of them."""
        keep("run", self._name, self._stamp, list(cases))


def _stamp(run: RunDir) -> bytes:
    """Return a digest of all that what is read depends on, as far as names, sizes and times tell."""
    digest = hashlib.sha256(code_stamp())

    def add(name: str, found: os.stat_result | None) -> None:
        digest.update(repr((os.fsencode(name), found and told(found))).encode())

    add(str(run.path), None)  # sentences name it
    for path in (run.plan, run.machine, run.sessions, run.merged, run.fabrics, run.experiment, run.packed):
        try:
            add(path.name, path.lstat())
        except OSError:
            add(path.name, None)
    for name, found in _beneath(run.cases):
        add(name, found)
    return digest.digest()


def _beneath(folder: os.PathLike[str] | str) -> Iterator[tuple[str, os.stat_result]]:
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
