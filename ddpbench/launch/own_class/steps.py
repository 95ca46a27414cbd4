"""Reduce a step's statements to those for the generated class, without logging or moves to a device."""

from __future__ import annotations

import ast
from collections.abc import Callable
from copy import copy, deepcopy
from dataclasses import dataclass

from ddpbench.launch.own_class.bindings import Scope
from ddpbench.launch.own_class.loops import is_backward
from ddpbench.launch.own_class.rendering import moved_only
from ddpbench.launch.own_class.script import Script, first_name, here, in_step, last_name, place_of_node
from ddpbench.launch.own_class.tracing import Tracer
from ddpbench.launch.own_class.trees import walk
from ddpbench.launch.own_class.updates import is_part_of_update

_CONTEXTS = ("accumulate", "no_sync", "set_detect_anomaly", "profile", "record_function", "join")
_BLOCKS = (
    ast.With,
    ast.For,
    ast.While,
    ast.If,
    ast.Try,
    ast.FunctionDef,
    ast.AsyncFunctionDef,
    ast.ExceptHandler,
)
_AVERAGES = ("deepcopy", "AveragedModel", "ExponentialMovingAverage", "ModelEma", "ModelEMA", "EMA")
_PARAMETERS = ("model", "batch", "optimizer", "loss", "step")
_EFFECTS = ("backward", "manual_backward", "step", "zero_grad", "unscale_")
_LOGS = ("print", "log", "append", "item", "set_postfix", "set_description", "add_scalar", "save", "write")


@dataclass(frozen=True)
class Before:
    """The statements of a step before its backward pass, and the expression for its loss."""

    statements: list[ast.stmt]
    loss: ast.expr


def without_moves(
    body: list[ast.stmt], scope: Scope, tracer: Tracer, drawn: frozenset[int] = frozenset()
) -> list[ast.stmt]:
    """Return copies of statements without moves to a device, such as `.to(device)`.

    Statements that only move something, draw a batch (`drawn` has their numbers) or update a moving average are
    removed.
    """
    kept = {
        node.attr
        for node in here(body)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and first_name(node) == "self"
    }
    names = {node.id for node in here(body) if isinstance(node, ast.Name)}
    counted = {
        each.target.attr
        for each in here(body)
        if isinstance(each, ast.AugAssign) and isinstance(each.target, ast.Attribute)
    }
    moves = _Unmoved(scope, tracer, kept - (counted & names), drawn)
    made = [moves.visit(deepcopy(each)) for each in body]
    copies = [each for each in made if isinstance(each, ast.stmt)]
    return _tidied([each for each in copies if not _draws(each)])


def _draws(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Assign | ast.Try) and any(
        isinstance(each, ast.Assign) and last_name(each.value) == "next" for each in walk(statement)
    )


def settled(body: list[ast.stmt], scope: Scope, tracer: Tracer) -> list[ast.stmt]:
    """Return these statements, without the branches that the script's default settings skip."""
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


def with_methods(body: list[ast.stmt], scope: Scope, script: Script) -> list[ast.stmt]:
    """Turn the methods of `self` that these statements call into functions.

    Return the functions, followed by the statements. Only methods that return a value and do not train are turned into
    functions.
    """
    if scope.own is None:
        return body
    methods = {
        each.name: each
        for each in scope.own.body
        if isinstance(each, ast.FunctionDef) and not script.is_overridden(scope.own, each.name)
    }
    made: dict[str, ast.FunctionDef] = {}
    calls = _Methods(methods, made)
    changed = [calls.visit(deepcopy(each)) for each in body]
    return [*made.values(), *changed] if made else body


class _Methods(ast.NodeTransformer):
    """Replaces calls of `self`'s methods by functions, for methods that return a value and do not train."""

    def __init__(self, methods: dict[str, ast.FunctionDef], made: dict[str, ast.FunctionDef]) -> None:
        self.methods, self.made = methods, made

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        func = node.func
        if not isinstance(func, ast.Attribute) or ast.unparse(func.value) != "self":
            return node
        method = self.methods.get(func.attr)
        if method is None or not method.args.args or method.decorator_list:
            return node
        inside = list(walk(method))
        returns = any(isinstance(each, ast.Return) and each.value is not None for each in inside)
        if not returns or any(map(is_backward, inside)):
            return node
        name = f"{method.name}_of" if method.name in _PARAMETERS else method.name
        if method.name not in self.made:
            own = deepcopy(method)
            own.name, own.args.args = name, own.args.args[1:]
            self.made[method.name] = own
            own.body = [self.visit(each) for each in own.body]
            self.made[method.name] = self.made.pop(method.name)  # after those that it calls
        node.func = ast.copy_location(ast.Name(name, ast.Load()), func)
        return node


def before_backward(body: list[ast.stmt]) -> Before | None:
    """Return the statements before the first backward pass, and its loss; None if the backward pass is missing.

    Statements in a `with`, such as autocast, stay in it.
    """
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


def named_losses(body: list[ast.stmt]) -> list[ast.stmt]:
    """Return a step's statements, with a name for each loss that a statement computes and calls `backward` on.

    The result of an optimizer's `step` that gets a closure is a loss, too.
    """
    taken = {each.id for each in in_step(body) if isinstance(each, ast.Name)}
    name = next(each for each in ("loss", "loss_", "loss_of_batch") if each not in taken)
    found: list[ast.stmt] = []
    for each in body:
        call = each.value if isinstance(each, ast.Expr) else None
        receiver = (
            call.func.value if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) else None
        )
        if call is not None and _takes_closure(call, body):
            target = ast.copy_location(ast.Name(name, ast.Store()), each)
            found.append(ast.copy_location(ast.Assign([target], call), each))
        elif is_backward(call or each) and isinstance(receiver, ast.Call) and last_name(receiver) != "scale":
            again = deepcopy(each)
            assert isinstance(again, ast.Expr)
            assert isinstance(again.value, ast.Call)
            assert isinstance(again.value.func, ast.Attribute)
            again.value.func.value = ast.copy_location(ast.Name(name, ast.Load()), receiver)
            found += [ast.copy_location(ast.Assign([ast.Name(name, ast.Store())], receiver), each), again]
        else:
            found.append(each)
    return found


def _takes_closure(call: ast.expr, body: list[ast.stmt]) -> bool:
    """Return whether an optimizer's `step` gets a function of the step that calls `backward`, such as LBFGS's."""
    return any(
        isinstance(each, ast.FunctionDef)
        and any(map(is_backward, here(each.body)))
        and calls_back(call, each.name)
        for each in body
    )


def calls_back(node: ast.AST, name: str) -> bool:
    """Return whether a node calls a method `step` with the function `name` as its argument."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute) or node.func.attr != "step":
        return False
    given = [*node.args, *(each.value for each in node.keywords)]
    return any(isinstance(each, ast.Name) and each.id == name for each in given)


def _loss_of(call: ast.Call) -> ast.expr:
    """Return `loss` for `loss.backward()`, `scaler.scale(loss).backward()` or `accelerator.backward(loss)`."""
    receiver = call.func.value if isinstance(call.func, ast.Attribute) else call.func
    if call.args and not isinstance(receiver, ast.Call):
        return call.args[0]
    if isinstance(receiver, ast.Call) and last_name(receiver) == "scale" and receiver.args:
        return receiver.args[0]
    return receiver


def needed_for(body: list[ast.stmt], needed: set[str], effects: Callable[[ast.stmt], bool]) -> list[ast.stmt]:
    """Return the statements that set names in `needed` or have an effect.

    The names that these statements read are added to `needed`.
    """
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


def carried(body: list[ast.stmt], needed: set[str], effects: Callable[[ast.stmt], bool]) -> set[str]:
    """Return the names that carry a value from one iteration of a loop to the next, such as a recurrent state.

    An iteration reads such a name before it writes it, and uses it for `needed` or for an effect.
    """
    written = set().union(*(_writes(each)[0] for each in body))
    found: set[str] = set()
    while True:
        kept = needed_for(body, needed | found, effects)
        more = _exposed(kept, set()) & written
        more |= {name for each in kept for e in walk(each) if isinstance(e, ast.Nonlocal) for name in e.names}
        if more <= found:
            return found
        found |= more


def _exposed(body: list[ast.stmt], bound: set[str]) -> set[str]:
    """Return the names whose earlier values may be read; names always set are added to `bound`."""
    found: set[str] = set()
    for each in body:
        if isinstance(each, ast.If | ast.For | ast.While | ast.With):
            heads: list[ast.AST] = (
                list(each.items)
                if isinstance(each, ast.With)
                else [each.iter]
                if isinstance(each, ast.For)
                else [each.test]
            )
            for head in heads:
                found |= _loads(head) - bound
            inner = set(bound) | (_stores(each.target) if isinstance(each, ast.For) else set())
            inner |= set().union(*map(_stores, heads))
            found |= _exposed(each.body, inner)
            other = set(bound)
            found |= _exposed(getattr(each, "orelse", []), other)
            if isinstance(each, ast.With):
                bound |= inner
            elif isinstance(each, ast.If):
                bound |= inner & other
        elif not isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            grown = _stores(each) if isinstance(each, ast.AugAssign) else set()
            found |= (_loads(each) | grown) - bound - _of_comprehensions(each)
            bound |= _stores(each)
    return found


def _stores(node: ast.AST) -> set[str]:
    return {
        each.id
        for each in (node, *here(node))
        if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)
    } - _of_comprehensions(node)


def _of_comprehensions(node: ast.AST) -> set[str]:
    found: set[str] = set()
    for each in walk(node):
        if isinstance(each, ast.comprehension):
            found |= {e.id for e in walk(each.target) if isinstance(e, ast.Name)}
        elif isinstance(each, ast.Lambda):
            found |= {e.arg for e in walk(each.args) if isinstance(e, ast.arg)}
    return found


def _inner_needed(
    statement: ast.stmt, needed: set[str], effects: Callable[[ast.stmt], bool]
) -> ast.stmt | None:
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
    """Return whether a statement itself calls backward, updates parameters, or clears or clips gradients."""
    if isinstance(statement, ast.If | ast.For | ast.With):
        return False
    calls = [each for each in walk(statement) if isinstance(each, ast.Call)]
    names = [last_name(each) for each in calls]
    if any(name in _EFFECTS or (name.startswith("clip_grad_")) for name in names):
        return True
    if any(map(is_part_of_update, calls)):
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
    """Return False: as `effects` of `needed_for`, it keeps only statements that set needed names."""
    return False


def _writes(statement: ast.stmt) -> tuple[set[str], bool]:
    writes: set[str] = set()
    grows = isinstance(statement, ast.AugAssign | ast.If | ast.For | ast.With | ast.While)
    for node in walk(statement):
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
    return {each.id for each in walk(node) if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Load)}


class _Unmoved(ast.NodeTransformer):
    def __init__(self, scope: Scope, tracer: Tracer, local: set[str], drawn: frozenset[int]) -> None:
        self.scope, self.tracer, self.local, self.drawn = scope, tracer, local, drawn

    def visit(self, node: ast.AST) -> ast.AST | None:
        """Remove statements that draw a batch or update a model's average; an empty block gets `pass`."""
        if isinstance(node, ast.stmt) and (place_of_node(node) in self.drawn or self._averages(node)):
            return None
        found: ast.AST | None = super().visit(node)
        if isinstance(found, _BLOCKS) and not found.body:
            found.body = [ast.Pass()]
        return found

    def _averages(self, node: ast.stmt) -> bool:
        if isinstance(node, ast.For | ast.AsyncFor):
            of: ast.expr = node.iter
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            of = node.value
        else:
            return False
        return any(
            last_name(self.tracer.trace(each, self.scope).node) in _AVERAGES
            for each in walk(of)
            if isinstance(each, ast.Name | ast.Attribute)
        )

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        if isinstance(node.value, ast.Name) and node.value.id == "self" and node.attr in self.local:
            return ast.Name(node.attr, node.ctx)
        return self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        moved = moved_only(node, self.scope, self.tracer)
        found = self.visit(moved) if moved is not None else None
        return found if found is not None else self.generic_visit(node)


def _tidied(body: list[ast.stmt]) -> list[ast.stmt]:
    kept: list[ast.stmt] = []
    for statement in body:
        if isinstance(statement, ast.Assign) and all(_same(e, statement.value) for e in statement.targets):
            continue
        if isinstance(statement, ast.Assign) and "require_backward_grad_sync" in map(
            _last, statement.targets
        ):
            continue
        if isinstance(statement, ast.With) and any(
            _only_syncs(item.context_expr) for item in statement.items
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


def _last(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else ""


def _only_syncs(node: ast.expr) -> bool:
    if isinstance(node, ast.IfExp):
        either = (node.body, node.orelse)
        return any(map(_only_syncs, either)) and all(
            _only_syncs(each) or last_name(each) == "nullcontext" for each in either
        )
    return last_name(node) in _CONTEXTS


def _same(target: ast.expr, value: ast.expr) -> bool:
    """Return whether an assignment changes nothing, such as `x = x` or `batch = {k: v for k, v in batch.items()}`."""
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) and len(target.elts) == len(value.elts):
        return all(_same(each, other) for each, other in zip(target.elts, value.elts, strict=True))
    text = ast.unparse(target)
    if ast.unparse(value) == text:
        return True
    if isinstance(value, ast.Call) and last_name(value) in ("tuple", "list", "dict") and len(value.args) == 1:
        return _same(target, value.args[0])
    if isinstance(target, ast.Tuple) and isinstance(value, ast.GeneratorExp | ast.ListComp):
        return ast.unparse(value.elt) == ast.unparse(value.generators[0].target) and _same(
            target, value.generators[0].iter
        )
    return _copies(value, text)


def _copies(value: ast.expr, text: str) -> bool:
    if not isinstance(value, ast.DictComp | ast.GeneratorExp | ast.ListComp) or len(value.generators) != 1:
        return False
    each = value.generators[0]
    if isinstance(value, ast.DictComp):
        given, source = f"({ast.unparse(value.key)}, {ast.unparse(value.value)})", f"{text}.items()"
    else:
        given, source = ast.unparse(value.elt), text
    return not each.ifs and ast.unparse(each.target) == given and ast.unparse(each.iter) == source
