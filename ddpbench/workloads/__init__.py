"""The workloads: one file each, one line each in this table. Importing it imports no torch."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import inspect
import sys
from pathlib import Path
from typing import Any

from ddpbench.workloads.base import NoOptions, Workload

TABLE: dict[str, str] = {
    "mlp": "ddpbench.workloads.mlp:Mlp",
    "gpt": "ddpbench.workloads.gpt:Gpt",
}
"""Name -> `module:Class`. A size follows the name after a colon: `gpt:nano`."""


def workload_names() -> list[str]:
    """Every name with each of its sizes."""
    names: list[str] = []
    for name in TABLE:
        sizes = _class(name).sizes
        names += [f"{name}:{size}" for size in sizes] or [name]
    return names


def _class(name: str) -> type[Workload[Any]]:
    module, _, attribute = TABLE[name].partition(":")
    found: type[Workload[Any]] = getattr(importlib.import_module(module), attribute)
    return found


def is_import_path(name: str) -> bool:
    """Whether the name is a user's own workload, such as `train.py:MyWorkload`, and not one of the table."""
    head, colon, attribute = name.rpartition(":")
    return (
        bool(colon)
        and head not in TABLE
        and attribute.isidentifier()
        and (head.endswith(".py") or (all(part.isidentifier() for part in head.split(".")) and "." in head))
    )


def load_workload(name: str) -> Workload[Any]:
    """The workload of a name such as `gpt:nano`, or of a user's own import path (in a rank only).

    Raises:
        KeyError: there is none of that name or size.
        ImportError: the user's file or module cannot be imported, or has no such class.
    """
    if is_import_path(name):
        return _own(name)
    head, colon, size = name.partition(":")
    if head not in TABLE:
        raise KeyError(name)
    found = _class(head)
    if found.sizes and not colon:
        size = found.sizes[0]
    if size not in (found.sizes or ("",)):
        raise KeyError(name)
    return found(size)


def _own(name: str) -> Workload[Any]:
    head, _, attribute = name.rpartition(":")
    if head.endswith(".py"):
        path = Path(head).resolve()
        if not path.is_file():
            raise ImportError(f"{head} is not a file (looked for {path})")
        spec = importlib.util.spec_from_file_location(path.stem, path)
        if spec is None or spec.loader is None:
            raise ImportError(f"{head} is not a Python file")
        module = importlib.util.module_from_spec(spec)
        sys.modules[path.stem] = module  # loader workers find the dataset's class by this name
        sys.path.insert(0, str(path.parent))
        spec.loader.exec_module(module)
    else:
        module = importlib.import_module(head)
    found = getattr(module, attribute, None)
    if not (inspect.isclass(found) and issubclass(found, Workload)):
        raise ImportError(f"{head} has no class {attribute} derived from ddpbench.workloads.Workload")
    workload: Workload[Any] = found()
    return workload


def source_digest(workload: Workload[Any]) -> str:
    """A digest of the file that defines the workload, for the run's identity."""
    path = inspect.getsourcefile(type(workload))
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()[:16] if path else ""


__all__ = [
    "TABLE",
    "NoOptions",
    "Workload",
    "is_import_path",
    "load_workload",
    "source_digest",
    "workload_names",
]
