"""Find state that a user's class keeps outside its model and object, in module variables and class attributes."""

from __future__ import annotations

import copy
import itertools
import random
import sys
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import numpy as np
import torch

from ddpbench.causes import is_users
from ddpbench.worker.training.training import Training
from ddpbench.worker.verify.optimizers import in_words

_MOST_DEEP, _MOST_PARTS, _MOST_NUMBERS = 4, 1000, 10_000
"""Limits on the values that are compared: nesting depth, items per container, and numbers per array. Values
beyond these limits are assumed to be data, not state, and are not compared.
"""
_NOT_STATE = (
    ModuleType,
    FunctionType,
    type,
    random.Random,
    np.random.Generator,
    np.random.RandomState,
    torch.Generator,
)
"""Types whose values are ignored. A changed random generator is reported as random draws instead."""


class OutsideState:
    """The values of a user's module variables and class attributes at one moment, to find and undo later changes."""

    def __init__(self, owner: object) -> None:
        """Record the variables of the class and the module of `owner`, the user's object."""
        self._owner = owner
        self._before = {name: (value, _copied(given)) for name, _, given, value in _values(owner)}

    def changed(self) -> list[str]:
        """Return the names of the variables whose values have changed, in the form `STEP in train.py`."""
        return [
            name
            for name, _, _, value in _values(self._owner)
            if name in self._before and self._before[name][0] != value
        ]

    def restore(self) -> None:
        """Set changed variables back to their recorded values."""
        changed = set(self.changed())
        for name, holder, _, _ in list(_values(self._owner)):
            if name in changed:
                with suppress(Exception):  # a class may refuse the assignment
                    setattr(holder, name.partition(" in ")[0].rpartition(".")[2], self._before[name][1])


def owner_of(training: Training, model: torch.nn.Module) -> object:
    """Return the user's object that makes a model's steps, or the workload if its class derives from `Workload`."""
    return getattr(model, "own", training.workload)


def outside_words(names: Sequence[str]) -> str:
    """Return the end of a sentence about a class that keeps state outside its model. It contains advice."""
    which = f" ({in_words(names)})" if names else ""
    return (
        f"keeps state outside of the model{which}, so a later call returns a different value: keep the state in the "
        "model, or in an attribute of your object (each model gets its own copy)"
    )


def _values(owner: object) -> Iterator[tuple[str, Any, Any, str]]:
    """Yield name, owner, value and text of each variable of the user's classes and modules."""
    seen: set[str] = set()
    for each in type(owner).__mro__:
        module = sys.modules.get(each.__module__)
        path = getattr(module, "__file__", None)
        if module is None or not path or not is_users(path):
            continue
        file = Path(path).name
        for name, value, text in _frozen_of(vars(each)):
            yield f"{each.__name__}.{name} in {file}", each, value, text
        if path not in seen:
            seen.add(path)
            for name, value, text in _frozen_of(vars(module)):
                yield f"{name} in {file}", module, value, text


def _frozen_of(variables: Mapping[str, Any]) -> Iterator[tuple[str, Any, str]]:
    for name, value in list(variables.items()):
        if name.startswith("__"):
            continue
        try:
            text = _frozen(value, 0)
        except (MemoryError, torch.OutOfMemoryError):
            raise
        except Exception:  # a user's own object may raise anything
            continue
        if text:
            yield name, value, text


def _copied(value: Any) -> Any:
    try:
        return copy.deepcopy(value)
    except (MemoryError, torch.OutOfMemoryError):
        raise
    except Exception:  # such as for a lock
        return value


def _frozen(value: Any, depth: int) -> str:
    if isinstance(value, _NOT_STATE) or depth > _MOST_DEEP:
        return ""
    if value is None or isinstance(value, bool | int | float | complex | str | bytes | itertools.count):
        return repr(value)
    if isinstance(value, torch.Tensor | np.ndarray | np.generic):
        size = value.numel() if isinstance(value, torch.Tensor) else value.size
        return repr(value.tolist()) if size <= _MOST_NUMBERS else ""
    if isinstance(value, Mapping):
        items: list[Any] = [part for pair in value.items() for part in pair]
    elif isinstance(value, list | tuple | set | frozenset | deque):
        items = list(value)
    else:
        items = [part for pair in getattr(value, "__dict__", {}).items() for part in pair]
    if len(items) > _MOST_PARTS:
        return f"{len(items)}"
    return f"{type(value).__name__}({', '.join(_frozen(each, depth + 1) for each in items)})"
