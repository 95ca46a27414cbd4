"""Check that a process of one side of a comparison imported no module from the other side's code.

Changes of a file that both sides import would not be measured. The side is described in an environment variable, which
all its processes inherit.
"""

from __future__ import annotations

import gc
import json
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from functools import cache
from pathlib import Path
from types import FunctionType

SIDE = "DDPBENCH_SIDE"
"""The environment variable with a side's `SideCode`, as JSON."""
OUTSIDE = ", which is outside its code: "
"""Words in this module's messages. A launch's error that contains these words is recognised as such a message."""
_UNCHECKED = ("ddpbench", "__main__")
_INSTALLED = ("site-packages", "dist-packages", "__pypackages__")


@dataclass(frozen=True, kw_only=True, slots=True)
class SideCode:
    """The folders by which a side's process decides to which code a module belongs."""

    own: str
    """The folder with the side's code."""
    others: Sequence[str] = ()
    """Root folders of all other compared code, which includes the repository of the working directory."""
    copies: Mapping[str, str] = field(default_factory=dict)
    """The copied folder, by import name, for each installed package that is a copy of a folder in compared code."""
    allowed: Sequence[str] = ()
    """Further folders from which the side may import: the repository around `own`, and repositories in compared code
    that are different projects.
    """
    shared_workloads: Sequence[str] = ()
    """Workloads that are the same installed code on both sides, in a comparison whose sides differ only in their code.
    A rank that trains such a workload must import a module of `own`.
    """
    uncommitted: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """The files and folders that no commit contains, such as submodules, for each checkout that the other side uses as
    it is. Paths are relative to the checkout.
    """

    def to_json(self) -> str:
        """Return the object as JSON for the variable `SIDE`, without empty fields: older versions may not know them."""
        return json.dumps({name: value for name, value in asdict(self).items() if value})

    @classmethod
    def from_json(cls, text: str) -> SideCode:
        """Return the object that `to_json` wrote. Fields of newer versions are left out."""
        known = {one.name for one in fields(cls)}
        return cls(**{name: value for name, value in json.loads(text).items() if name in known})


def is_installed(path: Path, root: Path, prefixes: Iterable[Path]) -> bool:
    """Return whether a path below `root` belongs to a Python environment there, such as `.venv`.

    `prefixes` are the resolved folders of the interpreter's environment.
    """
    if any(part in _INSTALLED for part in path.relative_to(root).parts):
        return True
    return any(
        prefix != root and prefix.is_relative_to(root) and path.is_relative_to(prefix) for prefix in prefixes
    )


def innermost(path: Path, roots: Iterable[Path]) -> Path | None:
    """Return the deepest of `roots` that contains a path; None if none does. All paths are resolved."""
    return max(
        (root for root in roots if path.is_relative_to(root)), key=lambda root: len(root.parts), default=None
    )


def shared_module(workload: str = "") -> str:
    """Return a sentence that names a module imported from outside this side's code; empty without one.

    If the trained `workload` is in `SideCode.shared_workloads`, a module of the side's own code must be imported. Empty
    in processes that belong to no comparison.
    """
    text = os.environ.get(SIDE, "")
    if not text:
        return ""
    side = SideCode.from_json(text)
    own, allowed = Path(side.own).resolve(), [Path(one).resolve() for one in side.allowed]
    roots = [own, *allowed, *(Path(one).resolve() for one in side.others)]
    prefixes = [Path(one).resolve() for one in {sys.prefix, sys.base_prefix, sys.exec_prefix}]
    uses_own = False
    for name, path in _used():
        root = innermost(path, roots)
        top = name.partition(".")[0]
        if root is not None and not is_installed(path, root, prefixes):
            uses_own |= root == own
            if root != own and (root not in allowed or _copy_in(own, name, path, root)):
                return f"it would import {name} from {path}{OUTSIDE}{_advice(name, path, root, own)}"
        elif top in side.copies:
            return (
                f"it would import {name} from {path}{OUTSIDE}this is a copy of {side.copies[top]}. Put the folder "
                f"that contains {top} into PYTHONPATH, or install it with pip install -e; or build each side in its "
                "own environment, and give these with python="
            )
    if workload in side.shared_workloads and not uses_own:
        return (
            f"it would run {workload}{OUTSIDE}both sides run the same code, because no module of {own} is imported. "
            "Name a class in the repository; or let the sides differ by set=, env= or python="
        )
    return _replaced_module(side, own)


def _replaced_module(side: SideCode, own: Path) -> str:
    """Return a sentence about an installed module that this side imports in place of an uncommitted one; else empty.

    A script may add a folder of its checkout to `sys.path`. If no commit contains the folder, a side of a commit lacks
    it, and may find another version of the same module among the installed packages.
    """
    if not side.uncommitted:
        return ""
    found = {name: path for name, path in _imported() if "." not in name and not path.is_relative_to(own)}
    searched = [Path(os.path.abspath(place)) for place in sys.path if place]  # noqa: PTH100  a link stays a link
    for at, place in enumerate(searched):
        within = [place.relative_to(one) for one in (own, Path(side.own)) if place.is_relative_to(one)]
        theirs = [
            (one, root)
            for part in within[:1]
            for root in side.uncommitted
            for one in _entries(Path(root, part))
        ]
        for entry, root in theirs:
            path = found.get(entry.name.partition(".")[0])
            if path is None or (place / entry.name).exists() or path.is_relative_to(entry.resolve()):
                continue
            earlier = any(path.is_relative_to(one.resolve()) for one in searched[:at])
            if not earlier and any(entry.is_relative_to(Path(root, one)) for one in side.uncommitted[root]):
                return (
                    f"it would import {entry.name.partition('.')[0]} from {path}{OUTSIDE}the other side imports "
                    f"{entry}, which {NO_COMMIT}. {without_commit(entry, Path(root))}"
                )
    return ""


NO_COMMIT = "no commit contains"
"""Words about files that are ignored or untracked, or that belong to a submodule or to another repository."""


def without_commit(path: Path, root: Path) -> str:
    """Return advice for a module that a checkout, but none of its commits, contains."""
    clone = next((one for one in path.parents if one.is_relative_to(root) and (one / ".git").exists()), root)
    shared = "" if clone == root else f", or put {path.parent} into PYTHONPATH, so that both sides use it"
    return f"Prepare a checkout of each side's commit, and give both with path=FOLDER{shared}"


def _entries(folder: Path) -> list[Path]:
    """Return the importable files and folders in a folder; none if it cannot be read."""
    try:
        return sorted(one for one in folder.iterdir() if one.suffix in ("", ".py", ".so"))
    except OSError:
        return []


def _used() -> Iterator[tuple[str, Path]]:
    """Yield the name and the resolved file of each imported module, then of all other loaded code.

    Other code is what was run by its path, without an entry in `sys.modules`, and shared libraries, such as those that
    ctypes or `torch.ops.load_library` has loaded.
    """
    seen = set()
    for name, path in _imported():
        seen.add(path)
        yield name, path
    sources = {one.__code__.co_filename for one in gc.get_objects() if type(one) is FunctionType}
    usual = (f"{os.path.dirname(os.__file__)}/", f"{_PACKAGE}/")  # noqa: PTH120  thousands of files
    for file in sorted(sources | _libraries()):
        if (
            not file.startswith("/")
            or file.startswith(usual)
            or any(f"/{part}/" in file for part in _INSTALLED)
        ):
            continue
        path = Path(file).resolve()
        if path not in seen:
            yield path.name.partition(".")[0], path


_PACKAGE = Path(__file__).resolve().parent


def _libraries() -> set[str]:
    """Return the files of the shared libraries in this process's memory; none if the system does not list them."""
    try:
        lines = Path("/proc/self/maps").read_text("utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return set()
    return {
        line[line.index("/") :].removesuffix(" (deleted)") for line in lines if "/" in line and ".so" in line
    }


def _imported() -> Iterator[tuple[str, Path]]:
    for name, module in sorted(sys.modules.copy().items()):
        file = getattr(module, "__file__", None)
        if not isinstance(file, str) or not file.startswith("/") or name.partition(".")[0] in _UNCHECKED:
            continue
        path = _resolved(os.path.dirname(file)) / os.path.basename(file)  # noqa: PTH119, PTH120  thousands of modules
        yield name, path.resolve() if path.is_symlink() else path


def _copy_in(own: Path, name: str, path: Path, root: Path) -> Path | None:
    """Return the copy in `own` of a module of the code `root`; None if there is none."""
    if not own.is_relative_to(root):
        return None
    parts = path.relative_to(root).parts
    fewest = name.count(".") + 1 + (path.stem == "__init__")
    copies = (own.joinpath(*parts[at:]) for at in range(len(parts) - fewest + 1))
    return next((copy for copy in copies if copy.is_file()), None)


@cache
def _resolved(folder: str) -> Path:
    return Path(folder).resolve()


def _advice(name: str, path: Path, root: Path, own: Path) -> str:
    relative = path.relative_to(root)
    copy = own / relative if (own / relative).exists() else _copy_in(own, name, path, root)
    if copy is None:
        return (
            f"its code has no {relative}. Compare commits that have it; what is built and not committed, and "
            "submodules, must be in a checkout of each side's commit: give both with path=FOLDER"
        )
    depth = name.count(".") + (path.stem == "__init__")
    folder, found = (one.parents[min(depth, len(one.parents) - 1)] for one in (copy, path))
    searched = [_resolved(place) for place in sys.path]
    if folder in searched and found not in searched:
        return (
            f"its own copy is {copy}. Remove any absolute path to it from your code. Or if the finder of an editable "
            "installation comes before PYTHONPATH, install each side's checkout in its own environment, and give these "
            "with python="
        )
    where = folder.relative_to(own) if folder.is_relative_to(own) else folder
    return (
        f"its own copy is {copy}. Put {where} into PYTHONPATH, which is read as each side's own folder, and "
        "remove any absolute path to it from your code"
    )
