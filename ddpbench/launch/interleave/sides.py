"""What a side of a comparison is: an interpreter, a folder or a commit, and settings; and where its code lies."""

from __future__ import annotations

import contextlib
import io
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ddpbench.errors import OutputError, RequestError
from ddpbench.records.rundir import explain_os_error
from ddpbench.texts import shortened

_WORDS = (
    "ref=COMMIT, path=FOLDER, python=INTERPRETER, set=KEY=VALUE or env=NAME=VALUE; what has no = is a folder, "
    "or else a commit"
)
_GIT_S = 120


@dataclass(frozen=True, kw_only=True, slots=True)
class SideSpec:
    """One side. Empty texts: as the command itself has it."""

    name: str
    """`base` or `new`."""
    ref: str = ""
    path: str = ""
    python: str = ""
    overrides: tuple[str, ...] = ()

    @property
    def words(self) -> str:
        """What a sentence calls it: `new (ref=main, set=base.bucket_cap_mb=1)`."""
        given = [
            *([f"ref={self.ref}"] if self.ref else []),
            *([f"path={self.path}"] if self.path else []),
            *([f"python={self.python}"] if self.python else []),
            *(f"set={text}" for text in self.overrides),
        ]
        return f"{self.name} ({', '.join(given)})" if given else self.name


def parse_side(name: str, words: Sequence[str]) -> SideSpec:
    """Return a side from the words of its flag.

    Raises:
        RequestError: a word means nothing, or two are of one kind.
    """
    found = SideSpec(name=name)
    for word in words:
        key, equals, value = word.partition("=")
        if key not in ("ref", "path", "python", "set", "env") or not equals:
            key, value = ("path", word) if Path(word).is_dir() else ("ref", word)
        if not value:
            raise RequestError(f"--{name} {shortened(word)}: give {_WORDS}")
        if key == "set":
            found = replace(found, overrides=(*found.overrides, value))
        elif key == "env":
            variable, equals, content = value.partition("=")
            if not equals:
                raise RequestError(f"--{name} {shortened(word)}: give env=NAME=VALUE")
            found = replace(found, overrides=(*found.overrides, f"env.{variable}={content!r}"))
        elif getattr(found, key):
            raise RequestError(f"--{name}: {key} is given twice")
        elif key == "ref":
            found = replace(found, ref=value)
        elif key == "path":
            found = replace(found, path=value)
        else:
            found = replace(found, python=value)
    if found.ref and found.path:
        raise RequestError(f"--{name}: a commit and a folder are two places for one side's code: give one")
    return found


def check_apart(base: SideSpec, new: SideSpec) -> None:
    """Whether two sides differ at all.

    Raises:
        RequestError: they are the same.
    """
    if replace(base, name="") == replace(new, name=""):
        raise RequestError(f"both sides are the same: give --base and --new with {_WORDS}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Placed:
    """A side whose code is at hand. `folder` is where its processes work; None: where this one does."""

    spec: SideSpec
    python: str
    folder: Path | None
    commit: str
    """The commit of its code, with `+` where the folder has changes; empty where it is in no repository."""
    experiment: Path

    @property
    def note(self) -> str:
        """A sentence on changes that no commit has; empty without."""
        if not self.commit.endswith("+"):
            return ""
        return f"{self.spec.name}: {self.folder} has uncommitted changes, and is measured as it is"


def place(spec: SideSpec, experiment: Path, out: Path) -> Placed:
    """Return a side with its code at hand; a commit's goes into a folder below `out`.

    The experiment's file is the side's own where it lies in the same repository.

    Raises:
        RequestError: there is no such commit, folder or interpreter.
        OutputError: the code cannot be written.
    """
    python = _interpreter(spec)
    folder: Path | None = None
    top = _top(experiment.resolve().parent)
    if spec.path:
        folder = Path(spec.path).resolve()
        if not folder.is_dir():
            raise RequestError(f"--{spec.name} path={spec.path}: there is no such folder")
    if spec.ref:
        here = _top(Path.cwd())
        if here is None:
            raise RequestError(f"--{spec.name} ref={spec.ref}: {Path.cwd()} is in no git repository")
        folder = _exported(here, spec, out)
        top = here if top is None or top == here else top
    own = experiment
    if folder is not None and top is not None:
        with contextlib.suppress(ValueError):
            beside = folder / experiment.resolve().relative_to(top)
            if beside.is_file():
                own = beside
            elif experiment.resolve().is_relative_to(top) and _is_tracked(top, experiment):
                raise RequestError(
                    f"{spec.words}: it has no {experiment.resolve().relative_to(top)}; both sides need the experiment"
                )
    commit = _git(Path.cwd(), "rev-parse", "--short=12", spec.ref) if spec.ref else ""
    if not commit and folder is not None and _top(folder) is not None:
        changed = _git(folder, "status", "--porcelain", "--untracked-files=no")
        commit = _git(folder, "rev-parse", "--short=12", "HEAD") + ("+" if changed else "")
    return Placed(spec=spec, python=python, folder=folder, commit=commit, experiment=own.resolve())


def _interpreter(spec: SideSpec) -> str:
    if not spec.python:
        return sys.executable
    found = shutil.which(spec.python)
    if found is None:
        raise RequestError(f"--{spec.name} python={spec.python}: there is no such program")
    try:
        done = subprocess.run(
            [found, "-c", "import torch, sys; sys.stdout.write(torch.__version__)"],
            capture_output=True,
            text=True,
            timeout=_GIT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise RequestError(f"--{spec.name} python={spec.python}: it cannot be run: {error}") from None
    if done.returncode:
        why = (done.stderr.strip().splitlines() or ["it says nothing"])[-1]
        raise RequestError(f"--{spec.name} python={spec.python}: it has no torch that works: {why}")
    return found


def _top(folder: Path) -> Path | None:
    """Return the root of the repository that holds a folder; None where none does."""
    try:
        return Path(_git(folder, "rev-parse", "--show-toplevel")).resolve()
    except RequestError:
        return None


def _is_tracked(top: Path, path: Path) -> bool:
    try:
        return bool(_git(top, "ls-files", "--", str(path.resolve())))
    except RequestError:
        return False


def _git(folder: Path, *words: str) -> str:
    """Return what git answers.

    Raises:
        RequestError: it refuses, or is not here.
    """
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *words], capture_output=True, text=True, timeout=_GIT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise RequestError(f"git cannot be run: {error}") from None
    if done.returncode:
        raise RequestError(f"git: {(done.stderr.strip().splitlines() or ['it refuses'])[-1]}")
    return done.stdout.strip()


def _exported(top: Path, spec: SideSpec, out: Path) -> Path:
    """Write the files of a commit into a folder of their own, and return it; the repository is left as it is."""
    if spec.ref.startswith("-"):
        raise RequestError(f"--{spec.name} ref={spec.ref}: a commit's name begins with no -")
    try:
        commit = _git(top, "rev-parse", "--verify", "--quiet", f"{spec.ref}^{{commit}}")
    except RequestError:
        raise RequestError(f"--{spec.name} ref={spec.ref}: {top} has no such commit") from None
    folder = out / "code" / commit[:12]
    if folder.is_dir():
        return folder
    try:
        done = subprocess.run(
            ["git", "-C", str(top), "archive", "--format=tar", commit], capture_output=True, check=False
        )
        if done.returncode:
            raise RequestError(f"git archive {commit}: {done.stderr.decode(errors='replace').strip()}")
        beside = folder.with_name(f".{folder.name}.new")
        shutil.rmtree(beside, ignore_errors=True)
        beside.mkdir(parents=True)
        with tarfile.open(fileobj=io.BytesIO(done.stdout)) as file:
            file.extractall(beside, filter="tar")
        beside.rename(folder)
    except OSError as error:
        raise OutputError(f"{folder} cannot be written: {explain_os_error(error)}") from None
    return folder
