"""Find the training loop, which is the innermost loop that calls `backward()`, and its statements for each batch."""

from __future__ import annotations

import ast
from copy import deepcopy
from dataclasses import dataclass, replace

from ddpbench.launch.own_class.bindings import Scope, Tests, key_of, simple_statements
from ddpbench.launch.own_class.script import FunctionNode, Script, first_name, here, in_step, last_name
from ddpbench.launch.own_class.tracing import Origin, Tracer, parameters_of
from ddpbench.launch.own_class.trees import walk

_QUIET = ("no_grad", "inference_mode")
_MODES = (".training", "is_grad_enabled")
"""Words in a condition that distinguish a function's training from its evaluation."""
_LOOPS = (ast.For, ast.AsyncFor, ast.While)


@dataclass(frozen=True)
class TrainingLoop:
    """A training loop.

    `body` has a step's statements: the loop's own, or the statements of a function called per batch.
    """

    node: ast.For | ast.AsyncFor | ast.While
    scope: Scope
    body: list[ast.stmt]
    body_scope: Scope
    call: ast.Call | None = None
    """The call for each batch, if a function of the script makes the step."""
    stands: ast.AST | None = None
    """The script's comprehension from which `node` is made; None if the script has a loop statement."""
    others: tuple[ast.Call, ...] = ()
    """The other calls in the loop that train."""
    maker: Scope | None = None
    """The call of the function that returns the step's function; None if the script defines that function elsewhere."""


def is_backward(node: ast.AST) -> bool:
    """Return whether a node calls a method `backward` or `manual_backward`. Functions of these names do not count."""
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in ("backward", "manual_backward")
    )


def training_loops(tracer: Tracer) -> list[TrainingLoop]:
    """Return the innermost loops that call `backward`, themselves or in a function that they call."""
    found = [each for scope in tracer.scopes for each in _in_scope(tracer, scope)]
    with_step = [each for each in found if _steps(each.body)]
    return list({id(each.node): each for each in with_step or found}.values())


def backward_apart(tracer: Tracer) -> tuple[Scope, ast.Call] | None:
    """Return the script's first call of `backward` and the function that contains it; None if nothing calls it."""
    found = [
        (scope, each)
        for scope in tracer.scopes
        for each in here(scope.node.body)
        if isinstance(each, ast.Call) and is_backward(each)
    ]
    return min(found, key=lambda each: each[1].lineno, default=None)


def other_trainings(tracer: Tracer, loop: TrainingLoop) -> list[tuple[ast.Call, list[ast.Call]]]:
    """For each enclosing function that several training calls run, return the first of these calls and the others.

    The outermost function comes first. The class uses the first call's arguments.
    """
    found: list[tuple[ast.Call, list[ast.Call]]] = []
    scope, seen = loop.scope, set[int]()
    while not isinstance(scope.node, ast.Module) and id(scope.node) not in seen:
        seen.add(id(scope.node))
        calls = [
            (call, caller)
            for call, caller in tracer.calls(scope)
            if caller.node is not scope.node and _is_of(tracer, call, caller, scope)
        ]
        if not calls:
            break
        first, caller = calls[0]
        others = [
            call
            for call, where in calls[1:]
            if not _excludes(where, first, call) and _trains_by(tracer, loop, scope, call, where)
        ]
        if others and _trains_by(tracer, loop, scope, first, caller):
            found.insert(0, (first, others))
        scope = caller
    return found


def follow_training(tracer: Tracer, loop: TrainingLoop) -> None:
    """For the functions around a loop, make the tracer use the arguments of training calls, not of evaluation calls."""
    if loop.maker is not None and loop.maker.call is not None and loop.maker.caller is not None:
        tracer.trains_by[id(loop.maker.node)] = (loop.maker.call, loop.maker.caller)
    scope, seen = loop.body_scope if loop.call is None else loop.scope, set[int]()
    while not isinstance(scope.node, ast.Module) and id(scope.node) not in seen:
        seen.add(id(scope.node))
        calls = [
            (call, caller)
            for call, caller in tracer.calls(scope)
            if caller.node is not scope.node and _is_of(tracer, call, caller, scope)
        ]
        trains = [each for each in calls if _trains_by(tracer, loop, scope, *each)]
        trains = trains or [each for each in calls if not _is_evaluating(*each)] or calls
        if not trains:
            return
        tracer.trains_by[id(scope.node)] = trains[0]
        scope = trains[0][1]


def _is_evaluating(call: ast.Call, caller: Scope) -> bool:
    modes = [
        each
        for each in here(caller.node.body)
        if isinstance(each, ast.Call) and last_name(each) in ("train", "eval") and each.lineno < call.lineno
        if isinstance(each.func, ast.Attribute)
    ]
    last = max(modes, key=lambda each: each.lineno, default=None)
    return _is_quiet(call, caller) or (last is not None and last_name(last) == "eval")


def _is_quiet(call: ast.Call, caller: Scope) -> bool:
    return any(
        isinstance(each, ast.With)
        and any(last_name(item.context_expr) in _QUIET for item in each.items)
        and call in here(each)
        for each in here(caller.node.body)
    )


def _is_of(tracer: Tracer, call: ast.Call, caller: Scope, called: Scope) -> bool:
    name = getattr(called.node, "name", "")
    if called.own is None or id(called.node) in tracer.enclosing or name == "__init__":
        return True
    receiver = call.func.value if isinstance(call.func, ast.Attribute) else call.func
    if isinstance(receiver, ast.Name) and receiver.id == "self":
        return caller.own is called.own
    return last_name(tracer.trace(receiver, caller).node) == called.own.name


def _excludes(scope: Scope, one: ast.Call, other: ast.Call) -> bool:
    for each in here(scope.node.body):
        if isinstance(each, ast.If):
            taken, rest = list(here(each.body)), list(here(each.orelse))
            if (one in taken and other in rest) or (one in rest and other in taken):
                return True
    return False


def _trains_by(tracer: Tracer, loop: TrainingLoop, called: Scope, call: ast.Call, caller: Scope) -> bool:
    if tracer.is_untaken(_tests_of(caller, call), caller):
        return False
    if _is_quiet(call, caller):
        return False
    if called.node is not loop.body_scope.node:
        return True
    inner = replace(called, call=call, caller=caller)
    for statement, tests, _ in simple_statements(called.node.body):
        if any(map(is_backward, walk(statement))):
            words = " ".join(ast.unparse(test) for test, _ in tests)
            return not any(word in words for word in _MODES) and not tracer.is_untaken(tests, inner)
    return True


def _tests_of(scope: Scope, call: ast.Call) -> Tests:
    for statement, tests, _ in simple_statements(scope.node.body):
        if call in walk(statement):
            return tests
    return ()


def trains_at_import(script: Script, loop: TrainingLoop) -> list[ast.stmt]:
    """Return the first top-level statement that trains at import, and all statements after it; empty if none trains.

    A statement trains if it contains the loop or calls a function that trains, outside of the guard.
    """
    reach = {loop.scope.own.name if loop.scope.own else getattr(loop.scope.node, "name", "")}
    reach |= {getattr(loop.scope.node, "name", "")} - {""}
    for _ in script.functions:
        for name, function in script.functions.items():
            if any(isinstance(e, ast.Call) and last_name(e) in reach for e in here(function.body)):
                reach.add(name)
    outside = [each for each in script.tree.body if each is not script.guard]
    for place, statement in enumerate(outside):
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            continue
        nodes = [statement, *here(statement)]
        if (loop.stands or loop.node) in nodes or any(
            isinstance(each, ast.Call) and last_name(each) in reach for each in nodes
        ):
            return outside[place:]
    return []


def _in_scope(tracer: Tracer, scope: Scope) -> list[TrainingLoop]:
    loops: list[tuple[ast.For | ast.AsyncFor | ast.While, ast.AST | None]] = []
    for node in here(scope.node.body):
        if isinstance(node, _LOOPS):
            loops.append((node, None))
        elif isinstance(node, ast.ListComp | ast.SetComp | ast.GeneratorExp) and len(node.generators) == 1:
            loops.append((tracer.as_loop(node), node))
    found = [
        replace(each, stands=stands)
        for loop, stands in loops
        if (each := _trains(tracer, loop, scope)) is not None
    ]
    inner = [
        each
        for each in found
        if not any(
            other is not each and _within(other, each) and _steps(other.body) >= _steps(each.body)
            for other in found
        )
    ]
    return [each for each in inner if not any(_within(each, o) for o in inner if o is not each)]


def _within(inner: TrainingLoop, outer: TrainingLoop) -> bool:
    return (inner.stands or inner.node) in here(outer.node.body)


def _trains(tracer: Tracer, loop: ast.For | ast.AsyncFor | ast.While, scope: Scope) -> TrainingLoop | None:
    if any(is_backward(node) for node in walk(ast.Module(loop.body, []))):
        return TrainingLoop(loop, scope, [*_nested(scope, loop.body), *loop.body], scope)
    nested = _nested(scope, loop.body)
    if any(
        isinstance(each, _LOOPS) and any(map(is_backward, here(each.body)))
        for function in nested
        for each in in_step([function])
    ):
        return None  # an epoch in a nested function, in which its loop is found
    body = _without_nonlocal(loop.body, nested)
    if body is None and any(is_backward(node) for node in in_step(nested)):
        body = loop.body
    if body is not None:
        return TrainingLoop(loop, scope, [*_nested(scope, body), *body], scope)
    return _by_function(tracer, loop, scope)


def _by_function(
    tracer: Tracer, loop: ast.For | ast.AsyncFor | ast.While, scope: Scope
) -> TrainingLoop | None:
    """Describe a loop whose step is made by a function; return None if none of the called functions trains."""
    found = [
        (node, *called)
        for node in here(loop.body)
        if isinstance(node, ast.Call) and (called := _called(tracer, node, scope)) is not None
        if _makes_step(called[0])
    ]
    found = [each for each in found if not tracer.is_untaken(_tests_of(scope, each[0]), scope)] or found
    if not found:
        return None
    call, function, maker = found[0]
    assert not isinstance(function.node, ast.Module)
    others = tuple(each for each, _, _ in found[1:] if not _excludes(scope, call, each))
    inlined = _inlined(loop.body, call, function.node)
    if inlined is not None:
        return TrainingLoop(loop, scope, [*_nested(scope, inlined), *inlined], scope, others=others)
    return TrainingLoop(loop, scope, function.node.body, function, call, others=others, maker=maker)


def _makes_step(function: Scope) -> bool:
    """Return whether a function calls `backward`, and is not itself a training loop."""
    if isinstance(function.node, ast.Module):
        return False
    inside = list(here(function.node.body))
    loops = [each for each in inside if isinstance(each, _LOOPS) and any(map(is_backward, here(each.body)))]
    if not any(map(is_backward, inside)) or (loops and _steps(function.node.body) == 0):
        return False
    return not any(_steps(each.body) for each in loops)


def _inlined(body: list[ast.stmt], call: ast.Call, function: FunctionNode) -> list[ast.stmt] | None:
    names = parameters_of(function)
    names = names[1:] if names[:1] == ["self"] else names
    given = dict(zip(names, call.args, strict=False)) | {e.arg: e.value for e in call.keywords if e.arg}
    handed = {
        each.id
        for node in here(function.body)
        if is_backward(node)
        for each in walk(node)
        if isinstance(each, ast.Name)
    } & set(given)
    loss = {each.id for name in handed for each in walk(given[name]) if isinstance(each, ast.Name)}
    made = {e.id for e in here(body) if isinstance(e, ast.Name) and isinstance(e.ctx, ast.Store)}
    stores = {e.id for e in here(function.body) if isinstance(e, ast.Name) and isinstance(e.ctx, ast.Store)}
    returns = any(isinstance(each, ast.Return) for each in here(function.body))
    if (
        not loss & made
        or returns
        or stores
        or not all(map(_is_path, given.values()))
        or function.decorator_list
    ):
        return None
    if any(isinstance(each, ast.Starred) for each in call.args):
        return None
    if not given.keys() >= {e.id for e in here(function.body) if isinstance(e, ast.Name)} & set(names):
        return None
    place = next(
        (at for at, each in enumerate(body) if isinstance(each, ast.Expr) and each.value is call), None
    )
    if place is None:
        return None
    renamed = [_Renamed(given).visit(deepcopy(each)) for each in function.body]
    return [*body[:place], *renamed, *body[place + 1 :]]


def _without_nonlocal(body: list[ast.stmt], nested: list[ast.stmt]) -> list[ast.stmt] | None:
    """Replace the only call of a nested function that calls `backward` and uses `nonlocal` by its statements.

    None without exactly one call, or if it cannot be replaced.
    """
    steps = [
        each
        for each in nested
        if isinstance(each, ast.FunctionDef)
        and any(isinstance(e, ast.Nonlocal) for e in here(each.body))
        and any(map(is_backward, here(each.body)))
    ]
    calls = [
        (place, each)
        for place, statement in enumerate(body)
        for each in walk(statement)
        if isinstance(each, ast.Call) and any(last_name(each) == step.name for step in steps)
    ]
    if len(steps) != 1 or len(calls) != 1:
        return None
    (step,), ((place, call),) = steps, calls
    statement = body[place]
    inlined = _statements_of(step, call, [each for each in body if each is not statement])
    if inlined is None or not isinstance(statement, ast.Expr | ast.Assign | ast.AugAssign):
        return None
    if statement.value is not call:
        return None
    made, returned = inlined
    if isinstance(statement, ast.Expr):
        return [*body[:place], *made, *body[place + 1 :]]
    if returned is None:
        return None
    last = deepcopy(statement)
    last.value = returned
    return [*body[:place], *made, last, *body[place + 1 :]]


def _statements_of(
    function: ast.FunctionDef, call: ast.Call, others: list[ast.stmt]
) -> tuple[list[ast.stmt], ast.expr | None] | None:
    """Return the (statements, returned expression) that stand for a call.

    None if an argument does not fit, or the function has a decorator, an early return, or a name of `others`.
    """
    names = parameters_of(function)
    given = dict(zip(names, call.args, strict=False)) | {e.arg: e.value for e in call.keywords if e.arg}
    nodes = list(here(function.body))
    stores = {e.id for e in nodes if isinstance(e, ast.Name) and isinstance(e.ctx, ast.Store)}
    outer = {name for e in nodes if isinstance(e, ast.Nonlocal | ast.Global) for name in e.names}
    used = {e.id for each in others for e in walk(each) if isinstance(e, ast.Name)}
    returns = [each for each in nodes if isinstance(each, ast.Return)]
    last = function.body[-1]
    taken = {e.id for each in given.values() for e in walk(each) if isinstance(e, ast.Name)}
    if (
        set(given) != set(names)
        or stores & (set(names) | (used | taken) - outer)
        or function.decorator_list
        or not all(map(_is_path, given.values()))
        or any(each is not last for each in returns)
    ):
        return None
    renamed = [
        _Renamed(given).visit(deepcopy(each))
        for each in function.body
        if not isinstance(each, ast.Nonlocal | ast.Return)
    ]
    value = last.value if isinstance(last, ast.Return) else None
    return renamed, _Renamed(given).visit(deepcopy(value)) if value is not None else None


def _is_path(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) or bool(key_of(node))


class _Renamed(ast.NodeTransformer):
    def __init__(self, given: dict[str, ast.expr]) -> None:
        self.given = given

    def visit_Name(self, node: ast.Name) -> ast.AST:
        return deepcopy(self.given[node.id]) if node.id in self.given else node


def _nested(scope: Scope, body: list[ast.stmt]) -> list[ast.stmt]:
    if isinstance(scope.node, ast.Module):
        return []
    known = {each.name: each for each in here(scope.node.body) if isinstance(each, ast.FunctionDef)}
    wanted: set[str] = set()
    todo: list[ast.stmt] = list(body)
    while todo:
        used = {each.id for each in in_step(todo) if isinstance(each, ast.Name)}
        fresh = (used & set(known)) - wanted
        wanted |= fresh
        todo = [known[name] for name in sorted(fresh)]
    return [each for name, each in known.items() if name in wanted and each not in body]


def _called(tracer: Tracer, call: ast.Call, scope: Scope) -> tuple[Scope, Scope | None] | None:
    """Return the script's function that a call runs; None if unknown.

    It comes with the call of another function if that call returned it, otherwise with None.
    """
    if isinstance(call.func, ast.Name) and call.func.id in tracer.script.functions:
        return Scope(tracer.script.functions[call.func.id], None, call, scope), None
    if isinstance(call.func, ast.Attribute) and first_name(call.func) == "self" and scope.own is not None:
        overridden = tracer.script.is_overridden(scope.own, call.func.attr)
        for each in tracer.scopes if not overridden else ():
            if each.own is scope.own and getattr(each.node, "name", "") == call.func.attr:
                return Scope(each.node, each.own, call, scope), None
    return _by_value(tracer, call, scope)


def _by_value(tracer: Tracer, call: ast.Call, scope: Scope) -> tuple[Scope, Scope | None] | None:
    """Return what `_called` returns, for a function in a variable and for a method of an object in a variable."""
    steps = [each for each in tracer.scopes if _makes_step(each)]
    if not steps or not isinstance(call.func, ast.Name | ast.Attribute):
        return None
    if isinstance(call.func, ast.Attribute) and any(_name(each) == call.func.attr for each in steps):
        made = tracer.trace(call.func.value, scope)
        method = _method(tracer, made, call.func.attr)
        if method is not None:
            return Scope(method.node, method.own, call, scope), None
    found = tracer.trace(call.func, scope)
    method = _method(tracer, found, "__call__")
    if method is not None:
        return Scope(method.node, method.own, call, scope), None
    inner = tracer.entered(found) if isinstance(found.node, ast.Call) else found
    if inner is None or inner.path or inner.item or not isinstance(inner.node, ast.Name):
        return None
    name, within = inner.node.id, inner.scope.node
    for each in steps:
        outer = tracer.enclosing.get(id(each.node))
        if _name(each) == name and outer is not None and outer.node is within:
            return Scope(each.node, each.own, call, scope), inner.scope if inner.scope.call else None
    function = tracer.script.functions.get(name)
    return (Scope(function, None, call, scope), None) if function is not None else None


def _method(tracer: Tracer, made: Origin, name: str) -> Scope | None:
    """Return the method of an object of the script's classes; None if it is unknown or may be overridden."""
    own = tracer.script.classes.get(last_name(made.node)) if isinstance(made.node, ast.Call) else None
    if own is None or made.path or made.item or not isinstance(getattr(made.node, "func", None), ast.Name):
        return None
    return next((each for each in tracer.scopes if each.own is own and _name(each) == name), None)


def _name(scope: Scope) -> str:
    return getattr(scope.node, "name", "")


def _steps(body: list[ast.stmt]) -> int:
    calls = (node for node in in_step(body) if isinstance(node, ast.Call))
    return int(any(last_name(node) in ("step", "optimizer_step") for node in calls))
