"""What each name of a function, a method or a module's top level is bound to."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from ddpbench.launch.own_class.script import Function, here

Path = tuple[int, ...]
Tests = tuple[tuple[ast.expr, bool], ...]


@dataclass(frozen=True)
class Binding:
    """A value, or the part of it at `path`; taken only where each of `tests` comes out as it says."""

    value: ast.expr
    path: Path = ()
    kind: Literal["value", "item", "context"] = "value"
    """`item`: one of those a `for` goes through; `context`: what a `with` gives."""
    tests: Tests = ()


@dataclass(frozen=True)
class Scope:
    """A function, a method or the top level, and the call whose arguments its parameters are, where it is known."""

    node: ast.Module | Function
    own: ast.ClassDef | None = None
    call: ast.Call | None = field(default=None, compare=False)
    caller: Scope | None = field(default=None, compare=False)


def key_of(node: ast.AST) -> str:
    """Return what a name, or an attribute of a name, is kept under; empty for anything else."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        return f"{node.value.id}.{node.attr}"
    return ""


def bindings_of(node: ast.Module | Function) -> dict[str, list[Binding]]:
    """Return what each name and each attribute of a name is bound to, in the order of the source."""
    found: dict[str, list[Binding]] = {}
    for key, binding in _in_block(node.body, ()):
        found.setdefault(key, []).append(binding)
    return found


def _in_block(body: list[ast.stmt], tests: Tests) -> Iterator[tuple[str, Binding]]:
    for statement in body:
        if isinstance(statement, ast.Assign):
            for target in statement.targets:
                yield from _targets(target, Binding(statement.value, tests=tests))
        elif isinstance(statement, ast.AnnAssign) and statement.value is not None:
            yield from _targets(statement.target, Binding(statement.value, tests=tests))
        elif isinstance(statement, ast.For | ast.AsyncFor):
            yield from _targets(statement.target, Binding(statement.iter, kind="item", tests=tests))
        elif isinstance(statement, ast.With | ast.AsyncWith):
            for item in statement.items:
                if item.optional_vars is not None:
                    binding = Binding(item.context_expr, kind="context", tests=tests)
                    yield from _targets(item.optional_vars, binding)
        if isinstance(statement, ast.If):
            yield from _in_block(statement.body, (*tests, (statement.test, True)))
            yield from _in_block(statement.orelse, (*tests, (statement.test, False)))
        elif isinstance(statement, ast.For | ast.AsyncFor | ast.While | ast.With | ast.AsyncWith | ast.Try):
            for name in ("body", "handlers", "orelse", "finalbody"):
                for each in getattr(statement, name, []):
                    yield from _in_block(each.body if isinstance(each, ast.ExceptHandler) else [each], tests)
        simple = isinstance(statement, ast.Expr | ast.Assign | ast.AugAssign | ast.AnnAssign | ast.Return)
        for each in here(statement) if simple else ():
            if isinstance(each, ast.NamedExpr):
                yield each.target.id, Binding(each.value, tests=tests)
            elif isinstance(each, ast.comprehension):
                yield from _targets(each.target, Binding(each.iter, kind="item", tests=tests))


def _targets(target: ast.expr, binding: Binding) -> Iterator[tuple[str, Binding]]:
    if isinstance(target, ast.Tuple | ast.List):
        for index, each in enumerate(target.elts):
            part = binding
            if (
                isinstance(binding.value, ast.Tuple | ast.List)
                and binding.kind == "value"
                and not binding.path
            ):
                if index < len(binding.value.elts):
                    part = Binding(binding.value.elts[index], tests=binding.tests)
            else:
                part = Binding(binding.value, (*binding.path, index), binding.kind, binding.tests)
            yield from _targets(each, part)
    elif key_of(target):
        yield key_of(target), binding
