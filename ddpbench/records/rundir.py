"""The run directory: the one owner of every path in it, of atomic writes and of its lock.

experiment.toml  machine.json  plan.json  cases.csv  report.html  figures/
cases/<case id>/proof/  and  cases/<case id>/launch-<round>/
    launch.json  rank-00000.attempt-0.jsonl  rank-00000.attempt-0.log  outcome.json
records.tar.xz  in a run that is kept: the files of cases/ but the logs
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ddpbench.errors import IdentityError, OutputError
from ddpbench.records.schema import SCHEMA_VERSION
from ddpbench.texts import shortened

Purpose = Literal["proof", "measure"]
MAX_NAME = 150
"""Bytes of a run directory's own name: folders of checkpoints elsewhere are named after it and a case."""
MAX_PART = 255
"""Bytes of each part of a path, on every usual file system."""


def checked_name(path: Path) -> Path:
    """Return a path to make a run directory of, or refuse it.

    Raises:
        OutputError: its name, or that of a folder in it, is too long, or holds a NUL.
    """
    *folders, name = path.absolute().parts
    for part, most in [*((folder, MAX_PART) for folder in folders), (name, MAX_NAME)]:
        size = len(os.fsencode(part))
        if size > most:
            raise OutputError(
                f"{shortened(part)} has {size:,} bytes; the name of a directory must have {most} at most"
            )
    if "\0" in str(path):
        raise OutputError(f"{shortened(str(path))} holds a NUL; choose another --out")
    return path


def write_atomically(path: Path, text: str) -> None:
    """Writes beside, flushes to the disk, then renames, so that a reader never sees half a file."""
    beside = path.with_name(f".{path.name}.new")
    try:
        with beside.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    except OSError:
        beside.unlink(missing_ok=True)
        raise


@dataclass(frozen=True, slots=True)
class LaunchDir:
    """One launch's folder and the names of the files in it."""

    path: Path

    @property
    def request(self) -> Path:
        """What the ranks are asked to do; written by the controlling side before they start."""
        return self.path / "launch.json"

    @property
    def outcome(self) -> Path:
        """How the launch ended. Without it the launch is unfinished."""
        return self.path / "outcome.json"

    @property
    def rendezvous(self) -> Path:
        """The file in which the ranks of one host meet."""
        return self.path / "rendezvous"

    def checkpoints(self, parent: str = "") -> Path:
        """Return the folder of its checkpoints, here or in `parent`; it is gone when the launch has ended."""
        if not parent:
            return self.path / "snapshots"
        *_, run, _, case_id, launch = self.path.absolute().parts
        return Path(parent) / f"ddpbench-{run}-{case_id}-{launch}"

    def records(self, rank: int, attempt: int = 0) -> Path:
        """Return a rank's records, one JSON object a line."""
        return self.path / f"rank-{rank:05d}.attempt-{attempt}.jsonl"

    def log(self, rank: int, attempt: int = 0) -> Path:
        """Return a rank's standard output and error."""
        return self.path / f"rank-{rank:05d}.attempt-{attempt}.log"

    def rank_files(self) -> list[Path]:
        """Return the record files that are there, by rank."""
        try:
            names = os.listdir(self.path)  # noqa: PTH208 - a glob takes three times as long, and runs have thousands
        except OSError:
            return []
        return [
            self.path / name for name in sorted(names) if name.startswith("rank-") and name.endswith(".jsonl")
        ]


@dataclass(frozen=True, slots=True)
class RunDir:
    """A sweep's directory."""

    path: Path

    @property
    def experiment(self) -> Path:
        """The resolved experiment; the same command there resumes the sweep."""
        return self.path / "experiment.toml"

    @property
    def machine(self) -> Path:
        """The machine's identity and context."""
        return self.path / "machine.json"

    @property
    def plan(self) -> Path:
        """The cases, and the launches in run order."""
        return self.path / "plan.json"

    @property
    def fabrics(self) -> Path:
        """The emulated networks that were made for it, and what each was proved to carry."""
        return self.path / "fabric.json"

    @property
    def sessions(self) -> Path:
        """One entry for each time a sweep worked here: its wall time, its measured time, why it stopped."""
        return self.path / "sessions.json"

    @property
    def merged(self) -> Path:
        """The runs that this one was merged from; only in a merged one, which no sweep can resume."""
        return self.path / "merged.json"

    @property
    def table(self) -> Path:
        """One row a case."""
        return self.path / "cases.csv"

    @property
    def report(self) -> Path:
        """The report, one file."""
        return self.path / "report.html"

    @property
    def figures(self) -> Path:
        """The report's figures: PNG files, and the formats that were asked for."""
        return self.path / "figures"

    @property
    def slides(self) -> Path:
        """The report's figures as slides, where they were asked for."""
        return self.path / "slides"

    @property
    def cases(self) -> Path:
        """The raw records: a folder for each case."""
        return self.path / "cases"

    @property
    def packed(self) -> Path:
        """The raw records as one file, in a run that is kept; `records/archive.py` reads and writes it."""
        return self.path / "records.tar.xz"

    @property
    def job_key(self) -> Path:
        """The key by which slots of a planned run know each other; `records/job_key.py` makes and reads it."""
        return self.path / "job.key"

    def case(self, case_id: str) -> Path:
        """Return a case's folder."""
        return self.cases / case_id

    def launch(self, case_id: str, purpose: Purpose, round_number: int = 0) -> LaunchDir:
        """Return a launch's folder."""
        name = "proof" if purpose == "proof" else f"launch-{round_number:02d}"
        return LaunchDir(self.case(case_id) / name)

    def launches(self, case_id: str) -> list[LaunchDir]:
        """Return the measuring launches that have a folder, by round; moved-aside ones are not among them."""
        found = (path for path in self.case(case_id).glob("launch-*") if path.name[7:].isdigit())
        return [LaunchDir(path) for path in sorted(found, key=lambda path: int(path.name[7:]))]

    def set_aside(self, launch: LaunchDir) -> None:
        """Moves the folder of a launch that is to be done again aside, with its records and logs."""
        for number in range(1000):
            target = launch.path.with_name(f"{launch.path.name}.aside-{number}")
            if not target.exists():
                launch.path.rename(target)
                return
        raise OutputError(f"{launch.path} was set aside 1000 times; remove some of its .aside folders")

    def create(self) -> None:
        """Makes the directory and proves that it can be written.

        What it made of the directory is gone again where it cannot be.

        Raises:
            OutputError: it cannot be.
        """
        probe = self.path / ".writable"
        missing = [path for path in (self.cases, self.path, *self.path.parents) if not path.exists()]
        try:
            self.cases.mkdir(parents=True, exist_ok=True)
            probe.write_bytes(b"\0" * 65536)
            probe.unlink()
        except OSError as error:
            with contextlib.suppress(OSError):
                probe.unlink(missing_ok=True)
            for path in missing:
                with contextlib.suppress(OSError):
                    path.rmdir()
            raise OutputError(f"{self.path} cannot be written: {explain_os_error(error)}") from None

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Holds the directory for one sweep; the kernel lets go of it however the process ends.

        Raises:
            OutputError: another process holds it.
        """
        with (self.path / ".lock").open("a") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                message = f"{self.path} is in use by another sweep; wait for it or give another --out"
                raise OutputError(message) from None
            yield

    def read_json(self, path: Path) -> dict[str, Any]:
        """Return a JSON object of this run.

        Raises:
            IdentityError: the file is missing, damaged, or of a newer schema.
        """
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise IdentityError(f"{self.path} is not a run directory: {path.name} is missing") from None
        except (OSError, ValueError) as error:
            raise IdentityError(f"{path} cannot be read: {error}") from None
        if not isinstance(data, dict):
            raise IdentityError(f"{path} is damaged: an object was expected")
        version = data.get("schema_version")
        if version != SCHEMA_VERSION:
            message = f"{path} has schema {version!r}; this ddpbench reads schema {SCHEMA_VERSION}"
            raise IdentityError(message)
        return data


def explain_os_error(error: OSError) -> str:
    """Return an OSError in words, with what to do about the usual ones."""
    reason = error.strerror or str(error)
    advice = {
        errno.ENOSPC: "free some space, then run the same command again to resume",
        errno.EDQUOT: "your disk quota is exhausted; free some, then rerun the same command to resume",
        errno.EROFS: "it is mounted read-only; choose another directory with --out",
        errno.EACCES: "choose a directory you may write with --out",
        errno.ENOTDIR: "a part of the path is a file; choose another directory with --out",
    }.get(error.errno or 0)
    return f"{reason}; {advice}" if advice else reason
