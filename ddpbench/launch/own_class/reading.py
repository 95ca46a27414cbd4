"""What is found in a script and all of the class is written from: its loop, batch, models and updates."""

from __future__ import annotations

import ast
from collections.abc import Iterable

from ddpbench.launch.own_class.batches import Batch, batch_of
from ddpbench.launch.own_class.bindings import Path
from ddpbench.launch.own_class.loops import training_loops
from ddpbench.launch.own_class.models import is_module, models_of
from ddpbench.launch.own_class.rendering import Renderer
from ddpbench.launch.own_class.script import Script
from ddpbench.launch.own_class.source import Method, name_of, source_of
from ddpbench.launch.own_class.steps import settled
from ddpbench.launch.own_class.tracing import Origin, Tracer
from ddpbench.launch.own_class.updates import Updates, updates_of


class Reading:
    """A script, read."""

    def __init__(self, script: Script) -> None:
        self.script, self.tracer = script, Tracer(script)
        self.left: list[str] = []
        """A sentence for each thing that is left to do."""
        self.kept: dict[str, ast.expr] = {}
        """What the class keeps in `self`, by name."""
        self.loops = training_loops(self.tracer)
        self.loop = self.loops[0] if self.loops else None
        self.batch = batch_of(self.tracer, self.loop) if self.loop else Batch(None, (), None, None)
        self.body = settled(self.loop.body, self.loop.body_scope, self.tracer) if self.loop else []
        self.updates = updates_of(self.tracer, self.body, self.loop.body_scope) if self.loop else Updates()
        self.models = self._models()

    def _models(self) -> dict[str, Origin]:
        scope = self.loop.body_scope if self.loop else self.tracer.top
        found = models_of(self.tracer, list(self.updates.all.values()), self.body, scope)
        if self.loop is None:
            return {}
        return {name: each for name, each in found.items() if is_module(self.tracer, each)} or found

    def _targets(self) -> list[str]:
        target = self.batch.target
        if not isinstance(target, ast.Tuple | ast.List):
            return []
        return [ast.unparse(each) for each in target.elts]

    def _unpacked(self) -> list[str]:
        """Return the names of what `optimizer` returns, where that is several things."""
        found = self.updates.all
        bundled = {id(each.node) for each in found.values()}
        if len(bundled) == 1 and all(each.path for each in found.values()):
            ordered = sorted(found, key=lambda name: found[name].path)
            whole = [found[name].path for name in ordered] == [(place,) for place in range(len(ordered))]
            return ordered if whole and len(ordered) > 1 else []
        return list(found) if len(found) > 1 else []

    def _model_roles(self, single: str) -> dict[tuple[int, Path], ast.expr]:
        several = len(self.models) > 1
        return {
            each.key: name_of(name if several else single or "model") for name, each in self.models.items()
        }

    def _models_by_key(self) -> dict[tuple[int, Path], ast.expr]:
        if len(self.models) < 2:
            return self._model_roles("model")
        return {
            each.key: ast.parse(f"model[{name!r}]", mode="eval").body for name, each in self.models.items()
        }

    def _optimizer_roles(self) -> dict[tuple[int, Path], ast.expr]:
        found = self.updates.all
        if not self._unpacked():
            roles = {each.key: name_of("optimizer") for each in found.values()}
        else:
            roles = {each.key: name_of(name) for name, each in found.items()}
        for each in found.values():
            roles.setdefault((id(each.node), ()), name_of("optimizer"))
        return roles

    def _method(
        self, name: str, parameters: tuple[str, ...], renderer: Renderer, statements: Iterable[ast.stmt]
    ) -> Method:
        self.kept |= renderer.kept
        lines = [*renderer.imports.values()]
        opening = [line for made in renderer.before.values() for line in map(source_of, made)]
        for missing, told in renderer.missing.items():
            lines.append(f"{missing} = ...  # {told}")
            self.left.append(f"{name}(): say what `{missing}` is ({told}).")
        lines += opening
        for statement in statements:
            lines += source_of(statement).splitlines()
        return Method(name, parameters, lines)
