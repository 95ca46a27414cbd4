"""Find the statements, in a function or a module's top level, that bind a name or change the object it refers to."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Literal

from ddpbench.launch.own_class.script import FunctionNode, first_name, here, last_name
from ddpbench.launch.own_class.trees import walk

Path = tuple[int, ...]
Tests = tuple[tuple[ast.expr, bool], ...]


@dataclass(frozen=True)
class Binding:
    """An assignment to a name. The name gets `value`, or the element of `value` at the indices in `path`.

    It takes place only if each condition in `tests` has its outcome.
    """

    value: ast.expr
    path: Path = ()
    kind: Literal["value", "item", "context", "given"] = "value"
    """`item` if a `for` assigns the items of the value; `context` for a `with`; `given` for an argument of a call."""
    tests: Tests = ()
    handles: bool = False
    """True if the assignment is in an exception handler, which may never run."""


@dataclass(frozen=True)
class Scope:
    """A function, a method or a module's top level. `call` is the call that passes the arguments; None if unknown."""

    node: ast.Module | FunctionNode
    own: ast.ClassDef | None = None
    call: ast.Call | None = field(default=None, compare=False)
    caller: Scope | None = field(default=None, compare=False)


def key_of(node: ast.AST) -> str:
    """Return `x` for a name, `x.y` for an attribute of a name, and an empty string for any other node."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        return f"{node.value.id}.{node.attr}"
    return ""


def bindings_of(node: ast.Module | FunctionNode) -> dict[str, list[Binding]]:
    """Return, in source order, the bindings of each name (`x`) and of each attribute of a name (`x.y`)."""
    found: dict[str, list[Binding]] = {}
    for key, binding in _in_block(node.body, ()):
        found.setdefault(key, []).append(binding)
    return found


def _in_block(body: list[ast.stmt], tests: Tests) -> Iterator[tuple[str, Binding]]:
    for statement in body:
        for target, binding in _bound_by(statement):
            yield from _targets(target, replace(binding, tests=tests))
        simple = isinstance(statement, ast.Expr | ast.Assign | ast.AugAssign | ast.AnnAssign | ast.Return)
        head = statement.test if isinstance(statement, ast.If | ast.While | ast.Assert) else None
        for each in here(statement) if simple else [head, *here(head)] if head is not None else ():
            if isinstance(each, ast.NamedExpr):
                yield each.target.id, Binding(each.value, tests=tests)
            elif isinstance(each, ast.comprehension):
                yield from _targets(each.target, Binding(each.iter, kind="item", tests=tests))
        yield from _within(statement, tests)


def _bound_by(statement: ast.stmt) -> list[tuple[ast.expr, Binding]]:
    match statement:
        case ast.Assign():
            return [(target, Binding(statement.value)) for target in statement.targets]
        case ast.AnnAssign(value=ast.expr() as value):
            return [(statement.target, Binding(value))]
        case ast.For() | ast.AsyncFor():
            return [(statement.target, Binding(statement.iter, kind="item"))]
        case ast.With() | ast.AsyncWith():
            return [
                (item.optional_vars, Binding(item.context_expr, kind="context"))
                for item in statement.items
                if item.optional_vars is not None
            ]
    return []


def _within(statement: ast.stmt, tests: Tests) -> Iterator[tuple[str, Binding]]:
    if isinstance(statement, ast.If):
        yield from _in_block(statement.body, (*tests, (statement.test, True)))
        yield from _in_block(statement.orelse, (*tests, (statement.test, False)))
    elif isinstance(statement, ast.For | ast.AsyncFor | ast.While | ast.With | ast.AsyncWith | ast.Try):
        for name in ("body", "handlers", "orelse", "finalbody"):
            for each in getattr(statement, name, []):
                handler = isinstance(each, ast.ExceptHandler)
                for key, binding in _in_block(each.body if handler else [each], tests):
                    yield key, replace(binding, handles=handler or binding.handles)


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


_MUTATORS = frozenset(
    {"append", "extend", "insert", "update", "setdefault", "pop", "remove", "clear"}
    | {"add_module", "resize_token_embeddings", "add_adapter", "requires_grad_", "apply"}
)


@dataclass(frozen=True)
class Mutation:
    """A statement that changes the object that a name refers to. `value` is the new value if the name is rebound."""

    statement: ast.stmt
    tests: Tests
    loops: tuple[tuple[int, int], ...]
    """The first and the last line of each enclosing loop."""
    value: ast.expr | None = None
    entry: str | None = None
    """The changed entry's key as source text, such as `"'lr'"` for `given["lr"] *= 2`; None without a constant key."""

    @property
    def freezes(self) -> bool:
        """True if the statement sets `requires_grad` of a parameter or module."""
        node = self.statement
        if isinstance(node, ast.Assign):
            return all(isinstance(e, ast.Attribute) and e.attr == "requires_grad" for e in node.targets)
        return isinstance(node, ast.Expr) and last_name(node.value) == "requires_grad_"

    def sets(self, key: str) -> bool:
        """Return whether the statement assigns to `key` itself, as in `rate /= 2`, rather than to an entry."""
        node = self.statement
        targets = node.targets if isinstance(node, ast.Assign) else []
        targets = [node.target] if isinstance(node, ast.AugAssign) else targets
        return key in map(key_of, targets)


def changes_of(node: ast.Module | FunctionNode) -> dict[str, list[Mutation]]:
    """Return the mutations of each changed name, or attribute of a name such as `x.y`, in source order."""
    found: dict[str, list[Mutation]] = {}
    for statement, tests, loops in simple_statements(node.body):
        for key, value, entry in _changed_by(statement):
            found.setdefault(key, []).append(Mutation(statement, tests, loops, value, entry))
    return found


def simple_statements(
    body: list[ast.stmt], tests: Tests = (), loops: tuple[tuple[int, int], ...] = ()
) -> Iterator[tuple[ast.stmt, Tests, tuple[tuple[int, int], ...]]]:
    """Yield each statement that is not a block, with the conditions and the loops around it.

    Each loop is described by the numbers of its first and last lines.
    """
    for statement in body:
        if isinstance(statement, ast.If):
            yield from simple_statements(statement.body, (*tests, (statement.test, True)), loops)
            yield from simple_statements(statement.orelse, (*tests, (statement.test, False)), loops)
        elif isinstance(statement, ast.For | ast.AsyncFor | ast.While | ast.With | ast.AsyncWith | ast.Try):
            loop = isinstance(statement, ast.For | ast.AsyncFor | ast.While)
            around = (*loops, (statement.lineno, statement.end_lineno or 0)) if loop else loops
            for name in ("body", "handlers", "orelse", "finalbody"):
                for each in getattr(statement, name, []):
                    inner = each.body if isinstance(each, ast.ExceptHandler) else [each]
                    yield from simple_statements(inner, tests, around)
        else:
            yield statement, tests, loops


def _split(target: ast.expr, *, splits: bool) -> list[ast.expr]:
    """Return the elements of a tuple or list if `splits`, otherwise only `target`."""
    return target.elts if splits and isinstance(target, ast.Tuple | ast.List) else [target]


def entry_of(node: ast.expr) -> str | None:
    """Return the source text of a constant index, such as `"'lr'"` for `given["lr"]`; None for other nodes."""
    while isinstance(node, ast.Attribute | ast.Subscript) and not key_of(node.value):
        node = node.value
    constant = isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant)
    return ast.unparse(node.slice) if constant and isinstance(node, ast.Subscript) else None


def _holder(target: ast.Attribute | ast.Subscript) -> str:
    node = target.value
    while isinstance(node, ast.Subscript) or (isinstance(node, ast.Attribute) and not key_of(node)):
        node = node.value
    return key_of(node) or first_name(target)


def _changed_by(statement: ast.stmt) -> Iterator[tuple[str, ast.expr | None, str | None]]:
    if isinstance(statement, ast.Assign):
        splits = last_name(statement.value) == "random_split"
        for target in (each for whole in statement.targets for each in _split(whole, splits=splits)):
            key = key_of(target)
            if key and any(key_of(each) == key for each in walk(statement.value)):
                yield key, statement.value, None
            if isinstance(target, ast.Attribute | ast.Subscript):
                yield _holder(target), None, entry_of(target)
    elif isinstance(statement, ast.AugAssign):
        target = statement.target
        yield _holder(target) if isinstance(target, ast.Subscript) else key_of(target), None, entry_of(target)
    elif isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        does = statement.value.func
        if isinstance(does, ast.Attribute) and does.attr in _MUTATORS:
            yield key_of(does.value) or first_name(does.value), None, entry_of(does.value)
