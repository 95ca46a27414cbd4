"""The class, written from what is found in a script, with a line for what is not."""

from __future__ import annotations

import ast
import io
import tokenize
from collections.abc import Iterable
from copy import deepcopy
from dataclasses import dataclass, field

from ddpbench.launch.own_class.batches import Batch, batch_of
from ddpbench.launch.own_class.bindings import Path
from ddpbench.launch.own_class.insertion import NAME
from ddpbench.launch.own_class.loops import TrainingLoop, find_loop, is_backward, runs_at_import
from ddpbench.launch.own_class.models import (
    Loader,
    dataset_by_name,
    is_module,
    loader_of,
    model_by_name,
    models_of,
)
from ddpbench.launch.own_class.rendering import Renderer
from ddpbench.launch.own_class.script import Script, here, last_name, required
from ddpbench.launch.own_class.steps import (
    before_backward,
    is_effect,
    needed_for,
    no_effect,
    settled,
    without_moves,
)
from ddpbench.launch.own_class.tracing import Origin, Tracer, returned_by
from ddpbench.launch.own_class.updates import Updates, updates_of

_WIDTH = 100
_HARMLESS = ("print", "log", "eval", "valid", "test", "save", "write", "report", "sample", "plot", "display")


@dataclass(frozen=True)
class Written:
    """The class's source, and a sentence for each thing that is left to do."""

    text: str
    left: list[str]


@dataclass
class _Method:
    """A method's lines, or one line of the class where a name of the script will do."""

    name: str
    parameters: tuple[str, ...] = ()
    lines: list[str] = field(default_factory=list)
    same_as: str = ""

    @property
    def text(self) -> list[str]:
        if self.same_as:
            return [f"    {self.name} = {self.same_as}"]
        head = f"    def {self.name}({', '.join(('self', *self.parameters))}):"
        return [head, *(f"        {line}" for line in self.lines)]


def written_class(script: Script) -> Written:
    """Return the class for a script, as far as the script shows it."""
    return _Writer(script).written()


class _Writer:
    def __init__(self, script: Script) -> None:
        self.script, self.tracer = script, Tracer(script)
        self.left: list[str] = []
        self.kept: dict[str, ast.expr] = {}
        self.loop = find_loop(self.tracer)
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

    def written(self) -> Written:
        """Return the class."""
        loader = loader_of(self.tracer, self.batch.loader)
        training = self._training()
        methods = [
            self._model(),
            self._dataset(loader),
            *self._collate(loader),
            *training,
            *self._optimizer(),
            *self._clipping(),
        ]
        made = self._constructor()
        lines = [f"class {NAME}:"]
        lines += [line for each in methods if each.same_as for line in each.text]
        lines += self._batch(loader)
        for method in [*made, *(each for each in methods if not each.same_as)]:
            lines += ["", *method.text] if len(lines) > 1 else method.text
        text = "\n".join(lines) + "\n"
        ast.parse(text)
        if self.loop is not None and runs_at_import(self.script, self.loop):
            self.left.append(
                'The script trains when it is imported: put what trains below `if __name__ == "__main__":`, '
                "and leave above it what the class uses."
            )
        return Written(text, self.left)

    # The parts

    def _model(self) -> _Method:
        if len(self.models) > 1:
            renderer = Renderer(self.tracer, {})
            pairs = {
                name: at_path(renderer.render(each.node, each.scope), each.path)
                for name, each in self.models.items()
            }
            made = ast.Dict([ast.Constant(name) for name in pairs], list(pairs.values()))
            return self._method("model", (), renderer, [ast.Return(made)])
        for origin in self.models.values():
            if isinstance(origin.node, ast.Call | ast.Dict):
                return self._maker("model", origin)
        return self._by_name("model", model_by_name(self.script), "return the module that trains, made anew")

    def _dataset(self, loader: Loader) -> _Method:
        if loader.dataset is not None and not isinstance(loader.dataset.node, ast.Name):
            return self._maker("dataset", loader.dataset)
        return self._by_name(
            "dataset",
            dataset_by_name(self.script),
            "return the dataset: a sample for each index, not yet a batch",
        )

    def _collate(self, loader: Loader) -> list[_Method]:
        if loader.collate is None:
            return []
        renderer = Renderer(self.tracer, {})
        made = renderer.render(loader.collate.node, loader.collate.scope)
        if isinstance(made, ast.Name) and made.id in self.script.importable:
            return [_Method("collate", same_as=made.id)]
        call = ast.Call(made, [ast.Name("samples", ast.Load())], [])
        return [self._method("collate", ("samples",), renderer, [ast.Return(call)])]

    def _batch(self, loader: Loader) -> list[str]:
        if loader.batch is None:
            return []
        renderer = Renderer(self.tracer, {})
        made = renderer.render(loader.batch.node, loader.batch.scope)
        if renderer.missing or (isinstance(made, ast.Constant) and not isinstance(made.value, int)):
            self.left.append("The batch size is not to be seen: add `batch = N` to the class.")
            return []
        return [f"    batch = {ast.unparse(made)}"]

    def _by_name(self, part: str, name: str, wanted: str) -> _Method:
        if not name:
            self.left.append(f"{part}(): {wanted}.")
            return _Method(part, lines=[f"...  # {wanted}"])
        found = self.script.functions.get(name)
        own = self.script.classes.get(name)
        makers = [e for c, e in self.script.methods() if c is own and e.name == "__init__"]
        needs = required(found) if found else [each for e in makers for each in required(e)[1:]]
        if not needs:
            return _Method(part, same_as=name)
        for each in needs:
            self.left.append(f"{part}(): say what `{each}` is, which {name} takes.")
        lines = [f"{each} = ...  # what {name} takes under this name" for each in needs]
        given = ", ".join(f"{each}={each}" for each in needs)
        return _Method(part, lines=[*lines, f"return {name}({given})"])

    def _maker(self, part: str, origin: Origin) -> _Method:
        node = origin.node
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id in self.script.importable
            and not (node.args or node.keywords or origin.path)
        ):
            return _Method(part, same_as=node.func.id)
        renderer = Renderer(self.tracer, {})
        value = at_path(renderer.render(node, origin.scope), origin.path)
        return self._method(part, (), renderer, [ast.Return(value)])

    # The loop

    def _training(self) -> list[_Method]:
        loop = self.loop
        if loop is None:
            wanted = "compute the loss of a batch: the mean over its samples"
            self.left.append(f"loss(): {wanted}; no loop that calls backward() was found.")
            return [_Method("loss", ("model", "batch"), [f"...  # {wanted}"])]
        if self.batch.target is None:
            self.left.append(
                "The training loop goes through no loader that can be seen: say what a batch is."
            )
        found = None if self.updates.owns else self._loss(loop)
        return [found or self._step(loop)]

    def _loss(self, loop: TrainingLoop) -> _Method | None:
        statements = without_moves(self.body, loop.body_scope, self.tracer)
        before = before_backward(statements)
        if before is None:
            return None
        needed = {each.id for each in ast.walk(before.loss) if isinstance(each, ast.Name)}
        kept = needed_for(before.statements, needed, no_effect)
        if self.batch.count and self._counts(loop) & needed:
            return None
        renderer = self._renderer(loop, kept)
        renderer.roles = {**renderer.roles, **self._model_roles("model")}
        made = [renderer.statement(each, loop.body_scope) for each in kept]
        end: ast.stmt = ast.Return(renderer.render(before.loss, loop.body_scope))
        made = _folded([*made, end])
        self._tell_left_out(loop)
        return self._method("loss", ("model", "batch"), renderer, self._opened(made))

    def _step(self, loop: TrainingLoop) -> _Method:
        if loop.call is not None and _returns_loss(loop):
            return self._call(loop, loop.call)
        statements = without_moves(self.body, loop.body_scope, self.tracer)
        loss = next(
            (
                inner.id
                for each in here(statements)
                if is_backward(each)
                for inner in ast.walk(each)
                if isinstance(inner, ast.Name)
                and isinstance(inner.ctx, ast.Load)
                and "scaler" not in inner.id
            ),
            "",
        )
        needed = {loss} - {""}
        kept = needed_for(statements, needed, is_effect)
        renderer = self._renderer(loop, kept)
        renderer.counters = frozenset(_counted(kept))
        made = [renderer.statement(each, loop.body_scope) for each in kept]
        for name in sorted(renderer.counters):
            origin = self.tracer.trace(ast.Name(name, ast.Load()), loop.body_scope)
            plain = isinstance(origin.node, ast.Constant)
            self.kept[name] = origin.node if plain else ast.Constant(0)
        if any("self.batches" in ast.unparse(each) for each in made):
            self.kept["batches"] = ast.Constant(0)
            made += ast.parse("self.batches += 1").body
        made.append(ast.Return(ast.Name(loss or "loss", ast.Load())))
        return self._method("step", ("model", "batch", "optimizer"), renderer, self._opened(made))

    def _call(self, loop: TrainingLoop, call: ast.Call) -> _Method:
        renderer = self._renderer(loop, loop.body)
        made = renderer.render(call, loop.scope)
        assert isinstance(made, ast.Call)
        for whole, names in (("batch", self._targets()), ("optimizer", self._unpacked())):
            told = [ast.unparse(each) for each in made.args]
            for start in range(len(told) - len(names) + 1) if len(names) > 1 else ():
                if told[start : start + len(names)] == names:
                    made.args[start : start + len(names)] = [
                        ast.Starred(ast.Name(whole, ast.Load()), ast.Load())
                    ]
                    break
        parameters = ("model", "batch", "optimizer")
        return self._method("step", parameters, renderer, self._opened([ast.Return(made)]))

    def _renderer(self, loop: TrainingLoop, body: list[ast.stmt]) -> Renderer:
        roles = {key: _name(name) for key, name in self.batch.parts}
        if isinstance(self.batch.target, ast.Name):
            stores = {e.id for e in here(body) if isinstance(e, ast.Name) and isinstance(e.ctx, ast.Store)}
            own = self.batch.target.id if "batch" in stores else "batch"
            roles = dict.fromkeys(roles, _name(own))
        if self.batch.count is not None:
            roles[self.batch.count] = ast.parse("self.batches", mode="eval").body
        roles |= self._model_roles("") | self._optimizer_roles()
        return Renderer(self.tracer, roles, device=self._device(), keeps=True)

    def _device(self) -> ast.expr:
        """Return what says where a step's tensors are."""
        for name in self._targets()[:1]:
            return ast.parse(f"{name}.device", mode="eval").body
        path = "next(model.parameters()).device"
        first = next(iter(self.models), "model")
        return ast.parse(path if len(self.models) < 2 else path.replace("model", first, 1), mode="eval").body

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
        return {each.key: _name(name if several else single or "model") for name, each in self.models.items()}

    def _optimizer_roles(self) -> dict[tuple[int, Path], ast.expr]:
        found = self.updates.all
        if not self._unpacked():
            roles = {each.key: _name("optimizer") for each in found.values()}
        else:
            roles = {each.key: _name(name) for name, each in found.items()}
        for each in found.values():
            roles.setdefault((id(each.node), ()), _name("optimizer"))
        return roles

    def _opened(self, made: list[ast.stmt]) -> list[ast.stmt]:
        """Return a step's statements after those that take its arguments apart, where they use the parts."""
        whole = {id(e.value) for each in made for e in ast.walk(each) if isinstance(e, ast.Starred)}
        used = {
            e.id for each in made for e in ast.walk(each) if isinstance(e, ast.Name) and id(e) not in whole
        }
        opened: list[str] = []
        if len(self.models) > 1:
            values = ", ".join(f'model["{name}"]' for name in self.models)
            opened.append(f"{', '.join(self.models)} = {values}")
        target = self.batch.target
        names = {e.id for e in ast.walk(target) if isinstance(e, ast.Name)} if target is not None else set()
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

    def _tell_left_out(self, loop: TrainingLoop) -> None:
        """Tells what a loop does to its model or its optimizer that `loss` does not do."""
        roles = {**self._model_roles("model"), **self._optimizer_roles()}
        for statement in self.body:
            call = statement.value if isinstance(statement, ast.Expr) else None
            if not isinstance(call, ast.Call) or is_effect(statement) or is_backward(call):
                continue
            name = last_name(call).lower()
            if name in ("train", "eval") or any(word in name for word in _HARMLESS):
                continue
            given = [*call.args, *(each.value for each in call.keywords)]
            if any(self.tracer.trace(each, loop.body_scope).key in roles for each in given):
                self.left.append(
                    f"`{ast.unparse(call)}` of the loop is left out: if it belongs to a step, write step() instead."
                )

    # Updates

    def _optimizer(self) -> list[_Method]:
        found, owns = self.updates.all, bool(self.updates.owns)
        if not self.updates.optimizers:
            if self.loop is None or not owns:
                wanted = "return the optimizer; without this method it is SGD with momentum"
                self.left.append(f"optimizer(): {wanted}.")
                return [_Method("optimizer", ("parameters",), [f"...  # {wanted}"])]
            return []
        nodes = {id(each.node): each for each in found.values()}
        bundle = next(iter(nodes.values()))
        given = isinstance(bundle.node, ast.Call) and isinstance(bundle.node.func, ast.Name)
        if len(nodes) == 1 and given and (self._unpacked() or not bundle.path):
            function = self.script.functions.get(last_name(bundle.node))
            if function is not None and self._takes_model_alone(bundle, function):
                return [_Method("optimizer", same_as=function.name)]
        renderer = Renderer(self.tracer, self._models_by_key())
        if len(nodes) == 1:
            made = renderer.render(bundle.node, bundle.scope)
            whole = bool(self._unpacked()) or not bundle.path
            statements: list[ast.stmt] = [ast.Return(made if whole else at_path(made, bundle.path))]
        else:
            statements = self._several(renderer)
        return [self._over_parameters(renderer, statements)]

    def _several(self, renderer: Renderer) -> list[ast.stmt]:
        """Return an optimizer and its scheduler, or several of each, made one after the other."""
        statements: list[ast.stmt] = []
        last = list(self.updates.all)[-1]
        names: dict[str, ast.expr] = {}
        for name, each in self.updates.all.items():
            made = at_path(renderer.render(each.node, each.scope), each.path)
            own = (
                "optimizer" if len(self.updates.optimizers) == 1 and name in self.updates.optimizers else name
            )
            if name == last:
                names[name] = made
            else:
                statements.append(ast.Assign([ast.Name(own, ast.Store())], made))
                names[name] = _name(own)
                renderer.roles = {**renderer.roles, each.key: _name(own)}
        return [*statements, ast.Return(ast.Tuple(list(names.values()), ast.Load()))]

    def _takes_model_alone(self, bundle: Origin, function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
        assert isinstance(bundle.node, ast.Call)
        given = bundle.node.args
        if len(given) != 1 or bundle.node.keywords or not self.models:
            return False
        return self.tracer.trace(given[0], bundle.scope).key in self._models_by_key() and any(
            word in function.args.args[0].arg for word in ("model", "net", "module")
        )

    def _models_by_key(self) -> dict[tuple[int, Path], ast.expr]:
        if len(self.models) < 2:
            return self._model_roles("model")
        return {
            each.key: ast.parse(f"model[{name!r}]", mode="eval").body for name, each in self.models.items()
        }

    def _over_parameters(self, renderer: Renderer, statements: list[ast.stmt]) -> _Method:
        """Return the method with `parameters` for its argument where it wants nothing else of the model."""
        module = ast.Module(deepcopy(statements), [])
        uses = sum(isinstance(each, ast.Name) and each.id == "model" for each in ast.walk(module))
        replaced = _Parameters()
        module = replaced.visit(module)
        if self.updates.owns or uses != 1 or replaced.count != 1:
            return self._method("optimizer", ("model",), renderer, statements)
        return self._method("optimizer", ("parameters",), renderer, module.body)

    def _clipping(self) -> list[_Method]:
        if self.updates.owns or self.loop is None or not self.updates.clipping:
            return []
        renderer = Renderer(self.tracer, self._model_roles("model"))
        made: list[ast.stmt] = [
            ast.Expr(renderer.render(each, self.loop.body_scope)) for each in self.updates.clipping
        ]
        return [self._method("before_update", ("model",), renderer, made)]

    # The text

    def _constructor(self) -> list[_Method]:
        if not self.kept:
            return []
        lines = [f"self.{name} = {source_of(made)}" for name, made in self.kept.items()]
        return [_Method("__init__", lines=lines)]

    def _method(
        self, name: str, parameters: tuple[str, ...], renderer: Renderer, statements: Iterable[ast.stmt]
    ) -> _Method:
        self.kept |= renderer.kept
        lines = [*renderer.imports.values()]
        opening = [line for made in renderer.before.values() for line in map(source_of, made)]
        for missing, told in renderer.missing.items():
            lines.append(f"{missing} = ...  # {told}")
            self.left.append(f"{name}(): say what `{missing}` is ({told}).")
        lines += opening
        for statement in statements:
            lines += source_of(statement).splitlines()
        return _Method(name, parameters, lines)


class _Parameters(ast.NodeTransformer):
    """Puts `parameters` for `model.parameters()`."""

    count = 0

    def visit_Call(self, node: ast.Call) -> ast.AST:
        if ast.unparse(node) == "model.parameters()":
            self.count += 1
            return _name("parameters")
        return self.generic_visit(node)


def at_path(node: ast.expr, path: Path) -> ast.expr:
    """Return the part of a value at a path."""
    for index in path:
        node = ast.Subscript(node, ast.Constant(index), ast.Load())
    return node


def source_of(node: ast.AST) -> str:
    """Return a node's source, its strings in double quotes where that needs no escape."""
    text = _unparsed(ast.fix_missing_locations(node))
    lines = text.splitlines(keepends=True)
    tokens = list(tokenize.generate_tokens(io.StringIO(text).readline))
    for token in reversed(tokens):
        (row, start), (_, end) = token.start, token.end
        plain = token.type == tokenize.STRING and token.string.startswith("'")
        if plain and not set('"\\') & set(token.string) and token.start[0] == token.end[0]:
            line = lines[row - 1]
            lines[row - 1] = f'{line[:start]}"{token.string[1:-1]}"{line[end:]}'
    return "".join(lines)


def _unparsed(node: ast.AST) -> str:
    """Return a statement without parentheses around a tuple, and a call's arguments a line each where it is long."""
    if not isinstance(node, ast.Return | ast.Assign | ast.Expr) or node.value is None:
        return ast.unparse(node)
    value = ast.unparse(node.value)
    head = ast.unparse(node).removesuffix(value)
    if isinstance(node.value, ast.Tuple) and node.value.elts and not isinstance(node, ast.Expr):
        return head + value.removeprefix("(").removesuffix(")")
    if isinstance(node.value, ast.Call) and len(head) + len(value) > _WIDTH:
        arguments = [ast.unparse(each) for each in [*node.value.args, *node.value.keywords]]
        inner = "".join(f"    {each},\n" for each in arguments)
        return f"{head}{ast.unparse(node.value.func)}(\n{inner})"
    return head + value


def _name(name: str) -> ast.expr:
    return ast.Name(name, ast.Load())


def _folded(made: list[ast.stmt]) -> list[ast.stmt]:
    """Return `return x` for `loss = x; return loss`."""
    if len(made) < 2:
        return made
    before, end = made[-2], made[-1]
    if (
        isinstance(end, ast.Return)
        and isinstance(before, ast.Assign)
        and len(before.targets) == 1
        and isinstance(before.targets[0], ast.Name)
        and end.value is not None
    ):
        name = before.targets[0].id
        uses = [each for each in ast.walk(end.value) if isinstance(each, ast.Name) and each.id == name]
        if len(uses) == 1 and end.value is uses[0]:
            return [*made[:-2], ast.Return(before.value)]
    return made


def _returns_loss(loop: TrainingLoop) -> bool:
    """Return whether the function that is called for each batch returns one tensor, and can be called from a class."""
    function = loop.body_scope.node
    if isinstance(function, ast.Module) or loop.body_scope.own is not None:
        return False
    returned = returned_by(function)
    return bool(returned) and not any(
        isinstance(each, ast.Tuple | ast.Dict | ast.Constant) or ".item()" in ast.unparse(each)
        for each in returned
    )


def _counted(body: list[ast.stmt]) -> set[str]:
    """Return the names that statements count in and do not begin."""
    begun: set[str] = set()
    counted: set[str] = set()
    for each in here(body):
        if isinstance(each, ast.Assign):
            begun |= {e.id for target in each.targets for e in ast.walk(target) if isinstance(e, ast.Name)}
        elif isinstance(each, ast.AugAssign) and isinstance(each.target, ast.Name):
            counted |= {each.target.id} - begun
    return counted
