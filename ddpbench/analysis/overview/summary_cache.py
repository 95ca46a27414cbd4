"""Cache of large runs' summaries, in the user's own cache: records are analysed once.

A stamp of every source file of the summary, and of the code that made it, shows whether it is still valid: by
times and sizes, as `make` and `git status` do.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator

from ddpbench.analysis.summary import RunSummary
from ddpbench.cache import code_stamp, fingerprint, keep, kept
from ddpbench.records import RunDir
from ddpbench.records.plan import StoredPlan


class CachedSummary:
    """A run's place in the cache, for its present files: construct it before its launches are read."""

    def __init__(self, run: RunDir, plan: StoredPlan) -> None:
        """Compute the stamp. `plan` is the one already read: the file may have been replaced since."""
        self._name = hashlib.sha256(os.fsencode(run.path.resolve())).hexdigest()[:32] + ".run"
        self._code = code_stamp()
        self._stamp = _stamp(self._code, run, plan) if self._code else b""

    def summary(self) -> RunSummary | None:
        """Return the summary of exactly these files; None where nothing is kept."""
        found: RunSummary | None = kept(self._name, self._stamp)
        return found

    def keep(self, summary: RunSummary) -> None:
        """Store their summary, unless the code has changed meanwhile."""
        if self._code == code_stamp():
            keep(self._name, self._stamp, summary)


def _stamp(code: bytes, run: RunDir, plan: StoredPlan) -> bytes:
    """Return a digest of everything that a summary depends on, as far as names, sizes and times show.

    Empty where it cannot be computed: a sweep working there deletes files.
    """
    digest = hashlib.sha256(code)

    def add(name: str, stat: os.stat_result | None) -> None:
        digest.update(repr((os.fsencode(name), stat and fingerprint(stat))).encode())

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
    """Yield all files and folders in a folder, in a fixed order; links are not followed, as in reading.

    Raises:
        OSError: a file has disappeared meanwhile.
    """
    with os.scandir(folder) as entries:
        found = sorted(entries, key=lambda entry: entry.name)
    for entry in found:
        yield entry.path, entry.stat(follow_symlinks=False)
        if entry.is_dir(follow_symlinks=False):
            yield from _beneath(entry.path)
