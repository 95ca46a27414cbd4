"""The workloads: one file each, one line each in this table. Importing it imports neither torch nor pydantic."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import stat
import sys
import sysconfig
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from ddpbench.errors import nearest
from ddpbench.table import Entry
from ddpbench.workloads.shipped import PREFIX, is_path, profile_path, profile_summary, shipped

if TYPE_CHECKING:
    from ddpbench.workloads.base import NoOptions, Workload

TABLE: dict[str, Entry] = {
    "mlp": Entry(
        "ddpbench.workloads.mlp:Mlp",
        "a multilayer perceptron on real text: few large matrices, much gradient for its computation",
        ("small", "large"),
    ),
    "gpt": Entry(
        "ddpbench.workloads.gpt:Gpt",
        "a byte-level GPT on real text: many layers, so gradients become ready all through backward",
        ("nano", "micro", "mini", "gopher-44m", "small", "medium", "large", "xl"),
    ),
    "cnn": Entry(
        "ddpbench.workloads.cnn:Cnn",
        "a small convolutional network on real handwritten digits (pip install 'ddpbench[digits]')",
        ("small", "large"),
    ),
    "resnet": Entry(
        "ddpbench.workloads.resnet:ResNet",
        "ResNet-18 and ResNet-50 on made-up images: much computation for its gradient, with BatchNorm",
        ("18", "50"),
    ),
    "two_branch": Entry(
        "ddpbench.workloads.two_branch:TwoBranch",
        "two perceptrons on real text, side by side until a head joins them: a branch can have a rank",
        ("small", "large"),
    ),
    "hf": Entry(
        "ddpbench.workloads.hf:HuggingFace",
        "a model of the transformers library (pip install 'ddpbench[hf]'), on made-up data",
        ("bert-base", "bert-tiny", "gpt2", "resnet-50"),
    ),
    "replay": Entry(
        "ddpbench.workloads.replay:Replay",
        "",  # each profile has its own
        shipped(),
    ),
}
"""By name. A size follows the name after a colon: `gpt:nano`."""


def workload_names() -> list[str]:
    """Return every name with each of its sizes."""
    return [name for head, entry in TABLE.items() for name in _names(head, entry)]


def summaries() -> dict[str, str]:
    """Return what each workload is, by its name with a size."""
    return {
        name: profile_summary(profile_path(name.removeprefix(PREFIX)))
        if name.startswith(PREFIX)
        else entry.summary
        for head, entry in TABLE.items()
        for name in _names(head, entry)
    }


def _names(head: str, entry: Entry) -> list[str]:
    return [f"{head}:{size}" for size in entry.sizes] or [head]


def is_import_path(name: str) -> bool:
    """Return whether the name is a user's own workload, such as `train.py:MyWorkload`, and not one of the table."""
    head, colon, attribute = name.rpartition(":")
    return (
        bool(colon)
        and not name.startswith(PREFIX)
        and head not in TABLE
        and attribute.isidentifier()
        and (head.endswith(".py") or (all(part.isidentifier() for part in head.split(".")) and "." in head))
    )


def load_workload(name: str) -> Workload[Any]:
    """Return the workload of a name such as `gpt:nano`, or of a user's own import path (in a rank only).

    Raises:
        KeyError: there is none of that name or size.
        ImportError: the user's file or module cannot be imported, or has no such class.
        ValueError: a replay's profile is not there, or is none.
    """
    if is_import_path(name):
        return _own(name)
    head, colon, size = name.partition(":")
    if head not in TABLE:
        raise KeyError(name)
    entry = TABLE[head]
    if entry.sizes and not colon:
        size = entry.sizes[0]
    if size not in (entry.sizes or ("",)) and not (name.startswith(PREFIX) and is_path(size)):
        raise KeyError(name)
    workload: Workload[Any] = entry.load()(size)
    return workload


def _own(name: str) -> Workload[Any]:
    from ddpbench.workloads.base import Workload
    from ddpbench.workloads.plain import PlainWorkload, lacks

    head, _, attribute = name.rpartition(":")
    _search_working_directory(first=not head.endswith(".py"))
    try:
        module = _module_of_file(head) if head.endswith(".py") else importlib.import_module(head)
    except SystemExit as error:
        advice = 'what a script does when it is started belongs under if __name__ == "__main__":'
        raise ImportError(f"{head} cannot be imported: it ends the process; {advice}") from error
    except Exception as error:
        raise ImportError(f"{head} cannot be imported: {type(error).__name__}: {error}") from error
    found = getattr(module, attribute, None)
    if not inspect.isclass(found):
        able = [key for key, value in vars(module).items() if _is_workload(value, module)]
        raise ImportError(f"{head} has no class {attribute}; {nearest(attribute, able)}")
    if issubclass(found, Workload):
        workload: Workload[Any] = found()
        return workload
    if missing := lacks(found):
        raise ImportError(
            f"class {attribute} in {head} lacks {missing}: a workload needs model(), dataset() or "
            "loader(rank, world_size, batch), and loss(model, batch) or step(model, batch, optimizer), or derives from "
            "ddpbench.workloads.Workload"
        )
    try:
        return PlainWorkload(found)
    except ValueError as error:
        raise ImportError(f"class {attribute} in {head}: {error}") from error


def _search_working_directory(*, first: bool) -> None:
    """Have modules be found in the working directory too: before those of Python if it is named as a package's place.

    Otherwise, and where everybody can write, after all others: another user may have put a file of any name there. A
    workload's own imports count on it; nothing of ddpbench does, whose processes start without it.
    """
    with suppress(FileNotFoundError):  # it has been removed
        here = Path.cwd()
        if str(here) in sys.path or "" in sys.path:
            return
        python = sysconfig.get_path("stdlib")
        before = sys.path.index(python) if python in sys.path else 0
        sys.path.insert(before if first and not _everybody_writes(here) else len(sys.path), str(here))


def search_beside(folder: Path) -> None:
    """Have modules be found in a script's folder first, as Python does; where everybody can write, after all others.

    Another user may have put a file there that is called as a module that the script, or anything later, imports.
    """
    sys.path.insert(len(sys.path) if _everybody_writes(folder) else 0, str(folder))


def _everybody_writes(folder: Path) -> bool:
    return bool(folder.stat().st_mode & stat.S_IWOTH)


def _is_workload(value: object, module: ModuleType) -> bool:
    """Return whether it is a class that the module itself defines, and that has what a workload needs."""
    from ddpbench.workloads.base import Workload
    from ddpbench.workloads.plain import lacks

    if not inspect.isclass(value) or value.__module__ != module.__name__:
        return False
    return issubclass(value, Workload) or not lacks(value)


_FOUND: dict[str, Path] = {}
"""The users' files of this process, by name: importing one may change the directory that the name is relative to."""


def _module_of_file(name: str) -> ModuleType:
    """Return the file as a module named for it, by which loader workers find the dataset's class again."""
    path = Path(name).resolve()
    path = path if path.is_file() else _FOUND.get(name, path)
    if not path.is_file():
        raise FileNotFoundError(f"no such file (looked for {path})")
    _FOUND[name] = path
    loaded = sys.modules.get(path.stem)
    if loaded is not None and getattr(loaded, "__file__", None) == str(path):
        return loaded
    if loaded is not None or path.stem in sys.stdlib_module_names:
        raise ImportError(f"it would hide the module {path.stem}, which others need: rename the file")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None  # its name ends in .py
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    before, words = [*sys.path], sys.argv
    search_beside(path.parent)
    sys.argv = [str(path)]  # a script that parses its command line at the top level finds its defaults
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[path.stem]
        sys.path[:] = before
        raise
    finally:
        sys.argv = words
    return module


__all__ = [
    "TABLE",
    "Entry",
    "NoOptions",
    "Workload",
    "is_import_path",
    "load_workload",
    "summaries",
    "workload_names",
]


def __getattr__(name: str) -> Any:
    """Import what is of `base` when it is asked for: its models of options take longer than a list of names."""
    if name in __all__:
        return getattr(importlib.import_module("ddpbench.workloads.base"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
