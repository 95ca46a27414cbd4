"""Get a callable from a user's class: a method, or a function assigned to a class attribute."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any


def method_of(own: Any, name: str) -> Callable[..., Any]:
    """Return the attribute `name` of the user's object `own` as a callable to call without `self`.

    A function that the class has assigned (`model = build_model`) stays unbound, unless its first parameter is `self`.
    """
    found = inspect.getattr_static(own, name, None)
    if not inspect.isfunction(found) or name in vars(own):
        bound: Callable[..., Any] = getattr(own, name)
        return bound
    classes = {f"{each.__qualname__}.{found.__name__}" for each in type(own).__mro__}
    first = next(iter(inspect.signature(found).parameters), None)
    is_method = found.__qualname__ in classes or first == "self"
    return getattr(own, name) if is_method else found
