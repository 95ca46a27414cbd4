"""Check whether one entry of a dictionary can be followed through a script independently of the other entries."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass

from ddpbench.launch.own_class.bindings import Scope
from ddpbench.launch.own_class.script import Script, here, last_name
from ddpbench.launch.own_class.trees import children, walk

_READS = frozenset({"get", "items", "keys", "values"})
_SHOWS = frozenset({"print", "len", "str", "repr"})
_PLAIN = (ast.Constant, ast.UnaryOp, ast.BinOp, ast.Tuple, ast.operator, ast.unaryop, ast.expr_context)


@dataclass(frozen=True)
class _Use:
    node: ast.Name
    parent: ast.AST
    outer: ast.AST | None
    """The node that contains the parent."""
    further: ast.AST | None
    direct: bool
    """True if, in this scope, the entry is read through this name."""


def is_told_apart(
    script: Script, made: ast.expr, key: object, entry: ast.expr, names: Mapping[str, Scope]
) -> bool:
    """Return whether a script changes a dictionary only by `NAME["key"] = ...`, which shows the changed entry.

    `made` is the expression that creates it, and `names` has its names with their scopes. `entry` is the value under
    `key`, which must be plain, or a dictionary of plain values without another name.
    """
    nested = isinstance(entry, ast.Dict)
    values = [each for value in entry.values for each in walk(value)] if isinstance(entry, ast.Dict) else None
    plain = all(isinstance(each, _PLAIN) for each in (walk(entry) if values is None else values))
    if not plain or not names or any("." in each or "[" in each for each in names):
        return False
    above = {id(inner): outer for outer in walk(script.tree) for inner in children(outer)}
    own = {id(each): name for name, scope in names.items() for each in here(scope.node.body)}
    known: set[tuple[str, int]] = set()
    todo: list[tuple[str, ast.AST]] = [(name, script.tree) for name in names]
    while todo:
        name, root = todo.pop()
        if (name, id(root)) in known:
            continue
        known.add((name, id(root)))
        if any(isinstance(each, ast.Global | ast.Nonlocal) and name in each.names for each in walk(root)):
            return False
        for each in (each for each in walk(root) if isinstance(each, ast.Name) and each.id == name):
            parent = above[id(each)]
            outer = above.get(id(parent))
            use = _Use(each, parent, outer, above.get(id(outer)), own.get(id(each)) == name)
            if isinstance(each.ctx, ast.Load) and isinstance(parent, ast.Call | ast.keyword):
                given = _given(script, use)
                if given is None:
                    return False
                todo += given
            elif not _is_seen(use, made, key, nested=nested):
                return False
    return True


def _is_seen(use: _Use, made: ast.expr, key: object, *, nested: bool) -> bool:
    parent, outer = use.parent, use.outer
    if not isinstance(use.node.ctx, ast.Load):
        return isinstance(parent, ast.Assign) and parent.value is made
    if isinstance(parent, ast.Attribute):
        return not nested and parent.attr in _READS and isinstance(outer, ast.Call) and outer.func is parent
    if not isinstance(parent, ast.Subscript) or not _is_entry(parent, use.node):
        return isinstance(parent, ast.FormattedValue)
    if nested and isinstance(parent.slice, ast.Constant) and parent.slice.value == key:
        if not isinstance(outer, ast.Subscript) or not _is_entry(outer, parent):
            return False
        return _is_read_or_set(outer, use.further, direct=use.direct)
    return _is_read_or_set(parent, outer, direct=use.direct)


def _is_entry(node: ast.Subscript, of: ast.expr) -> bool:
    return node.value is of and isinstance(node.slice, ast.Constant)


def _is_read_or_set(node: ast.Subscript, above: ast.AST | None, *, direct: bool) -> bool:
    if isinstance(node.ctx, ast.Load):
        return True
    return direct and isinstance(node.ctx, ast.Store) and isinstance(above, ast.Assign | ast.AugAssign)


def _given(script: Script, use: _Use) -> list[tuple[str, ast.AST]] | None:
    """Return (parameter, function) to which a call passes a dictionary; empty if it only reads, None if unknown."""
    node, parent, outer = use.node, use.parent, use.outer
    if isinstance(parent, ast.keyword) and parent.arg is None:  # `f(**given)` makes a new dictionary
        return [] if last_name(outer or parent) != "dict" else None
    call = outer if isinstance(parent, ast.keyword) else parent
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name) or call.func is node:
        return None
    function = script.functions.get(call.func.id)
    if function is None:
        return [] if call.func.id in _SHOWS else None
    names = [each.arg for each in [*function.args.posonlyargs, *function.args.args]]
    if isinstance(parent, ast.keyword):
        taken = parent.arg in [*names, *(each.arg for each in function.args.kwonlyargs)]
        return [(str(parent.arg), function)] if taken else None
    place = call.args.index(node)
    starred = any(isinstance(each, ast.Starred) for each in call.args)
    return [(names[place], function)] if place < len(names) and not starred else None
