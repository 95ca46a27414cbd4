"""Check that the users' files that a comparison measures belong to each side's own code.

Changes of a file that both sides share would not be measured.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

from ddpbench.errors import RequestError
from ddpbench.launch.interleave.interpreters import same_environment, searched
from ddpbench.launch.interleave.sides import COPY_ADVICE, Placed, are_parts, own_code, roots_of, top_of
from ddpbench.launch.interleave.turns import side_environment
from ddpbench.launch.own_workloads import OWN_SETTINGS, file_in, resolved, with_file
from ddpbench.shipped import shipped_experiments
from ddpbench.side_code import OUTSIDE, innermost, is_installed
from ddpbench.spec import documents
from ddpbench.spec import overrides as sets
from ddpbench.text_safety import toml_text
from ddpbench.user_files import is_import_path
from ddpbench.workloads.shipped import PREFIX

_ASK_S = 120
"""Time limit for an interpreter to find a module, seconds."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Named:
    kind: str
    name: str

    @property
    def is_shared(self) -> bool:
        """Return whether both sides may share the file; only profiles, which are data."""
        return self.name.startswith(PREFIX)


def with_overrides(side: Placed, overrides: Sequence[str]) -> Placed:
    """Return a side whose settings also include `overrides`, the settings of both sides.

    Relative paths start at the experiment's folder or the working directory. If that is below a repository's root, and
    the side's folder is an entire repository, they are rewritten to start at the root.
    """
    here, top = Path.cwd().resolve(), top_of(Path.cwd())
    given = (*overrides, *side.spec.overrides)
    folder = side.folder
    if folder is None or top in (None, here) or not (side.spec.ref or top_of(folder) == folder.resolve()):
        return replace(side, overrides=given)
    assert top is not None

    def from_root(name: str) -> str:
        file = file_in(name)
        if not file or Path(file).is_absolute() or (side.experiment.parent / file).is_file():
            return name
        path = (here / file).resolve()
        return with_file(name, path.relative_to(top)) if path.is_file() and path.is_relative_to(top) else name

    return replace(side, overrides=tuple(_changed(text, from_root) for text in given))


def _changed(override: str, change: Callable[[str], str]) -> str:
    key, equals, raw = override.partition("=")
    if not equals or key.strip().removeprefix("base.").removeprefix("axes.") not in OWN_SETTINGS:
        return override
    try:
        value = documents.parse(f"value = {raw}")["value"]
    except ValueError:
        value = raw.strip()  # a text without quotes
    names = value if isinstance(value, list) else [value]
    if not all(isinstance(name, str) for name in names):
        return override  # refused when the side starts
    changed = [change(name) for name in names]
    if changed == names:
        return override
    written = ", ".join(map(toml_text, changed))
    return f"{key}={f'[{written}]' if isinstance(value, list) else written}"


def with_checked_files(sides: tuple[Placed, Placed]) -> tuple[Placed, Placed]:
    """Check that every user's file that a side measures is in the side's own code.

    Shared files are allowed if they are profiles outside of both repositories, ship with ddpbench's experiments, or
    belong to installed packages. Nothing is checked if both sides run the code in the working directory. The processes
    of returned sides may check their imports.

    Args:
        sides: both sides, as returned by `with_overrides` and `with_search`.

    Raises:
        RequestError: a file is outside a side's code; the message says what to give instead.
    """
    if all(side.folder is None for side in sides):
        return sides
    tops, alike = roots_of(sides), same_environment(*(side.python for side in sides))
    parts = are_parts(sides)
    shared = set()
    for side in sides:
        for named in _named(side.experiment, side.overrides):
            if not is_import_path(named.name) or file_in(named.name):
                _check(side, named, tops, parts=parts)
            elif _check_module(side, named, tops, alike=alike) and named.kind == "workload":
                shared.add(named.name)
    if not shared or not alike or _settings_differ(sides):
        return sides
    base, new = (
        side if side.code is None else replace(side, code=replace(side.code, shared_workloads=sorted(shared)))
        for side in sides
    )
    return base, new


def _settings_differ(sides: Sequence[Placed]) -> bool:
    base, new = sides
    if sorted(base.spec.overrides) != sorted(new.spec.overrides):
        return True
    try:
        return base.experiment.read_bytes() != new.experiment.read_bytes()
    except OSError:
        return False  # reported when a side starts


def _check(side: Placed, named: _Named, tops: Sequence[Path], *, parts: bool) -> None:
    """Check a name for one side; `tops` are the roots of both sides' code, which may be `parts` of one checkout.

    Raises:
        RequestError: the file or module is outside the side's code.
    """
    code = own_code(side)
    file = file_in(named.name)
    if not file:
        return
    places = [side.experiment.parent / file, (side.folder or Path.cwd()) / file]
    found = next((place.resolve() for place in places if place.is_file()), None)
    if found is None or found.is_relative_to(code):
        return  # a missing file is reported when the side starts
    if _within(found, tops):
        _refuse(side, named, found, _advice(side, found, tops, parts=parts))
    if named.is_shared or (named.kind != "workload" and found.is_relative_to(shipped_experiments())):
        return
    if Path(file).is_absolute():
        _refuse(
            side, named, found, "put it into the repository, and give its path from the repository's root"
        )
    there = [Path(os.path.normpath(place.absolute())) for place in places if place.is_file()]
    if any(place.is_symlink() or place.is_relative_to(code) for place in there):
        _refuse(side, named, found, "a symbolic link leads to it: put the file itself into the repository")
    if side.experiment.is_relative_to(code):
        _refuse(
            side,
            named,
            found,
            "put this file into the repository, and give its path from the repository's root",
        )
    _refuse(side, named, found, "put the experiment into the repository, next to the code that it measures")


def _check_module(side: Placed, named: _Named, tops: Sequence[Path], *, alike: bool) -> bool:
    """Check a class named by its module, and return whether the module is in neither side's code.

    This is allowed in different environments (not `alike`), or if the side's code lacks the module's source.

    Raises:
        RequestError: the module is in code that is not the side's, or it is a copy of the side's code.
    """
    found, code = _module(side, named.name), own_code(side)
    if found is None:
        return False  # reported when the side starts
    allowed = [] if side.code is None else [Path(one).resolve() for one in side.code.allowed]
    root = innermost(found, [code, *allowed, *tops])
    installed = root is None or _is_in_environment(side, found, root)
    if root == code and not installed:
        return False
    module = named.name.rpartition(":")[0]
    parts = module.split(".")
    held = [one for end in (".py", "/__init__.py") for one in _holding(code, "/".join(parts) + end)]
    sources = [one for one in held if innermost((code / one).resolve(), [code, *allowed]) == code]
    words = f"{side.spec.words}: its {named.kind} {named.name} would be imported from {found}{OUTSIDE}"
    if not installed and root not in allowed:
        where = _relative(found, tops)
        raise RequestError(f"{words}give its file by the path from the repository's root, such as {where}")
    if not alike or parts[0] == "ddpbench" or not sources:
        return parts[0] != "ddpbench"
    folder = sources[0].parents[len(parts) - (sources[0].name != "__init__.py")]
    raise RequestError(
        f"{words}give its file by the path from the repository's root, {sources[0]}, or put {folder} into "
        "PYTHONPATH, which is read as each side's own folder"
    )


def _is_in_environment(side: Placed, found: Path, root: Path) -> bool:
    return is_installed(found, root, searched(side.python).prefixes)


def _holding(code: Path, ending: str) -> list[Path]:
    found = [
        path.relative_to(code)
        for path in code.rglob(ending.rpartition("/")[2])
        if path.as_posix().endswith(f"/{ending}")
        and not any(
            part.startswith(".") or part in ("site-packages", "node_modules")
            for part in path.relative_to(code).parts
        )
    ]
    return sorted(found, key=lambda path: (len(path.parts), path))


def _refuse(side: Placed, named: _Named, found: Path, advice: str) -> NoReturn:
    given = named.name if named.is_shared else named.name.rpartition(":")[0]
    what = "is" if given.removeprefix(PREFIX) == str(found) else f"would be {found}, which is"
    raise RequestError(f"{side.spec.words}: its {named.kind} {given} {what} outside its code: {advice}")


def _advice(side: Placed, found: Path, tops: Sequence[Path], *, parts: bool) -> str:
    if parts:
        return COPY_ADVICE
    folder = side.folder
    root = top_of(folder) if folder is not None and side.spec.path else None
    if folder is not None and root is not None and root != folder.resolve() and found.is_relative_to(root):
        return f"give the root of its repository, path={os.path.relpath(root)}"
    return f"give its path from the repository's root, {_relative(found, tops)}"


def _relative(found: Path, tops: Sequence[Path]) -> Path:
    return next(found.relative_to(top) for top in tops if found.is_relative_to(top))


def _within(found: Path, tops: Iterable[Path]) -> bool:
    return any(found.is_relative_to(top) for top in tops)


def _named(experiment: Path, overrides: Sequence[str]) -> Iterator[_Named]:
    try:
        data = documents.parse(documents.read_text(experiment))
    except (OSError, ValueError):
        return
    settings = sets.apply(data, overrides, _NoCatalog(), [])
    if documents.odd_parts(data):
        return
    sets.reconcile(data, settings, ())
    base, axes = data.get("base"), data.get("axes")
    for kind in OWN_SETTINGS:
        varied = axes.get(kind) if isinstance(axes, dict) else None
        values = varied if varied is not None else base.get(kind) if isinstance(base, dict) else None
        for value in values if isinstance(values, list) else [values]:
            if isinstance(value, str):
                yield _Named(kind=kind, name=_path_of(kind, value))


def _path_of(kind: str, name: str) -> str:
    try:
        return resolved(kind, name)
    except ValueError:  # reported when a side starts
        return name


class _NoCatalog:
    """A catalog without names: overrides of options have no effect, since options name no files."""

    def strategy_names(self) -> list[str]:
        return []

    def workload_names(self) -> list[str]:
        return []

    def installed_names(self, kind: str) -> list[str]:
        return []

    def strategy(self, name: str) -> Any:
        raise KeyError(name)

    def workload(self, name: str) -> Any:
        raise KeyError(name)

    def check_algorithm(self, name: str) -> None:
        return None

    def options_table(self, name: str) -> str:
        return name


_FIND = """
import importlib.util, json, sys
try:
    found = importlib.util.find_spec(sys.argv[1])
except (ImportError, ValueError):
    found = None
places = [] if found is None else [*(found.submodule_search_locations or [found.origin or ""])]
print(json.dumps(places))
"""


def _module(side: Placed, name: str) -> Path | None:
    first, *rest = name.rpartition(":")[0].split(".")
    try:
        done = subprocess.run(
            [side.python, "-P", "-c", _FIND, first],
            env=side_environment(side),
            cwd=side.folder,
            capture_output=True,
            text=True,
            errors="surrogateescape",
            timeout=_ASK_S,
            check=False,
        )
        places = json.loads(done.stdout.splitlines()[-1])
    except (OSError, ValueError, IndexError, subprocess.TimeoutExpired):
        return None
    if not places or not places[0]:
        return None
    package = Path(places[0]).resolve()
    file = package.joinpath(*rest).with_suffix(".py")
    return file if rest and file.is_file() else package
