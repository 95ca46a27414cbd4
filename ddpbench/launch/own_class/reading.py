"""Collect the facts about a script from which its class is generated: its loop, batch, models and updates."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping, Set
from dataclasses import replace
from functools import cached_property

from ddpbench.launch.own_class.batches import Batch, batch_of
from ddpbench.launch.own_class.bindings import Path, Scope
from ddpbench.launch.own_class.checking import problems_of
from ddpbench.launch.own_class.draws import is_another
from ddpbench.launch.own_class.hanging import hanging, read_by
from ddpbench.launch.own_class.loops import (
    TrainingLoop,
    backward_apart,
    follow_training,
    training_loops,
    trains_at_import,
)
from ddpbench.launch.own_class.models import is_module, models_of
from ddpbench.launch.own_class.parts import EntryValues, parts_of
from ddpbench.launch.own_class.rendering import EPOCH, Renderer, ReplacedValue, Roles
from ddpbench.launch.own_class.script import Script, bound_by, here, last_name, place_of_node
from ddpbench.launch.own_class.source import MethodLines, in_order, name_of, source_of
from ddpbench.launch.own_class.steps import settled, with_methods
from ddpbench.launch.own_class.tracing import Origin, Tracer, returned_by
from ddpbench.launch.own_class.trees import walk
from ddpbench.launch.own_class.updates import (
    Updates,
    add_schedules_around,
    pieces_of,
    updates_of,
    updates_outside,
)
from ddpbench.launch.own_class.variables import Variables
from ddpbench.launch.own_class.walrus import without_kept_walrus
from ddpbench.launch.own_class.writes import Writes

WANTED = {
    "model": "return the module that trains, a new one on each call",
    "dataset": "return the dataset: a sample for each index, not yet a batch",
    "loss": "compute the loss of a batch: the mean over its samples",
    "step": "train on a batch: forward, backward and update; return the loss",
    "optimizer": "return the optimizer",
    "before_update": "clip the gradients",
    "__init__": "make what the steps keep",
    "collate": "make a batch of samples",
}
"""A description of what each method does, shown if the script does not show how to write the method."""


class Reading:
    """Collects the facts about a script from which its class is generated."""

    def __init__(self, script: Script, once: Set[tuple[int, Path]] = frozenset()) -> None:
        """`once` has the keys of values that the generated class computes only once, for several methods."""
        self.script, self.once, self.variables = script, once, Variables(script)
        self.tracer = Tracer(script, Writes(script, self.variables))
        self.drawn: dict[tuple[int, Path], set[str]] = {}
        """For each value that may differ when it is recomputed, the methods that read it."""
        self.keeper: dict[str, tuple[int, Path]] = {}
        """For each attribute of `self` in the generated class, the `Origin.key` of its object."""
        self.notes: list[str] = []
        """A sentence for each difference between the generated class and the script."""
        self.places: set[int] = set()
        """The numbers of the script's nodes that the generated class has copies of."""
        self.length = ""
        """The number of batches in an epoch, as an expression in a method; empty if unknown."""
        self.left: list[str] = []
        """A sentence for each thing that the user is left to do."""
        self.kept: dict[str, ast.expr] = {}
        """The objects that the generated class keeps in `self`, by name."""
        self.state: dict[tuple[int, Path], str] = {}
        """For each `Origin.key`, the method that reads the object. `step` includes `loss` and `before_update`."""
        self.opened: set[int] = set()
        """The script's lines for which the generated class has a line to fill in."""
        self.marked: set[tuple[ast.stmt, str]] = set()
        """Pairs of a statement and the name of a method that has a line to fill in for the statement."""
        self.claims: list[tuple[str, ReplacedValue]] = []
        """Pairs of a method's name and a value that replaces a name of the script in the method."""
        self.used: set[str] = set()
        """The names that a step's statements both bind and read."""
        self.loops = training_loops(self.tracer)
        self.loop = self.loops[0] if self.loops else None
        if self.loop is not None:
            follow_training(self.tracer, self.loop)
        self.batch = batch_of(self.tracer, self.loop) if self.loop else Batch(None, (), None, None)
        self.body = self._statements(self.loop) if self.loop else []
        self.updates = self._updates()
        self.outside = updates_outside(self.tracer, self.loops) if self.loop else []
        self.pieces: ast.expr | None = None
        """The number of pieces into which a step splits its batch; None unless a strategy can do this."""
        self._take_pieces()
        self.others: dict[tuple[int, Path], tuple[int, Path]] = {}
        """Maps the key of a function's result to the key of the model or optimizer that the function returns."""
        self._open_bundles()
        self.models = self._models()
        self.ends = trains_at_import(script, self.loop) if self.loop else []
        """The first top-level statement that trains, and all statements after it. They are moved below a guard."""
        bound = {name for each in self.ends for name in bound_by(each)}
        stays = {
            name
            for each in script.tree.body
            if each not in self.ends and each is not script.guard
            for name in bound_by(each)
        }
        self.known = script.importable - (bound - stays)
        """The names that the module has after its import, with its training below a guard."""
        self.hanging = hanging(self.tracer, self.variables, self._keys_of_class(), self.ends)
        """The module-level names of the script's model or optimizer, and of what is made from them."""

    def _updates(self) -> Updates:
        if self.loop is None:
            return Updates()
        found = updates_of(self.tracer, self.body, self.loop.body_scope)
        add_schedules_around(found, self.tracer, self.loop)
        return found

    @cached_property
    def apart(self) -> tuple[Scope, ast.Call] | None:
        """The first call of `backward` and its function, if no training loop was found; otherwise None."""
        return backward_apart(self.tracer) if self.loop is None else None

    def _statements(self, loop: TrainingLoop) -> list[ast.stmt]:
        plain = without_kept_walrus(self.script, loop, settled(loop.body, loop.body_scope, self.tracer))
        return with_methods(plain, loop.body_scope, self.script)

    def _take_pieces(self) -> None:
        found = pieces_of(self.body) if self.loop else None
        if found is None or self.loop is None or "accumulate" not in self.updates.owns:
            return
        whole = updates_of(self.tracer, found.body, self.loop.body_scope)
        if not whole.owns:
            self.body, self.updates, self.pieces = found.body, whole, found.count

    def _open_bundles(self) -> None:
        for name, origin in self.updates.all.items():
            inner = self._opened_optimizer(origin)
            if inner is not None:
                self.others[origin.key] = inner.key
                self.places.add(place_of_node(origin.node))
                group = (
                    self.updates.optimizers if name in self.updates.optimizers else self.updates.schedulers
                )
                group[name] = inner

    def _opened_optimizer(self, origin: Origin) -> Origin | None:
        call = origin.node
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
            return None
        given = [*call.args, *(each.value for each in call.keywords)]
        found = [self.tracer.trace(each, origin.scope) for each in given]
        keys = {each.key for each in self.updates.all.values()}
        if any(is_module(self.tracer, each) or each.key in keys for each in found):
            return None
        inner = self.tracer.entered(origin)
        made = inner is not None and isinstance(inner.node, ast.Call) and not inner.path
        return inner if made and inner is not None and inner.node is not call else None

    def _returned_with(self, model: Origin) -> Origin:
        """Return the model's origin, or the call that returns the model with the path in its result."""
        call, caller = model.scope.call, model.scope.caller
        function = model.scope.node
        if call is None or caller is None or isinstance(function, ast.Module):
            return model
        for returned in returned_by(function):
            count = len(returned.elts) if isinstance(returned, ast.Tuple | ast.List) else 0
            paths: list[Path] = [(place,) for place in range(count)]
            for path in paths or [()]:
                inner = self.tracer.entered(Origin(call, caller, path))
                if inner is not None and inner.key == model.key:
                    outer = Origin(call, caller, path)
                    self.others[outer.key] = model.key
                    return outer
        return model

    def _with_others(self, roles: dict[tuple[int, Path], ast.expr]) -> dict[tuple[int, Path], ast.expr]:
        same = {**self.others, **{inner: outer for outer, inner in self.others.items()}}
        return {**roles, **{key: roles[other] for key, other in same.items() if other in roles}}

    def _models(self) -> dict[str, Origin]:
        scope = self.loop.body_scope if self.loop else self.tracer.top
        found = models_of(self.tracer, list(self.updates.all.values()), self.body, scope)
        if self.loop is None:
            return {}
        found = {name: each for name, each in found.items() if is_module(self.tracer, each)} or found
        found = self._wholes(found)
        return {name: self._returned_with(each) for name, each in found.items()}

    def _wholes(self, found: dict[str, Origin]) -> dict[str, Origin]:
        assert self.loop is not None
        scope = self.loop.body_scope
        called: dict[tuple[int, Path], tuple[str, Origin]] = {}
        for each in here(self.body):
            origin = self.tracer.trace(each.func, scope) if isinstance(each, ast.Call) else None
            if origin is not None and isinstance(each, ast.Call) and is_module(self.tracer, origin):
                called.setdefault(origin.key, (last_name(each.func) or "model", origin))
        base = name_of("model")
        for key, (name, whole) in called.items():
            parts = parts_of(self.tracer, whole, base)
            if parts and all(each.key in parts and each.key not in called for each in found.values()):
                return {name: whole} if key not in parts else found
        within = {
            key
            for each in found.values()
            for key in (parts_of(self.tracer, each, base) if len(found) > 1 else ())
        }
        return {name: each for name, each in found.items() if each.key not in within} or found

    def _parts(self, roles: dict[tuple[int, Path], ast.expr]) -> EntryValues:
        found: EntryValues = {}
        for origin in self.models.values():
            for key, place in parts_of(self.tracer, origin, roles[origin.key]).items():
                found.setdefault(key, place)
        return found

    def _renderer_of(
        self,
        roles: Roles,
        parts: Mapping[tuple[int, Path], ast.expr | None] | None = None,
        *,
        often: bool = False,
    ) -> Renderer:
        return Renderer(self.tracer, roles, parts or {}, often=often, once=self.once, keeper=self.keeper)

    def _rendered(self, renderer: Renderer, origin: Origin, name: str, part: str = "") -> ast.expr:
        """Return an expression for a value in the generated class.

        A value that may differ when computed again becomes an attribute if the method runs often, or several methods
        read it. `part` names the method if it returns the value.
        """
        if isinstance(origin.node, ast.Call) and is_another(origin.node, self.script):
            if part:
                self.drawn.setdefault(origin.key, set()).add(part)
            if renderer.often or origin.key in self.once:
                return renderer.keep(name, origin)
        return renderer.render(origin.node, origin.scope)

    def read_by_several(self) -> Set[tuple[int, Path]]:
        """Return the `Origin.key` of each value that several methods read and would compute differently.

        Models and the objects that update them are left out.
        """
        return {key for key, methods in self.drawn.items() if len(methods) > 1} - self._keys_of_class()

    def _keys_of_class(self) -> set[tuple[int, Path]]:
        found = {each.key for each in (*self.models.values(), *self.updates.all.values())}
        return found | {*self.others, *self.others.values()}

    def _targets(self) -> list[str]:
        target = self.batch.target
        if not isinstance(target, ast.Tuple | ast.List):
            return []
        return [ast.unparse(each) for each in target.elts]

    def _unpacked(self) -> list[str]:
        found = self.updates.all
        bundled = {id(each.node) for each in found.values()}
        if len(bundled) == 1 and all(each.path for each in found.values()):
            ordered = sorted(found, key=lambda name: found[name].path)
            whole = [found[name].path for name in ordered] == [(place,) for place in range(len(ordered))]
            return ordered if whole and len(ordered) > 1 else []
        return list(found) if len(found) > 1 else []

    def _model_roles(self, single: str) -> dict[tuple[int, Path], ast.expr]:
        several = len(self.models) > 1
        return self._with_others(
            {each.key: name_of(name if several else single or "model") for name, each in self.models.items()}
        )

    def _models_by_key(self) -> dict[tuple[int, Path], ast.expr]:
        if len(self.models) < 2:
            return self._model_roles("model")
        return self._with_others(
            {each.key: ast.parse(f"model[{name!r}]", mode="eval").body for name, each in self.models.items()}
        )

    def _optimizer_roles(self) -> dict[tuple[int, Path], ast.expr]:
        found = self.updates.all
        if not self._unpacked():
            roles = {each.key: name_of("optimizer") for each in found.values()}
        else:
            roles = {each.key: name_of(name) for name, each in found.items()}
        for each in found.values():
            roles.setdefault((id(each.node), ()), name_of("optimizer"))
        return self._with_others(roles)

    def _method(
        self, name: str, parameters: tuple[str, ...], renderer: Renderer, statements: Iterable[ast.stmt]
    ) -> MethodLines:
        statements = list(statements)
        self.kept |= renderer.kept
        self.claims += [(name, each) for each in renderer.claims]
        for key in renderer.drawn:
            self.drawn.setdefault(key, set()).add(name)
        self.places |= renderer.places
        of_step = "step" if name in ("loss", "before_update") else name
        for key in (*renderer.inlined, *renderer.keeper.values()):
            self.state.setdefault(key, of_step)
        before = in_order(renderer.before)
        self._take(*before, *statements)
        given = [*renderer.imports, *renderer.missing]
        problems = problems_of(name, parameters, given, [*before, *statements], self.known)
        problems += read_by([*before, *statements], [*parameters, *given], self.hanging)
        lines = [*renderer.imports.values()]
        for missing, description in renderer.missing.items():
            if missing == EPOCH and self.length:
                lines += ["import os"] if "os" not in {*self.known, *renderer.imports} else []
                lines.append(f"{missing} = {self.length}")
                self.notes.append(
                    f"`{missing}` in {name}() is right for the class's batch and one process per rank. "
                    "With another local_batch, or under data_parallel, the number of steps per epoch "
                    "differs."
                )
                continue
            if missing in parameters:
                lines.append(
                    f"...  # check that the argument `{missing}` is what is meant here: {description}"
                )
                if not problems:
                    self.left.append(
                        f"{name}(): check that the argument `{missing}` is what is meant ({description})."
                    )
                continue
            lines.append(f"{missing} = ...  # {description}")
            if not problems:
                self.left.append(f"{name}(): say what `{missing}` is ({description}).")
        lines += [line for each in before for line in source_of(each).splitlines()]
        for statement in statements:
            lines += source_of(statement).splitlines()
        return self._checked(MethodLines(name, parameters, lines, problems=problems))

    def _checked(self, method: MethodLines) -> MethodLines:
        """Return a method; if it has errors, a line to fill in with the errors and lines as comments."""
        if method.same_as in self.hanging:
            problems = read_by([ast.Expr(name_of(method.same_as))], (), self.hanging)
            method = replace(
                method, same_as="", lines=[f"{method.name} = {method.same_as}"], problems=problems
            )
        if not method.problems:
            return method
        wanted = WANTED.get(method.name, "")
        why = "; ".join(method.problems)
        self.left.append(f"{method.name}(): {wanted}. The script's code cannot be used: {why}.")
        found = [f"# {line}".rstrip() for line in method.lines]
        lines = [f"...  # {wanted}", f"# not taken from the script: {why}; this was found:", *found]
        return replace(method, lines=lines)

    def _take(self, *nodes: ast.AST) -> None:
        for node in nodes:
            self.places |= {place_of_node(each) for each in walk(node)} - {-1}
