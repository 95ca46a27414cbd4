"""The two sides of a comparison: each has an interpreter, a folder or commit, and settings."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from ddpbench.errors import OutputError, RequestError, meant
from ddpbench.helper_process import child_environment
from ddpbench.launch.interleave.interpreters import same_environment
from ddpbench.machine.identity import GIT, git_environment
from ddpbench.planted import is_decoy
from ddpbench.records import RunDir, write_atomically
from ddpbench.records.outputs import without_own
from ddpbench.records.rundir import explain_os_error
from ddpbench.removal import remove_tree
from ddpbench.side_code import SideCode, innermost
from ddpbench.spec.overrides import contradiction, sure_keys
from ddpbench.text_safety import command, given_twice, shortened, toml_text

_WORDS = (
    "ref=COMMIT, path=FOLDER, python=INTERPRETER, set=KEY=VALUE or env=NAME=VALUE; anything else is a folder, "
    "or else a commit"
)
_KINDS = ("ref", "path", "python", "set", "env")
_PATHS = ("/", "./", "../", "~")
"""Beginnings of words that stand for a folder, even if it does not exist. No commit's name begins like this."""
_TIMES = {
    "budget.rounds_min": "use {fewest}",
    "budget.rounds_max": "use --total",
    "budget.total": "use --total",
}
_SEED = "budget.seed"
_OF_BOTH = {_SEED: "leave it out", **_TIMES}
"""Settings that a comparison sets itself, with advice. `{fewest}` stands for the flag of the fewest rounds."""
COPIES = ".code"
"""The folder for commits' files, in a comparison's folder. pytest, mypy and other tools skip it because of its dot."""
_ASK_S = 120
"""Time limit for git, and for an interpreter to import torch and ddpbench, seconds."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SideSpec:
    """A side as the user describes it. Empty values stand for this process's own code and interpreter."""

    name: str
    """`base` or `new`."""
    ref: str = ""
    path: str = ""
    python: str = ""
    overrides: tuple[str, ...] = ()

    @property
    def words(self) -> str:
        """A description of the side for use in a sentence, such as `new (ref=main, set=base.bucket_cap_mb=1)`."""
        given = [
            *([f"ref={self.ref}"] if self.ref else []),
            *([f"path={self.path}"] if self.path else []),
            *([f"python={self.python}"] if self.python else []),
            *(f"set={text}" for text in self.overrides),
        ]
        return f"{self.name} ({', '.join(given)})" if given else self.name


def parse_side(name: str, words: Sequence[str]) -> SideSpec:
    """Parse the words of the flag for a side, whose `name` is `base` or `new`.

    Raises:
        RequestError: a word cannot be understood, or two words contradict each other.
    """
    overrides: list[str] = []
    given: dict[str, str] = {}
    for word in words:
        key, equals, value = word.partition("=")
        if equals and key not in _KINDS and (near := meant(key, _KINDS, 0.6)):
            raise RequestError(f"--{name} {shortened(word)}: {near}give {_WORDS}")
        if key not in _KINDS or not equals:
            key, value = ("path", word) if _is_folder(word) or word.startswith(_PATHS) else ("ref", word)
        if not value:
            raise RequestError(f"--{name} {shortened(word)}: give {_WORDS}")
        if key == "set":
            for one in sure_keys(value):
                if one in _OF_BOTH:
                    raise RequestError(f"--{name} set={_refusal(one)}")
            overrides.append(value)
        elif key == "env":
            variable, equals, content = value.partition("=")
            if not equals:
                raise RequestError(f"--{name} {shortened(word)}: give env=NAME=VALUE")
            overrides.append(f"env.{variable}={toml_text(content)}")
        elif given.setdefault(key, value) != value:
            raise RequestError(f"--{name} {key}: {given_twice(given[key], value)}")
    if twice := contradiction(overrides):
        raise RequestError(f"--{name}: {given_twice(*twice)}")
    folders = {"path": os.path.expanduser(given["path"])} if "path" in given else {}  # noqa: PTH111  unknown users
    spec = SideSpec(name=name, overrides=tuple(dict.fromkeys(overrides)), **(given | folders))
    if spec.ref and spec.path:
        raise RequestError(
            f"--{name}: both a commit and a folder are given for one side's code: leave one out"
        )
    return spec


def check_common(overrides: Sequence[str], sides: Sequence[SideSpec] = (), fewest: str = "--rounds") -> None:
    """Check that no override in `overrides` sets what the comparison sets itself, or contradicts one side's override.

    The seed is allowed; `without_order` removes it.

    Args:
        overrides: the settings of both sides.
        sides: the sides.
        fewest: the command's flag for the smallest number of rounds, to be named in an error message.

    Raises:
        RequestError: an override is not allowed.
    """
    for text in overrides:
        keys = sure_keys(text)
        for key in keys:
            if key in _TIMES or (
                key == _SEED and len(keys) > 1
            ):  # `without_order` drops a setting of the seed alone
                raise RequestError(f"--set {_refusal(key, fewest)}")
    for side in sides:
        if twice := contradiction([*overrides, *side.overrides]):
            hint = f"give it with --set for both sides, or with --{side.name} for one"
            raise RequestError(f"--set and --{side.name}: {given_twice(*twice, hint)}")


def _refusal(key: str, fewest: str = "--rounds") -> str:
    instead = _OF_BOTH[key].format(fewest=fewest)
    return f"{key}: a comparison chooses the number and order of its rounds itself: {instead}"


def without_order(overrides: Sequence[str]) -> list[str]:
    """Return the overrides without the seed for the order of launches, which the comparison chooses itself."""
    return [text for text in overrides if sure_keys(text) != [_SEED]]


def check_apart(base: SideSpec, new: SideSpec) -> None:
    """Check that two sides differ.

    Raises:
        RequestError: the sides do not differ.
    """
    if _are_equal(base, new):
        raise RequestError(f"both sides are the same: give --base and --new with {_WORDS}")


def _are_equal(base: SideSpec, new: SideSpec) -> bool:
    def but_interpreter(side: SideSpec) -> SideSpec:
        return replace(side, name="", path=side.path and str(Path(side.path).resolve()), python="")

    programs = (
        shutil.which(side.python) or side.python if side.python else sys.executable for side in (base, new)
    )
    return but_interpreter(base) == but_interpreter(new) and same_environment(*programs)


def is_same_program(base: SideSpec, new: SideSpec) -> bool:
    """Return whether two sides have the same code and environment of Python. Their settings may differ."""
    return _are_equal(replace(base, overrides=()), replace(new, overrides=()))


def is_side_word(word: str) -> bool:
    """Return whether a word describes a side, such as `ref=main`, or is a folder other than a run's."""
    key, equals, _ = word.partition("=")
    return bool(equals and key in _KINDS) or (_is_folder(word) and not RunDir(Path(word)).plan.is_file())


def _is_folder(word: str) -> bool:
    """Return whether a word is a trusted folder. Another user's folder must not stand in for a commit."""
    return Path(word).is_dir() and not is_decoy(word)


def beside_this_code(words: Sequence[str]) -> tuple[SideSpec, SideSpec]:
    """Return the base side that the words describe, and a new side with the code in the working directory.

    If the base names a commit or folder, the new side's code is the repository around the working directory. Outside a
    repository, it is the working directory. The words are checked, and nothing is written.

    Raises:
        RequestError: a word cannot be understood or names something that does not exist, or both sides are the same.
    """
    base = parse_side("base", words)
    here = top_of(Path.cwd()) or Path.cwd().resolve()
    new = SideSpec(name="new", path=str(here) if base.ref or base.path else "")
    if _are_equal(base, new):
        raise RequestError(
            f"{command('--base', *words)} is the code in the working directory, so both sides are the same"
        )
    check_there(base)
    return base, new


def check_there(spec: SideSpec) -> None:
    """Check that the commit, folder or interpreter of a side exists; write nothing.

    Raises:
        RequestError: the commit, folder or interpreter does not exist.
    """
    _interpreter(spec)
    _checked_folder(spec)
    if spec.ref:
        _commit_named(_repository(spec), spec)


@dataclass(frozen=True, kw_only=True, slots=True)
class Placed:
    """A side with its code in place.

    Its processes run in `folder`; None stands for this process's working directory.
    """

    spec: SideSpec
    python: str
    folder: Path | None
    commit: str
    """The commit of the side's code, with `+` if its folder has changes or new files; empty outside a repository."""
    experiment: Path
    overrides: tuple[str, ...] = ()
    """All settings of the command line for this side, with paths that are valid in its folder."""
    first: tuple[Path, ...] = ()
    """The folders that the side's processes search first for modules."""
    code: SideCode | None = None
    """A description of the side's code for its processes; None if both sides run the code in the working directory."""
    remarks: tuple[str, ...] = ()
    """Sentences on code that both sides use."""

    @property
    def notes(self) -> list[str]:
        """Sentences about surprising properties of the measured code, such as uncommitted changes."""
        notes = [*self.remarks]
        if self.folder is not None and self.commit.endswith("+"):
            notes.append(
                f"{self.spec.name}: {self.folder} has uncommitted changes or new files, which are "
                "measured too"
            )
        if self.spec.ref and self.folder is not None and (self.folder / ".gitmodules").is_file():
            notes.append(
                f"{self.spec.words}: submodules are left out, because a commit does not contain their files"
            )
        return notes


def own_code(side: Placed) -> Path:
    """Return the folder of a side's code."""
    return (side.folder or top_of(Path.cwd()) or Path.cwd()).resolve()


def repository_of(side: Placed) -> Path:
    """Return the root of the repository around a side's code.

    If the code is a commit or is in no repository, return the code's folder.
    """
    own = own_code(side)
    return own if side.spec.ref else top_of(own) or own


COPY_ADVICE = "put a copy of it into each side's folder"
"""Advice for two folders of one checkout that lack a file. If both were given as the root, they would be the same."""


def are_parts(sides: Sequence[Placed]) -> bool:
    """Return whether both sides are folders of one checkout, such as two implementations, or one is all of it."""
    return not any(side.spec.ref for side in sides) and len({repository_of(side) for side in sides}) == 1


def roots_of(sides: Sequence[Placed]) -> list[Path]:
    """Return the roots of all compared code: both sides' folders, and the repositories around them."""
    codes = [side.folder if side.spec.path and side.folder else Path.cwd() for side in sides]
    return [
        *dict.fromkeys(
            [*(top_of(code) or code.resolve() for code in codes), *(own_code(one) for one in sides)]
        )
    ]


def place(spec: SideSpec, experiment: Path, out: Path, other: SideSpec | None = None) -> Placed:
    """Prepare a side's code, and return the side with its folder.

    A commit's files are written below `out`; a named folder is used as it is. A side uses its own version of an
    experiment's file in a compared repository.

    Args:
        spec: the side.
        experiment: the experiment's file.
        out: the folder for commits' files.
        other: the side that `spec` is compared with.

    Raises:
        RequestError: the commit, folder or interpreter does not exist.
        OutputError: the code cannot be written.
    """
    python = _interpreter(spec)
    folder = _checked_folder(spec)
    if spec.ref:
        folder = _exported(_repository(spec), spec, out)
    elif folder is None and other is not None and _is_whole_code(other):
        folder = _root_above()
    own = experiment.resolve()
    if folder is not None:
        own = _own_experiment(spec, own, other, folder)
    return Placed(
        spec=spec, python=python, folder=folder, commit=_commit_of(spec, folder, out), experiment=own
    )


def _is_whole_code(spec: SideSpec) -> bool:
    folder = Path(spec.path).resolve() if spec.path else None
    return bool(spec.ref) or (folder is not None and folder.is_dir() and top_of(folder) == folder)


def _root_above() -> Path | None:
    """Return the repository's root if the working directory is below it, else None.

    A side without a folder starts there, so that both sides use the same paths.
    """
    top = top_of(Path.cwd())
    return None if top == Path.cwd().resolve() else top


def same_code(base: Placed, new: Placed) -> str:
    """Return a remark that both sides measure the same commit in the same way; empty if they differ."""
    alike = (
        base.commit == new.commit
        and same_environment(base.python, new.python)
        and sorted(base.spec.overrides) == sorted(new.spec.overrides)
        and all(_is_whole(side) for side in (base, new))
    )
    if not alike or not base.commit or base.commit.endswith("+"):
        return ""
    return "both sides are the same commit with the same settings, so any difference is chance"


def _is_whole(side: Placed) -> bool:
    folder = side.folder or Path.cwd()
    return bool(side.spec.ref) or top_of(folder) == folder.resolve()


def _checked_folder(spec: SideSpec) -> Path | None:
    """Return the folder that a side names, or None.

    Raises:
        RequestError: the folder does not exist.
    """
    if not spec.path:
        return None
    folder = Path(spec.path).resolve()
    if not folder.is_dir():
        why = "not a folder" if folder.exists() else "the folder does not exist"
        raise RequestError(f"{command(f'--{spec.name}', f'path={spec.path}')}: {why}")
    return folder


def _repository(spec: SideSpec) -> Path:
    here = top_of(Path.cwd())
    if here is None:
        raise RequestError(f"{command(f'--{spec.name}', f'ref={spec.ref}')}: {why_no_repository(Path.cwd())}")
    return here


def _own_experiment(spec: SideSpec, experiment: Path, other: SideSpec | None, folder: Path) -> Path:
    """Return the side's own version of the experiment's file, or the given file if it is in no compared code.

    An uncommitted experiment is copied into the commit's folder, so that its relative paths lead to the side's files.

    Raises:
        RequestError: the side has no such file, or a link in its commit leads elsewhere.
        OutputError: the experiment cannot be copied.
    """
    sides = [spec] if other is None else [spec, other]
    folders = [Path(side.path or Path.cwd()).resolve() for side in sides]
    holder = _holder(experiment, sides, folders)
    if holder is not None and (own := folder / experiment.relative_to(holder)).is_file():
        return own
    top = _top_among(experiment.parent, folders)
    if top is None or not experiment.is_relative_to(top):
        return experiment
    relative = experiment.relative_to(top)
    placed = folder / relative
    if placed.is_file() or folder.resolve() == top:
        return placed
    root = top_of(folder) if spec.path else None
    above = root if root is not None and root != folder.resolve() and (root / relative).is_file() else None
    if above is not None and holder is None and all(side.path for side in sides):
        return above / relative  # the sides are parts of checkouts, and the experiment is in neither part
    if not spec.ref or _is_tracked(top, experiment):
        missing = relative if holder is None else experiment.relative_to(holder)
        raise RequestError(
            f"{spec.words} has no {missing}, but both sides need the experiment{_advice(above, sides, folders)}"
        )
    return _copied(spec, experiment, placed, relative)


def _holder(experiment: Path, sides: Sequence[SideSpec], folders: Sequence[Path]) -> Path | None:
    """Return the side's folder that holds the experiment; each side then uses the file at this place in its own folder.

    Return None if the experiment is in neither folder, or if a side is a commit. A side that names no folder uses the
    experiment as it is given, so the experiment must be in that side's folder, which is the working directory.
    """
    if any(side.ref for side in sides):
        return None
    found = innermost(experiment, folders)
    unnamed = [folder for side, folder in zip(sides, folders, strict=True) if not side.path]
    return None if unnamed and found not in unnamed else found


def _advice(above: Path | None, sides: Sequence[SideSpec], folders: Sequence[Path]) -> str:
    """Return advice for a side whose folder lacks the experiment, although the checkout `above` it has the file."""
    if above is None:
        return ""
    if not any(side.ref for side in sides) and all(folder.is_relative_to(above) for folder in folders):
        return f": {COPY_ADVICE}"
    return f": give the root of its repository, path={os.path.relpath(above)}"


def _copied(spec: SideSpec, experiment: Path, placed: Path, relative: Path) -> Path:
    """Copy an uncommitted experiment into a commit's folder, to `placed`, and return this path.

    Raises:
        RequestError: a link in the commit leads elsewhere.
        OutputError: the experiment cannot be copied.
    """
    folder = placed.parents[len(relative.parts) - 1].resolve()
    if placed.is_symlink() or not placed.parent.resolve().is_relative_to(folder):
        raise RequestError(
            f"{spec.words}: in that commit {relative} leads elsewhere by a symbolic link: put the experiment into "
            "another folder"
        )
    try:
        placed.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(experiment, placed)
    except OSError as error:
        raise OutputError(f"{placed} cannot be written: {explain_os_error(error)}") from None
    return placed


def _commit_of(spec: SideSpec, folder: Path | None, out: Path) -> str:
    if spec.ref:
        return git(Path.cwd(), "rev-parse", "--short=12", f"{spec.ref}^{{commit}}")
    return commit_at(folder or Path.cwd(), out, "--short=12")


def commit_at(where: Path, out: Path | None = None, *form: str) -> str:
    """Return the commit that is checked out around a folder, with `+` for changes or new files; empty outside a
    repository.

    Files in `out` and of Python or ddpbench do not count. `form` has options of `git rev-parse`.
    """
    top = top_of(where)
    if top is None:
        return ""
    own = [":(exclude,top,glob)**/__pycache__/**"]
    if out is not None and out.resolve().is_relative_to(top):
        own.append(f":(exclude,top,literal){out.resolve().relative_to(top)}")
    status = git(where, "status", "--porcelain", "--untracked-files=no", "--", ":/", *own)
    new = git(top, "ls-files", "-z", "--others", "--exclude-standard", "--", ":/", *own).split("\0")
    changed = status or without_own(top / name for name in new if name)
    return git(where, "rev-parse", *form, "HEAD") + ("+" if changed else "")


def _interpreter(spec: SideSpec) -> str:
    if not spec.python:
        return sys.executable
    program = shutil.which(spec.python)
    if program is None:
        raise RequestError(f"{command(f'--{spec.name}', f'python={spec.python}')}: not a program on PATH")
    program = os.path.abspath(program)  # noqa: PTH100  a link is what makes an environment's interpreter its own
    if why := _lacking(program):
        raise RequestError(f"{command(f'--{spec.name}', f'python={spec.python}')}: {why}")
    return program


@cache
def _lacking(python: str) -> str:
    try:
        done = subprocess.run(
            [python, "-P", "-c", "import torch, ddpbench.launch.sweep.sweep"],
            env=child_environment(),
            capture_output=True,
            text=True,
            errors="surrogateescape",
            timeout=_ASK_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"importing torch and ddpbench there did not end within {_ASK_S} s"
    except OSError as error:
        return f"it cannot be run: {error}"
    if done.returncode:
        why = (done.stderr.strip().splitlines() or ["it says nothing"])[-1]
        return f"torch and ddpbench must be installed there: {why}"
    return ""


def top_of(folder: Path) -> Path | None:
    """Return the root of the repository that contains a folder; None if the folder is in no repository."""
    found = _path_of(folder, "--show-toplevel")
    return found and found.resolve()


def _top_among(folder: Path, places: Sequence[Path]) -> Path | None:
    own = _store(folder)
    return top_of(folder) if own is not None and own in map(_store, places) else None


def is_same_repository(one: Path, other: Path) -> bool:
    """Return whether two folders are in one repository, or in worktrees of one."""
    store = _store(one)
    return store is not None and store == _store(other)


def _store(folder: Path) -> Path | None:
    """Return the git folder that all worktrees of a repository share; None outside a repository."""
    found = _path_of(folder, "--git-common-dir")
    return found and (folder / found).resolve()


def _path_of(folder: Path, option: str) -> Path | None:
    """Return the path that `git rev-parse` prints for an option; None outside a usable repository.

    Raises:
        RequestError: git does not answer in time; after None, callers would ask again and wait as long.
    """
    if shutil.which(GIT[0]) is None:
        return None
    done = _ask(folder, "rev-parse", option)
    return None if done.returncode else Path(done.stdout.strip())


def is_in_repository(folder: Path) -> bool:
    """Return whether a folder is in a repository, bare or not, that git accepts. Raises like `_path_of`."""
    return _path_of(folder, "--git-dir") is not None


def _is_tracked(top: Path, path: Path) -> bool:
    done = _ask(top, "ls-files", "--", str(path.resolve()))
    return not done.returncode and bool(done.stdout.strip())


def git(folder: Path, *words: str, index: Path | None = None) -> str:
    """Run git and return its output. With `index`, git uses that file instead of the user's index.

    Raises:
        RequestError: git refuses, or is not installed.
    """
    done = _ask(folder, *words, index=index)
    if done.returncode:
        raise RequestError(f"git: {(done.stderr.strip().splitlines() or ['it refuses'])[-1]}")
    return done.stdout.strip()


def _ask(folder: Path, *words: str, index: Path | None = None) -> subprocess.CompletedProcess[str]:
    environment = git_environment(**({"GIT_INDEX_FILE": str(index)} if index else {}))
    try:
        return subprocess.run(
            [*GIT, "-C", str(folder), *words],
            capture_output=True,
            text=True,
            errors="surrogateescape",
            timeout=_ASK_S,
            check=False,
            env=environment,
        )
    except subprocess.TimeoutExpired:
        raise _no_answer(folder) from None
    except OSError as error:
        raise RequestError(f"git cannot be run: {error}") from None


def _no_answer(folder: Path) -> RequestError:
    return RequestError(f"git gave no answer about {folder} within {_ASK_S} s: look at its .git")


def why_no_repository(folder: Path) -> str:
    """Return why git finds no usable repository around a folder; if git refuses an existing one, also what to do."""
    if shutil.which(GIT[0]) is None:
        return "git is not installed here, or not on PATH"
    said = _ask(folder, "rev-parse", "--git-dir").stderr
    if "safe.directory" in said:  # git's setting, not translated in any language
        place = next(
            (one for one in (folder.resolve(), *folder.resolve().parents) if (one / ".git").exists()), folder
        )
        return (
            f"git refuses the repository {place}, because another user owns it; if you trust that user, "
            f"run: {command('git', 'config', '--global', '--add', 'safe.directory', place)}"
        )
    if "safe.bareRepository" in said:
        return f"{folder} is in a bare repository, which git does not use here: work in a clone or a worktree of it"
    return f"{folder} is in no git repository"


def commit_named(top: Path, name: str) -> str:
    """Return the full id of the commit to which a name refers.

    Raises:
        RequestError: no commit has that name.
    """
    if name.startswith("-"):
        raise RequestError("a commit's name cannot start with -")
    done = _ask(top, "rev-parse", "--verify", "--quiet", f"{name}^{{commit}}")
    if done.returncode:
        shallow = _ask(top, "rev-parse", "--is-shallow-repository").stdout.strip() == "true"
        more = (
            ", because this is a shallow clone: git fetch --unshallow fetches the other commits"
            if shallow
            else ""
        )
        raise RequestError(f"{top} has no such commit{more}")
    return done.stdout.strip()


def _commit_named(top: Path, spec: SideSpec) -> str:
    try:
        return commit_named(top, spec.ref)
    except RequestError as error:
        raise RequestError(f"{command(f'--{spec.name}', f'ref={spec.ref}')}: {error}") from None


_NOT_COLLECTED = """\
# Written by ddpbench: below are commits' files that a comparison measures. The tests among them are not this project's.
collect_ignore_glob = ["*"]
"""


def _hide(folder: Path) -> None:
    """Hide the commits' files from pytest and git, because the folder may be inside a repository."""
    write_atomically(folder / "conftest.py", _NOT_COLLECTED)
    write_atomically(folder / ".gitignore", "*\n")


_MOST_FILES, _MOST_BYTES = 500_000, 16 << 30
"""The most files and folders, and the most bytes, of a commit. The Linux kernel has a sixth as many files."""
_BLOCK = 4096
"""The smallest number of bytes that a file occupies on disk."""


def _check_size(top: Path, commit: str, spec: SideSpec) -> None:
    """Check that a commit is not too large to write: in git, a few KB can stand for 10^9 files.

    Raises:
        RequestError: the commit has too many files or too many bytes, or git gives no answer.
    """
    taken = 0
    for count, size in enumerate(_sizes(top, commit), start=1):
        taken += max(size, _BLOCK)
        if count > _MOST_FILES or taken > _MOST_BYTES:
            raise RequestError(
                f"{spec.words}: that commit has more than {_MOST_FILES:,} files and folders, or more than "
                f"{_MOST_BYTES >> 30} GiB; give a checkout of it with path=FOLDER"
            )


def _sizes(top: Path, commit: str) -> Iterator[int]:
    """Yield the bytes of each file of a commit, and 0 for each folder.

    Raises:
        RequestError: git gives no answer, cannot list all files, or is not installed.
    """
    with _listing(top, commit) as listing:
        timer = threading.Timer(_ASK_S, listing.kill)
        timer.start()
        try:
            assert listing.stdout is not None
            for line in listing.stdout:
                size = line.split(maxsplit=4)[3]
                yield int(size) if size.isdigit() else 0
            status = listing.wait()
        finally:
            timer.cancel()
            listing.kill()
    if status == -signal.SIGKILL:
        raise _no_answer(top)
    if status:
        partial = _ask(top, "config", "--get-regexp", r"remote\..*\.promisor").stdout.strip()
        advice = (
            f"it is a partial clone, so give a checkout of the commit: git worktree add FOLDER {commit[:12]}, and "
            "path=FOLDER"
            if partial
            else "git fsck says what is missing"
        )
        raise RequestError(f"git cannot list all files of {commit[:12]} in {top}: {advice}")


def _listing(top: Path, commit: str) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(
            [*GIT, "-C", str(top), "ls-tree", "-r", "-t", "-l", commit],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=git_environment(),
        )
    except OSError as error:
        raise RequestError(f"git cannot be run: {error}") from None


def _exported(top: Path, spec: SideSpec, out: Path) -> Path:
    commit = _commit_named(top, spec)
    folder = out.resolve() / COPIES / commit[:12]
    if folder.is_dir():
        return folder
    _check_size(top, commit, spec)
    unfinished = folder.with_name(f".{folder.name}.new")
    index = folder.with_name(f".{folder.name}.index")
    try:
        remove_tree(unfinished)
        unfinished.mkdir(parents=True)
        _hide(folder.parent)
        # An archive would omit what .gitattributes marks export-ignore, which is often tests and benchmarks.
        git(top, "-c", "core.sparseCheckout=false", "read-tree", commit, index=index)
        git(top, "checkout-index", "--all", "--force", f"--prefix={unfinished}/", index=index)
        unfinished.rename(folder)
    except OSError as error:
        raise OutputError(f"{folder} cannot be written: {explain_os_error(error)}") from None
    finally:
        index.unlink(missing_ok=True)
    return folder
