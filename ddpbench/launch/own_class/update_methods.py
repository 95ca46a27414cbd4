"""Write the methods that come from a loop's updates: `optimizer` and `before_update`."""

from __future__ import annotations

import ast
from copy import deepcopy

from ddpbench.launch.own_class.reading import Reading
from ddpbench.launch.own_class.rendering import Renderer
from ddpbench.launch.own_class.script import last_name
from ddpbench.launch.own_class.source import MethodLines, at_path, name_of
from ddpbench.launch.own_class.tracing import Origin
from ddpbench.launch.own_class.trees import walk


class UpdateMethods(Reading):
    """Writes the methods that come from a loop's updates: `optimizer` and `before_update`."""

    def _optimizer(self) -> list[MethodLines]:
        found, owns = self.updates.all, bool(self.updates.owns)
        if not self.updates.optimizers:
            if self.loop is None or not owns:
                wanted = "return the optimizer; without this method it is SGD with momentum"
                self.left.append(f"optimizer(): {wanted}.")
                takes = "parameters" if self.apart is None else "model"
                return [MethodLines("optimizer", (takes,), [f"...  # {wanted}"])]
            return []
        nodes = {id(each.node): each for each in found.values()}
        bundle = next(iter(nodes.values()))
        given = isinstance(bundle.node, ast.Call) and isinstance(bundle.node.func, ast.Name)
        if len(nodes) == 1 and given and (self._unpacked() or not bundle.path):
            function = self.script.functions.get(last_name(bundle.node))
            if function is not None and self._takes_model_alone(bundle, function):
                return [self._checked(MethodLines("optimizer", ("model",), same_as=function.name))]
        roles = self._models_by_key()
        renderer = self._renderer_of(roles, self._parts(roles), often=True)
        if len(nodes) == 1:
            made = renderer.render(bundle.node, bundle.scope)
            whole = bool(self._unpacked()) or not bundle.path
            statements: list[ast.stmt] = [ast.Return(made if whole else at_path(made, bundle.path))]
        else:
            statements = self._several(renderer)
        return [self._over_parameters(renderer, statements)]

    def _several(self, renderer: Renderer) -> list[ast.stmt]:
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
                names[name] = name_of(own)
                renderer.roles = {**renderer.roles, each.key: name_of(own)}
        return [*statements, ast.Return(ast.Tuple(list(names.values()), ast.Load()))]

    def _takes_model_alone(self, bundle: Origin, function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
        assert isinstance(bundle.node, ast.Call)
        given = bundle.node.args
        if len(given) != 1 or bundle.node.keywords or not self.models:
            return False
        return self.tracer.trace(given[0], bundle.scope).key in self._models_by_key() and any(
            word in function.args.args[0].arg for word in ("model", "net", "module")
        )

    def _over_parameters(self, renderer: Renderer, statements: list[ast.stmt]) -> MethodLines:
        """Write `optimizer` with the argument `parameters`, or `model` if these do not suffice."""
        module = ast.Module(deepcopy(statements), [])
        uses = sum(isinstance(each, ast.Name) and each.id == "model" for each in walk(module))
        replaced = _Parameters()
        module = replaced.visit(module)
        if self.updates.owns or uses != 1 or replaced.count != 1:
            return self._method("optimizer", ("model",), renderer, statements)
        return self._method("optimizer", ("parameters",), renderer, module.body)

    def _clipping(self) -> list[MethodLines]:
        if self.updates.owns or self.loop is None or not self.updates.clipping:
            return []
        roles = self._model_roles("model")
        renderer = self._renderer_of(roles, self._parts(roles), often=True)
        made: list[ast.stmt] = [
            ast.Expr(renderer.render(each, self.loop.body_scope)) for each in self.updates.clipping
        ]
        return [self._method("before_update", ("model",), renderer, made)]


class _Parameters(ast.NodeTransformer):
    count = 0

    def visit_Call(self, node: ast.Call) -> ast.AST:
        if ast.unparse(node) == "model.parameters()":
            self.count += 1
            return name_of("parameters")
        return self.generic_visit(node)
