"""The folders in which Python searches for each side's modules.

The user's search path may lead into the compared repository: by PYTHONPATH, a .pth file, or the finder of a package
that was installed with `pip install -e`. Each side gets its own copies of these folders, and searches them first.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from ddpbench.launch.interleave.interpreters import forget, same_environment, searched
from ddpbench.launch.interleave.sides import Placed, top_of
from ddpbench.side_code import SideCode, innermost, is_installed
from ddpbench.user_files import is_others


def own_code(side: Placed) -> Path:
    """Return the folder of a side's code."""
    return (side.folder or top_of(Path.cwd()) or Path.cwd()).resolve()


def roots_of(sides: Sequence[Placed]) -> list[Path]:
    """Return the roots of all compared code: both sides' folders, and the repositories around them."""
    codes = [side.folder if side.spec.path and side.folder else Path.cwd() for side in sides]
    return [
        *dict.fromkeys(
            [*(top_of(code) or code.resolve() for code in codes), *(own_code(one) for one in sides)]
        )
    ]


def with_search(sides: tuple[Placed, Placed]) -> tuple[Placed, Placed]:
    """Return both sides with the folders that each searches first, and a description of its code for its processes.

    Sides are returned unchanged if both run the code in the working directory.
    """
    if all(side.folder is None for side in sides):
        return sides
    forget()
    roots = roots_of(sides)
    alike = same_environment(*(side.python for side in sides))
    base, new = (_with_search(side, roots, alike=alike) for side in sides)
    return base, new


def _with_search(side: Placed, roots: Sequence[Path], *, alike: bool) -> Placed:
    """Return a side with the folders that it searches first. If `alike`, both sides have the same environment."""
    own, places = own_code(side), searched(side.python)
    top = own if side.spec.ref else top_of(own) or own
    copies = {name: str(place) for name, place in places.copies.items() if innermost(place, roots)}
    code = SideCode(
        own=str(own),
        others=[str(root) for root in roots if root != own],
        copies=copies if alike else {},
    )

    def mine(folders: Iterable[Path]) -> Iterator[Path]:
        """Yield the side's own copies of the folders that are in compared code."""
        for place in folders:
            root = innermost(place, roots)
            if root is None or is_installed(place, root, places.prefixes):
                continue
            copy = (own if root == own else top) / place.relative_to(root)
            if copy.is_dir() and copy.resolve().is_relative_to(own):
                yield copy

    folder = side.folder or Path.cwd()
    # Python would search the working directory last if other users can write in it.
    usual = [folder, folder / "src"] if side.folder is not None or not is_others(folder) else []
    usual = [place for place in usual if place.is_dir()]
    first = dict.fromkeys([*mine(places.path), *usual, *mine(_parents(places.found))])
    return replace(side, first=tuple(first), code=code)


def _parents(found: Mapping[Path, str]) -> Iterator[Path]:
    """Yield the folders from which Python would import the modules in `found` if they were on `sys.path`."""
    for place, name in found.items():
        parts = tuple(name.split("."))
        file = place.parent if place.name == "__init__.py" else place
        if (*file.parts[:-1], file.name.partition(".")[0])[-len(parts) :] == parts:
            yield file.parents[len(parts) - 1]


_MISSING = re.compile(
    r"No module named '([\w.]+)'|cannot import name '(\w+)' from (?:partially initialized module )?'([\w.]+)'"
)


def not_in_commit(side: Placed, error: str) -> str:
    """Explain why a commit lacks the module that an import error names; empty if the working tree lacks it too."""
    found = _MISSING.search(error)
    if found is None or not side.spec.ref or side.code is None:
        return ""
    name = found[1] or f"{found[3]}.{found[2]}"
    *above, last = name.split(".")
    own = own_code(side)
    for root in map(Path, side.code.others):
        for folder in (root / place.relative_to(own) for place in side.first):
            for file in sorted(folder.joinpath(*above).glob(f"{last}.*")):
                relative = file.relative_to(root)
                if file.is_file() and not (own / relative).exists():
                    return (
                        f"{root} has {relative}, but the commit does not: build files that are not committed in a "
                        "checkout of each side's commit, and give both checkouts with path=FOLDER"
                    )
    return ""
