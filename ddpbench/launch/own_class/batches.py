"""Find the batch of a training loop, the names of the batch's parts, and the loader that yields the batch."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from ddpbench.launch.own_class.bindings import Path, Scope, key_of
from ddpbench.launch.own_class.loops import TrainingLoop, is_backward
from ddpbench.launch.own_class.script import FunctionNode, Script, here, in_step, last_name, place_of_node
from ddpbench.launch.own_class.tracing import Origin, Tracer, parameters_of
from ddpbench.launch.own_class.trees import walk

_REORDERS = frozenset({"sorted", "reversed", "map", "filter", "zip", "islice", "takewhile", "sample"})
"""Functions that return other items than their argument has, or return the same items in another order."""
_BARS = ("tqdm", "trange", "iter", "track", "progress_bar", "islice", "cycle")


@dataclass(frozen=True)
class Batch:
    """The batch of a training loop, and the loader or call that it comes from.

    `target` is the expression assigned to, or None if no batch was found.
    """

    target: ast.expr | None
    parts: tuple[tuple[tuple[int, Path], str], ...]
    """For each part of the batch, its `Origin.key` and its name in the loop."""
    count: tuple[int, Path] | None
    """`Origin.key` of the number that `enumerate` yields; None without `enumerate`."""
    loader: Origin | None
    draw: ast.Call | None = None
    """The call of the script's function that returns a batch, if no loader yields one."""
    drawn: frozenset[int] = frozenset()
    """The numbers (see `place_of_node`) of the statements that draw a batch."""


def batch_of(tracer: Tracer, loop: TrainingLoop) -> Batch:
    """Find the batch of a training loop.

    The batch is the loop variable, or a variable that the body sets to `next(iterator)` or to a function's result.
    """
    if not isinstance(loop.node, ast.For | ast.AsyncFor):
        return _drawn(tracer, loop)
    iterated, path, count = _goes_through(tracer, loop.node.iter, loop.scope)
    if last_name(iterated.node) in ("range", "count", "trange"):
        return _drawn(tracer, loop)
    target = loop.node.target
    for index in path:
        if not isinstance(target, ast.Tuple | ast.List) or index >= len(target.elts):
            return Batch(None, (), None, None)
        target = target.elts[index]
    key = id(loop.node.iter)
    parts = tuple(((key, at), name) for at, name in _names(target, path))
    whole = (((key, path), "batch"),) if isinstance(target, ast.Tuple | ast.List) else ()
    return Batch(target, (*parts, *whole), (key, count) if count is not None else None, iterated)


def _goes_through(tracer: Tracer, node: ast.expr, scope: Scope) -> tuple[Origin, Path, Path | None]:
    found = tracer.trace(node, scope)
    if isinstance(found.node, ast.Call) and found.node.args:
        name = last_name(found.node)
        if name == "enumerate":
            inner, path, _ = _goes_through(tracer, found.node.args[0], found.scope)
            begins = len(found.node.args) > 1 or bool(found.node.keywords)  # the first number may not be 0
            return inner, (1, *path), None if begins else (0,)
        if name in _BARS or _passes_on(tracer.script.functions.get(name)):
            return _goes_through(tracer, found.node.args[0], found.scope)
    return found, (), None


def _passes_on(function: FunctionNode | None) -> bool:
    if function is None or not parameters_of(function):
        return False
    given = [each.value for each in walk(function) if isinstance(each, ast.Yield)]
    through = {
        ast.unparse(each.target)
        for each in here(function.body)
        if isinstance(each, ast.For) and ast.unparse(each.iter) == parameters_of(function)[0]
    }
    return bool(given) and all(each is not None and ast.unparse(each) in through for each in given)


def _drawn(tracer: Tracer, loop: TrainingLoop) -> Batch:
    for statement in here(loop.node.body):
        if isinstance(statement, ast.Assign) and last_name(statement.value) == "next":
            call = statement.value
            if isinstance(call, ast.Call) and call.args:
                target = statement.targets[0]
                key = id(call)
                parts = tuple(((key, at), name) for at, name in _names(target, ()))
                loader, _, _ = _goes_through(tracer, call.args[0], loop.scope)
                whole = (((key, ()), "batch"),) if isinstance(target, ast.Tuple | ast.List) else ()
                return Batch(target, (*parts, *whole), None, loader)
    return _drawn_by_function(tracer, loop) or Batch(None, (), None, None)


def _drawn_by_function(tracer: Tracer, loop: TrainingLoop) -> Batch | None:
    stored = {e.id for e in here(loop.body) if isinstance(e, ast.Name) and isinstance(e.ctx, ast.Store)}
    given = {
        name.id
        for call in in_step(loop.body)
        if isinstance(call, ast.Call) and last_name(call) not in ("print", "log", "append")
        for argument in [*call.args, *(each.value for each in call.keywords)]
        for name in walk(argument)
        if isinstance(name, ast.Name)
    }
    draws: list[tuple[ast.Assign, ast.Call]] = []
    for statement in in_step(loop.body):
        if not isinstance(statement, ast.Assign) or not isinstance(statement.value, ast.Call):
            continue
        call, target = statement.value, statement.targets[0]
        names = [name for _, name in _names(target, ())]
        used = {each.id for each in walk(call) if isinstance(each, ast.Name)} - {last_name(call)}
        if (
            isinstance(call.func, ast.Name)
            and call.func.id in tracer.script.functions
            and set(names) & given
            and not used & stored
            and not any(is_backward(each) for each in walk(tracer.script.functions[call.func.id]))
        ):
            draws.append((statement, call))
    draws.sort(key=lambda each: not isinstance(each[0].targets[0], ast.Tuple | ast.List))
    for statement, call in draws[:1]:
        target = statement.targets[0]
        alike = ast.unparse(statement.targets[0])
        drawn = frozenset(place_of_node(each) for each, _ in draws if ast.unparse(each.targets[0]) == alike)
        parts = tuple(
            (tracer.trace(ast.Name(name, ast.Load()), loop.body_scope).key, name)
            for _, name in _names(target, ())
        )
        return Batch(target, parts, None, None, draw=call, drawn=drawn)
    return None


def _names(target: ast.expr, path: Path) -> Iterator[tuple[Path, str]]:
    if isinstance(target, ast.Name):
        yield path, target.id
    elif isinstance(target, ast.Tuple | ast.List):
        for index, each in enumerate(target.elts):
            yield from _names(each, (*path, index))


def makes_batches_again(tracer: Tracer, node: ast.expr, scope: Scope) -> list[ast.stmt]:
    """Return the statements that compute the batches of a loop from the loader's batches, such as a comprehension.

    `node` is the expression that the loop iterates over.
    """
    names = {step.key: step for step in tracer.steps(node, scope)}
    return [
        each
        for key, step in names.items()
        for each in here(step.scope.node.body)
        if isinstance(each, ast.Assign) and key in map(key_of, each.targets)
        if any(key_of(part) == key for part in walk(each.value)) and _reorders(each.value, tracer.script)
        if each.lineno < step.line
    ]


def _reorders(value: ast.expr, script: Script) -> bool:
    while isinstance(value, ast.Call) and last_name(value) in ("list", "tuple") and value.args:
        value = value.args[0]
    if isinstance(value, ast.ListComp | ast.GeneratorExp):
        return True
    if isinstance(value, ast.Subscript):
        return isinstance(value.slice, ast.Slice)
    name = last_name(value) if isinstance(value, ast.Call) else ""
    return name in _REORDERS or name in script.functions
