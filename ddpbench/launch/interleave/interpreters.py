"""The places in which an interpreter finds modules, and the environment that it belongs to."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from ddpbench.helper_process import child_environment

_ASK_S = 120
"""Time limit for an interpreter to list its search path, seconds."""

_LIST = """
import json, sys, sysconfig

path, found = [place for place in sys.path if place], {}
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
prefixes = [sys.prefix, sys.base_prefix, sys.exec_prefix]
environment = [sys.prefix, sys.base_prefix, sysconfig.get_path("purelib"), sysconfig.get_path("platlib")]
answer = {"path": path, "found": found, "prefixes": prefixes, "environment": environment}
print(json.dumps(answer))
"""

_LIST_COPIES = """
import json, re, sys
from importlib import metadata
from urllib.parse import unquote, urlsplit

copies = []
for dist in metadata.distributions():
    try:
        origin = json.loads(dist.read_text("direct_url.json") or "{}")
        name = re.sub(r"[-_.]+", "-", dist.metadata["Name"]).lower()
        place = urlsplit(origin.get("url", ""))
        source = unquote(place.path) if place.scheme == "file" and "dir_info" in origin else ""
        if origin.get("dir_info", {}).get("editable") or not (source or name in sys.argv[1:]):
            continue
        for file in dist.files or ():
            top, _, rest = str(file).partition("/")
            top = top if rest else top.removesuffix(".py") if top.endswith(".py") else ""
            if top.isidentifier() and (str(file).endswith((".py", ".so")) or not rest):
                copies.append([top, name, source])
    except (OSError, ValueError, AttributeError, TypeError):
        continue
print(json.dumps(copies))
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Searched:
    """The places in which an interpreter finds modules."""

    path: Sequence[Path] = ()
    """`sys.path`."""
    found: Mapping[Path, str] = field(default_factory=dict)
    """The modules that the finders of editable packages know: maps a module's file or folder to its name."""
    prefixes: Sequence[Path] = ()
    """The folders of the interpreter's environment."""
    environment: Sequence[Path] = ()
    """The environment's folder, its base's folder, and its folders of packages, in this order."""


@cache
def searched(python: str) -> Searched:
    """Ask an interpreter where it finds modules. Return no places if it does not answer."""
    said = _answer(python, _LIST)
    if said is None:
        return Searched()
    return Searched(
        path=[Path(place).resolve() for place in said["path"]],
        found={Path(place).resolve(): name for place, name in said["found"].items()},
        prefixes=[Path(place).resolve() for place in set(said["prefixes"])],
        environment=[Path(place).resolve() for place in said["environment"]],
    )


def _answer(python: str, script: str, *words: str) -> Any:
    try:
        done = subprocess.run(
            [python, "-P", "-c", script, *words],
            env=child_environment(),
            capture_output=True,
            text=True,
            errors="surrogateescape",
            timeout=_ASK_S,
            check=False,
        )
        return json.loads(done.stdout.splitlines()[-1])
    except (OSError, ValueError, IndexError, subprocess.TimeoutExpired):
        return None


def installed_copies(python: str, projects: Iterable[str]) -> dict[str, tuple[str, Path | None]]:
    """Return the packages that are installed copies of a local folder, or of one of these projects.

    The result maps import names to the project's normalised name and its folder (None if unknown).
    """
    return {
        top: (name, Path(source).resolve() if source else None)
        for top, name, source in _answer(python, _LIST_COPIES, *projects) or ()
    }


def forget() -> None:
    """Forget what interpreters answered, because PYTHONPATH or the installed packages may have changed since."""
    searched.cache_clear()


def same_environment(one: str, other: str) -> bool:
    """Return whether two interpreters belong to one environment. For example, its `python` and `python3` do."""
    if one == other:
        return True
    environment = searched(one).environment
    return bool(environment) and environment == searched(other).environment
