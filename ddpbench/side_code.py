"""Check that a process of one side of a comparison imported no module from the other side's code.

If both sides imported the same file, its changes would not be measured. The comparison describes the side in an
environment variable, which all processes of the side inherit. This module imports nothing of ddpbench.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path

SIDE = "DDPBENCH_SIDE"
"""The environment variable with a side's `SideCode`, as JSON."""
OUTSIDE = ", which is outside its code: "
"""Words in this module's messages, by which a launch's outcome is recognised as such a message."""
_INSTALLED = ("site-packages", "dist-packages")


@dataclass(frozen=True, kw_only=True, slots=True)
class SideCode:
    """The folders by which a side's process decides whose code a module is."""

    own: str
    """The folder with the side's code."""
    others: Sequence[str] = ()
    """Root folders of all other compared code, which includes the repository of the working directory."""
    copies: Mapping[str, str] = field(default_factory=dict)
    """By import name, packages that were installed as copies of a folder in compared code, and that folder."""

    def to_json(self) -> str:
        """Return the object as JSON for the variable `SIDE`."""
        return json.dumps(asdict(self))


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


def shared_module() -> str:
    """Return a sentence that names a module imported from outside this side's code; empty if there is none.

    It is always empty in processes that belong to no comparison.
    """
    text = os.environ.get(SIDE, "")
    if not text:
        return ""
    side = SideCode(**json.loads(text))
    own, others = Path(side.own).resolve(), [Path(one).resolve() for one in side.others]
    roots = [own, *others]
    prefixes = [Path(one).resolve() for one in {sys.prefix, sys.base_prefix, sys.exec_prefix}]
    for name, module in sorted(sys.modules.copy().items()):
        file = getattr(module, "__file__", None)
        top = name.partition(".")[0]
        if (
            not isinstance(file, str)
            or not Path(file).is_absolute()
            or top in ("ddpbench", "__main__")
            or top in sys.stdlib_module_names
        ):
            continue
        folder = _resolved(os.path.dirname(file))  # noqa: PTH120  thousands of modules
        path = folder / os.path.basename(file)  # noqa: PTH119
        path = path.resolve() if path.is_symlink() else path
        root = innermost(path, roots)
        if root == own:
            continue
        if root is not None and not is_installed(path, root, prefixes):
            return f"it would import {name} from {path}{OUTSIDE}{_advice(name, path, root, own)}"
        if top in side.copies:
            return (
                f"it would import {name} from {path}{OUTSIDE}this is a copy of {side.copies[top]}. Put the folder "
                f"that contains {top} into PYTHONPATH, or install it with pip install -e; or build each side in its "
                "own environment, and give these with python="
            )
    return ""


@cache
def _resolved(folder: str) -> Path:
    return Path(folder).resolve()


def _advice(name: str, path: Path, root: Path, own: Path) -> str:
    """Return advice for a module that lies in the compared code `root`, not in this side's code `own`."""
    relative = path.relative_to(root)
    if not (own / relative).exists():
        return (
            f"its code has no {relative}. Compare commits that have it; what is built and not committed must be built "
            "in a checkout of each side's commit: give both with path=FOLDER"
        )
    depth = name.count(".") + (path.stem == "__init__")
    folder = relative.parents[min(depth, len(relative.parents) - 1)]
    return (
        f"its own copy is {own / relative}. Put {folder} into PYTHONPATH, which is read as each side's own folder, and "
        "remove any absolute path to it from your code"
    )
