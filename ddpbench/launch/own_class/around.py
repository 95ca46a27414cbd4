"""Find what a training loop does around the function that makes its step, which the generated class would lack."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ddpbench.launch.own_class.bindings import key_of, simple_statements
from ddpbench.launch.own_class.loops import TrainingLoop
from ddpbench.launch.own_class.script import first_name, last_name
from ddpbench.launch.own_class.steps import without_moves
from ddpbench.launch.own_class.tracing import Tracer
from ddpbench.launch.own_class.trees import walk
from ddpbench.launch.own_class.updates import Updates


def around_call(tracer: Tracer, loop: TrainingLoop, updates: Updates) -> Iterator[ast.stmt]:
    """Yield the statements of a loop that decide what the function called for each batch does.

    These are a condition or loop around the call, statements that change its arguments, other calls that train, and
    updates and schedules that are not in `updates`.
    """
    scope = loop.scope
    others = {id(each) for each in loop.others}
    for statement, _, _ in simple_statements(loop.node.body):
        if any(id(each) in others for each in walk(statement)):
            yield statement
    if loop.call is None:
        return
    yield from _blocks_around(tracer, loop, loop.node.body)
    yield from _other_updates(tracer, loop, updates)
    names, followed = _arguments(tracer, loop, loop.call)
    target = loop.node.target if isinstance(loop.node, ast.For | ast.AsyncFor) else None
    set_anew = (
        {each.id for each in walk(target) if isinstance(each, ast.Name)} if target is not None else set()
    )
    for statement, tests, _ in simple_statements(loop.node.body):
        changed = _changed(statement) & names
        value = getattr(statement, "value", None)
        if statement.lineno > loop.call.lineno:
            changed -= set_anew  # the next batch has its own
        if not changed or id(value) in followed or tracer.is_untaken(tests, scope):
            continue
        if without_moves([statement], scope, tracer):
            yield statement


def _blocks_around(tracer: Tracer, loop: TrainingLoop, body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield the first line of each condition that may skip the call, and of each loop that may repeat it."""
    for each in body:
        if not any(node is loop.call for node in walk(each)):
            continue
        if isinstance(each, ast.If):
            within = any(node is loop.call for inner in each.body for node in walk(inner))
            if not tracer.is_taken(((each.test, within),), loop.scope):
                yield each
        elif isinstance(each, ast.For | ast.AsyncFor | ast.While):
            yield each
        for name in ("body", "orelse", "handlers", "finalbody"):
            inner = getattr(each, name, [])
            yield from _blocks_around(tracer, loop, [e for e in inner if isinstance(e, ast.stmt)])


def _other_updates(tracer: Tracer, loop: TrainingLoop, updates: Updates) -> Iterator[ast.stmt]:
    """Yield the statements outside the called function that step an optimizer or scheduler, or clip gradients."""
    keys = {each.key for each in updates.schedulers.values()}
    for statement, tests, _ in simple_statements(loop.node.body):
        for call in walk(statement):
            if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
                continue
            name, receiver = call.func.attr, call.func.value
            steps = name == "step" and call is not loop.call and not tracer.is_untaken(tests, loop.scope)
            origin = tracer.trace(receiver, loop.scope)
            made = isinstance(origin.node, ast.Call) and last_name(origin.node) not in tracer.script.classes
            kept = origin.key in keys and not tests and not call.args
            if name.startswith("clip_grad_") or (steps and made and not kept):
                yield statement


def _arguments(tracer: Tracer, loop: TrainingLoop, call: ast.Call) -> tuple[set[str], set[int]]:
    """Return the names and attributes that a call's arguments read, and the ids of the values traced for them."""
    names: set[str] = set()
    followed: set[int] = set()
    for given in [*call.args, *(each.value for each in call.keywords)]:
        for part in walk(given):
            if not isinstance(part, ast.Name | ast.Attribute) or not key_of(part):
                continue
            names.add(key_of(part))
            for step in tracer.steps(part, loop.scope):
                if step.scope.node is loop.scope.node:
                    names.add(step.key)
                    followed |= {id(step.binding.value)} if step.binding is not None else set()
    return names - {"self"}, followed


def _changed(statement: ast.stmt) -> set[str]:
    """Return the names and attributes that a statement binds, or whose objects it changes."""
    found: set[str] = set()
    for each in walk(statement):
        if isinstance(each, ast.Name | ast.Attribute) and isinstance(each.ctx, ast.Store):
            found |= {key_of(each), first_name(each)}
        elif isinstance(each, ast.Subscript) and isinstance(each.ctx, ast.Store):
            found |= {key_of(each.value), first_name(each)}
    call = statement.value if isinstance(statement, ast.Expr) else None
    if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute):
        name = call.func.attr
        if name.endswith("_") and not name.endswith("__"):
            found |= {key_of(call.func.value), first_name(call.func.value)}
    return found - {""}
