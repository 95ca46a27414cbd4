"""Find modules that a script makes separately and then puts into its model, and how to read them from the model."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from copy import deepcopy

from ddpbench.launch.own_class.bindings import Path
from ddpbench.launch.own_class.models import is_module
from ddpbench.launch.own_class.script import here, last_name
from ddpbench.launch.own_class.tracing import MOVES, Origin, Tracer, parameters_of
from ddpbench.launch.own_class.trees import walk

EntryValues = dict[tuple[int, Path], ast.expr | None]
"""For each part, by the key of its origin, the expression that reads it from the model; None if unknown."""
_DEEPEST = 6
_SAME = MOVES | {"requires_grad_", "apply", "float", "double", "half", "bfloat16", "type"}
"""Methods of a module that return the module itself."""
_LISTS = (ast.List, ast.Tuple)


def parts_of(tracer: Tracer, model: Origin, base: ast.expr, depth: int = 0) -> EntryValues:
    """Return the modules inside a model that the script makes by separate expressions.

    The result maps `Origin.key` to an expression that reads the module from `base`, the model's expression (None if
    unknown).
    """
    found: EntryValues = {}
    for value, place in _held(tracer, model, base) if depth < _DEEPEST else ():
        while (
            isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and value.func.attr in _SAME
        ):
            value = value.func.value
        part = tracer.trace(value, model.scope)
        holds = isinstance(part.node, (*_LISTS, ast.Dict, ast.ListComp)) or is_module(tracer, part)
        if part.key == model.key or not (holds or isinstance(value, ast.Call)):
            continue
        if not holds:
            place = None  # a function may return the module itself
        if part.node is not value:
            found.setdefault(part.key, place)
        inner = parts_of(tracer, part, place or base, depth + 1)
        for key, expression in inner.items():
            found.setdefault(key, expression if place is not None else None)
    for change in tracer.changes_after(model) if depth == 0 else ():
        for each in walk(change.statement):
            if isinstance(each, ast.Name | ast.Attribute) and isinstance(each.ctx, ast.Load):
                part = tracer.trace(each, model.scope)
                if part.node is not each and part.key != model.key and is_module(tracer, part):
                    found.setdefault(part.key, None)
    return found


def _held(tracer: Tracer, of: Origin, base: ast.expr) -> Iterator[tuple[ast.expr, ast.expr | None]]:
    node = of.node
    if isinstance(node, ast.Dict):
        for key, value in zip(node.keys, node.values, strict=True):
            yield value, _item(base, key) if isinstance(key, ast.Constant) else None
    elif isinstance(node, _LISTS):
        yield from _numbered(tracer, of, node.elts, base)
    elif isinstance(node, ast.Call) and last_name(node) == "Sequential":
        yield from _numbered(tracer, of, node.args, base)
    elif isinstance(node, ast.Call):
        like = last_name(node) in ("ModuleList", "ModuleDict")
        names = _attributes(tracer, node)
        for number, each in enumerate(node.args):
            value = each.value if isinstance(each, ast.Starred) else each
            yield value, base if like else _attribute(base, names.get(number))
        for word in node.keywords:
            yield word.value, _attribute(base, names.get(word.arg or ""))


def _numbered(
    tracer: Tracer, of: Origin, values: list[ast.expr], base: ast.expr
) -> Iterator[tuple[ast.expr, ast.expr | None]]:
    """Yield values with an expression that reads each by its index, or None if the index is unknown.

    The elements of a starred list are also yielded, as in `nn.Sequential(*layers)`.
    """
    number: int | None = 0
    for each in values:
        if not isinstance(each, ast.Starred):
            yield each, None if number is None else _item(base, ast.Constant(number))
            number = None if number is None else number + 1
            continue
        whole = tracer.trace(each.value, of.scope)
        elements = whole.node.elts if isinstance(whole.node, _LISTS) else []
        known = bool(elements) and whole.scope == of.scope and not tracer.changed(each.value, of.scope)
        for element in elements:
            known = known and not isinstance(element, ast.Starred) and number is not None
            yield element, _item(base, ast.Constant(number)) if known else None
            number = (number or 0) + 1
        number = number if known else None
        yield each.value, None


def _item(base: ast.expr, key: ast.expr) -> ast.expr:
    return ast.Subscript(deepcopy(base), ast.Constant(getattr(key, "value", None)), ast.Load())


def _attribute(base: ast.expr, name: str | None) -> ast.expr | None:
    return ast.Attribute(deepcopy(base), name, ast.Load()) if name else None


def _attributes(tracer: Tracer, call: ast.Call) -> dict[int | str, str]:
    own = tracer.script.classes.get(last_name(call))
    made = [e for e in own.body if isinstance(e, ast.FunctionDef) and e.name == "__init__"] if own else []
    found: dict[int | str, str] = {}
    for function in made:
        owner, *names = parameters_of(function)
        again = {
            e.id for e in here(function.body) if isinstance(e, ast.Name) and isinstance(e.ctx, ast.Store)
        }
        for each in function.body:
            target = each.targets[0] if isinstance(each, ast.Assign) else None
            if not isinstance(target, ast.Attribute) or ast.unparse(target.value) != owner:
                continue
            value = each.value if isinstance(each, ast.Assign) else None
            if isinstance(value, ast.Name) and value.id in names and value.id not in again:
                found[names.index(value.id)] = found[value.id] = target.attr
    return found
