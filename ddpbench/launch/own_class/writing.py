"""The class, written from what is found in a script, with a line for what is not."""

from __future__ import annotations

import ast
from dataclasses import dataclass

from ddpbench.launch.own_class.insertion import NAME
from ddpbench.launch.own_class.loop_methods import LoopMethods
from ddpbench.launch.own_class.loops import runs_at_import
from ddpbench.launch.own_class.models import Loader, dataset_by_name, loader_of, model_by_name
from ddpbench.launch.own_class.rendering import Renderer
from ddpbench.launch.own_class.script import Script, required
from ddpbench.launch.own_class.source import Method, at_path, comment_of, source_of
from ddpbench.launch.own_class.tracing import Origin
from ddpbench.launch.own_class.update_methods import UpdateMethods
from ddpbench.launch.own_class.updates import epoch_schedules
from ddpbench.units import series_of


@dataclass(frozen=True)
class Written:
    """The class's source, and a sentence for each thing that is left to do."""

    text: str
    left: list[str]


def written_class(script: Script) -> Written:
    """Return the class for a script, as far as the script shows it."""
    return _Writer(script).written()


class _Writer(LoopMethods, UpdateMethods):
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
        told = self._not_in_class()
        self.left += told
        lines = [f"class {NAME}:", *(line for sentence in told for line in comment_of(sentence))]
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

    def _not_in_class(self) -> list[str]:
        """Return a sentence for what the script trains with and the class does not have."""
        told = []
        if len(self.loops) > 1:
            lines = [str(each.node.lineno) for each in self.loops]
            told.append(
                f"The script trains in {len(lines)} loops, of lines {series_of(lines)}: this class is the one of line "
                f"{lines[0]}; another one needs a class of its own."
            )
        told += [
            f"`{ast.unparse(call)}` of line {call.lineno} stands outside the loop over batches and is left out: "
            "the learning rate stays as it begins. To have it change with every update, return (optimizer, scheduler) "
            "from optimizer()."
            for call in epoch_schedules(self.tracer, self.loops)
        ]
        return told

    def _model(self) -> Method:
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

    def _dataset(self, loader: Loader) -> Method:
        if loader.dataset is not None and not isinstance(loader.dataset.node, ast.Name):
            return self._maker("dataset", loader.dataset)
        return self._by_name(
            "dataset",
            dataset_by_name(self.script),
            "return the dataset: a sample for each index, not yet a batch",
        )

    def _collate(self, loader: Loader) -> list[Method]:
        if loader.collate is None:
            return []
        renderer = Renderer(self.tracer, {})
        made = renderer.render(loader.collate.node, loader.collate.scope)
        if isinstance(made, ast.Name) and made.id in self.script.importable:
            return [Method("collate", same_as=made.id)]
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

    def _by_name(self, part: str, name: str, wanted: str) -> Method:
        if not name:
            self.left.append(f"{part}(): {wanted}.")
            return Method(part, lines=[f"...  # {wanted}"])
        found = self.script.functions.get(name)
        own = self.script.classes.get(name)
        makers = [e for c, e in self.script.methods() if c is own and e.name == "__init__"]
        needs = required(found) if found else [each for e in makers for each in required(e)[1:]]
        if not needs:
            return Method(part, same_as=name)
        for each in needs:
            self.left.append(f"{part}(): say what `{each}` is, which {name} takes.")
        lines = [f"{each} = ...  # what {name} takes under this name" for each in needs]
        given = ", ".join(f"{each}={each}" for each in needs)
        return Method(part, lines=[*lines, f"return {name}({given})"])

    def _maker(self, part: str, origin: Origin) -> Method:
        node = origin.node
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id in self.script.importable
            and not (node.args or node.keywords or origin.path)
        ):
            return Method(part, same_as=node.func.id)
        renderer = Renderer(self.tracer, {})
        value = at_path(renderer.render(node, origin.scope), origin.path)
        return self._method(part, (), renderer, [ast.Return(value)])

    def _constructor(self) -> list[Method]:
        if not self.kept:
            return []
        lines = [f"self.{name} = {source_of(made)}" for name, made in self.kept.items()]
        return [Method("__init__", lines=lines)]
