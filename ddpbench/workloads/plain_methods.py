"""A user's class's attribute as a callable: a method of the class, or a function of the script."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any


def method_of(own: Any, name: str) -> Callable[..., Any]:
    """Return the callable of that name on an object.

    A function from elsewhere that its class has assigned (`model = build_model`) is called without the object; one that
    the class defines, or whose first parameter is `self`, is a method.
    """
    found = inspect.getattr_static(own, name, None)
    if not inspect.isfunction(found) or name in vars(own):
        bound: Callable[..., Any] = getattr(own, name)
        return bound
    classes = {f"{each.__qualname__}.{found.__name__}" for each in type(own).__mro__}
    first = next(iter(inspect.signature(found).parameters), None)
    is_method = found.__qualname__ in classes or first == "self"
    return getattr(own, name) if is_method else found
