"""Find deviations of a training loop from one backward pass, one update and one schedule step for each batch."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Iterable, Iterator

from ddpbench.launch.own_class.loops import TrainingLoop, is_backward
from ddpbench.launch.own_class.script import Script, first_name, here, in_step, last_name
from ddpbench.launch.own_class.trees import walk

_OF_BACKWARD = frozenset({"retain_graph", "create_graph"})
"""Arguments of a backward pass that do not change the gradients."""
_CLEARING = ("zero", "clear", "reset")
_ENGINES = ("deepspeed", "colossalai")
"""Libraries whose `step` clears the gradients."""


def own_gradients(calls: Iterable[ast.Call], body: list[ast.stmt]) -> bool:
    """Return whether a call of `backward()` gets an initial gradient, or the list of parameters to differentiate."""
    made = {e.id for e in in_step(body) if isinstance(e, ast.Name) and isinstance(e.ctx, ast.Store)}
    return any(
        any(word.arg not in _OF_BACKWARD for word in call.keywords)
        or (bool(call.args) and starts_at(call, made) is not None)
        for call in calls
        if is_backward(call)
    )


def starts_at(call: ast.Call, made: set[str]) -> ast.expr | None:
    """Return the tensor on which `backward` is called, if the step computes it; otherwise None."""
    receiver = call.func.value if isinstance(call.func, ast.Attribute) else call.func
    return receiver if isinstance(receiver, ast.BinOp) or first_name(receiver) in made else None


def is_cleared(script: Script, loop: TrainingLoop) -> bool:
    """Return True if the loop over batches clears gradients, or if a library's `step` may clear them."""
    if any(word in script.source for word in _ENGINES):
        return True
    methods = [
        each for made in script.classes.values() for each in made.body if isinstance(each, ast.FunctionDef)
    ]
    helpers = {each.name: each for each in [*methods, *script.functions.values()]}
    seen: set[str] = set()
    todo: list[ast.AST] = [*loop.node.body, *loop.body]
    while todo:
        for node in walk(todo.pop()):
            if _clears(node):
                return True
            name = last_name(node) if isinstance(node, ast.Call) else ""
            if name in helpers and name not in seen:
                seen.add(name)
                todo.append(helpers[name])
    return False


def _clears(node: ast.AST) -> bool:
    if isinstance(node, ast.Call):
        return any(word in last_name(node) for word in _CLEARING) and "grad" in ast.unparse(node)
    targets = node.targets if isinstance(node, ast.Assign) else []
    return any(isinstance(each, ast.Attribute) and each.attr == "grad" for each in targets)


def clearing_lines(script: Script) -> list[int]:
    """Return the numbers of the lines that clear gradients."""
    return sorted(
        {each.lineno for each in walk(script.tree) if isinstance(each, ast.stmt | ast.Call) and _clears(each)}
    )


def skips(body: list[ast.stmt]) -> Iterator[tuple[ast.stmt, str]]:
    """Yield each `continue` that skips an update, and each `break` and `return`, with the condition in words.

    The condition is empty for a statement that runs in each batch.
    """
    updates = [
        each.lineno for each in in_step(body) if isinstance(each, ast.Call) and last_name(each) == "step"
    ]
    last = max(updates, default=0)
    for end, branch, when in _ends(body, "", inner=False):
        steps = any(last_name(e) == "step" for e in here(branch) if isinstance(e, ast.Call))
        if not isinstance(end, ast.Continue) or (end.lineno < last and not steps):
            yield end, when


def _ends(body: list[ast.stmt], when: str, *, inner: bool) -> Iterator[tuple[ast.stmt, list[ast.stmt], str]]:
    """Yield each statement that ends a batch, its block, and a phrase on when it runs.

    `inner` is True in a loop within a step, whose `break` and `continue` do not end the batch.
    """
    for each in body:
        if isinstance(each, ast.Return) or (isinstance(each, ast.Break | ast.Continue) and not inner):
            yield each, body, when
        for block, condition, loops in _blocks(each):
            yield from _ends(block, condition or when, inner=inner or loops)


def _blocks(node: ast.stmt) -> Iterator[tuple[list[ast.stmt], str, bool]]:
    """Yield (block, phrase, True for a loop's body); the phrase says when the block runs, or is empty."""
    match node:
        case ast.If():
            yield node.body, _where(node.test), False
            yield node.orelse, _where(ast.UnaryOp(ast.Not(), node.test)), False
        case ast.For() | ast.AsyncFor() | ast.While():
            yield node.body, "", True
            yield node.orelse, f"where the loop of line {node.lineno} ends without `break`", False
        case ast.With() | ast.AsyncWith():
            yield node.body, "", False
        case ast.Try() | ast.TryStar():
            yield node.body, "", False
            for each in node.handlers:
                raised = f"`{ast.unparse(each.type)}`" if each.type is not None else "an exception"
                yield each.body, f"after {raised}", False
            yield node.orelse, "", False
            yield node.finalbody, "", False
        case ast.Match():
            for case in node.cases:
                found = f"where `{_text(node.subject)}` matches `{_text(case.pattern)}`"
                yield case.body, found, False


def _where(test: ast.expr) -> str:
    return f"where `{_text(test)}`"


def _text(node: ast.AST) -> str:
    return " ".join(ast.unparse(node).split())


def evaluates(call: ast.Call) -> bool:
    """Return whether a call puts a module into evaluation mode, by `eval()` or `train(False)`."""
    if not isinstance(call.func, ast.Attribute):
        return False
    off = [*call.args, *(each.value for each in call.keywords)]
    ends = call.func.attr == "train" and any(
        isinstance(each, ast.Constant) and not each.value for each in off
    )
    return ends or (call.func.attr == "eval" and not off)


def put_into_evaluation(
    script: Script, loop: TrainingLoop, is_model: Callable[[ast.expr], bool]
) -> list[ast.Expr]:
    """Return the statements before the end of a loop that put the entire model into evaluation mode.

    The list is empty if the script also calls `train()`.
    """
    calls = [each for each in walk(script.tree) if isinstance(each, ast.Call)]
    trains = [each for each in calls if last_name(each) == "train" and isinstance(each.func, ast.Attribute)]
    if not all(map(evaluates, trains)):
        return []
    return [
        each
        for each in here(loop.scope.node.body)
        if isinstance(each, ast.Expr)
        and isinstance(each.value, ast.Call)
        and isinstance(each.value.func, ast.Attribute)
        and evaluates(each.value)
        and each.lineno <= (loop.node.end_lineno or 0)
        and is_model(each.value.func.value)
    ]


def evaluated_within(
    body: list[ast.stmt], is_model: Callable[[ast.expr], bool], is_kept: Callable[[ast.Call], bool]
) -> list[tuple[ast.Expr, set[int]]]:
    """Return a step's statements that put its model, or a part of it, into evaluation mode.

    Each comes with its line and that of the `train()` call that ends the mode, and counts only if the class computes
    something in between.
    """

    def place(node: ast.Expr | ast.Call) -> tuple[int, int]:
        return node.lineno, node.col_offset

    nodes = list(here(body))  # without nested functions, which have their own modes
    kept = [place(each) for each in nodes if isinstance(each, ast.Call) and is_kept(each)]
    modes = [
        (each, each.value)
        for each in nodes
        if isinstance(each, ast.Expr)
        and isinstance(each.value, ast.Call)
        and isinstance(each.value.func, ast.Attribute)
        and each.value.func.attr in ("train", "eval")
        and is_model(each.value.func.value)
    ]
    found = []
    for statement, call in modes:
        ends = [place(e) for e, other in modes if not evaluates(other) and place(e) > place(statement)]
        end = min(ends, default=(sys.maxsize, 0))
        if is_kept(call) and not ends:
            continue  # the class has this call, too
        if evaluates(call) and any(place(statement) < each < end for each in kept):
            found.append((statement, {statement.lineno, end[0]}))
    return found
