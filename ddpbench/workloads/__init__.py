"""The table of workloads, and functions that load workloads by name, without importing torch or pydantic."""

from __future__ import annotations

import importlib
import inspect
from types import ModuleType
from typing import TYPE_CHECKING, Any

from ddpbench import user_files
from ddpbench.registry import Entry
from ddpbench.workloads.shipped import PREFIX, is_path, profile_path, profile_summary, shipped

if TYPE_CHECKING:
    from ddpbench.workloads.base import NoOptions, Workload

TABLE: dict[str, Entry] = {
    "mlp": Entry(
        "ddpbench.workloads.mlp:Mlp",
        "a multilayer perceptron on real text: few large matrices, with large gradients for little computation",
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
        "ResNet-18 and ResNet-50 on made-up images: much computation for small gradients, with BatchNorm",
        ("18", "50"),
    ),
    "two_branch": Entry(
        "ddpbench.workloads.two_branch:TwoBranch",
        "two perceptrons on real text, side by side until a head joins them: each branch can have its own rank",
        ("small", "large"),
    ),
    "hf": Entry(
        "ddpbench.workloads.hf:HuggingFace",
        "a model of the transformers library (pip install 'ddpbench[hf]'), on made-up data",
        ("bert-base", "bert-tiny", "gpt2", "resnet-50"),
    ),
    "replay": Entry(
        "ddpbench.workloads.replay:Replay",
        "",  # each profile has its own summary
        shipped(),
    ),
}
"""Workloads by name. A name may be followed by a colon and a size: `gpt:nano`."""


def workload_names() -> list[str]:
    """Return the names of all workloads; a workload with sizes has one name per size, such as `gpt:nano`."""
    return [name for head, entry in TABLE.items() for name in _names(head, entry)]


def summaries() -> dict[str, str]:
    """Return a one-line summary of each workload, by name with size, such as `gpt:nano`."""
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
    """Return whether a name is the import path of a user's workload class, such as `train.py:MyWorkload`."""
    return (
        user_files.is_import_path(name)
        and not name.startswith(PREFIX)
        and name.rpartition(":")[0] not in TABLE
    )


def load_workload(name: str) -> Workload[Any]:
    """Return the workload with a name such as `gpt:nano`, or with a user's import path.

    Load a user's import path only in a rank's process, because loading runs the user's code.

    Raises:
        KeyError: no workload has that name or size.
        ImportError: the user's file or module cannot be imported, or has no such class.
        ValueError: a replay's profile does not exist, or is not a profile.
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
    found = user_files.load_class(name, _is_workload, first=True)
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


def _is_workload(value: object, module: ModuleType) -> bool:
    from ddpbench.workloads.base import Workload
    from ddpbench.workloads.plain import lacks

    if not inspect.isclass(value) or value.__module__ != module.__name__:
        return False
    return issubclass(value, Workload) or not lacks(value)


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
    """Import the names of `base` on first use, because its pydantic models are slow to import."""
    if name in __all__:
        return getattr(importlib.import_module("ddpbench.workloads.base"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
