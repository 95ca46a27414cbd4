"""Find the variable that each name of a script refers to, and the scope that binds it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from ddpbench.launch.own_class.script import FunctionNode, Script, place_of_node
from ddpbench.launch.own_class.trees import children, walk

ScopeNode = ast.Module | ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_SCOPES = (ast.Module, ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef, *_COMPREHENSIONS)


@dataclass(frozen=True)
class ScopeVariable:
    """A name as bound in one function, class body, comprehension or module."""

    scope: int
    """The `id` of the scope's node."""
    name: str


class Variables:
    """The variables of a script, each with its uses."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.above: dict[int, ast.AST] = {}
        self._by_place: dict[int, ast.AST] = {}
        for outer in walk(script.tree):
            if place_of_node(outer) >= 0:
                self._by_place[place_of_node(outer)] = outer
            for inner in children(outer):
                self.above.setdefault(id(inner), outer)

    def original(self, node: ast.AST) -> ast.AST:
        """Return the script's node that `node` is a copy of, or `node` itself if it is not a copy."""
        return self._by_place.get(place_of_node(node), node)

    def around(self, node: ast.AST) -> Iterator[ast.AST]:
        """Yield the nodes that contain a node, from the inside out."""
        found = self.above.get(id(node))
        while found is not None:
            yield found
            found = self.above.get(id(found))

    def statement(self, node: ast.AST) -> ast.stmt:
        """Return the innermost statement that is or contains a node."""
        for each in (node, *self.around(node)):
            if isinstance(each, ast.stmt):
                return each
        return self.script.tree.body[0]

    def function(self, node: ast.AST) -> ast.Module | FunctionNode | ast.Lambda:
        """Return the innermost function that contains a node, or the module if none does."""
        for each in self.around(node):
            if isinstance(each, ast.Module | ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
                return each
        return self.script.tree

    @cached_property
    def _local(self) -> dict[int, set[str]]:
        found: dict[int, set[str]] = {}
        outer: dict[int, set[str]] = {}
        for node in walk(self.script.tree):
            if isinstance(node, _SCOPES):
                found.setdefault(id(node), set())
        for node in walk(self.script.tree):
            for name in _bound_by(node):
                scope = self._scope_of(node)
                found[id(scope)].add(name)
            if isinstance(node, ast.Global | ast.Nonlocal):
                outer.setdefault(id(self._scope_of(node)), set()).update(node.names)
        for scope_id, names in outer.items():
            found[scope_id] -= names
        return found

    def _scope_of(self, node: ast.AST) -> ast.AST:
        inside: ast.AST = node
        for each in self.around(node):
            if isinstance(each, _SCOPES) and not self._is_outside(each, inside, node):
                return each
            inside = each
        return self.script.tree

    def _is_outside(self, scope: ast.AST, inside: ast.AST, node: ast.AST) -> bool:
        """Return whether a node is evaluated outside the scope around it, as decorators and defaults are."""
        if isinstance(scope, ast.FunctionDef | ast.AsyncFunctionDef):
            return (
                (inside in scope.decorator_list) or (inside is scope.returns) or self._is_default(scope, node)
            )
        if isinstance(scope, ast.Lambda):
            return self._is_default(scope, node)
        if isinstance(scope, ast.ClassDef):
            return inside in (*scope.bases, *scope.keywords, *scope.decorator_list)
        if isinstance(scope, _COMPREHENSIONS):
            if isinstance(self.above.get(id(node)), ast.NamedExpr) and _stores(node):
                return True
            first = scope.generators[0]
            return inside is first and (node is first.iter or first.iter in self.around(node))
        return False

    def _is_default(self, scope: FunctionNode | ast.Lambda, node: ast.AST) -> bool:
        evaluated = [*scope.args.defaults, *(each for each in scope.args.kw_defaults if each is not None)]
        way = [node, *self.around(node)]
        return any(each in way for each in evaluated)

    def of(self, node: ast.Name) -> ScopeVariable:
        """Return the variable that a name in the script refers to."""
        return self.named(node.id, self._scope_of(node))

    def named(self, name: str, scope: ast.AST) -> ScopeVariable:
        """Return the variable that `name` refers to in a scope."""
        for each in (scope, *self.around(scope)):
            if not isinstance(each, _SCOPES):
                continue
            if name in self._local.get(id(each), ()) and (
                each is scope or not isinstance(each, ast.ClassDef)
            ):
                return ScopeVariable(id(each), name)
        return ScopeVariable(id(self.script.tree), name)

    @cached_property
    def uses(self) -> dict[ScopeVariable, list[ast.Name]]:
        """The nodes that read or bind each variable, in source order."""
        found: dict[ScopeVariable, list[ast.Name]] = {}
        for node in walk(self.script.tree):
            if isinstance(node, ast.Name) and id(node) in self.above:
                found.setdefault(self.of(node), []).append(node)
        for uses in found.values():
            uses.sort(key=lambda each: (each.lineno, each.col_offset))
        return found

    def set_within(self, name: str, scope: ast.AST) -> Iterator[ast.stmt]:
        """Yield the statements in nested functions that set the variable `name` of `scope`."""
        for use in self.uses.get(self.named(name, scope), ()):
            inside = scope in self.around(use) and self.function(use) is not scope
            if inside and not isinstance(use.ctx, ast.Load):
                yield self.statement(use)

    @cached_property
    def calls(self) -> dict[str, list[ast.Call]]:
        """The calls of functions, methods and classes, by the last part of the called name."""
        found: dict[str, list[ast.Call]] = {}
        for node in walk(self.script.tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name | ast.Attribute):
                name = node.func.id if isinstance(node.func, ast.Name) else node.func.attr
                found.setdefault(name, []).append(node)
        return found


def _stores(node: ast.AST) -> bool:
    return isinstance(getattr(node, "ctx", None), ast.Store | ast.Del)


def _bound_by(node: ast.AST) -> list[str]:
    match node:
        case ast.Name() if _stores(node):
            return [node.id]
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef() | ast.arg():
            return [node.arg if isinstance(node, ast.arg) else node.name]
        case ast.Import() | ast.ImportFrom():
            return [each.asname or each.name.partition(".")[0] for each in node.names]
        case ast.ExceptHandler() | ast.MatchAs() | ast.MatchStar() | ast.MatchMapping():
            name = node.rest if isinstance(node, ast.MatchMapping) else node.name
            return [name] if name else []
        case _:
            return []
