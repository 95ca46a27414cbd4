"""Cache of large runs' summaries in the user's cache directory, so that records are analysed only once.

A summary is valid while times and sizes of all its files, and the code, are unchanged.
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
    """The cache entry for a run with its present files. Construct it before the run's launches are read."""

    def __init__(self, run: RunDir, plan: StoredPlan) -> None:
        """Compute the stamp from `plan`, because the plan's file may have been replaced since the caller read it."""
        self._name = hashlib.sha256(os.fsencode(run.path.resolve())).hexdigest()[:32] + ".run"
        self._code = code_stamp()
        self._stamp = _stamp(self._code, run, plan) if self._code else b""

    def summary(self) -> RunSummary | None:
        """Return the cached summary of exactly these files; None if there is none."""
        found: RunSummary | None = kept(self._name, self._stamp)
        return found

    def keep(self, summary: RunSummary) -> None:
        """Cache the summary of these files, unless the code has changed since the stamp was computed."""
        if self._code == code_stamp():
            keep(self._name, self._stamp, summary)


def _stamp(code: bytes, run: RunDir, plan: StoredPlan) -> bytes:
    """Return a digest of all that a summary depends on; empty while a sweep deletes files in the run."""
    digest = hashlib.sha256(code)

    def add(name: str, stat: os.stat_result | None) -> None:
        digest.update(repr((os.fsencode(name), stat and fingerprint(stat))).encode())

    add(str(run.path), None)  # sentences name the path
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
    """Yield path and stat of everything below a folder, in a fixed order, without following links.

    Raises:
        OSError: a file has disappeared meanwhile.
    """
    with os.scandir(folder) as entries:
        found = sorted(entries, key=lambda entry: entry.name)
    for entry in found:
        yield entry.path, entry.stat(follow_symlinks=False)
        if entry.is_dir(follow_symlinks=False):
            yield from _beneath(entry.path)
