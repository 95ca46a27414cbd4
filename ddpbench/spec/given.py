"""Convert settings given as Python values to values that an experiment's file can hold."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from ddpbench.errors import RequestError
from ddpbench.spec.documents import MAX_DEPTH
from ddpbench.text_safety import shortened

_KINDS = "a text, a path, a number, True or False, or a list or dict of these"


def as_toml(name: str, value: Any, depth: int = 0) -> Any:
    """Return a Python value in a form that TOML has.

    A path becomes a text, a NumPy scalar becomes a Python number, a tuple becomes a list, and a dict loses its None
    values.

    Raises:
        RequestError: TOML has no such value; the message names the setting.
    """
    if depth > MAX_DEPTH:
        raise RequestError(f"{name}: lists and dicts may have {MAX_DEPTH} levels at most")
    if getattr(value, "shape", None) == () and callable(getattr(value, "item", None)):
        value = value.item()
    if isinstance(value, os.PathLike) and isinstance(text := os.fspath(value), str):
        value = text
    match value:
        case bool():
            return value
        case int():
            return int(value)
        case float():
            return float(value)
        case str():
            text = str.__str__(value)  # a member of a str enumeration becomes its value
            if any("\ud800" <= one <= "\udfff" for one in text):
                raise RequestError(f"{name}: {shortened(text)} is not Unicode text")
            return text
        case list() | tuple():
            return [as_toml(f"{name}[{place}]", one, depth + 1) for place, one in enumerate(value)]
        case Mapping():
            return {
                _key(name, key): as_toml(f"{name}.{key}", one, depth + 1)
                for key, one in value.items()
                if one is not None
            }
    raise RequestError(f"{name}: {shortened(value)} is of type {type(value).__name__}: give {_KINDS}")


def _key(name: str, key: Any) -> str:
    text = as_toml(f"{name}, a key", key)
    if not isinstance(text, str):
        raise RequestError(f"{name}: {shortened(key)} is of type {type(key).__name__}: keys are texts")
    return text
