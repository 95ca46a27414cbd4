"""The directory of `ddpbench submit`, with all of its paths, and the checks before the directory is used.

    submission.json  nodes-1/  nodes-2/ ...  merged/

Each folder is a run directory. Links are refused, because a submission may come from a stranger.
"""

from __future__ import annotations

import errno
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ddpbench.errors import IdentityError, RequestError, UnreadableError
from ddpbench.records.files import MIB, damaged, is_unfinished, parse_json, read_bytes
from ddpbench.records.rundir import (
    MARK,
    RunDir,
    check_free,
    explain_read_error,
    leading_elsewhere,
    refuse,
)
from ddpbench.text_safety import command, on_one_line, shortened

_RUN = re.compile(r"nodes-([1-9]\d{0,8})", re.ASCII)
_FILE = re.compile(r"submission\.json|\.lock|\.ddpbench|\..+\.new", re.ASCII)
_MERGED = _CURRENT, _NEXT, _BEFORE = "merged", ".merged-new", ".merged-old"
_MOST_FILE = MIB


def is_of_submission(name: str) -> bool:
    """Return whether `ddpbench submit` may give this name to a file or folder in its directory."""
    own = name in _MERGED or name in ("submission.json", ".lock", MARK)
    return own or _RUN.fullmatch(name) is not None or is_unfinished(name)


def check_free_for_submission(path: Path) -> None:
    """Check that a directory is missing or empty, or was left by a submission that made no run.

    Raises:
        OutputError: it has other files.
        OSError: it cannot be read.
    """
    check_free(path, lambda name: is_of_submission(name) and _RUN.fullmatch(name) is None)


@dataclass(frozen=True, slots=True)
class SubmissionDir:
    """The directory of `ddpbench submit`, and the paths in it."""

    path: Path

    @property
    def file(self) -> Path:
        """Return the path of `submission.json`, which has the requests to Slurm and the submitted jobs."""
        return self.path / "submission.json"

    @property
    def merged(self) -> RunDir:
        """Return the directory of the merged run, which is made if there are runs on different numbers of nodes."""
        return RunDir(self.path / _CURRENT)

    @property
    def merged_next(self) -> Path:
        """Return the path of the directory in which the next merged run is made."""
        return self.path / _NEXT

    @property
    def merged_before(self) -> Path:
        """Return the path to which the last merged run is moved while the next one replaces it."""
        return self.path / _BEFORE

    def run(self, nodes: int) -> RunDir:
        """Return the directory of the run on this number of nodes."""
        return RunDir(self.path / f"nodes-{nodes}")

    def runs(self) -> list[RunDir]:
        """Return the directories of existing runs, sorted by number of nodes."""
        sizes = {int(match[1]) for path in self.path.iterdir() if (match := _RUN.fullmatch(path.name))}
        return [self.run(nodes) for nodes in sorted(sizes)]

    @property
    def is_there(self) -> bool:
        """Return whether the directory has a `submission.json`, even if that is a broken link."""
        return self.file.exists() or self.file.is_symlink()

    def check(self) -> None:
        """Check that no entry of the directory, or of its runs, leads out of it or could block a reader.

        Raises:
            IdentityError: an entry is a link, a pipe, a socket or a device, or is a file instead of a folder or the
                reverse.
        """
        refuse(
            leading_elsewhere(
                self.path,
                lambda name: name in _MERGED or _RUN.fullmatch(name) is not None,
                _FILE.fullmatch,
            )
        )
        for run in (*self.runs(), self.merged):
            run.check()

    def read(self) -> dict[str, Any]:
        """Check the entire directory, and return the contents of `submission.json`.

        Raises:
            RequestError: the directory has no submission.
            IdentityError: the file is damaged, or an entry is a link or of the wrong kind.
        """
        if not self.is_there:
            raise RequestError(f"{self.path} holds no submission: there is no {self.file.name}")
        self.check()
        try:
            data = parse_json(read_bytes(self.file, _MOST_FILE))
        except OSError as error:
            raise IdentityError(f"{self.file} cannot be read: {explain_read_error(error)}") from None
        except ValueError as error:
            raise damaged(self.file, str(error)) from None
        if not isinstance(data, dict):
            raise damaged(self.file, "an object was expected")
        return data

    def measured(self) -> RunDir:
        """Return the run with all measurements, which is the merged run, or the only run that has results.

        Raises:
            RequestError: there are several runs that are not merged yet, or nothing was measured.
            IdentityError: an entry of the directory is a link or of the wrong kind.
        """
        self.check()
        if self.merged.plan.exists():
            return self.merged
        runs = [run for run in self.runs() if next(run.path.glob("cases/*/*/outcome.json"), None)]
        if len(runs) == 1:
            return runs[0]
        if not runs:
            raise RequestError(f"{self.path} is a submission without measurements yet")
        raise RequestError(
            f"{self.path} is a submission whose runs are not merged yet. When its jobs have ended, merge them "
            f"with {command('ddpbench', 'submit', self.path)}, or give one of the runs, such as {runs[0].path}"
        )


def run_at(path: Path) -> RunDir:
    """Return the run at a path. If the path is a submission, return the submission's run `measured`.

    Raises:
        RequestError: the runs of a submission were not merged yet, or nothing was measured in them.
        IdentityError: an entry of a submission is a link or of the wrong kind.
        UnreadableError: the directory cannot be reached.
    """
    run, submission = RunDir(path), SubmissionDir(path)
    try:
        return submission.measured() if submission.is_there and not run.plan.exists() else run
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            raise UnreadableError(
                f"{shortened(str(path))}: the name is too long for this file system"
            ) from None
        why = explain_read_error(error)
        raise UnreadableError(f"{on_one_line(str(path))} cannot be read: {why}") from None
