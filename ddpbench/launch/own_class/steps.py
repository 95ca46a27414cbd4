"""A step's statements without what does not belong to it: moves to a device, logging, what nothing uses."""

from __future__ import annotations

import ast
from collections.abc import Callable
from copy import copy, deepcopy
from dataclasses import dataclass

from ddpbench.launch.own_class.bindings import Scope
from ddpbench.launch.own_class.loops import is_backward
from ddpbench.launch.own_class.rendering import moved_only
from ddpbench.launch.own_class.script import first_name, here, last_name
from ddpbench.launch.own_class.tracing import Tracer

_CONTEXTS = ("accumulate", "no_sync", "set_detect_anomaly", "profile", "record_function", "join")
_EFFECTS = ("backward", "manual_backward", "step", "zero_grad", "unscale_")
_LOGS = ("print", "log", "append", "item", "set_postfix", "set_description", "add_scalar", "save", "write")


@dataclass(frozen=True)
class Before:
    """What comes before the backward: its statements, and the loss that it starts from."""

    statements: list[ast.stmt]
    loss: ast.expr


def without_moves(body: list[ast.stmt], scope: Scope, tracer: Tracer) -> list[ast.stmt]:
    """Return copies of statements that move nothing to a device; those that did nothing else are gone."""
    kept = {
        node.attr
        for node in here(body)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and first_name(node) == "self"
    }
    counted = {
        each.target.attr
        for each in here(body)
        if isinstance(each, ast.AugAssign) and isinstance(each.target, ast.Attribute)
    }
    copies = [_Unmoved(scope, tracer, kept - counted).visit(deepcopy(each)) for each in body]
    return _tidied([each for each in copies if not _draws(each)])


def _draws(statement: ast.stmt) -> bool:
    """Return whether a statement takes the next batch from an iterator, which a step is given."""
    return isinstance(statement, ast.Assign | ast.Try) and any(
        isinstance(each, ast.Assign) and last_name(each.value) == "next" for each in ast.walk(statement)
    )


def settled(body: list[ast.stmt], scope: Scope, tracer: Tracer) -> list[ast.stmt]:
    """Return the statements without the branches that the script's defaults do not take."""
    kept: list[ast.stmt] = []
    for statement in body:
        held = tracer.holds(statement.test, scope) if isinstance(statement, ast.If) else None
        if isinstance(statement, ast.If) and held is not None:
            kept += settled(statement.body if held else statement.orelse, scope, tracer)
        elif isinstance(statement, ast.With | ast.If | ast.For):
            block = copy(statement)
            block.body = settled(statement.body, scope, tracer) or [ast.Pass()]
            kept.append(block)
        else:
            kept.append(statement)
    return kept


def before_backward(body: list[ast.stmt]) -> Before | None:
    """Return the statements up to the first backward, in the contexts (autocast) that they stand in."""
    before: list[ast.stmt] = []
    for statement in body:
        if isinstance(statement, ast.Expr) and is_backward(statement.value):
            assert isinstance(statement.value, ast.Call)
            return Before(before, _loss_of(statement.value))
        if isinstance(statement, ast.With) and (inner := before_backward(statement.body)) is not None:
            wrapped = copy(statement)
            wrapped.body = inner.statements
            return Before([*before, *([wrapped] if wrapped.body else [])], inner.loss)
        before.append(statement)
    return None


def _loss_of(call: ast.Call) -> ast.expr:
    """Return the loss of `loss.backward()`, `scaler.scale(loss).backward()` or `accelerator.backward(loss)`."""
    assert isinstance(call.func, ast.Attribute)
    receiver = call.func.value
    if call.args and not isinstance(receiver, ast.Call):
        return call.args[0]
    if isinstance(receiver, ast.Call) and last_name(receiver) == "scale" and receiver.args:
        return receiver.args[0]
    return receiver


def needed_for(body: list[ast.stmt], needed: set[str], effects: Callable[[ast.stmt], bool]) -> list[ast.stmt]:
    """Return the statements that the names need, or that have an effect; `needed` becomes what they need in turn."""
    kept: list[ast.stmt] = []
    for statement in reversed(body):
        writes, grows = _writes(statement)
        found = _inner_needed(statement, needed, effects)
        if found is None:
            if not (writes & needed or effects(statement)):
                continue
            if isinstance(statement, ast.Assign) and not grows:
                needed -= writes
            needed |= _loads(statement)
            found = statement
        kept.append(found)
    return kept[::-1]


def _inner_needed(
    statement: ast.stmt, needed: set[str], effects: Callable[[ast.stmt], bool]
) -> ast.stmt | None:
    """Return a block with what is needed of it; None for anything but a block, or one with nothing of it needed."""
    if not isinstance(statement, ast.With | ast.If | ast.For):
        return None
    if isinstance(statement, ast.For):
        needed |= set().union(
            *(_loads(each) for each in statement.body if effects(each) or _writes(each)[0] & needed)
        )
    block = copy(statement)
    inner = set(needed)
    block.body = needed_for(statement.body, inner, effects)
    if isinstance(block, ast.If | ast.For):
        other = set(needed)
        block.orelse = needed_for(block.orelse, other, effects)
        inner |= other
    if not block.body and not getattr(block, "orelse", []):
        return None
    block.body = block.body or [ast.Pass()]
    needed |= inner
    heads = [block.test] if isinstance(block, ast.If) else [block.iter] if isinstance(block, ast.For) else []
    heads += [item.context_expr for item in block.items] if isinstance(block, ast.With) else []
    for head in heads:
        needed |= _loads(head)
    return block


def is_effect(statement: ast.stmt) -> bool:
    """Return whether a statement itself trains: a backward, an update, gradients cleared or clipped."""
    if isinstance(statement, ast.If | ast.For | ast.With):
        return False
    calls = [each for each in ast.walk(statement) if isinstance(each, ast.Call)]
    names = [last_name(each) for each in calls]
    if any(name in _EFFECTS or (name.startswith("clip_grad_")) for name in names):
        return True
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        name = last_name(statement.value)
        return (name.endswith("_") and not name.endswith("__")) or (
            name == "update" and not statement.value.args and not statement.value.keywords
        )
    if isinstance(statement, ast.Assign) and any(isinstance(e, ast.Attribute) for e in statement.targets):
        return not any(name in _LOGS for name in names) and not isinstance(statement.value, ast.Constant)
    return isinstance(statement, ast.FunctionDef)


def no_effect(_statement: ast.stmt) -> bool:
    """Tells that only what is needed by name is."""
    return False


def _writes(statement: ast.stmt) -> tuple[set[str], bool]:
    """Return the names that a statement changes, and whether it needs what they were."""
    writes: set[str] = set()
    grows = isinstance(statement, ast.AugAssign | ast.If | ast.For | ast.With | ast.While)
    for node in ast.walk(statement):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            writes.add(node.id)
        elif isinstance(node, ast.Subscript | ast.Attribute) and isinstance(node.ctx, ast.Store):
            writes.add(first_name(node))
            grows = True
        elif isinstance(node, ast.FunctionDef):
            writes.add(node.name)
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        name = last_name(statement.value)
        if name.endswith("_") or name in ("update", "append", "extend", "pop"):
            writes.add(first_name(statement.value.func))
            grows = True
    return writes - {""}, grows


def _loads(node: ast.AST) -> set[str]:
    return {
        each.id for each in ast.walk(node) if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Load)
    }


class _Unmoved(ast.NodeTransformer):
    def __init__(self, scope: Scope, tracer: Tracer, local: set[str]) -> None:
        self.scope, self.tracer, self.local = scope, tracer, local

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        """What a step keeps in `self`, such as its loss, is a name of the method."""
        if isinstance(node.value, ast.Name) and node.value.id == "self" and node.attr in self.local:
            return ast.Name(node.attr, node.ctx)
        return self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        moved = moved_only(node, self.scope, self.tracer)
        if moved is not None:
            found: ast.AST = self.visit(moved)
            return found
        return self.generic_visit(node)


def _tidied(body: list[ast.stmt]) -> list[ast.stmt]:
    kept: list[ast.stmt] = []
    for statement in body:
        if isinstance(statement, ast.Assign) and all(_same(e, statement.value) for e in statement.targets):
            continue
        if isinstance(statement, ast.With) and any(
            last_name(item.context_expr) in _CONTEXTS for item in statement.items
        ):
            kept += _tidied(statement.body)
            continue
        if isinstance(statement, ast.For | ast.If | ast.With):
            statement.body = _tidied(statement.body)
            if isinstance(statement, ast.For | ast.If):
                statement.orelse = _tidied(statement.orelse)
            if not statement.body and not getattr(statement, "orelse", []):
                continue
            statement.body = statement.body or [ast.Pass()]
        kept.append(statement)
    return kept


def _same(target: ast.expr, value: ast.expr) -> bool:
    """Return whether an assignment changes nothing, as `x = x` and `batch = {k: v for k, v in batch.items()}`."""
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) and len(target.elts) == len(value.elts):
        return all(_same(each, other) for each, other in zip(target.elts, value.elts, strict=True))
    told = ast.unparse(target)
    if ast.unparse(value) == told:
        return True
    if isinstance(value, ast.Call) and last_name(value) in ("tuple", "list", "dict") and len(value.args) == 1:
        return _same(target, value.args[0])
    if isinstance(target, ast.Tuple) and isinstance(value, ast.GeneratorExp | ast.ListComp):
        return ast.unparse(value.elt) == ast.unparse(value.generators[0].target) and _same(
            target, value.generators[0].iter
        )
    if isinstance(value, ast.DictComp) and len(value.generators) == 1:
        each = value.generators[0]
        pair = f"({ast.unparse(value.key)}, {ast.unparse(value.value)})"
        return (
            not each.ifs and ast.unparse(each.target) == pair and ast.unparse(each.iter) == f"{told}.items()"
        )
    if isinstance(value, ast.GeneratorExp | ast.ListComp) and len(value.generators) == 1:
        each = value.generators[0]
        return (
            not each.ifs
            and ast.unparse(value.elt) == ast.unparse(each.target)
            and ast.unparse(each.iter) == told
        )
    return False
