"""Keep a large run's summary in the user's own cache: nobody waits twice for the same records.

A stamp of every file that it was made from, and of the code that made it, says whether it still holds: as `make` and
`git status` go by times and sizes.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator

from ddpbench.analysis.summary import RunSummary
from ddpbench.cache import code_stamp, fingerprint, keep, kept
from ddpbench.records import RunDir
from ddpbench.records.plan import StoredPlan


class Kept:
    """The place of a run in the cache, as its files are now: make it before its launches are read."""

    def __init__(self, run: RunDir, plan: StoredPlan) -> None:
        """`plan` is what was read of it: another one may lie there by now."""
        self._name = hashlib.sha256(os.fsencode(run.path.resolve())).hexdigest()[:32] + ".run"
        self._code = code_stamp()
        self._stamp = _stamp(self._code, run, plan) if self._code else b""

    def summary(self) -> RunSummary | None:
        """Return what was made of these very files; None where nothing is kept."""
        found: RunSummary | None = kept(self._name, self._stamp)
        return found

    def keep(self, summary: RunSummary) -> None:
        """Keeps what was made of them, unless the code has changed meanwhile."""
        if self._code == code_stamp():
            keep(self._name, self._stamp, summary)


def _stamp(code: bytes, run: RunDir, plan: StoredPlan) -> bytes:
    """Return a digest of all that a summary depends on, as far as names, sizes and times tell.

    Empty where that cannot be told: a sweep that works there takes files away.
    """
    digest = hashlib.sha256(code)

    def add(name: str, found: os.stat_result | None) -> None:
        digest.update(repr((os.fsencode(name), found and fingerprint(found))).encode())

    add(str(run.path), None)  # sentences name it
    digest.update(repr(plan).encode("utf-8", "surrogatepass"))
    try:
        for path in (
            run.plan,
            run.machine,
            run.sessions,
            run.merged,
            run.fabrics,
            run.experiment,
            run.packed,
        ):
            add(path.name, path.lstat() if path.exists() else None)
        for name, found in _beneath(run.cases):
            add(name, found)
    except OSError:
        return b""
    return digest.digest()


def _beneath(folder: os.PathLike[str] | str) -> Iterator[tuple[str, os.stat_result]]:
    """Yield all that lies in a folder, in an order of its own; links are not followed, as they are not when read.

    Raises:
        OSError: something has gone meanwhile.
    """
    with os.scandir(folder) as entries:
        found = sorted(entries, key=lambda entry: entry.name)
    for entry in found:
        yield entry.path, entry.stat(follow_symlinks=False)
        if entry.is_dir(follow_symlinks=False):
            yield from _beneath(entry.path)
