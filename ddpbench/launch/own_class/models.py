"""Find a script's data and the modules that it trains, from its loop or from the names of its classes and functions."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass

from ddpbench.launch.own_class.bindings import Scope
from ddpbench.launch.own_class.script import MODULES, Script, here, last_name
from ddpbench.launch.own_class.tracing import Origin, Tracer, returned_by
from ddpbench.launch.own_class.trees import walk

DATASETS = ("Dataset", "IterableDataset", "TensorDataset")
_BUILDS = re.compile(r"(build|make|create|get|load|init)_?\w*(model|net|network)s?$|^(model|net)$")
_DATA = re.compile(r"(build|make|create|get|load)?_?\w*(dataset|train_?set|data)$")
_DEEPEST = 6


@dataclass(frozen=True)
class Loader:
    """The dataset, batch size and collate function that the script passes to its loader; None for each unknown one."""

    dataset: Origin | None
    batch: Origin | None = None
    collate: Origin | None = None


def models_of(
    tracer: Tracer, optimizers: list[Origin], body: list[ast.stmt], scope: Scope
) -> dict[str, Origin]:
    """Return the modules that the optimizers update, by their names in the script.

    If no such module is found, return the module that the loop calls first.
    """
    found: dict[str, Origin] = {}
    called = [tracer.trace(node.func, scope) for node in here(body) if isinstance(node, ast.Call)]
    for optimizer in optimizers:
        for receiver, where in _receivers(tracer, optimizer.node, optimizer.scope, 0):
            _add(found, *_whole(tracer, receiver, where, called))
        if not found and isinstance(optimizer.node, ast.Call):
            given = [*optimizer.node.args, *(each.value for each in optimizer.node.keywords)]
            made = optimizer.node.func
            if isinstance(made, ast.Attribute) and made.attr == "configure_optimizers":
                _add(found, made.value, tracer.trace(made.value, optimizer.scope))
                continue
            for each in given:
                origin = tracer.trace(each, optimizer.scope)
                if is_module(tracer, origin):
                    _add(found, each, origin)
    if not found:
        for node in here(body):
            if isinstance(node, ast.Call) and not found:
                origin = tracer.trace(node.func, scope)
                if is_module(tracer, origin):
                    _add(found, node.func, origin)
    return found


def _whole(tracer: Tracer, node: ast.expr, scope: Scope, called: list[Origin]) -> tuple[ast.expr, Origin]:
    """Return the module that contains `node`, such as `model` for `model.head`, as (expression, origin).

    A module that the loop calls directly, as a GAN's generator, is returned itself.
    """
    part = tracer.trace(node, scope)
    holder = node.value if isinstance(node, ast.Attribute) else None
    if holder is None or any(each.key == part.key for each in called):
        return node, part
    whole = tracer.trace(holder, scope)
    return _whole(tracer, holder, scope, called) if is_module(tracer, whole) else (node, part)


def _add(found: dict[str, Origin], node: ast.expr, origin: Origin) -> None:
    if all(origin.key != other.key for other in found.values()):
        found[last_name(node) or f"model_{len(found) + 1}"] = origin


def _receivers(tracer: Tracer, node: ast.expr, scope: Scope, depth: int) -> list[tuple[ast.expr, Scope]]:
    found: list[tuple[ast.expr, Scope]] = []
    for each in walk(node):
        if isinstance(each, ast.Attribute) and each.attr in ("parameters", "named_parameters"):
            found.append((each.value, scope))
        elif isinstance(each, ast.Name) and depth < _DEEPEST:
            origin = tracer.trace(each, scope)
            if origin.node is not each and not is_module(tracer, origin):
                found += _receivers(tracer, origin.node, origin.scope, depth + 1)
    return found


def is_module(tracer: Tracer, origin: Origin) -> bool:
    """Return whether the expression at an origin makes a module or a dictionary of modules."""
    node, script = origin.node, tracer.script
    if origin.path and isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        inner = tracer.entered(origin)
        if (
            inner is not None
            and isinstance(inner.node, ast.Call)
            and not inner.path
            and inner.node is not node
        ):
            return is_module(tracer, inner)
    if isinstance(node, ast.Dict):
        return any(is_module(tracer, Origin(each, origin.scope)) for each in node.values)
    if not isinstance(node, ast.Call):
        return False
    name, made = last_name(node), ast.unparse(node.func)
    if isinstance(node.func, ast.Name) and name in script.functions:
        function = script.functions[name]
        return bool(_BUILDS.search(name)) or any(
            is_module(tracer, Origin(each, Scope(function))) for each in returned_by(function)
        )
    if script.derives(name, MODULES):
        return not name.endswith("Loss")
    known = re.match(r"(torch\.)?nn\.[A-Z]|(torchvision\.)?models\.|timm\.create_model", made)
    return (bool(known) and not name.endswith("Loss")) or made.endswith((".from_pretrained", ".from_config"))


def settings_of(tracer: Tracer, module: Origin) -> dict[str, list[ast.AST]]:
    """Return the statements that freeze a module or put it into evaluation mode.

    The result has the keys `requires_grad_` and `eval`. A key without statements is missing. `eval` is also missing if
    the script calls the module's `train()`.
    """
    found: dict[str, list[ast.AST]] = {}
    if not is_module(tracer, module):
        return found
    for scope in tracer.scopes:
        for node in here(scope.node.body):
            does, receiver = _setting(node)
            if receiver is not None and tracer.trace(receiver, scope).key == module.key:
                found.setdefault(does, []).append(node)
    if found.pop("train", None) is not None:
        found.pop("eval", None)  # the script switches between both modes
    return dict(sorted(found.items()))


def _setting(node: ast.AST) -> tuple[str, ast.expr | None]:
    if isinstance(node, ast.For) and last_name(node.iter) == "parameters" and isinstance(node.iter, ast.Call):
        frozen = any(_freezes(each) for each in here(node.body))
        return "requires_grad_", getattr(node.iter.func, "value", None) if frozen else None
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return "", None
    if node.func.attr in ("eval", "train") and not node.args:
        return node.func.attr, node.func.value
    return "requires_grad_", node.func.value if _freezes(node) else None


def _freezes(node: ast.AST) -> bool:
    if isinstance(node, ast.Assign):
        return ast.unparse(node.value) == "False" and last_name(node.targets[0]) == "requires_grad"
    return isinstance(node, ast.Call) and ast.unparse(node).endswith(".requires_grad_(False)")


def model_by_name(script: Script) -> str:
    """Return the name of the last function that seems to build a model, else of the last module class, else empty."""
    functions = [name for name in script.functions if _BUILDS.search(name)]
    classes = [name for name in script.classes if script.derives(name, MODULES)]
    return next(reversed(functions), "") or next(reversed(classes), "")


def dataset_by_name(script: Script) -> str:
    """Return the name of the last dataset class, or else of the last function named like a dataset; empty if none."""
    classes = [name for name in script.classes if script.derives(name, DATASETS)]
    functions = [name for name in script.functions if _DATA.search(name)]
    return next(reversed(classes), "") or next(reversed(functions), "")


def loader_of(tracer: Tracer, found: Origin | None) -> Loader:
    """Return the dataset, batch size and collate function of a loop's loader; None for each unknown one."""
    for _ in range(_DEEPEST):
        if found is None or not isinstance(found.node, ast.Call):
            break
        if last_name(found.node).endswith("Loader"):
            return _made(tracer, found.node, found.scope)
        if tracer.script.derives(last_name(found.node), DATASETS):
            return Loader(found)
        found = tracer.entered(found)
    return Loader(None)


def _made(tracer: Tracer, call: ast.Call, scope: Scope) -> Loader:
    by_name = dict(tracer.words(call, scope))
    dataset = call.args[0] if call.args else by_name.get("dataset")
    batch = call.args[1] if len(call.args) > 1 else by_name.get("batch_size")
    known = {"batch_size", "batch_sampler", None} & {each.arg for each in call.keywords}
    if batch is None and last_name(call) == "DataLoader" and not known:
        batch = ast.copy_location(ast.Constant(1), call)
    collate = by_name.get("collate_fn")
    return Loader(
        tracer.trace(dataset, scope) if dataset is not None else None,
        Origin(batch, scope) if batch is not None else None,
        Origin(collate, scope) if collate is not None else None,
    )
