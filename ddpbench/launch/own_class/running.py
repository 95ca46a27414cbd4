"""Find the values that names have before the first batch, if each step passes their values on to the next step."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ddpbench.launch.own_class.bindings import Binding, Scope
from ddpbench.launch.own_class.loops import TrainingLoop
from ddpbench.launch.own_class.rendering import ReplacedValue
from ddpbench.launch.own_class.script import here
from ddpbench.launch.own_class.tracing import Tracer, TraceStep, parameters_of
from ddpbench.launch.own_class.trees import walk
from ddpbench.launch.own_class.variables import ScopeVariable, Variables


@dataclass(frozen=True)
class Beginning:
    """The value of a name before the first batch."""

    read: ast.expr
    """An expression that reads the name, or the attribute of `self`."""
    value: ast.expr | None
    """The value of the last plain assignment to the name outside of the loop; None if there is none."""
    scope: Scope
    """The scope in which `read` and `value` are evaluated."""
    outer: bool = False
    """True if the name is a variable of an enclosing function or module, not of the function with the step."""

    def claim(self, name: str, loop: TrainingLoop, made: ast.expr) -> list[ReplacedValue]:
        """Return a list with the claim that `made` equals the value of the name before the first batch.

        The list is empty if the value is unknown, or if the name is an attribute of `self`.
        """
        if self.value is None or not isinstance(self.read, ast.Name):
            return []
        node = loop.node.test if isinstance(loop.node, ast.While) else loop.node.iter
        step = TraceStep(name, self.scope, loop.node.lineno, Binding(self.value))
        return [ReplacedValue(node, made, (step,), None)]


def beginnings(
    tracer: Tracer, variables: Variables, loop: TrainingLoop, names: Iterable[str]
) -> dict[str, Beginning]:
    """Return the value before the first batch of each name that keeps its value after a step.

    Local names of a function called for each batch do not.
    """
    within = {id(each) for part in (loop.node, *loop.body) for each in walk(part)}
    attributes = _attributes(loop, within)
    found: dict[str, Beginning] = {}
    for name in names:
        if name in attributes:
            read, value = attributes[name]
            found[name] = Beginning(read, value, loop.body_scope)
            continue
        variable = variables.named(name, loop.body_scope.node)
        own = variable.scope == id(loop.body_scope.node)
        if own and loop.body_scope.node is not loop.scope.node:
            continue
        scope = loop.scope if own else _scope_of(tracer, variable)
        stores = [each for each in variables.uses.get(variable, ()) if not isinstance(each.ctx, ast.Load)]
        rebound = any(id(each) in within for each in stores)
        if scope is None or (not own and isinstance(scope.node, ast.Module) and not rebound):
            continue  # of a module-level object that a step changes, the class changes the same object
        outside = {id(each) for each in here(scope.node.body)} - within
        before = [each for each in stores if id(each) in outside]
        if before or (_is_parameter(name, scope) and (rebound or _is_literal(tracer, name, scope))):
            values = _values(scope.node.body)
            value = values.get(id(before[-1])) if before else None
            found[name] = Beginning(_read(name), value, scope, outer=not own)
    return found


def _scope_of(tracer: Tracer, variable: ScopeVariable) -> Scope | None:
    return next((each for each in tracer.scopes if id(each.node) == variable.scope), None)


def _is_parameter(name: str, scope: Scope) -> bool:
    return not isinstance(scope.node, ast.Module) and name in parameters_of(scope.node)


def _is_literal(tracer: Tracer, name: str, scope: Scope) -> bool:
    made = tracer.trace(ast.Name(name, ast.Load()), scope).node
    return isinstance(made, ast.Dict | ast.List | ast.Set | ast.DictComp | ast.ListComp | ast.SetComp)


def _attributes(loop: TrainingLoop, within: set[int]) -> dict[str, tuple[ast.expr, ast.expr | None]]:
    """Return the attributes of `self` bound outside the loop: the expression that reads each, and its last value."""
    found: dict[str, tuple[ast.expr, ast.expr | None]] = {}
    own = loop.body_scope.own
    methods = [each for each in own.body if isinstance(each, ast.FunctionDef)] if own is not None else []
    others = [each.body for each in methods if each.name != "__init__"]
    of_class = [each for each in own.body if isinstance(each, ast.Assign | ast.AnnAssign)] if own else []
    begins = [each.body for each in methods if each.name == "__init__"]  # last, as it sets the first values
    bodies: list[Sequence[ast.stmt]] = [*others, loop.scope.node.body, of_class, *begins]
    for body in bodies:
        values = _values(body)
        if body is of_class:
            of_body = {e.id: values[id(e)] for e in here(body) if isinstance(e, ast.Name) and id(e) in values}
            found |= {name: (_read(f"self.{name}"), value) for name, value in of_body.items()}
        for each in here([*body]):
            if id(each) in within or not isinstance(each, ast.Attribute):
                continue
            if ast.unparse(each.value) == "self" and isinstance(each.ctx, ast.Store):
                found[each.attr] = (_read(f"self.{each.attr}"), values.get(id(each)))
    return found


def _values(body: Sequence[ast.stmt]) -> dict[int, ast.expr]:
    return {
        id(target): each.value
        for each in here([*body])
        if isinstance(each, ast.Assign | ast.AnnAssign) and each.value is not None
        for target in (each.targets if isinstance(each, ast.Assign) else [each.target])
    }


def _read(source: str) -> ast.expr:
    return ast.parse(source, mode="eval").body
