"""Find decorators that may change a function's arguments or result, and functions that are passed as arguments."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ddpbench.launch.own_class.script import FunctionNode, Script, here, last_name
from ddpbench.launch.own_class.trees import walk

_KEEPING = frozenset(
    {"staticmethod", "classmethod", "property", "cached_property", "override", "abstractmethod", "setter"}
    | {"no_grad", "enable_grad", "inference_mode", "record", "compile", "script", "cache", "lru_cache"}
    | {"dataclass", "define", "frozen", "total_ordering", "final", "runtime_checkable", "overload", "wraps"}
)
"""Decorators that call a function with the given arguments and return its result."""
_REGISTERING = ("register", "add_", "on_")
"""A library's decorator is assumed to return what it decorates if its name begins with one of these words."""
_DESCRIBING = frozenset({"__name__", "__doc__", "__qualname__", "__module__"})
_STARTING = frozenset({"Fire", "cli", "run", "signature", "print"})
"""Functions that get one function as their argument, and call or describe this function with its default arguments."""


def unknown_decorator(decorated: FunctionNode | ast.ClassDef, script: Script) -> ast.expr | None:
    """Return the first decorator that may change a call's arguments or result; None without one."""
    return next((each for each in decorated.decorator_list if not _keeps(each, script)), None)


def _keeps(decorator: ast.expr, script: Script) -> bool:
    name = last_name(decorator)
    function = script.functions.get(name)
    if isinstance(decorator, ast.Call) and function is not None:
        function = returned_function(function)
        return function is not None and _passes_on(function)
    if function is not None:
        return _passes_on(function)
    return name not in script.classes and (name in _KEEPING or name.startswith(_REGISTERING))


def returned_function(function: FunctionNode) -> FunctionNode | None:
    """Return the inner function that a function returns; None if it may return anything else."""
    inner = {each.name: each for each in function.body if isinstance(each, ast.FunctionDef)}
    found = [each.value for each in here(function.body) if isinstance(each, ast.Return)]
    return inner.get(last_name(found[0])) if len(found) == 1 and isinstance(found[0], ast.Name) else None


def _passes_on(decorator: FunctionNode) -> bool:
    if len(decorator.args.args) != 1:
        return False
    name = decorator.args.args[0].arg
    inner = returned_function(decorator)
    if inner is None:
        found = [each.value for each in here(decorator.body) if isinstance(each, ast.Return)]
        stores = any(isinstance(e.ctx, ast.Store) for e in _names(decorator, {name}))
        return bool(found) and not stores and all(e is not None and ast.unparse(e) == name for e in found)
    if inner.args.vararg is None or inner.args.kwarg is None or inner.args.args:
        return False
    args, kwargs = inner.args.vararg.arg, inner.args.kwarg.arg
    whole = f"{name}(*{args}, **{kwargs})"
    calls = [each for each in walk(inner) if isinstance(each, ast.Call) and ast.unparse(each) == whole]
    read = [*calls, *inner.decorator_list]
    read += [e for e in walk(inner) if isinstance(e, ast.Attribute) and e.attr in _DESCRIBING]
    known = {id(part) for each in read for part in walk(each)}
    loops = any(isinstance(each, ast.For | ast.While) for each in here(inner.body))
    if len(calls) != 1 or loops or any(id(e) not in known for e in _names(decorator, {name, args, kwargs})):
        return False
    results = {
        ast.unparse(each.targets[0])
        for each in here(inner.body)
        if isinstance(each, ast.Assign) and each.value is calls[0]
    }
    made = [each.id for each in _names(inner, results) if isinstance(each.ctx, ast.Store)]
    returns = [each.value for each in here(inner.body) if isinstance(each, ast.Return)]
    return len(made) == len(results) and all(
        e is calls[0] or (e is not None and ast.unparse(e) in results) for e in returns
    )


def _names(node: ast.AST, wanted: set[str]) -> Iterator[ast.Name]:
    return (each for each in walk(node) if isinstance(each, ast.Name) and each.id in wanted)


def passed_on(body: list[ast.stmt]) -> Iterator[ast.Name | ast.Attribute]:
    """Yield the names and attributes that statements use without calling them, such as `main` in `launch(main)`.

    Other code may call them. All names in a lambda expression count.
    """
    called: set[int] = set()
    for node in here(body):
        if isinstance(node, ast.Call):
            called.add(id(node.func))
            if last_name(node) in _STARTING and len(node.args) == 1:
                called.add(id(node.args[0]))
        elif isinstance(node, ast.Attribute) and node.attr in _DESCRIBING:
            called.add(id(node.value))
        for each in walk(node) if isinstance(node, ast.Lambda) else [node]:
            if id(each) in called or not isinstance(each, ast.Name | ast.Attribute):
                continue
            if isinstance(each.ctx, ast.Load):
                yield each
