"""The places in which an interpreter finds modules, and the environment that it belongs to."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from ddpbench.helper_process import child_environment

_ASK_S = 120
"""Time limit for an interpreter to list its search path, seconds."""

_LIST = """
import json, os, sys, sysconfig
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
environment = [sys.prefix, sys.base_prefix, sysconfig.get_path("purelib"), sysconfig.get_path("platlib")]
answer = {"path": path, "found": found, "copies": copies, "prefixes": prefixes, "environment": environment}
print(json.dumps(answer))
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Searched:
    """The places in which an interpreter finds modules."""

    path: Sequence[Path] = ()
    """`sys.path`."""
    found: Mapping[Path, str] = field(default_factory=dict)
    """By file or folder, the name of each module that the finders of editable packages know."""
    copies: Mapping[str, Path] = field(default_factory=dict)
    """Source folders of packages that were installed from a local folder as copies, by import name."""
    prefixes: Sequence[Path] = ()
    """The folders of the interpreter's environment."""
    environment: Sequence[Path] = ()
    """The environment's folder, its base's folder, and its folders of packages, in this order."""


@cache
def searched(python: str) -> Searched:
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
        return Searched()
    return Searched(
        path=[Path(place).resolve() for place in said["path"]],
        found={Path(place).resolve(): name for place, name in said["found"].items()},
        copies={name: Path(place).resolve() for name, place in said["copies"].items()},
        prefixes=[Path(place).resolve() for place in set(said["prefixes"])],
        environment=[Path(place).resolve() for place in said["environment"]],
    )


def forget() -> None:
    """Forget what interpreters answered, because PYTHONPATH or the installed packages may have changed since."""
    searched.cache_clear()


def same_environment(one: str, other: str) -> bool:
    """Return whether two interpreters belong to one environment, as `python` and `python3` of it do."""
    if one == other:
        return True
    environment = searched(one).environment
    return bool(environment) and environment == searched(other).environment
