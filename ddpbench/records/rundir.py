"""The run directory: all of its paths, its lock, and the checks before it is used.

experiment.toml  machine.json  plan.json  cases.csv  report.html  figures/
cases/<case id>/proof/  and  cases/<case id>/launch-<round>/
    launch.json  rank-00000.attempt-0.jsonl  rank-00000.attempt-0.log  outcome.json
records.tar.xz  the files of cases/ except logs, if the run was packed
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Literal

from ddpbench.errors import (
    IdentityError,
    InUseError,
    OutputError,
    RequestError,
    UnreadableError,
    meant_path,
)
from ddpbench.planted import exchangeable_above, exchangeable_in, other_owner
from ddpbench.records.checked import read_json
from ddpbench.records.files import (
    MOST_NOTES,
    MOST_PLAN,
    check_default,
    check_room,
    copy_file,
    is_unfinished,
    kind_of,
    most_of,
    open_to_append,
    read_bytes,
    read_text,
    write_atomically,
)
from ddpbench.records.held import check_links, errors_naming
from ddpbench.removal import Identity, make, remove_in, remove_tree
from ddpbench.text_safety import command, on_one_line, shortened

Purpose = Literal["proof", "measure"]
MAX_NAME = 150
"""Largest number of bytes of a run directory's name, which is a part of the names of checkpoint folders elsewhere."""
MAX_PART = 255
"""Largest number of bytes of each part of a path on usual file systems."""


def checked_name(path: Path) -> Path:
    """Check that a path is a directory that a run can use, or could be created as one, and return it.

    Raises:
        OutputError: a part of the path is too long or has a NUL; the path is not a directory; or the path has another
            user's link in a folder like /tmp.
    """
    *folders, name = path.absolute().parts
    for part, most in [*((folder, MAX_PART) for folder in folders), (name, MAX_NAME)]:
        size = len(os.fsencode(part))
        if size > most:
            raise OutputError(
                f"the name {shortened(part)} has {size:,} bytes; the name of a directory must have {most} at most"
            )
    if "\0" in str(path):
        raise OutputError(f"{shortened(str(path))} has a NUL; choose another --out")
    try:
        check_links(path)
    except OSError as error:
        raise OutputError(f"{path} cannot be written: {explain_os_error(error)}") from None
    if path.exists() and not path.is_dir():
        raise OutputError(f"{path} is {kind_of(path.stat().st_mode)}, not a directory: choose another --out")
    return path


_given: set[Path] = set()
"""Paths that `default_path` has returned, for commands without --out."""
_REPORTS = Path("reports")


def _own_reports() -> Path:
    """Return the folder in which commands write by default.

    Raises:
        OutputError: another user has put the folder into a shared working directory.
    """
    return check_default(_REPORTS, "name a folder of yours with --out")


def default_path(name: str) -> Path:
    """Return a command's default output path, which is in the folder `reports` in the working directory.

    Raises:
        OutputError: another user has put `reports` into a shared working directory, or this user has no access to the
            working directory.
    """
    if not os.access(".", os.X_OK):
        raise OutputError(
            f"{_REPORTS / name} cannot be written: you have no permission to access the working directory; "
            "choose a folder elsewhere with --out"
        )
    path = _own_reports() / name
    _given.add(path)
    return path


def make_parents(path: Path) -> None:
    """Create the folders above an output. For a default path, also check the folder `reports` again.

    Another user may have created `reports` since `default_path` checked.

    Raises:
        OutputError: the path is a default path, and another user has put `reports` into a shared working directory.
        OSError: the folders cannot be created.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    if not _given.isdisjoint([path, *path.parents]):
        _own_reports()


MARK = ".ddpbench"
"""Name of the file that marks a folder as ddpbench's. A command writes it into a new or empty folder."""
_MARK_TEXT = (
    "ddpbench made this folder or was given it empty: it may replace and remove its own files in it.\n"
)


@dataclass(slots=True)
class Made:
    """Remembers the entries of a directory that a command created, to remove only these after a failure."""

    path: Path
    """The directory."""
    own: Callable[[str], bool]
    """Function that returns whether the command may create a file or folder with this name in the directory."""
    folders: tuple[Path, ...] = ()
    """Folders that did not exist before, which are the directory and those above it, innermost first."""
    kept: set[str] = field(default_factory=set)
    """Names of entries that others have created in the directory, and that must not be removed."""
    made: Identity | None = None
    """Identity of the directory when this command first saw it."""

    @property
    def is_new(self) -> bool:
        """Return whether the directory did not exist before."""
        return self.path in self.folders

    def mark(self) -> None:
        """Mark the directory as ddpbench's, so that a later command may use it if this one is killed.

        Raises:
            OSError: the mark cannot be written.
        """
        if not is_marked(self.path):
            write_atomically(self.path / MARK, _MARK_TEXT)

    def begin(self) -> None:
        """Treat all present entries, except `_CREATED`, as made by others. Call this once the directory is locked."""
        self.kept |= {name for name, _ in _entries(self.path)} - _CREATED

    def remove(self) -> None:
        """Remove all entries that this command has created, or as many as can be removed."""
        if self.is_new:
            remove_tree(self.path, made=self.made)
        else:
            remove_in(self.path, self.made, lambda name: name not in self.kept and self.own(name))
        for folder in self.folders:
            with contextlib.suppress(OSError):
                folder.rmdir()

    def remove_files(self, *paths: Path) -> None:
        """Remove these files from the directory, except those that others have created."""
        names = {path.name for path in paths} - self.kept
        remove_in(self.path, self.made, names.__contains__)


def make_dir(path: Path, own: Callable[[str], bool]) -> Made:
    """Create a directory and those above it, or accept an existing one that passes `check_own` and `check_free`.

    After an error, for example if the umask bars this user, the created folders are removed.

    Raises:
        OutputError: the directory is another user's, or has files that `own` does not accept.
        OSError: the directory cannot be created.
    """
    missing = [one for one in (path, *path.parents) if not one.exists()]
    try:
        make_parents(path)
        try:
            made = make(path)
        except FileExistsError:
            missing = [one for one in missing if one != path]
            check_own(path)
            made = Identity.of(path.stat())
        check_free(path, own)
    except (OSError, OutputError):
        for one in missing:
            with contextlib.suppress(OSError):
                one.rmdir()
        raise
    return Made(path, own, tuple(missing), {name for name, _ in _entries(path)}, made)


def check_free(path: Path, own: Callable[[str], bool]) -> None:
    """Check that a directory is missing or empty, or is marked and has only files whose names `own` accepts.

    Raises:
        OutputError: the directory has other files, which may be the user's.
        OSError: the directory cannot be read.
    """
    # A command may have been killed while it wrote the mark.
    names = {name for name, _ in _entries(path) if not is_unfinished(name)}
    if names and not (is_marked(path) and all(map(own, names))):
        raise OutputError(f"{path} holds other files and is not a run directory; choose another --out")


def check_own(path: Path) -> None:
    """Check that a directory is missing or belongs to this user. Another owner could put links into it or replace it.

    Raises:
        OutputError: the directory belongs to another user.
        OSError: the directory cannot be reached.
    """
    try:
        folder = _open_folder(path)
    except (FileNotFoundError, NotADirectoryError):
        return
    try:
        _check_held(path, folder)
    finally:
        os.close(folder)


def _open_folder(path: Path) -> int:
    return os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)


def _check_held(path: Path, folder: int) -> None:
    if not (owner := other_owner(folder)):
        return
    if any((path / name).is_file() for name in ("plan.json", "submission.json")):
        raise OutputError(f"{path} belongs to {owner}, and is only read: {_copy(path)}")
    raise OutputError(f"{path} belongs to {owner}: choose another --out")


def _copy(path: Path) -> str:
    whole = path.resolve()
    return f"copy it, and give the copy: {command('cp', '-r', whole, f'{whole.name}-copy')}"


def is_marked(path: Path) -> bool:
    """Return whether a folder has the file `MARK` with the text that ddpbench writes."""
    try:
        return read_text(path / MARK, MOST_NOTES) == _MARK_TEXT
    except (OSError, UnreadableError):
        return False


_BEFORE_PLAN = frozenset(
    {
        MARK,
        ".lock",
        ".torchinductor",
        "cases",
        "server.log",
        "fabric.log",
        "fabric.json",
        "probe.json",
        "probe.log",
        "machine.json",
        "experiment.toml",
    }
)
"""Names that a sweep's directory may have before its plan is written. `is_before_plan` accepts further names."""
_CREATED = frozenset({MARK, ".lock", "cases"})
"""Names that a command itself creates in a directory before locking it."""


def is_before_plan(name: str) -> bool:
    """Return whether a sweep may create an entry of this name before its plan.

    A sweep that is killed before then leaves such entries.
    """
    return (
        name in _BEFORE_PLAN or name.startswith(".tmp-") or (name.startswith(".") and name.endswith(".new"))
    )


CASE_ID = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]{0,199}")
"""Pattern of a case's id, which is safe as a folder's name."""
RUN_ID = re.compile(r"[A-Za-z0-9_-]{0,64}")
"""Pattern of a run's id; runs of older versions have an empty id."""
_LAUNCH = re.compile(r"launch-(\d{2}|[1-9]\d{2,8})", re.ASCII)
_ASIDE = re.compile(rf"({_LAUNCH.pattern}|proof)\.aside-\d{{1,9}}", re.ASCII)
_RANK_FILE = re.compile(r"rank-(\d{5,9})\.attempt-(0|[1-9]\d{0,8})\.(jsonl|log)", re.ASCII)
_FILES = re.compile(
    r"(experiment\.toml|(machine|plan|fabric|sessions|merged)\.json|cases\.(csv|parquet)|report\.html|records\.tar\.xz"
    r"|(server(-\d+)?|fabric)\.log|probe\.(json|log)|job\.key|job\.sbatch|slurm-\d{1,18}\.out"
    r"|\.lock|\.writable|\.ddpbench)|\..+\.new",
    re.ASCII,
)
_FOLDERS = frozenset({"cases", "figures", "slides", "traces", ".torchinductor"})


def is_of_run(name: str) -> bool:
    """Return whether a run directory may contain a file or folder with this name."""
    return name in _FOLDERS or _FILES.fullmatch(name) is not None


def is_record(case_id: str, launch: str, name: str) -> bool:
    """Return whether `cases/<case_id>/<launch>/<name>` is a record of a launch, even of one that was set aside."""
    folder = launch == "proof" or any(one.fullmatch(launch) for one in (_LAUNCH, _ASIDE))
    file = name in ("launch.json", "outcome.json") or (rank_file(name) and name.endswith(".jsonl"))
    return folder and file and CASE_ID.fullmatch(case_id) is not None


def rank_file(name: str) -> bool:
    """Return whether a file has the name of a rank's records or log."""
    return _RANK_FILE.fullmatch(name) is not None


def _entries(folder: Path) -> list[tuple[str, int]]:
    """Return name and kind (`stat.S_IFMT`) of each entry; empty if the folder is missing."""
    try:
        with os.scandir(folder) as found:
            return [(entry.name, _kind(entry)) for entry in found]
    except (FileNotFoundError, NotADirectoryError):
        return []


def _kind(entry: os.DirEntry[str]) -> int:
    if entry.is_dir(follow_symlinks=False):
        return stat.S_IFDIR
    return (
        stat.S_IFREG
        if entry.is_file(follow_symlinks=False)
        else stat.S_IFMT(entry.stat(follow_symlinks=False).st_mode)
    )


def leading_elsewhere(
    folder: Path, is_folder: Callable[[str], object], is_file: Callable[[str], object]
) -> Iterator[tuple[Path, str]]:
    """Yield the entries of a folder that are not of the kind that their names require, such as `a link`.

    `is_folder` and `is_file` decide from a name whether it requires a folder or a file.
    """
    for name, kind in _entries(folder):
        wanted = stat.S_IFDIR if is_folder(name) else stat.S_IFREG if is_file(name) else None
        if wanted is not None and kind != wanted:
            yield folder / name, kind_of(kind)


def refuse(misplaced: Iterable[tuple[Path, str]]) -> None:
    """Raise an error if `misplaced` has an entry. Each entry is a path and a description such as `a link`.

    Raises:
        IdentityError: `misplaced` is not empty.
    """
    for path, kind in misplaced:
        raise IdentityError(
            f"{on_one_line(str(path))} is {kind}, but must be a regular file or folder: replace it by the file or "
            "folder itself, or remove it"
        )


def _odd_in(folder: Path) -> Iterator[tuple[Path, str]]:
    """Yield entries that are neither files nor folders, described as `a pipe` or similar."""
    for name, kind in _entries(folder):
        if kind not in (stat.S_IFREG, stat.S_IFDIR):
            yield folder / name, kind_of(kind)


@dataclass(frozen=True, slots=True)
class LaunchDir:
    """The folder of one launch, and the paths of the files in it."""

    path: Path

    @property
    def request(self) -> Path:
        """Return the path of the request to the ranks, which the controlling side writes before the ranks start."""
        return self.path / "launch.json"

    @property
    def outcome(self) -> Path:
        """Return the path of the launch's outcome. While this file is missing, the launch is unfinished."""
        return self.path / "outcome.json"

    @property
    def rendezvous(self) -> Path:
        """Return the path of the file by which ranks on one host find each other."""
        return self.path / "rendezvous"

    def checkpoints(self, parent: str, run_id: str) -> Path:
        """Return the path of the folder for the launch's checkpoints, which is removed after the launch.

        It is in the launch's folder, or in `parent` if given. The random `run_id` separates users' runs of the same
        name.

        Raises:
            ValueError: the run's id is malformed.
            OutputError: everybody can replace entries of `parent`.
        """
        if not RUN_ID.fullmatch(run_id):
            raise ValueError(f"{shortened(run_id)} is not the id of a run")
        if not parent:
            return self.path / "snapshots"
        check_checkpoint_dir(parent)
        *_, run, _, case_id, launch = self.path.absolute().parts
        return Path(parent) / "-".join(filter(None, ["ddpbench", run_id, run, case_id, launch]))

    def records(self, rank: int, attempt: int = 0) -> Path:
        """Return the path of a rank's records, a file with one JSON object per line."""
        return self.path / f"rank-{rank:05d}.attempt-{attempt}.jsonl"

    def log(self, rank: int, attempt: int = 0) -> Path:
        """Return the path of the log with a rank's standard output and error."""
        return self.path / f"rank-{rank:05d}.attempt-{attempt}.log"

    @property
    def number(self) -> int | None:
        """Return the launch's round, from the folder's name; None for a proof."""
        found = _LAUNCH.fullmatch(self.path.name)
        return int(found[1]) if found else None

    def rank_files(self) -> list[Path]:
        """Return the existing files of ranks' records, sorted by name and therefore by rank."""
        return [self.path / name for name in self._names() if name.endswith(".jsonl")]

    def log_files(self) -> list[Path]:
        """Return the existing logs of ranks, sorted by name."""
        return [self.path / name for name in self._names() if name.endswith(".log")]

    def copy_to(self, target: Path) -> None:
        """Copy the launch's files into a new folder. Other files and links are not copied."""
        target.mkdir(parents=True)
        for path in (self.request, self.outcome, *self.rank_files(), *self.log_files()):
            with contextlib.suppress(FileNotFoundError, UnreadableError):
                copy_file(path, target / path.name, most_of(path.name))

    def _names(self) -> list[str]:
        try:
            names = os.listdir(self.path)  # noqa: PTH208 - a glob takes three times as long, and runs have thousands
        except OSError:
            return []
        return sorted(name for name in names if name.startswith("rank-"))


@dataclass(frozen=True, slots=True)
class RunDir:
    """The directory of a run, and the paths of the files in it."""

    path: Path

    @property
    def experiment(self) -> Path:
        """Return the path of the resolved experiment, from which the sweep can be resumed."""
        return self.path / "experiment.toml"

    @property
    def machine(self) -> Path:
        """Return the path of the file with the machine's identity and context."""
        return self.path / "machine.json"

    @property
    def plan(self) -> Path:
        """Return the path of the plan, which has the cases, and the launches in run order."""
        return self.path / "plan.json"

    @property
    def fabrics(self) -> Path:
        """Return the path of the file about the run's emulated networks, with the rates that their links reached."""
        return self.path / "fabric.json"

    @property
    def sessions(self) -> Path:
        """Return the path of the file that lists the sweep's sessions, with their times and why each one stopped."""
        return self.path / "sessions.json"

    @property
    def merged(self) -> Path:
        """Return the path of the file that lists the runs from which this run was merged, which cannot be resumed."""
        return self.path / "merged.json"

    @property
    def table(self) -> Path:
        """Return the path of `cases.csv`, the table with one row per case."""
        return self.path / "cases.csv"

    @property
    def report(self) -> Path:
        """Return the path of the HTML report."""
        return self.path / "report.html"

    @property
    def figures(self) -> Path:
        """Return the path of the folder with the report's figures, as PNG and in the requested formats."""
        return self.path / "figures"

    @property
    def slides(self) -> Path:
        """Return the path of the folder with the report's figures as slides, if these were requested."""
        return self.path / "slides"

    @property
    def cases(self) -> Path:
        """Return the path of the folder with the raw records, which has a folder for each case."""
        return self.path / "cases"

    @property
    def packed(self) -> Path:
        """Return the path of the archive of the raw records, which `records/archive.py` writes and reads."""
        return self.path / "records.tar.xz"

    @property
    def job_key(self) -> Path:
        """Return the path of the key by which the processes of a job recognize each other (`records/job_key.py`)."""
        return self.path / "job.key"

    def case(self, case_id: str) -> Path:
        """Return the path of a case's folder."""
        return self.cases / case_id

    def case_folders(self) -> list[str]:
        """Return the names of all existing folders of cases, sorted."""
        return sorted(name for name, kind in _entries(self.cases) if kind == stat.S_IFDIR)

    def launch(self, case_id: str, purpose: Purpose, round_number: int = 0) -> LaunchDir:
        """Return the folder of a case's proof, or of its measuring launch in a round."""
        name = "proof" if purpose == "proof" else f"launch-{round_number:02d}"
        return LaunchDir(self.case(case_id) / name)

    def launches(self, case_id: str) -> list[LaunchDir]:
        """Return a case's existing measuring launches by round, without those that were set aside."""
        return self.folders(case_id)[0]

    def folders(self, case_id: str) -> tuple[list[LaunchDir], list[Path]]:
        """Return the launches as `launches` does, and paths with invalid names, such as `launch-007`."""
        folder = self.case(case_id)
        launches: list[tuple[int, LaunchDir]] = []
        misnamed: list[Path] = []
        try:
            names = os.listdir(folder)  # noqa: PTH208 - half of a glob's time
        except OSError:
            return [], []
        for name in names:
            if found := _LAUNCH.fullmatch(name):
                launches.append((int(found[1]), LaunchDir(folder / name)))
            elif name.startswith(("launch-", "proof-")) and not _ASIDE.fullmatch(name):
                misnamed.append(folder / name)
        return [launch for _, launch in sorted(launches, key=lambda one: one[0])], sorted(misnamed)

    def check(self) -> None:
        """Check that no entry of the directory leads out of it or could block a reader.

        The directory may come from a stranger.

        Raises:
            IdentityError: an entry is a link, a pipe, a socket or a device, or is a file instead of a folder or the
                reverse.
        """
        refuse(self._leading_elsewhere())

    def check_records(self, so: str = "the report is not changed") -> None:
        """Refuse a directory that has a report, but no records; `so` is the consequence in the message.

        Raises:
            RequestError: the directory has a report, but no records from which to make the report again.
        """
        if self.report.exists() and not self.cases.exists() and not self.packed.exists():
            raise RequestError(
                f"{self.path} has a report but no records (cases/ or {self.packed.name}), so {so}: run this where "
                "the sweep ran"
            )

    def _leading_elsewhere(self) -> Iterator[tuple[Path, str]]:
        """Yield links, and entries of a wrong kind, such as a file in place of a folder."""
        yield from leading_elsewhere(self.path, _FOLDERS.__contains__, _FILES.fullmatch)
        for folder in (self.figures, self.slides):
            yield from _odd_in(folder)
        for name, kind in _entries(self.cases):
            if kind == stat.S_IFDIR:
                yield from _odd_in(self.cases / name)
            elif kind != stat.S_IFREG:
                yield self.cases / name, kind_of(kind)

    @contextlib.contextmanager
    def held(self, *, planned: bool = True) -> Iterator[RunDir]:
        """Keep the directory open for writing, and yield it with a path that survives a rename.

        Renaming it cannot redirect the writes. With `planned=False`, the directory may lack a plan; then write nothing
        but data read from it, such as unpacked records.

        Raises:
            OutputError: the directory is another user's, or cannot be reached.
            IdentityError: the directory is missing, or lacks a plan and must have one.
        """
        try:
            folder = _open_folder(self.path)
        except (FileNotFoundError, NotADirectoryError):
            raise self._is_none() from None
        except OSError as error:
            raise OutputError(f"{self.path} cannot be written: {explain_os_error(error)}") from None
        itself = RunDir(Path(f"/proc/self/fd/{folder}"))
        try:
            with errors_naming(itself.path, self.path):
                _check_held(self.path, folder)
                if planned and not itself.plan.exists():
                    raise self._is_none()
                yield itself
        finally:
            os.close(folder)

    def check_resumable(self) -> None:
        """Check that no other user could replace the directory, and with it the code that a resumed sweep runs.

        Raises:
            OutputError: another user owns the directory, or owns a folder above it in which everybody can rename
                entries.
            OSError: the directory or a folder above it cannot be reached.
        """
        check_own(self.path)
        if self.plan.exists() and (folder := exchangeable_above(self.path)) is not None:
            raise OutputError(
                f"{folder} is another user's, and everybody can rename what is in it. Use a copy of "
                f"{self.path} in a folder of yours: {_copy(self.path)}"
            )

    def set_aside(self, launch: LaunchDir) -> None:
        """Rename the folder of a launch that is to be repeated, so that the old records and logs stay available.

        Raises:
            OutputError: the launch was set aside 1000 times already.
        """
        for number in range(1000):
            target = launch.path.with_name(f"{launch.path.name}.aside-{number}")
            if not target.exists():
                launch.path.rename(target)
                return
        raise OutputError(f"{launch.path} was set aside 1000 times; remove some of its .aside folders")

    def check_free(self) -> None:
        """Check that a new sweep may use the directory, which may have files of a sweep killed before its plan.

        Raises:
            OutputError: the directory has other files.
            OSError: the directory cannot be read.
        """
        check_free(self.path, is_before_plan)

    def check_begun(self) -> None:
        """Check that the directory has a plan, or that a new sweep may use it (see `check_free`).

        Raises:
            IdentityError: the directory lacks a plan, and has files that a sweep does not create before its plan.
            OSError: the directory cannot be read.
        """
        try:
            if not self.plan.is_file():
                self.check_free()
        except OutputError:
            raise self._is_none() from None

    def create(self) -> Made:
        """Create the directory, check that it can be written, and return a record of what was created.

        After a failure, what was created is removed.

        Raises:
            OutputError: the directory cannot be written, or has files that no sweep creates.
            IdentityError: the directory exists, and an entry is a link or of the wrong kind.
        """
        self.check()
        made = Made(self.path, is_before_plan, kept={name for name, _ in _entries(self.path)})
        cases = False
        try:
            if self.plan.exists():
                check_own(self.path)
                made.made = Identity.of(self.path.stat())
            else:
                made = make_dir(self.path, is_before_plan)
                made.mark()
            cases = not self.cases.exists()
            self.cases.mkdir(exist_ok=True)
            check_room(self.path)
        except OSError as error:
            # The directory is not locked, so leave files that a different command may have made meanwhile.
            with contextlib.suppress(OSError):
                made.remove_files(self.path / MARK)
            for path in (*([self.cases] if cases else []), *made.folders):
                with contextlib.suppress(OSError):
                    path.rmdir()
            raise OutputError(f"{self.path} cannot be written: {explain_os_error(error)}") from None
        return made

    @contextlib.contextmanager
    def locked(self, holder: str = "a sweep", otherwise: str = "") -> Iterator[None]:
        """Lock the directory for one command. The kernel releases the lock however the command ends.

        The lock's file is removed if this call made it. `holder` names this command in others' messages. Under another
        command's lock, the error tells the user to wait, or what `otherwise` says.

        Raises:
            InUseError: another process has the lock.
            OutputError: the file system has no locks.
        """
        path = self.path / ".lock"
        lock, made = _locked_file(path, f" or {otherwise}" if otherwise else "")
        with lock as file:
            _note_holder(file.fileno(), f"{holder} (process {os.getpid()} on {os.uname().nodename})")
            try:
                yield
            finally:
                _note_holder(file.fileno(), "")
                if made and _is_at(path, file):
                    path.unlink(missing_ok=True)

    def experiment_text(self) -> str | None:
        """Return the text of the run's experiment; None if it cannot be read."""
        try:
            return read_text(self.experiment, MOST_NOTES)
        except (OSError, UnreadableError):
            return None

    def read_json(self, path: Path) -> dict[str, Any]:
        """Read the JSON object in one of the run's files.

        Raises:
            IdentityError: the file is missing, damaged, not a regular file, or has a different schema.
        """
        try:
            return read_json(path, MOST_PLAN if path == self.plan else MOST_NOTES)
        except (FileNotFoundError, NotADirectoryError):
            raise self._is_none(path.name) from None

    def _is_none(self, missing: str = "plan.json") -> IdentityError:
        if not self.path.exists():
            near = meant_path(self.path, is_run) or ": give a run directory"
            return IdentityError(f"{self.path} does not exist{near}")
        sides = [self.path / name for name in ("base", "new") if is_run(self.path / name)]
        if sides:
            runs = " and ".join(map(str, sides))
            return IdentityError(
                f"{self.path} is a comparison's directory, not a run directory: its runs are {runs}"
            )
        return IdentityError(f"{self.path} is not a run directory: {missing} is missing")


_MOST_HOLDER = 400
"""Largest number of bytes of the words that name the holder in a lock's file."""


def _locked_file(path: Path, instead: str) -> tuple[BinaryIO, bool]:
    """Take a directory's lock; return the open file, and whether this call created it.

    Raises:
        InUseError: another process has the lock; the message contains `instead`.
        OutputError: the file system has no locks.
    """
    while True:
        made = not os.path.lexists(path)
        try:
            lock = open_to_append(path)
        except OSError as error:
            raise OutputError(f"{path} cannot be written: {explain_os_error(error)}") from None
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_at(path, lock):  # else its holder has just removed it
                return lock, made
        except BlockingIOError:
            lock.close()
            raise InUseError(
                f"{path.parent} is in use by {_held_by(path)}: wait until that ends{instead}"
            ) from None
        except OSError as error:  # a file system without locks, or whose lock service does not answer
            lock.close()
            raise OutputError(
                f"{path} cannot be locked ({error.strerror}): use a file system that has locks"
                f"{instead}; Lustre has them when mounted with -o flock"
            ) from None
        lock.close()


def _is_at(path: Path, file: BinaryIO) -> bool:
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.lstat())
    except OSError:
        return False


def _note_holder(lock: int, words: str) -> None:
    with contextlib.suppress(OSError):  # with a full disk the lock is held nevertheless
        os.ftruncate(lock, 0)
        os.write(lock, os.fsencode(words)[:_MOST_HOLDER])


def _held_by(lock: Path) -> str:
    try:
        words = read_bytes(lock, _MOST_HOLDER).decode("utf-8", "replace")
    except (OSError, UnreadableError):
        words = ""
    return on_one_line(words) or "another ddpbench command"


def held_elsewhere(run: RunDir) -> str:
    """Describe another process on this machine that has locked a run directory; empty if there is none.

    Also empty for a lock of this process or its ancestor, or if the kernel does not list its locks.
    """
    lock = run.path / ".lock"
    found = re.search(r"\(process (\d+) on (.+)\)$", words := _held_by(lock))
    if found is None or found[2] != os.uname().nodename or int(found[1]) in _own_line():
        return ""
    try:
        inode = lock.stat().st_ino
        listed = [line.split() for line in Path("/proc/locks").read_text(encoding="ascii").splitlines()]
    except (OSError, UnicodeError):
        return ""
    # 1: FLOCK ADVISORY WRITE 4711 08:01:1234 0 EOF
    held = {(one[4], one[5].rpartition(":")[2]) for one in listed if len(one) > 5 and one[1] == "FLOCK"}
    return words if (found[1], str(inode)) in held else ""


def _own_line() -> set[int]:
    pids, number = set[int](), os.getpid()
    while number and number not in pids:
        pids.add(number)
        try:
            fields = Path(f"/proc/{number}/stat").read_bytes().rpartition(b")")[2].split()
        except OSError:
            break
        number = int(fields[1])
    return pids


def is_run(path: Path) -> bool:
    """Return whether a folder is a run directory, which has a `plan.json`."""
    return RunDir(path).plan.is_file()


_ALLOW = "have its owner allow it, or choose another place"


def _barred_folder(error: OSError) -> str:
    if error.errno != errno.EACCES or not isinstance(error.filename, str | os.PathLike):
        return ""
    path = Path(error.filename)
    folders = [*reversed(path.parents), path]
    with contextlib.suppress(OSError):  # the working directory is gone
        folders += reversed(
            path.absolute().parents
        )  # perhaps the user cannot access a folder above the working directory
    barred = (str(one) for one in folders if os.path.isdir(one) and not os.access(one, os.X_OK))  # noqa: PTH112
    return on_one_line(next(barred, ""))


def explain_unreadable(error: OSError) -> str:
    """Say which file or folder the user cannot read, with advice; empty if the error has a different cause."""
    if folder := _barred_folder(error):
        return f"{error.strerror}; you have no permission to access {folder}: {_ALLOW}"
    path = error.filename
    if error.errno != errno.EACCES or not isinstance(path, str | os.PathLike) or os.access(path, os.R_OK):
        return ""
    return (
        f"{error.strerror}; you have no permission to read {on_one_line(str(path))}: {_ALLOW}"
        if os.path.lexists(path)
        else ""
    )


def check_checkpoint_dir(name: str) -> None:
    """Check that other users cannot replace the folder of a checkpoint in the directory `name`.

    Raises:
        OutputError: everybody can rename entries of the directory or of a folder above, or the path has another user's
            link.
    """
    try:
        check_links(Path(name))
        shared = exchangeable_in(Path(name))
    except OSError:
        return  # writing a checkpoint will report why
    if shared is not None:
        raise OutputError(
            f"base.checkpoint_dir = {name!r}: everybody can rename what is in {shared}, so "
            "another user could make checkpoints overwrite or remove other files of yours. Name another directory, "
            f"leave the setting out to write checkpoints into the run directory, or have the owner of {shared} run: "
            f"{command('chmod', '+t', shared)}"
        )


def _starts_here(error: OSError) -> bool:
    name = error.filename
    return name is None or (isinstance(name, str | os.PathLike) and not Path(name).is_absolute())


def _is_here_gone() -> bool:
    try:
        os.getcwd()  # noqa: PTH109
    except OSError:
        return True
    return False


def explain_read_error(error: OSError) -> str:
    """Say in words why a file or folder cannot be read, with advice.

    Unlike the result of `explain_os_error`, the text does not tell the user to make the file or folder writable.
    """
    if why := explain_unreadable(error):
        return why
    if error.errno == errno.EACCES:
        return f"{error.strerror}; {_ALLOW}"
    return explain_os_error(error)


def explain_os_error(error: OSError) -> str:
    """Say in words why a file or folder cannot be written, with advice for the usual reasons."""
    reason = error.strerror or str(error)
    if folder := _barred_folder(error):
        return f"{reason}; you have no permission to access {folder}: {_ALLOW}"
    advice = {
        errno.ENOMEM: "free some memory, or raise the limit with ulimit -v",
        errno.ENOSPC: "free some space",
        errno.EDQUOT: "your disk quota is exhausted; free some of it",
        errno.EFBIG: "the file would be larger than the limit; raise the limit with ulimit -f",
        errno.EMFILE: "the limit of open files is reached; raise the limit with ulimit -n",
        errno.ENAMETOOLONG: "choose a shorter name",
        errno.ELOOP: "its symbolic links lead in a circle; choose another name",
        errno.EROFS: "it is mounted read-only; choose a place that you can write (of a new sweep: --out)",
        errno.EACCES: "make it writable, or choose a place that you can write (of a new sweep: --out)",
        errno.ENOENT: "its folder is not there, or it was deleted or moved meanwhile: make the folder, or put it back",
        errno.ENOTDIR: "a part of the path is a file; choose another place (of a new sweep: --out)",
        errno.EEXIST: "a file has this name; choose another place (of a new sweep: --out)",
    }.get(error.errno or 0)
    if error.errno == errno.ENOENT and _starts_here(error) and _is_here_gone():
        return "the working directory is not there: it was deleted or moved meanwhile; change to another one"
    return f"{reason}; {advice}" if advice else reason
