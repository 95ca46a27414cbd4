"""The folders in which Python searches for each side's modules.

The user's search path may lead into the compared repository: by PYTHONPATH, a .pth file, or the finder of a package
that was installed with `pip install -e`. Each side gets its own copies of these folders, and searches them first.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

from ddpbench.helper_process import child_environment
from ddpbench.launch.interleave.sides import Placed, top_of
from ddpbench.side_code import SideCode, innermost, is_installed

_ASK_S = 120
"""Time limit for an interpreter to list its search path, seconds."""

_LIST = """
import json, os, sys
from importlib import metadata
from urllib.parse import unquote, urlsplit

path, found, copies = [place for place in sys.path if place], {}, {}
for finder in sys.meta_path:
    home = sys.modules.get(getattr(finder, "__module__", ""))
    for places in (
        getattr(home, "MAPPING", None),  # setuptools
        getattr(home, "NAMESPACES", None),
        getattr(finder, "_redirections", None),  # editables, as used by hatch and pdm
        getattr(finder, "known_source_files", None),  # scikit-build-core
    ):
        for name, values in places.items() if isinstance(places, dict) else ():
            for value in values if isinstance(values, list) else [values]:
                if isinstance(name, str) and isinstance(value, str):
                    found[value] = name
for dist in metadata.distributions():
    try:
        origin = json.loads(dist.read_text("direct_url.json") or "{}")
        if "dir_info" not in origin or origin["dir_info"].get("editable") or not origin.get("url", "").startswith("file://"):
            continue
        source = unquote(urlsplit(origin["url"]).path)
        for file in dist.files or ():
            name, _, rest = str(file).partition("/")
            name = name if rest else name.removesuffix(".py") if name.endswith(".py") else ""
            if name.isidentifier() and (str(file).endswith((".py", ".so")) or not rest):
                copies[name] = source
    except (OSError, ValueError, AttributeError):
        continue
prefixes = [sys.prefix, sys.base_prefix, sys.exec_prefix]
print(json.dumps({"path": path, "found": found, "copies": copies, "prefixes": prefixes}))
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Searched:
    """The places in which an interpreter finds modules."""

    path: Sequence[Path] = ()
    """`sys.path`."""
    found: Mapping[Path, str] = field(default_factory=dict)
    """By file or folder, the name of each module that the finders of editable packages know."""
    copies: Mapping[str, Path] = field(default_factory=dict)
    """Source folders of packages that were installed from a local folder as copies, by import name."""
    prefixes: Sequence[Path] = ()
    """The folders of the interpreter's environment."""


@cache
def _searched(python: str) -> _Searched:
    """Ask an interpreter where it finds modules. Return no places if it does not answer."""
    try:
        done = subprocess.run(
            [python, "-P", "-c", _LIST],
            env=child_environment(),
            capture_output=True,
            text=True,
            errors="surrogateescape",
            timeout=_ASK_S,
            check=False,
        )
        said = json.loads(done.stdout.splitlines()[-1])
    except (OSError, ValueError, IndexError, subprocess.TimeoutExpired):
        return _Searched()
    return _Searched(
        path=[Path(place).resolve() for place in said["path"]],
        found={Path(place).resolve(): name for place, name in said["found"].items()},
        copies={name: Path(place).resolve() for name, place in said["copies"].items()},
        prefixes=[Path(place).resolve() for place in set(said["prefixes"])],
    )


def forget() -> None:
    """Forget what interpreters answered, because PYTHONPATH or the installed packages may have changed since."""
    _searched.cache_clear()


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
    alike = len({side.python for side in sides}) == 1
    base, new = (_with_search(side, roots, alike=alike) for side in sides)
    return base, new


def _with_search(side: Placed, roots: Sequence[Path], *, alike: bool) -> Placed:
    """Return a side with the folders that it searches first. If `alike`, both sides have the same interpreter."""
    own, searched = own_code(side), _searched(side.python)
    top = own if side.spec.ref else top_of(own) or own
    copies = {name: str(place) for name, place in searched.copies.items() if innermost(place, roots)}
    code = SideCode(
        own=str(own),
        others=[str(root) for root in roots if root != own],
        copies=copies if alike else {},
    )

    def mine(places: Iterable[Path]) -> Iterator[Path]:
        """Yield the side's own copies of the folders that are in compared code."""
        for place in places:
            root = innermost(place, roots)
            if root is None or is_installed(place, root, searched.prefixes):
                continue
            copy = (own if root == own else top) / place.relative_to(root)
            if copy.is_dir() and copy.resolve().is_relative_to(own):
                yield copy

    folder = side.folder
    usual = [place for place in (folder, folder / "src") if place.is_dir()] if folder is not None else []
    first = dict.fromkeys([*mine(searched.path), *usual, *mine(_parents(searched.found))])
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
                        f"{root} has {relative}, and the commit does not: what is built and not committed must be "
                        "built in a checkout of each side's commit: give both with path=FOLDER"
                    )
    return ""
