"""Copy a user's object for each model, so that state such as counters belongs to one model."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, Sampler

MOST_BYTES = 256 * 1024 * 1024
"""Maximum size of an attribute that is copied (bytes). A larger attribute is taken for data, which all models share."""
MOST_PARTS = 100_000
"""Maximum number of objects in an attribute that is copied. An attribute with more, such as a long list, is taken for
data.
"""


def copy_of(own: Any, memo: dict[int, Any]) -> Any:
    """Return a copy of a user's object with its state, or the original if it cannot be copied.

    `memo` is as in `copy.deepcopy`. The copy shares datasets, large objects and what cannot be copied, such as open
    files.
    """
    try:
        made = copy.copy(own)
        attributes = vars(made)
    except Exception:  # a class's own way of copying may raise anything
        return own
    memo[id(own)] = made
    for name, value in attributes.items():
        trial = dict(memo)
        if not _is_state(value, trial):
            continue
        try:
            attributes[name] = copy.deepcopy(value, trial)
        except (MemoryError, torch.OutOfMemoryError):
            raise
        except Exception:  # it cannot be copied, such as a lock, and is shared
            continue
        kept = trial.pop(id(trial), [])
        memo.setdefault(id(memo), []).extend(kept)  # an object whose id is in `memo` has to stay alive
        memo.update({key: each for key, each in trial.items() if key != id(memo)})
    return made


def _is_state(value: Any, memo: dict[int, Any]) -> bool:
    """Return whether a value is small enough for training state; datasets in it are shared by `memo`."""
    waiting, seen, held = deque([value]), set[int](), 0
    while waiting:
        each = waiting.popleft()
        if id(each) in seen or id(each) in memo:
            continue
        seen.add(id(each))
        if isinstance(each, Dataset | DataLoader | Sampler):
            memo[id(each)] = each
            continue
        held += _bytes_of(each)
        if held > MOST_BYTES or len(seen) > MOST_PARTS:
            return False
        waiting.extend(_parts_of(each))
    return True


def _bytes_of(value: Any) -> int:
    if isinstance(value, torch.Tensor):
        return value.numel() * value.element_size()
    if isinstance(value, str | bytes | bytearray):
        return len(value)
    size = getattr(value, "nbytes", 0)  # an array, for example
    return size if isinstance(size, int) else 0


def _parts_of(value: Any) -> Iterable[Any]:
    if isinstance(value, nn.Module | torch.Tensor | type):
        return ()  # a model of any size is copied
    if isinstance(value, Mapping):
        return [*value.keys(), *value.values()]
    if isinstance(value, list | tuple | set | frozenset | deque):
        return value
    return list(getattr(value, "__dict__", {}).values())
