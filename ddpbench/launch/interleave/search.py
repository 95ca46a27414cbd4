"""The folders in which Python searches for each side's modules.

PYTHONPATH, a .pth file or an editable install may lead into the compared repository, so each side searches its own
copies of these folders first.
"""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from ddpbench.errors import RequestError
from ddpbench.launch.interleave.contents import (
    built,
    copies_of_projects,
    is_left_out,
    may_be_shared,
    repository_inside,
    uncommitted,
)
from ddpbench.launch.interleave.interpreters import forget, same_environment, searched
from ddpbench.launch.interleave.sides import Placed, own_code, repository_of, roots_of, top_of
from ddpbench.side_code import NO_COMMIT, SideCode, innermost, is_installed, without_commit
from ddpbench.user_files import is_others


def with_search(sides: tuple[Placed, Placed]) -> tuple[Placed, Placed]:
    """Return both sides, each with the folders that it searches first and a description of its code.

    Unchanged if both run the code in the working directory.

    Raises:
        RequestError: PYTHONPATH cannot name a side's folder.
    """
    if all(side.folder is None for side in sides):
        return sides
    forget()
    roots = roots_of(sides)
    alike = same_environment(*(side.python for side in sides))
    copies = copies_of_projects(sides, roots) if alike else {}
    inner = _shared_repositories(sides, roots)
    base, new = (_with_search(side, sides, roots, inner, copies) for side in sides)
    if inner:
        listed = ", ".join(map(str, inner))
        remark = f"both sides use the same files of {listed}, which the commits do not contain"
        base = replace(base, remarks=(*base.remarks, remark))
    return _without_uncommitted((base, new))


def _without_uncommitted(sides: tuple[Placed, Placed]) -> tuple[Placed, Placed]:
    """Return both sides, each with a list of what the other side's checkout has but no commit contains.

    A remark names compiled modules that only one side has, because its code may use them or something slower.
    """

    def one(side: Placed, other: Placed) -> Placed:
        root, own = repository_of(other), repository_of(side)
        if side.code is None or other.spec.ref or root == own or top_of(root) != root:
            return side
        missing = [name for name in built(root) if not (own / name).exists()]
        more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        remark = (
            f"{side.spec.words}: without {', '.join(missing[:3])}{more}, built in {root} and not committed"
        )
        return replace(
            side,
            remarks=(*side.remarks, *([remark] if missing else [])),
            code=replace(side.code, uncommitted={str(root): uncommitted(root)}),
        )

    base, new = sides
    return one(base, new), one(new, base)


def _shared_repositories(sides: tuple[Placed, Placed], roots: Sequence[Path]) -> list[Path]:
    found: dict[Path, Path] = {}
    for side in sides:
        places = searched(side.python)
        for place in (*places.path, *_parents(places.found)):
            root = innermost(place, roots)
            if root is not None and not is_installed(place, root, places.prefixes):
                inner = repository_inside(place, root)
                found |= {inner: root} if inner is not None else {}
    return [inner for inner, root in found.items() if may_be_shared(inner, root, sides)]


def _with_search(
    side: Placed,
    sides: tuple[Placed, Placed],
    roots: Sequence[Path],
    inner: Sequence[Path],
    copies: Mapping[str, str],
) -> Placed:
    """Return the side with the folders that its processes search first.

    `inner` are repositories that may be shared, `copies` the installed copies of compared projects.

    Raises:
        RequestError: PYTHONPATH cannot name one of the folders.
    """
    own, places = own_code(side), searched(side.python)
    whole = repository_of(side)
    tops = {own_code(one): repository_of(one) for one in sides}
    code = SideCode(
        own=str(own),
        others=[str(root) for root in roots if root != own],
        copies=copies,
        allowed=[str(one) for one in (*([whole] if whole != own else []), *inner)],
    )

    def mine(folders: Iterable[Path]) -> Iterator[Path]:
        for place in folders:
            root = innermost(place, roots)
            if root is None or is_installed(place, root, places.prefixes):
                continue
            relative = place.relative_to(tops.get(root, root))
            for one in [place] if root == own else [own / place.relative_to(root), whole / relative]:
                if one.is_dir() and one.resolve().is_relative_to(whole):
                    yield one

    folder = side.folder or Path.cwd()
    # Python would search the working directory last if other users can write in it.
    usual = [folder, folder / "src"] if side.folder is not None or not is_others(folder) else []
    usual = [place for place in usual if place.is_dir()]
    found = [*mine(places.path), *usual, *mine(_parents(places.found))]
    outside = [place for place in dict.fromkeys(found) if not place.resolve().is_relative_to(own)]
    first = [place for place in dict.fromkeys(found) if place not in outside]
    if (odd := next((place for place in first if os.pathsep in str(place)), None)) is not None:
        raise RequestError(
            f"{side.spec.words}: modules in {odd} cannot be imported, because {os.pathsep!r} separates the folders of "
            "PYTHONPATH: use a path without it"
        )
    if outside:
        listed = ", ".join(map(str, outside))
        remark = f"{side.spec.words}: modules in {listed} are used too, although outside of this folder"
        side = replace(side, remarks=(remark,))
    return replace(side, first=(*first, *outside), code=code)


def _parents(found: Mapping[Path, str]) -> Iterator[Path]:
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
    own = own_code(side)
    for root in map(Path, side.code.others):
        folders = [root / place.relative_to(own) for place in side.first]
        names = uncommitted(root) if top_of(root) == root else []
        for file in _files_of(name, [*folders, *_parts_of(root, names)]):
            relative = file.relative_to(root)
            if not (own / relative).exists():
                return f"{root} has {relative}, which {NO_COMMIT}. {without_commit(file, root)}"
    return ""


def _files_of(name: str, folders: Iterable[Path]) -> Iterator[Path]:
    """Yield the files and packages in these folders from which a module could be imported."""
    *above, last = name.split(".")
    for folder in folders:
        place = folder.joinpath(*above)
        yield from (file for file in sorted(place.glob(f"{glob.escape(last)}.*")) if file.is_file())
        if (place / last / "__init__.py").is_file():
            yield place / last


_DEPTH, _MOST_FOLDERS = 3, 2000


def _parts_of(root: Path, names: Iterable[str]) -> Iterator[Path]:
    """Yield the folders that contain these paths or are inside them, `_DEPTH` levels deep, `_MOST_FOLDERS` at most."""
    places = [(root / name, 0) for name in names]
    yield from dict.fromkeys(place.parent for place, _ in places)
    for count, (place, depth) in enumerate(places):  # which grows
        if count == _MOST_FOLDERS or not place.is_dir():
            continue
        yield place
        if depth < _DEPTH:
            inner = (one for one in sorted(place.iterdir()) if one.is_dir() and not is_left_out(one.name))
            places += [(one, depth + 1) for one in inner]
