"""What a training loop goes through: the names of a batch's parts, and the loader they come from."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from ddpbench.launch.own_class.bindings import Path, Scope
from ddpbench.launch.own_class.loops import TrainingLoop
from ddpbench.launch.own_class.script import here, last_name
from ddpbench.launch.own_class.tracing import Origin, Tracer

_BARS = ("tqdm", "trange", "iter", "track", "progress_bar")


@dataclass(frozen=True)
class Batch:
    """A batch as the loop has it. `target` is None where its loop goes through no loader."""

    target: ast.expr | None
    parts: tuple[tuple[tuple[int, Path], str], ...]
    """The key of each part's origin, and the name it has in the loop."""
    count: tuple[int, Path] | None
    """The key of the number that `enumerate` gives."""
    loader: Origin | None


def batch_of(tracer: Tracer, loop: TrainingLoop) -> Batch:
    """Return the batch of a loop."""
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
    """Return the loader, the place of the batch in the loop's target, and that of the number of the batch."""
    found = tracer.trace(node, scope)
    if isinstance(found.node, ast.Call) and found.node.args:
        name = last_name(found.node)
        if name == "enumerate":
            inner, path, _ = _goes_through(tracer, found.node.args[0], found.scope)
            return inner, (1, *path), (0,)
        if name in _BARS:
            return _goes_through(tracer, found.node.args[0], found.scope)
    return found, (), None


def _drawn(tracer: Tracer, loop: TrainingLoop) -> Batch:
    """Return the batch of a loop over numbers that takes it with `next(iterator)`."""
    for statement in here(loop.node.body):
        if isinstance(statement, ast.Assign) and last_name(statement.value) == "next":
            call = statement.value
            assert isinstance(call, ast.Call)
            if call.args:
                target = statement.targets[0]
                key = id(call)
                parts = tuple(((key, at), name) for at, name in _names(target, ()))
                loader, _, _ = _goes_through(tracer, call.args[0], loop.scope)
                whole = (((key, ()), "batch"),) if isinstance(target, ast.Tuple | ast.List) else ()
                return Batch(target, (*parts, *whole), None, loader)
    return Batch(None, (), None, None)


def _names(target: ast.expr, path: Path) -> Iterator[tuple[Path, str]]:
    if isinstance(target, ast.Name):
        yield path, target.id
    elif isinstance(target, ast.Tuple | ast.List):
        for index, each in enumerate(target.elts):
            yield from _names(each, (*path, index))
