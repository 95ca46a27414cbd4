"""Find a loop's optimizers, schedulers and gradient clipping, and whether a `loss` method suffices for its updates."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator
from copy import deepcopy
from dataclasses import dataclass, field

from ddpbench.errors import first_reason
from ddpbench.launch.own_class.bindings import Scope
from ddpbench.launch.own_class.loops import TrainingLoop, is_backward
from ddpbench.launch.own_class.script import here, in_step, last_name
from ddpbench.launch.own_class.tracing import Origin, Tracer
from ddpbench.launch.own_class.trees import walk
from ddpbench.launch.own_class.unusual import own_gradients

_SCHEDULES = ("sched", "warmup", "lr_", "_lr", "plateau", "cosine")


@dataclass
class Updates:
    """A step's optimizers and schedulers, by their names in the script, and its calls that clip gradients."""

    optimizers: dict[str, Origin] = field(default_factory=dict)
    schedulers: dict[str, Origin] = field(default_factory=dict)
    clipping: list[ast.Call] = field(default_factory=list)
    owns: str = ""
    """Why the generated class must have the entire step; empty if a loss is enough."""

    @property
    def all(self) -> dict[str, Origin]:
        """The optimizers, followed by the schedulers."""
        return {**self.optimizers, **self.schedulers}


def updates_of(tracer: Tracer, body: list[ast.stmt], scope: Scope) -> Updates:
    """Find the optimizers, schedulers and gradient clipping in a step's statements."""
    found = Updates()
    calls = [each for each in in_step(body) if isinstance(each, ast.Call)]
    for call in calls:
        name = last_name(call)
        if name.startswith("clip_grad_"):
            found.clipping.append(call)
        if name == "step" and isinstance(call.func, ast.Attribute):
            _add_step(found, call, call.func.value, tracer, scope)
        elif is_part_of_update(call) and isinstance(call.func, ast.Attribute):
            _add(found.optimizers, call.func.value, tracer.trace(call.func.value, scope))
            found.owns = "an update in several steps"
    backwards = [each for each in calls if is_backward(each)]
    if len(found.optimizers) > 1:
        found.owns = "several optimizers"
    found.owns = (
        found.owns
        or first_reason(
            (len(backwards) != 1, "several backward passes"),
            (_conditional(body, _is_optimizers), "gradients that accumulate"),
            (_clips_under_condition(body), "gradients that some updates clip"),
            (_direct_steps(tracer, body, scope) > 1, "several updates"),
            (own_gradients(backwards, body), "a backward() with arguments"),
            (
                not any(is_backward(each) for each in here(body)),
                "a backward() inside a function that the loop defines",
            ),
            (
                _conditional(body, lambda call: _is_schedulers(tracer, call, scope)),
                "a scheduler that only some updates step",
            ),
        )
        or ""
    )
    return found


def is_part_of_update(node: ast.AST) -> bool:
    """Return whether a node calls a part of an optimizer's update, such as `first_step`."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return False
    return node.func.attr.endswith("_step") and "opt" in last_name(node.func.value).lower()


def _add_step(found: Updates, call: ast.Call, receiver: ast.expr, tracer: Tracer, scope: Scope) -> None:
    origin = tracer.trace(receiver, scope)
    scales = is_scaler(origin, receiver)
    if scales:
        found.owns = "a GradScaler"
        if not call.args:
            return
        receiver = call.args[0]
        origin = tracer.trace(receiver, scope)
    if is_scheduler(origin, receiver):
        _add(found.schedulers, receiver, origin)
        if call.args or call.keywords:
            found.owns = found.owns or "a scheduler whose step() has an argument"
    elif "opt" in last_name(receiver).lower() or "parameters" in ast.unparse(origin.node):
        _add(found.optimizers, receiver, origin)
        if call.args and not scales:
            found.owns = "an optimizer that takes a closure"
    elif "opt" in ast.unparse(origin.node).lower():
        _add(found.optimizers, receiver, origin)


def epoch_schedules(tracer: Tracer, loops: Iterable[TrainingLoop]) -> list[ast.Call]:
    """Return the calls of a scheduler's `step` that are outside the loops over batches, for example once per epoch."""
    inside = {id(each) for loop in loops for each in [*here(loop.node), *here(loop.body)]}
    return [
        call
        for scope in tracer.scopes
        for call in here(scope.node.body)
        if isinstance(call, ast.Call)
        and isinstance(call.func, ast.Attribute)
        and call.func.attr == "step"
        and id(call) not in inside
        and is_scheduler(tracer.trace(call.func.value, scope), call.func.value)
    ]


@dataclass(frozen=True)
class OutsideUpdate:
    """A call of an optimizer's `step` that no loop over batches reaches."""

    call: ast.Call
    optimizer: Origin
    lines: frozenset[int]
    """The lines of the update and of its backward pass."""


def updates_outside(tracer: Tracer, loops: Iterable[TrainingLoop]) -> list[OutsideUpdate]:
    """Return the updates outside the loops over batches, such as a generator's update once per epoch.

    Functions that the script never calls are left out.
    """
    nodes = [
        each
        for loop in loops
        for part in (loop.node, loop.stands, *loop.body)
        if part is not None
        for each in walk(part)
    ]
    inside = {id(each) for each in [*nodes, *_run_by(tracer, nodes)]}
    found = []
    for scope in tracer.scopes:
        called = isinstance(scope.node, ast.Module) or bool(tracer.calls(scope))
        calls = [
            each
            for each in (here(scope.node.body) if called else ())
            if isinstance(each, ast.Call) and isinstance(each.func, ast.Attribute) and id(each) not in inside
        ]
        lines = frozenset(
            each.lineno for each in calls if last_name(each) in ("step", "backward", "zero_grad")
        )
        for call in (each for each in calls if last_name(each) == "step"):
            receiver = call.func.value if isinstance(call.func, ast.Attribute) else call.func
            origin = tracer.trace(receiver, scope)
            made = ast.unparse(origin.node)
            if not is_scheduler(origin, receiver) and ("optim" in made.lower() or "parameters()" in made):
                found.append(OutsideUpdate(call, origin, lines))
    return found


def _run_by(tracer: Tracer, nodes: list[ast.AST]) -> Iterator[ast.AST]:
    """Yield the nodes of all functions and methods whose names these nodes call, directly or through others."""
    waiting, seen = [last_name(each) for each in nodes if isinstance(each, ast.Call)], set[str]()
    named: dict[str, list[ast.AST]] = {}
    for scope in tracer.scopes:
        named.setdefault(getattr(scope.node, "name", ""), []).append(scope.node)
    while waiting:
        name = waiting.pop()
        for function in named.get(name, ()) if name and name not in seen else ():
            for each in walk(function):
                yield each
                waiting += [last_name(each)] if isinstance(each, ast.Call) else []
        seen.add(name)


def add_schedules_around(found: Updates, tracer: Tracer, loop: TrainingLoop) -> None:
    """Add the schedulers that a loop steps for each batch, outside the function that makes its step.

    They are only added if a `loss` method suffices, because a `step` would have to step them itself.
    """
    calls = [each.value for each in loop.node.body if isinstance(each, ast.Expr)]
    for call in calls if loop.call is not None and not found.owns else ():
        if (
            not isinstance(call, ast.Call)
            or not isinstance(call.func, ast.Attribute)
            or call.func.attr != "step"
        ):
            continue
        origin = tracer.trace(call.func.value, loop.scope)
        if is_scheduler(origin, call.func.value) and not call.args and not call.keywords:
            _add(found.schedulers, call.func.value, origin)


def is_scaler(origin: Origin, receiver: ast.expr) -> bool:
    """Return whether an object seems to be a gradient scaler, by its name or its class."""
    return "scaler" in last_name(origin.node).lower() or "scaler" in last_name(receiver).lower()


def is_scheduler(origin: Origin, receiver: ast.expr) -> bool:
    """Return whether an object seems to be a learning-rate scheduler, by its name or its class."""
    names = (last_name(receiver).lower(), last_name(origin.node).lower() if not origin.path else "")
    made = ast.unparse(origin.node.func) if isinstance(origin.node, ast.Call) else ""
    return any(word in name for word in _SCHEDULES for name in names) or (
        not origin.path and ("lr_scheduler" in made or made.endswith("LR"))
    )


def _add(found: dict[str, Origin], receiver: ast.expr, origin: Origin) -> None:
    if all(origin.key != other.key for other in found.values()):
        found[last_name(receiver) or f"optimizer_{len(found) + 1}"] = origin


@dataclass(frozen=True)
class AccumulatedStep:
    """A step with several backward passes for one update.

    `count` is the number of passes. `body` has the step's statements with a single pass.
    """

    count: ast.expr
    body: list[ast.stmt]


def pieces_of(body: list[ast.stmt]) -> AccumulatedStep | None:
    """Describe a step that accumulates gradients in one loop over `range(count)`; return None for any other step."""
    loops = [
        (place, each)
        for place, each in enumerate(body)
        if isinstance(each, ast.For) and any(is_backward(inner) for inner in here(each.body))
    ]
    if len(loops) != 1:
        return None
    place, loop = loops[0]
    call = loop.iter
    if not (isinstance(call, ast.Call) and last_name(call) == "range" and len(call.args) == 1):
        return None
    name = loop.target.id if isinstance(loop.target, ast.Name) else ""
    others = [*body[:place], *body[place + 1 :]]
    if any(isinstance(each, ast.Call) and last_name(each) == "step" for each in here(loop.body)):
        return None
    if any(is_backward(each) for each in here(others)) or loop.orelse:
        return None
    share = _Share(ast.unparse(call.args[0]))
    whole = [made for each in loop.body if (made := share.visit(deepcopy(each))) is not None]
    if any(isinstance(each, ast.Name) and each.id == name for each in here(whole)):
        return None
    return AccumulatedStep(call.args[0], [*body[:place], *whole, *body[place + 1 :]])


class _Share(ast.NodeTransformer):
    """Removes divisions of the loss by the number of backward passes, which the strategy makes."""

    def __init__(self, count: str) -> None:
        self.count = count

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        found = self.generic_visit(node)
        if isinstance(node.op, ast.Div) and ast.unparse(node.right) == self.count:
            return node.left
        return found

    def visit_AugAssign(self, node: ast.AugAssign) -> ast.AST | None:
        return None if isinstance(node.op, ast.Div) and ast.unparse(node.value) == self.count else node


def _clips_under_condition(body: list[ast.stmt]) -> bool:
    return any(
        isinstance(each, ast.Call) and last_name(each).startswith("clip_grad_")
        for statement in here(body)
        if isinstance(statement, ast.If)
        for each in here(statement)
    )


def _direct_steps(tracer: Tracer, body: list[ast.stmt], scope: Scope) -> int:
    calls = [each.value for each in body if isinstance(each, ast.Expr) and isinstance(each.value, ast.Call)]
    return sum(
        last_name(each) == "step" and _is_optimizers(each) and not _is_schedulers(tracer, each, scope)
        for each in calls
    )


def _is_optimizers(step: ast.Call) -> bool:
    return "opt" in ast.unparse(step).lower()


def _is_schedulers(tracer: Tracer, step: ast.Call, scope: Scope) -> bool:
    receiver = step.func.value if isinstance(step.func, ast.Attribute) else step.func
    return is_scheduler(tracer.trace(receiver, scope), receiver)


def _conditional(body: list[ast.stmt], of: Callable[[ast.Call], bool]) -> bool:
    for statement in body:
        if isinstance(statement, ast.With | ast.FunctionDef) and _conditional(statement.body, of):
            return True
        if isinstance(statement, ast.If | ast.For | ast.While) and any(
            is_backward(each) or (isinstance(each, ast.Call) and last_name(each) == "step" and of(each))
            for each in here(statement)
        ):
            return True
    return False
