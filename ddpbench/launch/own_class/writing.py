"""Write the generated class from the facts about a script, with a line to fill in for each missing fact."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Set
from dataclasses import dataclass, replace
from traceback import walk_tb

from ddpbench.errors import RequestError
from ddpbench.launch.own_class.around import around_call
from ddpbench.launch.own_class.batches import makes_batches_again
from ddpbench.launch.own_class.bindings import Mutation, Path, Scope, key_of, simple_statements
from ddpbench.launch.own_class.checking import free_names, unknown_names
from ddpbench.launch.own_class.decorators import unknown_decorator
from ddpbench.launch.own_class.draws import is_another
from ddpbench.launch.own_class.dropped import Dropped, KeptParts, Leavings, ScriptSetting, names_read, summary
from ddpbench.launch.own_class.effects import Effect, Effects, causes_of, names_set
from ddpbench.launch.own_class.hanging import read_by
from ddpbench.launch.own_class.insertion import NAME
from ddpbench.launch.own_class.loop_methods import LoopMethods
from ddpbench.launch.own_class.loops import other_trainings
from ddpbench.launch.own_class.models import Loader, dataset_by_name, is_module, loader_of, model_by_name
from ddpbench.launch.own_class.module_names import ModuleNames
from ddpbench.launch.own_class.rendering import Renderer
from ddpbench.launch.own_class.script import (
    Script,
    here,
    in_step,
    last_name,
    place_of_node,
    required,
)
from ddpbench.launch.own_class.source import MethodLines, at_path, comment_of, name_of, source_of
from ddpbench.launch.own_class.tracing import PREPARE, Origin, Tracer, returned_by
from ddpbench.launch.own_class.trees import walk
from ddpbench.launch.own_class.unchanged import LISTED
from ddpbench.launch.own_class.unusual import (
    clearing_lines,
    evaluated_within,
    evaluates,
    is_cleared,
    put_into_evaluation,
    skips,
)
from ddpbench.launch.own_class.update_methods import UpdateMethods
from ddpbench.launch.own_class.updates import epoch_schedules
from ddpbench.text_safety import toml_text
from ddpbench.units import series_of

_NAME = re.compile(r"[^\W\d]\w*")
_AGAIN = 4
"""Largest number of attempts at writing the class. Each attempt may find more values that several methods read."""
_DRAWN = 64
"""Number of batches in a dataset if the script draws a batch for each step."""
_PLAIN_ORDER = ("RandomSampler", "SequentialSampler")
"""Samplers that take each sample once, as a loader does without a sampler."""
_COMPILES = ("compile", "script", "trace")
"""Functions that compile a model: those of `torch` and `torch.jit`, and the model's own."""
_SHARES = ("Subset", "random_split")
"""Calls that return a part of a dataset."""


def _drawn_count(tracer: Tracer, draw: ast.Call) -> Origin | None:
    """Return the samples of a random batch, from its numbers' shape; None if unknown."""
    function = tracer.script.functions.get(last_name(draw))
    if function is None:
        return None
    for call in walk(function):
        if isinstance(call, ast.Call) and last_name(call) in ("randint", "randperm", "rand", "randn"):
            for each in call.args:
                if isinstance(each, ast.Tuple) and each.elts:
                    return Origin(each.elts[0], Scope(function))
    return None


def _kind_drawn(tracer: Tracer, draw: ast.Call) -> type[ast.expr]:
    """Return `ast.Tuple` or `ast.Dict` if a function returns batches of these kinds; otherwise `ast.expr`."""
    function = tracer.script.functions.get(last_name(draw))
    for value in returned_by(function) if function is not None else ():
        found = tracer.trace(value, Scope(function)).node if function is not None else value
        if isinstance(found, ast.Tuple | ast.List):
            return ast.Tuple
        if isinstance(found, ast.Dict | ast.DictComp) or last_name(found) == "dict":
            return ast.Dict
    return ast.expr


@dataclass(frozen=True)
class Written:
    """The generated class's source, what is left to do, and the parts of the script that are missing in it."""

    text: str
    left: list[str]
    """A sentence for each thing that is left to do or to know."""
    notes: list[str]
    """A sentence for each difference between the generated class and the script."""
    is_open: bool
    """True if something has to be filled in."""
    dropped: list[Dropped]
    settings: list[ScriptSetting]
    ends: list[ast.stmt]
    """The first top-level statement that trains when the script is imported, and all statements after it."""

    @property
    def whole(self) -> str:
        """The generated class's source, below comments that list what it leaves out and the experiment's settings."""
        head, _, rest = self.text.partition("\n")
        lines = [f"Left out, {each}" for each in summary(self.dropped)]
        lines += [
            f"A setting for the experiment, from line {each.line}: {in_toml(each)}" for each in self.settings
        ]
        comments = [comment for line in lines for comment in comment_of(line)]
        return "\n".join([head, *comments, rest])


def _first_line(node: ast.stmt) -> str:
    return " ".join(ast.unparse(node).splitlines()[0].split())


def in_toml(setting: ScriptSetting) -> str:
    """Return a setting as a line of an experiment file, with `...` for an unknown value."""
    if setting.value:
        value = setting.value
        plain = value in ("true", "false") or value.replace(".", "", 1).replace("-", "", 1).isdigit()
        return f"{setting.key} = {value if plain else toml_text(value)}"
    return f"{setting.key} = ...  (in the script, {setting.source})"


def written_class(script: Script) -> Written:
    """Write the generated class for a script, as completely as the script allows.

    Raises:
        RequestError: the script cannot be analysed; the message names the line.
    """
    try:
        once: Set[tuple[int, Path]] = frozenset()
        for _ in range(_AGAIN):
            writer = _Writer(script, once)
            made, several = writer.written(), writer.read_by_several() | once
            if several == once:
                break
            once = several
        return made
    except RequestError:
        raise
    except Exception as error:  # a script may be written in unforeseen ways
        line = _line_of(error)
        where = f", line {line}" if line else ""
        raise RequestError(
            f"{script.path}{where}: cannot be analysed ({type(error).__name__}); write the class by "
            "hand, as docs/own-loop.md shows"
        ) from error


def _line_of(error: BaseException) -> int:
    frames = list(walk_tb(error.__traceback__))
    for frame, _ in reversed(frames):
        for value in frame.f_locals.values():
            found = getattr(value, "node", value)
            if isinstance(found, ast.stmt | ast.expr | ast.keyword) and hasattr(found, "lineno"):
                return found.lineno
    return 0


def _opened(method: MethodLines, line: str, parameters: tuple[str, ...]) -> MethodLines:
    if not method.same_as:
        return replace(method, lines=[line, *method.lines])
    given = "samples" if method.name == "collate" else ", ".join(parameters)
    whole = (given,) if given else ()
    return MethodLines(
        method.name, whole, [line, f"return {method.same_as}({given})"], problems=method.problems
    )


class _Writer(LoopMethods, UpdateMethods):
    def written(self) -> Written:
        loader = loader_of(self.tracer, self.batch.loader)
        training = self._training()
        model = self._model()
        batch = self._batch(loader)
        dataset = self._dataset(loader)
        self._measure(dataset, batch)
        methods = [
            model,
            dataset,
            *self._collate(loader),
            *training,
            *self._optimizer(),
            *self._clipping(),
        ]
        made = self._constructor()
        methods = self._with_effects(methods, made, batch, loader)
        methods = self._with_clearing(methods)
        self._note_differences()
        lacking = [*self._not_in_class(), *self._undivided(loader)]
        self.left += lacking
        sentences = [*lacking, *self.notes]
        lines = [f"class {NAME}:", *(line for sentence in sentences for line in comment_of(sentence))]
        lines += [line for each in methods if each.same_as for line in each.text]
        lines += batch
        for method in [*made, *(each for each in methods if not each.same_as)]:
            lines += ["", *method.text] if len(lines) > 1 else method.text
        text = "\n".join(lines) + "\n"
        tree = ast.parse(text)
        if self.ends:
            self.left.append(
                "The script trains when it is imported: move the training below `if __name__ == "
                '"__main__":`, and leave what the class uses above it.'
            )
        names = {each.id for each in walk(tree) if isinstance(each, ast.Name)}
        models = frozenset(each.key for each in self.models.values())
        taken = KeptParts(
            frozenset(self.places),
            frozenset(names),
            self.loop,
            bool(self.updates.owns),
            models,
            frozenset(self.opened),
            frozenset(line for each in self.outside for line in each.lines),
        )
        left = Leavings(self.script, self.tracer, taken, self._not_imported())
        if self.pieces is not None and self.loop is not None:
            left.setting("options.ddp.accumulate", self.pieces, self.loop.body_scope, self.loop.node.lineno)
        return Written(
            text,
            self.left,
            notes=self.notes,
            is_open=any(each.is_open for each in [*made, *methods])
            or any("batch = ..." in each for each in batch),
            dropped=left.dropped,
            settings=list({(each.key, each.value): each for each in left.settings}.values()),
            ends=self.ends,
        )

    def _with_effects(
        self, methods: list[MethodLines], made: list[MethodLines], batch: list[str], loader: Loader
    ) -> list[MethodLines]:
        if self.loop is None:
            return methods
        source = "\n".join(
            [f"class {NAME}:", *batch, *(line for each in [*methods, *made] for line in each.text)]
        )
        of_class = [each for each in walk(ast.parse(source)) if isinstance(each, ast.Name)]
        bound = {each.id for each in of_class if isinstance(each.ctx, ast.Store)}
        names = {each.id for each in of_class} - bound
        data = [each for each in (loader.dataset, self.batch.loader) if each is not None]
        owners = {
            "model": [*self.models.values()],
            "optimizer": [*self.updates.all.values()],
            "dataset": data,
        }
        parts = {each.key: part for part, mine in owners.items() for each in mine}
        parts |= {other: parts[key] for key, other in self.others.items() if key in parts}
        parts |= {key: parts[other] for key, other in self.others.items() if other in parts}
        inner = frozenset(self._parts(self._model_roles("model"))) - set(parts)
        parts |= dict.fromkeys(inner, "model")
        found = Effects(
            self.tracer,
            self.loop,
            places=frozenset(self.places),
            parts=parts,
            inner=inner,
            state=self.state,
            loaders={self.batch.loader.key} if self.batch.loader is not None else set(),
            names=names,
        )
        imported = self._imported()
        for each in found.all([each for mine in owners.values() for each in mine], self.used):
            shared = id(each.node) in imported and each.changes_only(names)
            if each.node.lineno not in self.opened and not shared:
                methods = self._opened_for(methods, each)
        methods = self._with_unknown(methods, made, batch, frozenset(found.trunk))
        for trains, _ in found.trunk.values():
            self._note_function(trains)
        keys = {each.key for each in self.models.values()}
        scope = self.loop.scope
        for statement in put_into_evaluation(
            self.script, self.loop, lambda node: self.tracer.trace(node, scope).key in keys
        ):
            methods = self._opened_for(methods, Effect(statement, "model", statement.value))
            self.opened.add(statement.lineno)
        return self._with_evaluation(methods, self.loop.body_scope)

    def _with_unknown(
        self, methods: list[MethodLines], made: list[MethodLines], batch: list[str], trunk: frozenset[int]
    ) -> list[MethodLines]:
        assert self.loop is not None
        trees = [ast.parse("\n".join([f"class {NAME}:", *each.text])) for each in [*methods, *made]]
        free = set().union(
            *map(free_names, [*trees, ast.parse("\n".join([f"class {NAME}:", *batch, "    pass"]))])
        )
        unchanged = ModuleNames(
            self.tracer,
            self.variables,
            self.loop,
            trunk=trunk,
            places=self.places,
            names=free,
            ends=self._not_imported(),
        )
        found = [(name, each) for name, claim in self.claims for each in unchanged.of(claim)]
        found += [
            (part, each)
            for part, node, scope in self._read_parts()
            for each in unchanged.of_part(node, scope)
        ]
        if isinstance(self.loop.node, ast.For | ast.AsyncFor):
            iterated = self._iterated(self.loop.node.iter)
            batches = makes_batches_again(self.tracer, iterated, self.loop.scope)
            found += [("dataset", each) for each in batches]
        for name, each in unchanged.of_module(trees):
            mine = [m.name for m, tree in zip(methods, trees, strict=False) if self._reads(tree, name)]
            of_batch = any(
                isinstance(e, ast.Name) and e.id == name
                for line in batch
                for e in walk(ast.parse(line.strip()))
            )
            found.append((next(iter(mine), "batch" if of_batch else "step"), each))
        found += [("step", each) for each in around_call(self.tracer, self.loop, self.updates)]
        found += [("model", each) for each in unchanged.by_names()]
        found += [*self._set_by_methods(), *self._copied_late()]
        parts = {each.name for each in methods} | {"batch"}
        for name, each in dict.fromkeys((name if name in parts else "step", each) for name, each in found):
            if each.lineno in self.opened:
                continue
            if name == "batch":
                batch[:] = [f"    batch = ...  # what line {each.lineno} makes it: {_first_line(each)}"]
                self.left.append(f"batch: say what it is after line {each.lineno}: `{_first_line(each)}`.")
                continue
            methods = self._opened_for(methods, Effect(each, name, each))
        return methods

    def _set_by_methods(self) -> Iterator[tuple[str, ast.stmt]]:
        """Yield statements in methods that replace a model or optimizer in `self`, with which of the two.

        Methods other than `__init__` only count if the script calls them by name.
        """
        for part, node, scope in self._read_parts():
            key, origin = key_of(node), self.tracer.trace(node, scope)
            for method in self.tracer.scopes if key.startswith("self.") and scope.own is not None else ():
                named = getattr(method.node, "name", "")
                if method.own is not scope.own or not (named == "__init__" or self.tracer.calls(method)):
                    continue
                for each in self.tracer.bindings(method).get(key, ()):
                    value = self.tracer.innermost(each.value, method)
                    same = self.tracer.trace(value, method).key in ((id(origin.node), ()), origin.key)
                    none = isinstance(value, ast.Constant) and value.value is None
                    if same or none or last_name(value) in LISTED | PREPARE:
                        continue
                    if not self.tracer.is_untaken(each.tests, method):
                        yield part, self.variables.statement(each.value)

    def _copied_late(self) -> Iterator[tuple[str, ast.stmt]]:
        keys = {each.key for each in self.models.values()}
        for scope in self.tracer.scopes:
            made = [o.node.lineno for o in self.updates.all.values() if o.scope.node is scope.node]
            for each in here(scope.node.body):
                value = self.tracer.innermost(each.value, scope) if isinstance(each, ast.Assign) else None
                if not isinstance(each, ast.Assign) or not isinstance(value, ast.Call):
                    continue
                of = value.args[0] if value.args and last_name(value) == "deepcopy" else None
                if of is None or key_of(of) not in map(key_of, each.targets) or not key_of(of):
                    continue
                early = made and each.lineno < min(made)
                if not early and self.tracer.trace(of, scope).key in keys:
                    yield "optimizer", each

    def _read_parts(self) -> Iterator[tuple[str, ast.expr, Scope]]:
        """Yield what a step reads as (`model`, `optimizer` or `dataset`; the expression; its scope)."""
        assert self.loop is not None
        owners = {each.key: "model" for each in self.models.values()}
        owners |= {each.key: "optimizer" for each in self.updates.all.values()}
        for each in here(self.body):
            if isinstance(each, ast.Name | ast.Attribute) and key_of(each):
                part = owners.get(self.tracer.trace(each, self.loop.body_scope).key)
                if part is not None:
                    yield part, each, self.loop.body_scope
        if isinstance(self.loop.node, ast.For | ast.AsyncFor):
            yield "dataset", self._iterated(self.loop.node.iter), self.loop.scope
        loader = self.batch.loader.node if self.batch.loader is not None else None
        given = (
            [
                *loader.args[:1],
                *(each.value for each in loader.keywords if each.arg in ("dataset", "collate_fn")),
            ]
            if isinstance(loader, ast.Call)
            else []
        )
        for value in given:
            if isinstance(value, ast.Name) and self.batch.loader is not None:
                yield "dataset", value, self.batch.loader.scope

    def _iterated(self, node: ast.expr) -> ast.expr:
        while isinstance(node, ast.Call) and last_name(node) == "enumerate" and node.args:
            node = node.args[0]
        return node

    def _reads(self, tree: ast.AST, name: str) -> bool:
        names = free_names(tree)
        return name in names | names_read(self.script, names)

    def _not_imported(self) -> list[ast.stmt]:
        return [*self.ends, *(self.script.guard.body if self.script.guard else [])]

    def _imported(self) -> set[int]:
        scopes = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
        left = [self.script.guard, *self.ends]
        plain = [each for each in self.script.tree.body if each not in left and not isinstance(each, scopes)]
        return {id(each) for each in [*plain, *here(plain)]}

    def _with_evaluation(self, methods: list[MethodLines], scope: Scope) -> list[MethodLines]:
        keys = {each.key for each in self.models.values()}
        keys |= set(self._parts(self._model_roles("model")))

        def is_model(node: ast.expr) -> bool:
            of = [node]
            while isinstance(of[-1], ast.Attribute | ast.Subscript):
                of.append(of[-1].value)
            return any(self.tracer.trace(each, scope).key in keys for each in of)

        def is_kept(call: ast.Call) -> bool:
            given = [call.func, *call.args, *(each.value for each in call.keywords)]
            return place_of_node(call) in self.places and any(map(is_model, given))

        name = next(each.name for each in methods if each.name in ("loss", "step"))
        for statement, lines in evaluated_within(self.body, is_model, is_kept):
            if statement.lineno not in self.opened:
                methods = self._opened_for(methods, Effect(statement, name, statement.value))
            self.opened |= lines
        return methods

    def _with_clearing(self, methods: list[MethodLines]) -> list[MethodLines]:
        if self.loop is None or is_cleared(self.script, self.loop):
            return methods
        lines = [str(each) for each in clearing_lines(self.script)]
        when = f"outside the loop over batches, in line {series_of(lines)}" if lines else "nowhere"
        wanted = f"when to clear gradients: the script does so {when}, so gradients add up"
        name = next(each.name for each in methods if each.name in ("loss", "step"))
        self.left.append(f"{name}(): say {wanted}.")
        instead = " with a step() in place of this loss()" if name == "loss" else ""
        line = f"...  # say{instead} {wanted}"
        return [each if each.name != name else _opened(each, line, ()) for each in methods]

    def _note_differences(self) -> None:
        self._note_skips()
        self._note_sampler()
        self._note_part_of_batches()
        self._note_compiled()

    def _note_skips(self) -> None:
        loop = self.loop
        if loop is None or (loop.call is not None and place_of_node(loop.call) in self.places):
            return  # the class calls the function that makes the step
        function = getattr(loop.scope.node, "name", "")
        updates = [e.lineno for e in in_step(loop.body) if isinstance(e, ast.Call) and last_name(e) == "step"]
        for each, when in skips(loop.body):
            of_batch = isinstance(each, ast.Return) and loop.call is not None
            if of_batch and each.lineno > max(updates, default=0):
                continue
            if isinstance(each, ast.Continue) or of_batch:
                ends, goes = "skips a batch", "trains on all"
            elif isinstance(each, ast.Return):
                ends, goes = f"ends its loop over batches, and {function}() with it,", "goes through all"
            else:
                ends, goes = "ends its loop over batches", "goes through all"
            where = f"{when or 'after the first batch'} (line {each.lineno})"
            self.notes.append(f"The script {ends} {where}; the class {goes}.")

    def _note_sampler(self) -> None:
        loader = self.batch.loader
        if loader is None or not isinstance(loader.node, ast.Call):
            return
        words = dict(self.tracer.words(loader.node, loader.scope))
        for name in ("sampler", "batch_sampler"):
            given = words.get(name)
            made = self.tracer.trace(given, loader.scope).node if given is not None else None
            if made is None or (isinstance(made, ast.Constant) and made.value is None):
                continue
            plain = isinstance(made, ast.Call) and len(made.args) == 1 and not made.keywords
            plain = plain and not (
                isinstance(made, ast.Call) and isinstance(made.args[0], ast.Call | ast.List)
            )
            if "DistributedSampler" in ast.unparse(made) or (plain and last_name(made) in _PLAIN_ORDER):
                continue
            text, line = " ".join(ast.unparse(made).split()), loader.node.lineno
            if name == "sampler":
                self.notes.append(
                    f"The script takes its samples by `sampler={text}` (line {line}); the class takes each sample once "
                    "in an epoch, in another order."
                )
                continue
            self.notes.append(
                f"The script makes its batches by `batch_sampler={text}` (line {line}); the class has batches of equal "
                "size, in another order."
            )
            self.left.append("The batch size was not found: add `batch = N` to the class.")

    def _note_function(self, scope: Scope) -> None:
        function = scope.node
        if isinstance(function, ast.Module):
            return
        found = unknown_decorator(function, self.script)
        if found is not None:
            self.notes.append(
                f"The script decorates {function.name}() with `@{ast.unparse(found)}` (line {found.lineno}); the class "
                "trains without it."
            )
        if scope.own is not None and self.script.is_overridden(scope.own, function.name):
            self.notes.append(
                f"A class derived from {scope.own.name} has its own {function.name}(); the class trains by the one "
                f"of line {function.lineno}."
            )

    def _note_part_of_batches(self) -> None:
        """Record that the script iterates over only a part of its loader, as with `itertools.islice`."""
        node = self.loop.node if self.loop is not None else None
        for each in walk(node.iter) if isinstance(node, ast.For) else ():
            if isinstance(each, ast.Call) and last_name(each) == "islice":
                self.notes.append(
                    f"The script goes through only some batches, `{ast.unparse(each)}` (line "
                    f"{each.lineno}), but the class goes through all."
                )

    def _note_compiled(self) -> None:
        """Record that the script compiles its model or sets its memory format, unlike the class."""
        keys = {each.key for each in self.models.values()}
        for scope in self.tracer.scopes:
            for statement, tests, _ in simple_statements(scope.node.body):
                for call in (each for each in [statement, *here(statement)] if isinstance(each, ast.Call)):
                    found = last_name(call) in _COMPILES or any(
                        e.arg == "memory_format" for e in call.keywords
                    )
                    of = [
                        *call.args[:1],
                        *([call.func.value] if isinstance(call.func, ast.Attribute) else []),
                    ]
                    if (
                        not found
                        or place_of_node(call) in self.places
                        or self.tracer.is_untaken(tests, scope)
                    ):
                        continue
                    if any(self.tracer.trace(each, scope).key in keys for each in of):
                        self.notes.append(
                            f"The script changes how fast its model runs by `{ast.unparse(call)}` (line "
                            f"{call.lineno}); the class does not. To measure the model with this change, make it in "
                            "model()."
                        )

    def _opened_for(self, methods: list[MethodLines], effect: Effect) -> list[MethodLines]:
        causes = list(causes_of(effect.at, self.script))
        words = {word for each in methods for line in each.lines for word in _NAME.findall(line)}
        cause = next((each for each in causes if names_set(each) & words), next(iter(causes), None))
        line = f"line {cause.lineno}: " if cause is not None else ""
        where = f" ({line}`{_first_line(cause)}`)" if cause is not None else ""
        bare = f" ({line}{_first_line(cause)})" if cause is not None else ""
        name = self._place_of(effect, methods)
        wanted = f"what line {effect.at.lineno} does: {effect.text}{bare}"
        within = "loss" if name == "step" and any(each.name == "loss" for each in methods) else name
        if (effect.node, within) in self.marked:
            return methods
        self.marked.add((effect.node, within))
        once = name == "step" and self._is_done_once(effect)
        if once:
            done = f"what line {effect.at.lineno} sets once, before the loop: "
            wanted = f"{done}{effect.text}{bare}"
            self.left.append(f"{within}(): use {done}`{effect.text}`{where}.")
        else:
            self.left.append(f"{name}(): do there what line {effect.at.lineno} does: `{effect.text}`{where}.")
        instead = "" if within == name else "use " if once else "for a step() in place of this loss(), "
        line = f"...  # {instead}{wanted}"
        parameters = {"before_update": ("model",), "optimizer": ("model",)}.get(name, ())
        if all(each.name != within for each in methods):
            return [*methods, MethodLines(within, parameters, [line])]
        return [each if each.name != within else _opened(each, line, parameters) for each in methods]

    def _is_done_once(self, effect: Effect) -> bool:
        assert self.loop is not None
        for scope in self.tracer.scopes:
            inner = list(here(scope.node.body))
            if effect.at in inner or effect.node in inner:
                loops = [each for each in inner if isinstance(each, ast.For | ast.AsyncFor | ast.While)]
                around = any(effect.at in here(each.body) or effect.at in each.body for each in loops)
                after = scope.node is self.loop.scope.node and effect.at.lineno > self.loop.node.lineno
                outer = isinstance(scope.node, ast.Module) or (
                    scope.own is None and self._is_called_once(scope)
                )
                return outer and not around and not after
        return False

    def _is_called_once(self, scope: Scope) -> bool:
        callers = self.tracer.calls(scope)
        if len(callers) != 1 or not isinstance(callers[0][1].node, ast.Module):
            return False
        loops = (each for each in here(self.script.tree.body) if isinstance(each, ast.For | ast.While))
        return all(callers[0][0] not in here(each.body) for each in loops)

    def _place_of(self, effect: Effect, methods: list[MethodLines]) -> str:
        loop = self.loop
        assert loop is not None
        nodes = list(in_step(loop.body))
        inside = effect.node in nodes or effect.node in loop.body
        if not inside or effect.part == "before_update":
            return effect.part
        if any(each.name == "step" for each in methods):
            return "step"
        if isinstance(effect.at, ast.Call) and evaluates(effect.at):
            return "loss"

        def places(names: tuple[str, ...]) -> list[tuple[int, int]]:
            calls = [each for each in nodes if isinstance(each, ast.Call) and last_name(each) in names]
            return [(each.lineno, each.col_offset) for each in calls]

        backward, update = places(("backward", "manual_backward")), places(("step",))
        here = (effect.at.lineno, effect.at.col_offset)
        between = backward and update and backward[0] < here < update[0]
        return "before_update" if between and effect.part == "model" else "step"

    def _measure(self, dataset: MethodLines, batch: list[str]) -> None:
        if batch and not dataset.is_open and not dataset.problems:
            made = f"len({dataset.same_as}())" if dataset.same_as else "len(self.dataset())"
            self.length = f'max(1, {made} // (self.batch * int(os.environ["WORLD_SIZE"])))'

    def _not_in_class(self) -> list[str]:
        sentences = []
        if len(self.loops) > 1:
            lines = [str(each.node.lineno) for each in self.loops]
            sentences.append(
                f"The script trains in {len(lines)} loops, in lines {series_of(lines)}. This class is "
                f"for the loop in line {lines[0]}; another loop needs another class."
            )
        for first, others in other_trainings(self.tracer, self.loop) if self.loop is not None else ():
            lines = [str(line) for line in sorted({each.lineno for each in (first, *others)})]
            where = f"lines {series_of(lines)}" if len(lines) > 1 else f"line {lines[0]}"
            mine = f"the one of line {first.lineno}" if len(lines) > 1 else "the first one"
            sentences.append(
                f"The script trains in {1 + len(others)} calls of {last_name(first)}(), in {where}. "
                f"This class is for {mine}; another call needs another class."
            )
        sentences += [
            f"`{ast.unparse(call)}` in line {call.lineno} is outside the loop over batches and is left "
            "out, so the learning rate never changes. To change it with every update, return "
            "(optimizer, scheduler) from optimizer()."
            for call in epoch_schedules(self.tracer, self.loops)
        ]
        optimizers = {each.key for each in self.updates.optimizers.values()}
        for each in self.outside:
            called = f"`{ast.unparse(each.call)}` in line {each.call.lineno}"
            where = f"{called} is outside the loop over batches and is left out"
            if each.optimizer.key in optimizers:
                self.notes.append(f"{where}: the class updates only within the loop.")
            else:
                sentences.append(f"{where}: if each step or epoch needs this update, write it in step().")
        return sentences

    def _undivided(self, loader: Loader) -> list[str]:
        """Warn if an iterable dataset of the script gives all ranks the same samples."""
        name = last_name(loader.dataset.node) if loader.dataset is not None else ""
        if not self.script.derives(name, ("IterableDataset",)):
            return []
        if "rank" in ast.unparse(self.script.classes[name]).lower():
            return []
        message = (
            f"{name} gives every rank the same samples, but strategies with several ranks need different ones"
        )
        return [
            f"{message}: make it in dataset(self, rank, world_size), with different samples for each rank."
        ]

    def _model(self) -> MethodLines:
        if len(self.models) > 1:
            renderer = self._renderer_of({})
            pairs = {
                name: at_path(renderer.render(each.node, each.scope), each.path)
                for name, each in self.models.items()
            }
            made = ast.Dict([ast.Constant(name) for name in pairs], list(pairs.values()))
            whole = self._method("model", (), renderer, [ast.Return(made)])
            return self._with_changes("model", whole, list(self.models.values()))
        for origin in self.models.values():
            if isinstance(origin.node, ast.Call | ast.Dict):
                return self._maker("model", origin)
        return self._by_name(
            "model", model_by_name(self.script), "return the module that trains, a new one on each call"
        )

    def _dataset(self, loader: Loader) -> MethodLines:
        if self.batch.draw is not None and self.loop is not None:
            return self._drawn(self.batch.draw)
        if loader.dataset is not None and not isinstance(loader.dataset.node, ast.Name):
            return self._maker("dataset", loader.dataset)
        return self._by_name(
            "dataset",
            dataset_by_name(self.script),
            "return the dataset: a sample for each index, not yet a batch",
        )

    def _drawn(self, draw: ast.Call) -> MethodLines:
        assert self.loop is not None
        renderer = self._renderer_of({})
        call = renderer.render(draw, self.loop.body_scope)
        parts = isinstance(self.batch.target, ast.Tuple | ast.List)
        kind = ast.Tuple if parts else _kind_drawn(self.tracer, draw)
        each = ast.unparse(call)
        self._take(call)
        self.notes.append(
            f"`{ast.unparse(draw)}` in line {draw.lineno} draws batches in the loop. Here dataset() "
            f"draws {_DRAWN} of them in advance, and steps go through their samples, which lie along the first "
            "dimension."
        )
        samples = f"[sample for _ in range({_DRAWN}) for sample in {each}]"
        if kind is ast.Tuple:
            samples = f"[sample for _ in range({_DRAWN}) for sample in zip(*{each}, strict=True)]"
        elif kind is ast.Dict:
            samples = (
                f"[dict(zip(drawn, values)) for drawn in ({each} for _ in range({_DRAWN})) "
                "for values in zip(*drawn.values(), strict=True)]"
            )
        made = ast.parse(f"torch.manual_seed(0)\nreturn {samples}").body
        if "torch" not in self.script.importable:
            renderer.imports["torch"] = "import torch"
        return self._method("dataset", (), renderer, made)

    def _collate(self, loader: Loader) -> list[MethodLines]:
        if loader.collate is None:
            return []
        renderer = self._renderer_of({}, often=True)
        made = self._rendered(renderer, loader.collate, "collating", "collate")
        if isinstance(made, ast.Name) and made.id in self.script.importable:
            return [self._checked(MethodLines("collate", ("samples",), same_as=made.id))]
        call = ast.Call(made, [ast.Name("samples", ast.Load())], [])
        self._take(made)
        return [self._method("collate", ("samples",), renderer, [ast.Return(call)])]

    def _batch(self, loader: Loader) -> list[str]:
        found = loader.batch
        if found is None and self.batch.draw is not None:
            found = _drawn_count(self.tracer, self.batch.draw)
        if found is None:
            return []
        renderer = self._renderer_of({})
        made = renderer.render(found.node, found.scope)
        if self.pieces is not None and self.loop is not None:
            pieces = renderer.render(self.pieces, self.loop.body_scope)
            made = ast.BinOp(made, ast.Mult(), pieces)
        self._take(made)
        self.claims += [("batch", each) for each in renderer.claims]
        unknown = unknown_names(made, self.known)
        if (
            renderer.missing
            or unknown
            or is_another(made, self.script)
            or (isinstance(made, ast.Constant) and not isinstance(made.value, int))
        ):
            self.left.append("The batch size was not found: add `batch = N` to the class.")
            return []
        return [f"    batch = {ast.unparse(made)}"]

    def _by_name(self, part: str, name: str, wanted: str) -> MethodLines:
        if self.loop is not None and name:
            wanted += f" (the script has {name})"
        if not name or self.loop is not None:
            self.left.append(f"{part}(): {wanted}.")
            return MethodLines(part, lines=[f"...  # {wanted}"])
        found = self.script.functions.get(name)
        own = self.script.classes.get(name)
        makers = [e for c, e in self.script.methods() if c is own and e.name == "__init__"]
        needs = required(found) if found else [each for e in makers for each in required(e)[1:]]
        if not needs:
            return self._checked(MethodLines(part, same_as=name))
        for each in needs:
            self.left.append(f"{part}(): say what `{each}` is, which {name} takes.")
        lines = [f"{each} = ...  # what {name} takes under this name" for each in needs]
        given = ", ".join(f"{each}={each}" for each in needs)
        return MethodLines(part, lines=[*lines, f"return {name}({given})"])

    def _maker(self, part: str, origin: Origin) -> MethodLines:
        return self._with_changes(part, self._made_by(part, origin), [origin])

    def _with_changes(self, part: str, made: MethodLines, origins: list[Origin]) -> MethodLines:
        found = [
            (origin, each)
            for origin in origins
            for each in self.tracer.changes_after(origin)
            if not self._is_after_training(each, origin.scope)
        ]
        again = [each for origin, each in found if self._is_done_again(part, each, origin.scope)]
        changes = [each for origin, each in found if each in again or self._alters(part, each, origin.scope)]
        if not changes or made.is_open or (len(changes) == len(again) and made.problems):
            return made
        if len(changes) == len(again):
            return self._done_again(part, origins, again)
        lines = []
        for each in changes:
            self.opened.add(each.statement.lineno)
            line, does = each.statement.lineno, " ".join(ast.unparse(each.statement).split())
            in_step = self._is_in_a_step(each)
            if in_step or self._is_in_an_epoch(each, origins):
                wanted = (
                    f"decide whether the class trains as before or as after line {line}, which runs "
                    f"during {'a step' if in_step else 'an epoch'}"
                )
                self.left.append(f"{part}(): {wanted}: `{does}`.")
                lines.append(f"...  # {wanted}: {does}")
                continue
            self.left.append(f"{part}(): do there what line {line} does: `{does}`.")
            lines.append(f"...  # what line {line} does: {does}")
        lines += [f"return {made.same_as}()"] if made.same_as else made.lines
        return MethodLines(part, made.parameters, lines, problems=made.problems)

    def _is_done_again(self, part: str, change: Mutation, scope: Scope) -> bool:
        """Return whether a method can repeat a change, such as `model.apply(...)` or a dataset's part."""
        statement, guard = change.statement, self.script.guard
        tests = tuple(each for each in change.tests if guard is None or each[0] is not guard.test)
        if (
            change.loops
            or not self.tracer.is_taken(tests, scope)
            or not self._is_before_training(change, scope)
        ):
            return False
        if part == "dataset":
            return last_name(change.value) in _SHARES if change.value is not None else False
        call = statement.value if isinstance(statement, ast.Expr) else None
        return isinstance(call, ast.Call) and last_name(call) == "apply" and len(call.args) == 1

    def _trained_from(self, scope: Scope) -> list[ast.stmt | ast.expr]:
        if self.loop is None:
            return []
        trains = {getattr(each.node, "name", "") for each in (self.loop.scope, self.loop.body_scope)} - {""}
        found = [
            each
            for each in here(scope.node.body)
            if each is self.loop.node or (isinstance(each, ast.Call) and last_name(each) in trains)
        ]
        return sorted(
            (each for each in found if isinstance(each, ast.stmt | ast.expr)), key=lambda each: each.lineno
        )

    def _is_after_training(self, change: Mutation, scope: Scope) -> bool:
        line = change.statement.lineno
        for each in self._trained_from(scope)[:1]:
            again = any(first <= each.lineno <= last for first, last in change.loops)
            return line > (each.end_lineno or 0) and not again
        return False

    def _is_in_a_step(self, change: Mutation) -> bool:
        return (
            bool(change.tests)
            and self.loop is not None
            and any(each is change.statement for each in here(self.loop.body))
        )

    def _is_in_an_epoch(self, change: Mutation, origins: list[Origin]) -> bool:
        begins = [each.lineno for origin in origins for each in self._trained_from(origin.scope)[:1]]
        around = any(first <= line <= last for first, last in change.loops for line in begins)
        within = self.loop is not None and change.statement in here(self.loop.node.body)
        return bool(change.tests) and around and not within

    def _is_before_training(self, change: Mutation, scope: Scope) -> bool:
        loop, line = self.loop, change.statement.lineno
        if loop is None:
            return False
        nodes = list(here(scope.node.body))
        trains = {getattr(each.node, "name", "") for each in (loop.scope, loop.body_scope)} - {""}
        begins = [each for each in nodes if isinstance(each, ast.Call) and last_name(each) in trains]
        lines = [
            each.lineno
            for each in [*begins, *(e for e in nodes if e is loop.node)]
            if hasattr(each, "lineno")
        ]
        if (
            self.batch.loader is not None
            and self.batch.loader.scope.node is scope.node
            and change.value is not None
        ):
            lines.append(self.batch.loader.node.lineno)
        ends = [each.lineno for each in nodes if isinstance(each, ast.Return)]
        return line < min(lines) if lines else line < max(ends, default=0)

    def _done_again(self, part: str, origins: list[Origin], changes: list[Mutation]) -> MethodLines:
        names = list(self.models) if len(origins) > 1 else ["made"]
        roles = {origin.key: name_of(name) for name, origin in zip(names, origins, strict=True)}
        renderer = self._renderer_of(self._with_others(roles))
        statements: list[ast.stmt] = [
            ast.Assign(
                [ast.Name(name, ast.Store())], at_path(self._rendered(renderer, each, name, part), each.path)
            )
            for name, each in zip(names, origins, strict=True)
        ]
        for each in changes:
            origin = next(one for one in origins if each in self.tracer.changes_after(one))
            name = names[origins.index(origin)]
            statements.append(self._once_more(each, name, origin, renderer))
        pairs = ast.Dict([ast.Constant(name) for name in names], [name_of(name) for name in names])
        return self._method(
            part, (), renderer, [*statements, ast.Return(pairs if len(names) > 1 else name_of(names[0]))]
        )

    def _once_more(self, change: Mutation, name: str, origin: Origin, renderer: Renderer) -> ast.stmt:
        statement = change.statement
        if isinstance(statement, ast.Expr):
            return ast.Expr(renderer.render(statement.value, origin.scope))
        assert isinstance(statement, ast.Assign)
        assert change.value is not None
        target = statement.targets[0]
        parts = target.elts if isinstance(target, ast.Tuple | ast.List) else []
        place = next((number for number, each in enumerate(parts) if self._names(each, change)), None)
        made = at_path(renderer.render(change.value, origin.scope), () if place is None else (place,))
        return ast.Assign([ast.Name(name, ast.Store())], made)

    def _names(self, target: ast.expr, change: Mutation) -> bool:
        """Return whether an assignment computes from its own target, as in `data, rest = random_split(data)`."""
        key = key_of(target)
        return bool(key) and any(key_of(each) == key for each in walk(change.value or target))

    def _alters(self, part: str, change: Mutation, scope: Scope) -> bool:
        statement = change.statement
        if change.value is not None:
            return last_name(self.tracer.innermost(change.value, scope)) not in (*LISTED, *_SHARES)
        if isinstance(statement, ast.Expr) and last_name(statement.value) == "apply":
            return False  # `_with_effects` reports it
        if change.freezes or not isinstance(statement, ast.Assign):
            return True
        return part == "dataset" or is_module(self.tracer, self.tracer.trace(statement.value, scope))

    def _made_by(self, part: str, origin: Origin) -> MethodLines:
        node = origin.node
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id in self.script.importable
            and not (node.args or node.keywords or origin.path or origin.key in self.once)
        ):
            if is_another(node, self.script):
                self.drawn.setdefault(origin.key, set()).add(part)
            self._take(node)
            return self._checked(MethodLines(part, same_as=node.func.id))
        renderer = self._renderer_of({})
        value = at_path(
            self._rendered(renderer, origin, "data" if part == "dataset" else part, part), origin.path
        )
        return self._method(part, (), renderer, [ast.Return(value)])

    def _constructor(self) -> list[MethodLines]:
        if not self.kept:
            return []
        lines = [f"self.{name} = {source_of(made)}" for name, made in self.kept.items()]
        self._take(*self.kept.values())
        problems: list[str] = []
        made_before: set[str] = set()
        for name, made in self.kept.items():
            reads = {
                e.attr for e in walk(made) if isinstance(e, ast.Attribute) and ast.unparse(e.value) == "self"
            }
            known = self.known | {"self"} if reads and reads <= made_before else self.known
            problems += unknown_names(made, known)
            problems += read_by([ast.Expr(made)], (), self.hanging)
            made_before.add(name)
        return [self._checked(MethodLines("__init__", lines=lines, problems=problems))]
