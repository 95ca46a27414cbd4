"""Write the methods that come from a training loop: `loss`, or a complete `step`."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Sequence

from ddpbench.launch.own_class.bindings import Scope, key_of
from ddpbench.launch.own_class.loops import TrainingLoop, is_backward
from ddpbench.launch.own_class.reading import Reading
from ddpbench.launch.own_class.rendering import Renderer, counted_as, dotted_name
from ddpbench.launch.own_class.running import beginnings
from ddpbench.launch.own_class.script import first_name, here, last_name, place_of_node
from ddpbench.launch.own_class.source import MethodLines, folded, name_of
from ddpbench.launch.own_class.steps import (
    before_backward,
    calls_back,
    carried,
    is_effect,
    named_losses,
    needed_for,
    no_effect,
    without_moves,
)
from ddpbench.launch.own_class.tracing import Tracer, parameters_of, returned_by
from ddpbench.launch.own_class.trees import walk
from ddpbench.launch.own_class.unusual import evaluates

_HARMLESS = ("print", "log", "eval", "valid", "test", "save", "write", "report", "sample", "plot", "display")


class LoopMethods(Reading):
    """Writes the methods that come from a training loop: `loss`, or a complete `step`."""

    def _training(self) -> list[MethodLines]:
        loop = self.loop
        if loop is None:
            return [self._without_loop()]
        if self.batch.target is None:
            self.left.append("No loader was found that the training loop goes through: say what a batch is.")
        if not self.updates.owns and (found := self._loss(loop)) is not None:
            return [found]
        self.updates.owns = self.updates.owns or "what a loss() cannot have"
        return [self._step(loop)]

    def _without_loop(self) -> MethodLines:
        """Return a `step` or `loss` to fill in, for a script in which no training loop was found."""
        if self.apart is None:
            wanted = "compute the loss of a batch: the mean over its samples"
            self.left.append(f"loss(): {wanted}; no loop that calls backward() was found.")
            return MethodLines("loss", ("model", "batch"), [f"...  # {wanted}"])
        scope, call = self.apart
        name = getattr(scope.node, "name", "")
        what = f"what {name}() does" if name else "the step"
        wanted = f"do {what} with these arguments for one batch (line {call.lineno} calls backward()); return the loss"
        self.left.append(
            f"step(): {wanted}. No loop that calls {name or 'it'}{'()' if name else ''} was found."
        )
        return MethodLines("step", ("model", "batch", "optimizer"), [f"...  # {wanted}"])

    def _loss(self, loop: TrainingLoop) -> MethodLines | None:
        statements = without_moves(self.body, loop.body_scope, self.tracer, self.batch.drawn)
        before = before_backward(statements)
        if before is None:
            return None
        needed = {each.id for each in walk(before.loss) if isinstance(each, ast.Name)}
        if self._carried(loop, statements, needed, no_effect):
            return None  # state between batches needs an object per model, which only a class with step() has
        kept = needed_for(before.statements, needed, self._ends_training)
        if self.batch.count and self._counts(loop) & needed:
            return None
        self._note_reads(loop, [*kept, before.loss])
        renderer = self._renderer(loop, kept)
        roles = self._model_roles("model")
        renderer.roles, renderer.parts = {**renderer.roles, **roles}, self._parts(roles)
        made = [renderer.statement(each, loop.body_scope) for each in kept]
        end: ast.stmt = ast.Return(renderer.render(before.loss, loop.body_scope))
        made = folded([*made, end])
        self._tell_left_out(loop)
        return self._method("loss", ("model", "batch"), renderer, self._opened(made))

    def _ends_training(self, statement: ast.stmt) -> bool:
        call = statement.value if isinstance(statement, ast.Expr) else None
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute) or not evaluates(call):
            return False
        part = call.func.value
        if isinstance(part, ast.Attribute) and part.attr == "module":
            part = part.value
        keys = {each.key for each in self.models.values()}
        scope = self.loop.body_scope if self.loop is not None else self.tracer.top
        while isinstance(part, ast.Attribute | ast.Subscript):
            part = part.value
            if self.tracer.trace(part, scope).key in keys:
                return True
        return False

    def _step(self, loop: TrainingLoop) -> MethodLines:
        if loop.call is not None and _returns_loss(loop):
            return self._call(loop, loop.call)
        statements = without_moves(self.body, loop.body_scope, self.tracer, self.batch.drawn)
        statements = named_losses(statements)
        loss = _loss_name(statements)
        ending = _Ending(loop.body_scope, self.tracer)
        statements = [ending.visit(each) for each in statements]
        if any(
            place_of_node(each) in self.batch.drawn
            for loops in here(self.body)
            if isinstance(loops, ast.For | ast.While)
            for each in here(loops.body)
        ):
            self.notes.append(
                "The script draws a batch for each backward of a step, but step() gets only one batch "
                "for all of them."
            )
        needed = {loss} - {""}
        states = self._carried(loop, statements, needed, is_effect)
        states |= self._set_at_first(loop, statements, needed, states)
        kept = needed_for(statements, needed | states, is_effect)
        self._note_reads(loop, kept)
        self._tell_left_out(loop, kept)
        renderer = self._renderer(loop, kept)
        counted = _counted(kept)
        self.notes += [
            f"The script keeps `{name}` from one batch to the next. The class sets it once, and not "
            "again at each epoch."
            for name in sorted(states - counted)
        ]
        self._begin(loop, renderer, states | counted)
        renderer.counters = frozenset(states | counted)
        made = [renderer.statement(each, loop.body_scope) for each in kept]
        if any("self.batches" in ast.unparse(each) for each in made):
            self.kept["batches"] = ast.Constant(0)
            made += ast.parse("self.batches += 1").body
            self._note_count(loop)
        if loss and _made_in_pieces(kept, loss):
            self.notes.append(
                f"step() returns only the last `{loss}` of its loop, not the loss of the whole batch."
            )
        if not loss:
            lines = [each.lineno for each in walk(ast.Module(kept, [])) if is_backward(each)]  # type: ignore[attr-defined]
            where = f"line {min(lines)} calls backward() on it, " if lines else ""
            renderer.missing["loss"] = f"{where}in a function that the step calls"
        made.append(ast.Return(ast.Name(loss or "loss", ast.Load())))
        return self._method("step", ("model", "batch", "optimizer"), renderer, self._opened(made))

    def _note_count(self, loop: TrainingLoop) -> None:
        """Record that the script numbers each epoch's batches from 0, while the class counts on.

        A step that only uses remainders of the number, such as `i % 10`, needs no record.
        """
        counts = self._counts(loop)
        nodes = [each for part in self.body for each in walk(part)]
        reads = {id(each) for each in nodes if isinstance(each, ast.Name) and each.id in counts}
        rest = {
            id(inner)
            for each in nodes
            if isinstance(each, ast.BinOp) and isinstance(each.op, ast.Mod)
            for inner in walk(each.left)
        }
        if reads - rest:
            self.notes.append(
                f"The script's `{next(iter(counts))}` begins at 0 in each epoch; the class counts batches on in "
                "`self.batches`."
            )

    def _note_reads(self, loop: TrainingLoop, kept: list[ast.stmt] | list[ast.AST]) -> None:
        nodes = [each for node in kept for each in walk(node)]
        bound = {e.id for e in nodes if isinstance(e, ast.Name) and isinstance(e.ctx, ast.Store)}
        bound |= set(self._targets())
        for each in nodes:
            if isinstance(each, ast.Name) and each.id in bound:
                self.used.add(each.id)
            elif isinstance(each, ast.Name | ast.Attribute) and key_of(each):
                found = self.tracer.trace(each, loop.body_scope)
                plain = isinstance(found.node, ast.Name | ast.Attribute | ast.Constant)
                if not plain and not found.item and last_name(found.node) != "parse_args":
                    self.state.setdefault(found.key, "step")

    def _carried(
        self,
        loop: TrainingLoop,
        statements: list[ast.stmt],
        needed: set[str],
        effects: Callable[[ast.stmt], bool],
    ) -> set[str]:
        passed = carried(statements, needed, effects)
        found = set(beginnings(self.tracer, self.variables, loop, passed))
        roles = {**self._model_roles(""), **self._optimizer_roles(), **dict(self.batch.parts)}
        keys = {name: self.tracer.trace(ast.Name(name, ast.Load()), loop.body_scope).key for name in found}
        return {name for name in found if keys[name] not in roles} - set(self._targets())

    def _set_at_first(
        self, loop: TrainingLoop, statements: list[ast.stmt], needed: set[str], states: set[str]
    ) -> set[str]:
        decides = states | self._counts(loop)
        set_by = {
            each.id
            for block in statements
            if isinstance(block, ast.If)
            and decides & {e.id for e in walk(block.test) if isinstance(e, ast.Name)}
            for each in here(block.body)
            if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)
        }
        return set_by & carried(statements, needed | states, is_effect) - set(self._targets())

    def _begin(self, loop: TrainingLoop, renderer: Renderer, states: set[str]) -> None:
        before = beginnings(self.tracer, self.variables, loop, states)
        for name in sorted(states):
            found = before.get(name)
            value = found.value if found is not None else ast.Constant(0)
            if found is not None and (found.outer or isinstance(value, ast.Constant)) and value is not None:
                renderer.claims += found.claim(name, loop, value)
                value = renderer.render(value, found.scope)
            elif found is not None:
                value = renderer.render(found.read, found.scope)
                if isinstance(value, ast.Attribute) and value.attr in renderer.kept:
                    value = renderer.kept.pop(value.attr)
            self.kept |= renderer.kept  # `value` may be made from these
            assert value is not None
            self.kept[counted_as(name)] = value

    def _call(self, loop: TrainingLoop, call: ast.Call) -> MethodLines:
        renderer = self._renderer(loop, loop.body)
        made = renderer.render(call, loop.scope)
        assert isinstance(made, ast.Call)
        for whole, names in (("batch", self._targets()), ("optimizer", self._unpacked())):
            arguments = [ast.unparse(each) for each in made.args]
            for start in range(len(arguments) - len(names) + 1) if len(names) > 1 else ():
                if arguments[start : start + len(names)] == names:
                    made.args[start : start + len(names)] = [
                        ast.Starred(ast.Name(whole, ast.Load()), ast.Load())
                    ]
                    break
        parameters = ("model", "batch", "optimizer")
        return self._method("step", parameters, renderer, self._opened([ast.Return(made)]))

    def _renderer(self, loop: TrainingLoop, body: list[ast.stmt]) -> Renderer:
        roles = {key: name_of(name) for key, name in self.batch.parts}
        if isinstance(self.batch.target, ast.Name):
            stores = {e.id for e in here(body) if isinstance(e, ast.Name) and isinstance(e.ctx, ast.Store)}
            own = self.batch.target.id if "batch" in stores else "batch"
            roles = dict.fromkeys(roles, name_of(own))
        if self.batch.count is not None:
            roles[self.batch.count] = ast.parse("self.batches", mode="eval").body
        roles |= self._model_roles("") | self._optimizer_roles()
        sets = [
            each
            for each in here(loop.body)
            if isinstance(each, ast.Attribute | ast.Subscript) and isinstance(each.ctx, ast.Store)
        ]
        written = {
            dotted_name(e)
            for e in sets
            if isinstance(e, ast.Attribute) and (first_name(e) != "self" or not key_of(e))
        }
        written |= {key_of(each.value) for each in sets if isinstance(each, ast.Subscript)}
        return Renderer(
            self.tracer,
            roles,
            dict.fromkeys(
                self._parts(self._model_roles(""))
            ),  # a step's model is wrapped, so that its parts cannot be reached
            device=self._device(),
            keeps=True,
            written=frozenset(written - {""}),
            once=self.once,
            keeper=self.keeper,
        )

    def _device(self) -> ast.expr:
        for name in self._targets()[:1]:
            return ast.parse(f"{name}.device", mode="eval").body
        path = "next(model.parameters()).device"
        first = next(iter(self.models), "model")
        return ast.parse(path if len(self.models) < 2 else path.replace("model", first, 1), mode="eval").body

    def _opened(self, made: list[ast.stmt]) -> list[ast.stmt]:
        whole = {id(e.value) for each in made for e in walk(each) if isinstance(e, ast.Starred)}
        used = {e.id for each in made for e in walk(each) if isinstance(e, ast.Name) and id(e) not in whole}
        opened: list[str] = []
        if len(self.models) > 1:
            values = ", ".join(f'model["{name}"]' for name in self.models)
            opened.append(f"{', '.join(self.models)} = {values}")
        target = self.batch.target
        names = {e.id for e in walk(target) if isinstance(e, ast.Name)} if target is not None else set()
        if isinstance(target, ast.Tuple | ast.List) and names & used:
            opened.append(f"{ast.unparse(target).removeprefix('(').removesuffix(')')} = batch")
        elif isinstance(target, ast.Name) and target.id != "batch" and target.id in used and "batch" in used:
            opened.append(f"{target.id} = batch")
        unpacked = self._unpacked()
        if set(unpacked) & used and self.updates.owns:
            opened.append(f"{', '.join(unpacked)} = optimizer")
        return [*ast.parse("\n".join(opened)).body, *made]

    def _counts(self, loop: TrainingLoop) -> set[str]:
        target = loop.node.target if not isinstance(loop.node, ast.While) else None
        first = target.elts[0] if isinstance(target, ast.Tuple) else None
        return {first.id} if isinstance(first, ast.Name) else set()

    def _tell_left_out(self, loop: TrainingLoop, kept: Sequence[ast.stmt] = ()) -> None:
        roles = {**self._model_roles("model"), **self._optimizer_roles()}
        has = {place_of_node(each) for each in here(list(kept)) if isinstance(each, ast.stmt)}
        where = "add it to step()" if kept else "write step() instead"
        for statement in here(self.body):
            if not isinstance(statement, ast.Expr) or place_of_node(statement) in has:
                continue
            call = statement.value
            if not isinstance(call, ast.Call) or is_effect(statement) or is_backward(call):
                continue
            name = last_name(call).lower()
            if name in ("train", "eval") or any(word in name for word in _HARMLESS):
                continue
            given = [*call.args, *(each.value for each in call.keywords)]
            if any(self.tracer.trace(each, loop.body_scope).key in roles for each in given):
                self.left.append(
                    f"`{ast.unparse(call)}` in the loop is left out: if it is part of a step, {where}."
                )


def _returns_loss(loop: TrainingLoop) -> bool:
    function = loop.body_scope.node
    if isinstance(function, ast.Module) or loop.body_scope.own is not None:
        return False
    if loop.call is None or last_name(loop.call) != function.name or loop.maker is not None:
        return False  # the name that the loop calls is not the function's
    returned = returned_by(function)
    return bool(returned) and not any(
        isinstance(each, ast.Tuple | ast.Dict | ast.Constant) or ".item()" in ast.unparse(each)
        for each in returned
    )


class _Ending(ast.NodeTransformer):
    """Guards each `step()` of a `OneCycleLR`, which raises an error after its last step."""

    def __init__(self, scope: Scope, tracer: Tracer) -> None:
        self.scope, self.tracer = scope, tracer

    def visit_Expr(self, node: ast.Expr) -> ast.stmt:
        call = node.value
        if (
            not isinstance(call, ast.Call)
            or not isinstance(call.func, ast.Attribute)
            or call.func.attr != "step"
        ):
            return node
        receiver = call.func.value
        if last_name(self.tracer.trace(receiver, self.scope).node) != "OneCycleLR":
            return node
        name = ast.unparse(receiver)
        test = ast.parse(f"{name}.last_epoch < {name}.total_steps", mode="eval").body
        return ast.If(test, [node], [])


def _made_in_pieces(statements: list[ast.stmt], loss: str) -> bool:
    return any(
        isinstance(each, ast.For)
        and any(map(is_backward, here(each.body)))
        and any(
            isinstance(e, ast.Name) and e.id == loss and isinstance(e.ctx, ast.Store) for e in here(each.body)
        )
        for each in statements
    )


def _loss_name(statements: list[ast.stmt]) -> str:
    own = _lost(here(statements))
    if own:
        return own
    for function in (each for each in statements if isinstance(each, ast.FunctionDef)):
        inner = _lost(here(function.body))
        names = parameters_of(function)
        returns = any(isinstance(each, ast.Name) and each.id == inner for each in returned_by(function))
        for each in here(statements) if inner else ():
            called = isinstance(each, ast.Assign) and (
                last_name(each.value) == function.name or calls_back(each.value, function.name)
            )
            if isinstance(each, ast.Assign) and called and returns:
                target = each.targets[0]
                if isinstance(target, ast.Name) and isinstance(each.value, ast.Call):
                    return target.id
            if isinstance(each, ast.Call) and last_name(each) == function.name and inner in names:
                by_name = {word.arg: word.value for word in each.keywords}
                place = names.index(inner)
                given = by_name.get(inner) or (each.args[place] if place < len(each.args) else None)
                if isinstance(given, ast.Name):
                    return given.id
    return ""


def _lost(nodes: Iterable[ast.AST]) -> str:
    for each in nodes:
        for inner in walk(each) if is_backward(each) else ():
            if isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Load) and "scaler" not in inner.id:
                return inner.id
    return ""


def _counted(body: list[ast.stmt]) -> set[str]:
    begun: set[str] = set()
    counted: set[str] = set()
    for each in here(body):
        if isinstance(each, ast.Assign):
            begun |= {e.id for target in each.targets for e in walk(target) if isinstance(e, ast.Name)}
        elif isinstance(each, ast.AugAssign) and isinstance(each.target, ast.Name):
            counted |= {each.target.id} - begun
    return counted
