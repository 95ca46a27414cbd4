"""Repositories and projects inside compared code: which of them both sides of a comparison may share."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path

from ddpbench.errors import RequestError
from ddpbench.launch.interleave.interpreters import installed_copies
from ddpbench.launch.interleave.sides import (
    Placed,
    commit_at,
    git,
    is_same_repository,
    own_code,
    repository_of,
    top_of,
)
from ddpbench.side_code import innermost

_PROJECT = ("pyproject.toml", "setup.cfg", "setup.py")
_NAME = re.compile(r"""^[ \t]*name[ \t]*=[ \t]*["']?([\w.-]+)""", re.MULTILINE)


def repository_inside(place: Path, root: Path) -> Path | None:
    """Return the root of the repository around a folder if this root is inside the folder `root`; otherwise None."""
    found = top_of(place) if place.is_dir() else None
    return found if found is not None and found != root and found.is_relative_to(root) else None


def may_be_shared(inner: Path, root: Path, sides: Sequence[Placed]) -> bool:
    """Return whether both sides may use the repository `inner`, which is inside the repository `root`.

    They may if it is another project, such as a clone of a dependency. They also may if it is a submodule without
    changes, at the commit that both sides record.
    """
    if is_same_repository(inner, root) or _has_common_commits(inner, root):
        return False
    links = {_link(side, inner, root) for side in sides} - {""}
    return not links or links == {commit_at(inner)}


def _has_common_commits(inner: Path, root: Path) -> bool:
    """Return whether two repositories have a commit in common: one is a clone of the other, or of its origin."""

    def starts(folder: Path) -> list[str]:
        try:
            return git(folder, "rev-list", "--max-parents=0", "HEAD").split()
        except RequestError:  # the repository is still empty
            return []

    def has(folder: Path, commit: str) -> bool:
        return _succeeds(folder, "cat-file", "-e", f"{commit}^{{commit}}")

    return any(has(root, one) for one in starts(inner)) or any(has(inner, one) for one in starts(root))


def _succeeds(folder: Path, *words: str) -> bool:
    try:
        git(folder, *words)
    except RequestError:
        return False
    return True


def _link(side: Placed, inner: Path, root: Path) -> str:
    top, relative = repository_of(side), str(inner.relative_to(root))
    if inner.is_relative_to(top):
        return ""
    words = (
        git(root, "ls-tree", side.spec.ref, "--", relative)
        if side.spec.ref
        else git(top, "ls-files", "--stage", "--", relative)
    ).split()
    return words[1 if words[1] != "commit" else 2] if words[:1] == ["160000"] else ""


_IMPORTABLE = (".py", ".so")
_MOST_LETTERS = 30_000
"""Largest total length of the listed paths, which become part of an environment variable."""


def uncommitted(root: Path) -> list[str]:
    """Return a checkout's importable files and folders that are in none of its commits, as paths relative to `root`.

    A folder without any committed file is listed as one path. Submodules are listed too. Hidden folders and
    environments are left out.
    """
    staged = git(root, "ls-files", "-z", "--stage").split("\0")
    links = [line.partition("\t")[2] for line in staged if line.startswith("160000 ")]
    others = git(root, "ls-files", "-z", "--others", "--directory", "--no-empty-directory").split("\0")
    found, letters = [], 0
    for name in sorted({*links, *others} - {""}, key=len):
        parts = Path(name).parts
        letters += len(name)
        if letters > _MOST_LETTERS:
            break
        if (name in links or name.endswith(("/", *_IMPORTABLE))) and not is_left_out(*parts):
            found.append(name.rstrip("/"))
    return found


def is_left_out(*parts: str) -> bool:
    """Return whether one of these parts of a path belongs to a hidden folder, or to one of installed packages."""
    return any(
        part.startswith(".") or part in ("site-packages", "node_modules", "__pycache__") for part in parts
    )


def built(root: Path) -> list[str]:
    """Return the compiled extension modules of a checkout that its commits do not contain, relative to `root`."""
    listed = git(root, "ls-files", "-z", "--others", "--", "*.so").split("\0")
    return sorted(
        name
        for name in listed
        if name
        and not is_left_out(*(parts := Path(name).parts))
        and "build" not in parts
        and _is_module(root / name)
    )


def _is_module(path: Path) -> bool:
    """Return whether the name of a shared library can be imported from the folder, such as `_fast.abi3.so`."""
    name, _, more = path.name.partition(".")
    return name.isidentifier() and (more == "so" or more.startswith(("cpython-", "abi3.")))


def copies_of_projects(sides: tuple[Placed, Placed], roots: Sequence[Path]) -> dict[str, str]:
    """Return the folders of compared projects that are installed as copies, by import name.

    Both sides would import the copy. Projects that are the same on both sides are left out.
    """
    projects = _projects(roots)
    copies = {}
    for top, (project, source) in installed_copies(sides[0].python, projects).items():
        folder = source if source is not None and innermost(source, roots) else projects.get(project)
        if folder is not None and not _is_same(folder, sides, roots):
            copies[top] = str(folder)
    return copies


def _is_same(folder: Path, sides: tuple[Placed, Placed], roots: Sequence[Path]) -> bool:
    root, tops = innermost(folder, roots), [repository_of(side) for side in sides]
    if len({*tops}) == 1:  # two folders of one repository
        return not any(folder.is_relative_to(own_code(side)) for side in sides)
    top = root and top_of(root)
    if top is None:
        return False
    relative, commits = str(folder.relative_to(top)), []
    for side, whole in zip(sides, tops, strict=True):
        if side.spec.ref:
            commits.append(side.spec.ref)
        elif is_same_repository(whole, top) and not git(whole, "status", "--porcelain", "--", relative):
            commits.append(git(whole, "rev-parse", "HEAD"))
        else:
            return False
    return _succeeds(top, "diff", "--no-ext-diff", "--no-textconv", "--quiet", *commits, "--", relative)


def _projects(roots: Sequence[Path]) -> dict[str, Path]:
    return {
        re.sub(r"[-_.]+", "-", name).lower(): file.parent
        for root in roots
        for file in _project_files(root)
        if (name := _project_name(file))
    }


def _project_files(root: Path) -> Iterator[Path]:
    if top_of(root) != root:
        yield from (root / name for name in _PROJECT)
        return
    listed = git(root, "ls-files", "-z", "--", *(f":(glob)**/{name}" for name in _PROJECT))
    yield from (root / name for name in listed.split("\0") if name)


def _project_name(file: Path) -> str:
    try:
        text = file.read_text(encoding="utf-8", errors="replace")
        if file.name != "pyproject.toml":
            found = _NAME.search(text.replace("(", "(\n").replace(",", ",\n"))
            return found[1] if found else ""
        data = tomllib.loads(text)
    except (OSError, ValueError):
        return ""
    tables = (data.get("project"), (data.get("tool") or {}).get("poetry"))
    return next((str(one["name"]) for one in tables if isinstance(one, dict) and "name" in one), "")
