"""Find statements that change the script's model, data, optimizer or state and are missing in the generated class."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from ddpbench.launch.own_class.bindings import Binding, Path, Scope, Tests, key_of
from ddpbench.launch.own_class.dropped import names_read
from ddpbench.launch.own_class.local_modules import LocalModules, attributes_changed, changes_module
from ddpbench.launch.own_class.loops import TrainingLoop, is_backward
from ddpbench.launch.own_class.models import DATASETS
from ddpbench.launch.own_class.script import (
    MODULES,
    FunctionNode,
    Script,
    first_name,
    here,
    in_step,
    is_super,
    last_name,
    place_of_node,
)
from ddpbench.launch.own_class.tracing import MOVES, Origin, Tracer, parameters_of, returned_by
from ddpbench.launch.own_class.trees import walk
from ddpbench.launch.own_class.unusual import evaluates

_DEEPEST = 12
_PARTS = frozenset(
    {"parameters", "named_parameters", "modules", "named_modules", "children", "named_children", "buffers"}
    | {
        "named_buffers",
        "state_dict",
        "items",
        "values",
        "keys",
        "get",
        "view",
        "detach",
        "reshape",
        "flatten",
    }
    | {"data_ptr", "flat", "unbind", "view_as", "float", "half", "double", "bfloat16", "requires_grad_"}
)
"""Methods that return their object or parts of it. Only a method whose name ends in `_` changes the object."""
_FACTS = frozenset(
    {"shape", "device", "dtype", "ndim", "training", "is_cuda", "is_leaf", "requires_grad", "grad_fn"}
)
"""Attributes that describe an object and are not parts of it."""
_READS = frozenset(
    {
        "numel",
        "nelement",
        "element_size",
        "size",
        "dim",
        "norm",
        "sum",
        "mean",
        "std",
        "var",
        "abs",
        "max",
        "min",
    }
    | {
        "clone",
        "item",
        "tolist",
        "numpy",
        "pow",
        "sqrt",
        "isnan",
        "isfinite",
        "isinf",
        "any",
        "all",
        "argmax",
    }
    | {
        "is_floating_point",
        "is_complex",
        "data_ptr",
        "get_device",
        "forward",
        "generate",
        "predict",
        "encode",
    }
    | {
        "decode",
        "sample",
        "extra_repr",
        "index",
        "count",
        "copy",
        "join",
        "format",
        "eq",
        "topk",
        "long",
        "int",
    }
    | {
        "get_last_lr",
        "get_lr",
        "is_enabled",
        "get_scale",
        "memory_format",
        "t",
        "transpose",
        "square",
        "cumsum",
    }
)
_DONE = frozenset(
    {"step", "zero_grad", "backward", "manual_backward", "no_sync", "join", "accumulate", "unscale_", "scale"}
    | {
        "share_memory",
        "share_memory_",
        "compile",
        "set_epoch",
        "register_comm_hook",
        "save",
        "save_pretrained",
    }
    | {
        "save_checkpoint",
        "state_dict",
        "manual_seed",
        "seed",
        "retain_grad",
        "contiguous",
        "set_grad_enabled",
    }
    | {
        "type",
        "summary",
        "print_trainable_parameters",
        "close",
        "flush",
        "log",
        "wait_for_everyone",
        "prepare",
    }
)
"""Methods that a strategy or a sweep replaces, or that change nothing that a step computes."""
HARMLESS_METHODS = _PARTS | _READS | _DONE | MOVES
_MAKERS = frozenset(
    {"TensorDataset", "ConcatDataset", "add_argument", "set_defaults", "parse_args"}
    | {"DataLoader", "DistributedDataParallel", "DDP", "DataParallel", "FullyShardedDataParallel", "FSDP"}
    | {"setup", "setup_module", "setup_dataloaders", "prepare_model", "prepare_data_loader", "initialize"}
    | {"fully_shard", "convert_sync_batchnorm", "deepcopy", "copy", "random_split", "Subset", "prepare"}
    | {"tqdm", "trange", "track", "progress_bar", "GradScaler", "autocast", "partial", "count", "chain"}
    | {"repeat", "cycle", "product", "islice", "AveragedModel", "watch", "summary", "ModelEma", "ModelEMA"}
    | {"EMA", "ExponentialMovingAverage", "broadcast", "all_reduce", "reduce", "barrier", "all_gather"}
    | {"update_parameters", "update", "unwrap_model", "gather", "gather_for_metrics", "save_state"}
    | {"reduce_scatter", "makedirs", "dump", "dumps", "getsizeof", "asdict", "time", "info", "debug"}
    | {
        "warning",
        "parameters_to_vector",
        "append",
        "extend",
        "add",
        "insert",
        "put",
        "setdefault",
        "ref",
        "register_comm_hook",
    }
)
"""Functions that do not change their arguments, or only wrap them, as a strategy does."""
_WORDS = (
    *(
        "print",
        "log",
        "eval",
        "valid",
        "test",
        "save",
        "write",
        "report",
        "plot",
        "display",
        "profile",
        "count",
    ),
    *("metric", "histogram", "scalar", "add_image", "add_graph", "add_text", "add_batch", "unwrap", "gather"),
)
"""A library function with one of these words in its name is assumed to change nothing."""
_MODULES = frozenset(
    {"torch", "F", "np", "numpy", "math", "json", "os", "time", "sys", "functional", "nn", "optim"}
)
_CHANGING = frozenset(
    {"prune", "parametrize", "parametrizations", "quantization", "ao", "init", "swa_utils", "nn_utils"}
)
_BUILTINS = frozenset(dir(builtins)) - {"setattr", "delattr", "exec", "eval"}
_GIVES = frozenset(
    {
        "list",
        "tuple",
        "set",
        "iter",
        "reversed",
        "sorted",
        "next",
        "filter",
        "dict",
        "vars",
        "getattr",
        "chain",
    }
)
"""Functions whose result contains their arguments."""


_NOWHERE = (10**9, 0)
"""A position after all others."""
LOCAL = "a step's own"
"""A value of `Effect.part`: the changed object has a name that a step's statements bind."""
HELD = "an object that holds a part"
"""A value of `Effect.part`: any part may change, as in a callback that a trainer calls."""

RATE = "a learning rate"
"""A value of `Effect.part`: a learning rate changes. In a training loop, this is a schedule, listed separately."""


@dataclass(frozen=True)
class Effect:
    """A statement that changes one of the objects used in training."""

    node: ast.stmt
    part: str
    """The method of the generated class that should have this effect, such as `model`; or `LOCAL`, `HELD` or `RATE`."""
    at: ast.stmt | ast.expr
    """The call or statement, within `node`, that has the effect."""

    def changes_only(self, names: set[str]) -> bool:
        """Return whether a statement changes only objects that are read through one of `names`."""
        if isinstance(self.at, ast.Call):
            method = isinstance(self.at.func, ast.Attribute)
            changed = [self.at.func] if method else arguments_of(self.at)
        else:
            changed = list(_targets(self.at)) if isinstance(self.at, ast.stmt) else []
        return bool(changed) and all(first_name(each) in names for each in changed)

    @property
    def text(self) -> str:
        """The statement's source in one line.

        For a block, it is the source of the inner call or statement with the effect.
        """
        shown = self.at if isinstance(self.node, ast.If | ast.For | ast.While | ast.With) else self.node
        return " ".join(ast.unparse(shown).split())


@dataclass(frozen=True)
class _Where:
    """A function to examine; `taint` maps its parameters to the part of the training passed, such as `model`."""

    scope: Scope
    taint: Mapping[str, str]
    helper: bool
    """True if the function is examined because of a call that the generated class has no copy of."""


def _given_by(node: ast.expr) -> Sequence[ast.expr]:
    match node:
        case ast.Attribute() | ast.Subscript() | ast.Starred() | ast.NamedExpr():
            return [node.value]
        case ast.IfExp():
            return [node.body, node.orelse]
        case ast.BoolOp() | ast.Dict():
            return node.values
        case ast.List() | ast.Tuple() | ast.Set():
            return node.elts
        case ast.BinOp(op=ast.Add()) if not isinstance(node.left, ast.Constant):
            return [each for each in (node.left, node.right) if isinstance(each, ast.Call | ast.List)]
    return []


class Effects:
    """Finds statements that change the script's model, data, optimizer or state and are missing in the class."""

    def __init__(
        self,
        tracer: Tracer,
        loop: TrainingLoop,
        *,
        places: frozenset[int],
        parts: Mapping[tuple[int, Path], str],
        inner: frozenset[tuple[int, Path]],
        state: Mapping[tuple[int, Path], str],
        loaders: set[tuple[int, Path]],
        names: set[str],
    ) -> None:
        """`parts` maps each model, optimizer or dataset to the generated class's method that makes it.

        `state` maps each other object to the method that reads it. Keys are `Origin.key`. `inner` has the keys of
        `parts` inside other objects. `places` has the script's syntax nodes copied into the class, and `names` the
        script's names that it reads.
        """
        self.tracer, self.loop, self.places = tracer, loop, places
        self.parts, self.state, self.inner = parts, state, inner
        self.made = own_functions(names, tracer.script.functions)
        """The script's functions that the generated class calls."""
        self.reads = names | names_read(tracer.script, names)
        """The names that the generated class reads, directly or through the functions and classes that it uses."""
        self.loaders = loaders
        self.modules = LocalModules(tracer.script)
        self._busy: set[tuple[int, frozenset[str]]] = set()
        self._seen: set[tuple[int, str]] = set()
        self._functions = {
            each.node.name: each
            for each in tracer.scopes
            if not isinstance(each.node, ast.Module)
            and (each.own is None or id(each.node) in tracer.enclosing)
        }
        self.trunk = self._trunk()

    def all(self, origins: list[Origin], used: set[str]) -> list[Effect]:
        """Return the effects in functions that lead to the training loop, and in functions that create `origins`.

        `used` has the names that a step binds and reads.
        """
        loop = self.loop
        scopes = {id(each.node): (each, end) for each, end in self.trunk.values()}
        for origin in origins:
            scopes.setdefault(
                id(origin.scope.node), (Scope(origin.scope.node, origin.scope.own), (_NOWHERE, _NOWHERE))
            )
        here_made: dict[int, list[str]] = {}
        for origin in origins:
            here_made.setdefault(id(origin.scope.node), []).append(self.parts.get(origin.key, ""))
        found: dict[tuple[int, int], Effect] = {}
        inside = [*in_step(loop.body), *loop.body]
        for scope, (begin, end) in scopes.values():
            for each in self._in(_Where(scope, {}, helper=False), end):
                key = (each.node.lineno, each.node.col_offset)
                before = key < begin and each.node not in inside and not self._is_called(scope)
                if each.part in (RATE, HELD):
                    part = "optimizer" if each.part == RATE else "model"
                    if before if each.part == RATE else each.node in inside:
                        found.setdefault(key, replace(each, part=part))
                elif each.part in here_made.get(id(scope.node), ()) or not self._is_called(scope):
                    found.setdefault(key, each)
            if scope.node is loop.body_scope.node and not self._is_called(scope):
                own = set(map(id, here(loop.node.body)))
                for each in self._in(_Where(scope, {}, helper=False), body=loop.body):
                    if id(each.node) not in own and each.part not in (
                        HELD,
                        RATE,
                    ):  # in a function whose statements replace its call
                        found.setdefault((each.node.lineno, each.node.col_offset), each)
                taint = dict.fromkeys(used, LOCAL)
                for each in self._in(_Where(scope, taint, helper=False), _backward_of(loop)):
                    if each.part == LOCAL:
                        key = (each.node.lineno, each.node.col_offset)
                        found.setdefault(key, replace(each, part="step"))
        return [found[place] for place in sorted(found)]

    def _is_called(self, scope: Scope) -> bool:
        plain = not isinstance(scope.node, ast.Module) and scope.own is None
        return plain and getattr(scope.node, "name", "") in self.made

    def _trunk(self) -> dict[int, tuple[Scope, tuple[tuple[int, int], tuple[int, int]]]]:
        loop = self.loop
        entry: dict[int, list[ast.AST]] = {id(loop.scope.node): [loop.stands or loop.node]}
        found = {id(loop.scope.node): loop.scope, id(loop.body_scope.node): loop.body_scope}
        for _ in self.tracer.scopes:
            before = len(found)
            for scope in self.tracer.scopes:
                for call in (e for e in here(scope.node.body) if isinstance(e, ast.Call)):
                    called = self._called(call, scope)
                    if called is not None and id(called.node) in found and called.node is not scope.node:
                        if id(scope.node) == id(loop.scope.node) and called.node is loop.body_scope.node:
                            continue
                        found.setdefault(id(scope.node), scope)
                        if call not in entry.setdefault(id(scope.node), []):
                            entry[id(scope.node)].append(call)
            if len(found) == before:
                break
        own = [
            e for e in self.tracer.scopes if e.own is not None and getattr(e.node, "name", "") == "__init__"
        ]
        for each in own:
            if each.own is loop.body_scope.own or each.own is loop.scope.own:
                found.setdefault(id(each.node), each)
        return {key: (scope, _span_of(scope, entry.get(key, []))) for key, scope in found.items()}

    def _stands_in_loop(self, call: ast.Call, called: Scope) -> bool:
        loop = self.loop
        if not any(map(is_backward, here(called.node.body))):
            return False
        return call in here(loop.node.body) and call not in here(loop.body)

    def _called(self, call: ast.Call, scope: Scope) -> Scope | None:
        func = call.func
        if isinstance(func, ast.Name):
            found = self._functions.get(func.id) or self._method(func.id, "__init__")
            return found or self._instance(func, scope)
        if not isinstance(func, ast.Attribute):
            return self._instance(func, scope)
        if scope.own is not None and key_of(func.value) == "self":
            return self._method(scope.own.name, func.attr) or self._instance(func, scope)
        if scope.own is not None and is_super(func.value):
            inherited = self.tracer.script.inherited(scope.own, func.attr)
            return Scope(inherited[1], scope.own) if inherited is not None else None
        if isinstance(func.value, ast.Name) and func.value.id in self.tracer.script.classes:
            return self._method(func.value.id, func.attr)
        made = self.tracer.trace(func.value, scope)
        return self._method(last_name(made.node), func.attr) if isinstance(made.node, ast.Call) else None

    def _instance(self, func: ast.expr, scope: Scope) -> Scope | None:
        made = self.tracer.trace(func, scope).node
        return self._method(last_name(made), "__call__") if isinstance(made, ast.Call) else None

    def _method(self, owner: str, name: str) -> Scope | None:
        script = self.tracer.script
        own = script.classes.get(owner)
        found = script.method(own, name) if own is not None else None
        return Scope(found[1], own) if found is not None else None

    def _in(
        self, where: _Where, end: tuple[int, int] = _NOWHERE, body: list[ast.stmt] | None = None
    ) -> Iterator[Effect]:
        for node, heads, tests in _statements(body or where.scope.node.body, ()):
            if (node.lineno, node.col_offset) >= end:
                continue
            value = getattr(node, "value", None)
            taken = place_of_node(node) in self.places or place_of_node(value or node) in self.places
            if taken and not where.helper and not isinstance(node, ast.If | ast.For | ast.While | ast.With):
                continue
            if self.tracer.is_untaken(tests, where.scope):
                continue
            yield from self._effects(node, heads, where)

    def _effects(self, node: ast.stmt, heads: list[ast.AST], where: _Where) -> Iterator[Effect]:
        for target in _targets(node):
            part = self._set(target, node, where) or self._made_anew(target, node, where)
            if part:
                yield Effect(node, part, node)
        for head in heads:
            for call in (each for each in walk(head) if isinstance(each, ast.Call)):
                if place_of_node(call) in self.places and not where.helper:
                    continue
                part = self._does(call, where)
                if part:
                    yield Effect(node, part, call)

    def _set(self, target: ast.expr, node: ast.stmt, where: _Where) -> str:
        if where.helper and self._is_global(target, where):
            return "step"
        if isinstance(target, ast.Name):
            kept = isinstance(node, ast.AugAssign) and target.id not in ("self",)
            return self._part(target, where, whole=False) if kept else ""
        if not isinstance(target, ast.Attribute | ast.Subscript):
            return ""
        words = ast.unparse(target)
        rate = "'lr'" in words and "param_groups" in self._source(target, where)
        if rate or "require_backward_grad_sync" in words:
            return RATE if rate else ""  # a schedule is listed under a separate heading
        part = self._part(target.value, where)
        if where.helper or part == self._part(target.value, where, whole=False):
            return part or self._of_class(target.value)
        _, (begin, _) = self.trunk.get(id(where.scope.node), (where.scope, (_NOWHERE, _NOWHERE)))
        return (
            part if (node.lineno, node.col_offset) >= begin else ""
        )  # before the training, this sets the initial state, which the class has

    def _is_global(self, target: ast.expr, where: _Where) -> bool:
        name = first_name(target)
        node, own = where.scope.node, where.scope.own
        if isinstance(target, ast.Name):
            outer = any(isinstance(each, ast.Global) and name in each.names for each in here(node.body))
            return outer and name in self.reads
        if isinstance(node, ast.Module) or not isinstance(target, ast.Attribute | ast.Subscript):
            return False
        if own is not None and name == "cls" and name in parameters_of(node):
            return own.name in self.reads
        local = {*parameters_of(node), *self.tracer.bindings(where.scope)}
        return name in self.reads & self.tracer.script.importable - local

    def _of_class(self, node: ast.expr) -> str:
        """Return `model` or `dataset` for such a class of the script, else an empty text."""
        for part, roots in (("model", MODULES), ("dataset", DATASETS)):
            if isinstance(node, ast.Name) and self.tracer.script.derives(node.id, roots):
                return part
        return ""

    def _made_anew(self, target: ast.expr, node: ast.stmt, where: _Where) -> str:
        key = key_of(target)
        if not key or not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Call):
            return ""
        if not any(key_of(each) == key for each in walk(node.value)):
            return ""
        known = last_name(node.value) in _MAKERS | HARMLESS_METHODS
        made = (
            self.tracer.trace(node.value, where.scope).node is not node.value
        )  # the optimizer is only moved, or wrapped
        return "" if known or made or self._part(target, where) != "optimizer" else "optimizer"

    def _source(self, target: ast.expr, where: _Where) -> str:
        name = first_name(target)
        bound = self.tracer.bindings(where.scope).get(name, [])
        return ast.unparse(target) + " ".join(ast.unparse(each.value) for each in bound)

    def _does(self, call: ast.Call, where: _Where) -> str:
        func, name = call.func, last_name(call)
        called = self.loop.body_scope if call is self.loop.call else self._called(call, where.scope)
        taint: dict[str, str] = {}
        if called is not None:
            if (id(called.node) in self.trunk and not where.helper) or self._stands_in_loop(call, called):
                return ""
            taint = self._given(call, called, where)
            called = replace(called, call=call, caller=where.scope)
        receiver = self._part(func.value, where) if isinstance(func, ast.Attribute) else ""
        if receiver and isinstance(func, ast.Attribute):
            own = called is not None and not isinstance(called.node, ast.Module)
            part = self._by_receiver(call, func.value, receiver, where, own=own)
            if part is not None:
                return part
            if own:
                taint["self"] = receiver
        inner = self._inside(called, taint) if called is not None else self._elsewhere(call, where.scope)
        if called is not None or inner:
            return inner
        if receiver or (isinstance(func, ast.Name) and self._part(func, where)):
            return ""  # the forward pass of a module
        given = [each for each in arguments_of(call) if self._part(each, where) not in ("", LOCAL)]
        pure = not given or self._is_pure(call, name)
        if pure or (name in ("setattr", "delattr") and given[0] is not call.args[0]):
            return HELD if not given and self._may_change(call, name, where) else ""
        return self._part(given[0], where)

    def _elsewhere(self, call: ast.Call, scope: Scope) -> str:
        func, own = call.func, scope.own
        if (
            isinstance(func, ast.Attribute)
            and own is not None
            and (key_of(func.value) == "self" or is_super(func.value))
        ):
            method = self.modules.inherited(own, func.attr)
            named = (
                func.attr.startswith("__") or self._is_known(func.attr) or key_of(func) in self._set_in(own)
            )
            unknown = not named and self.modules.has_unknown_base(own)
            changes = unknown if method is None else bool(attributes_changed(method) & self._attributes)
            return "step" if changes else ""
        function = self.modules.function(func)
        if function is None or not changes_module(function):
            return ""
        module = self.modules.module_of(first_name(func))
        return "step" if any(self.modules.module_of(name) == module for name in self.reads) else ""

    @cached_property
    def _attributes(self) -> set[str]:
        return {
            each.attr
            for scope, _ in self.trunk.values()
            for each in walk(scope.node)
            if isinstance(each, ast.Attribute) and key_of(each.value) == "self"
        }

    def _set_in(self, own: ast.ClassDef) -> set[str]:
        nodes = (node for each in self.tracer.script.lineage(own) for node in walk(each))
        return {
            key_of(each)
            for each in nodes
            if isinstance(each, ast.Attribute) and isinstance(each.ctx, ast.Store) and key_of(each)
        }

    def _may_change(self, call: ast.Call, name: str, where: _Where) -> bool:
        func, arguments = call.func, arguments_of(call)
        bound = self.tracer.bindings(where.scope).get(name, []) if isinstance(func, ast.Name) else []
        if not arguments:
            return any(each.kind == "item" for each in bound)
        if name in self.tracer.script.classes or self._is_pure(call, name):
            return False
        words = ast.unparse(func) + " ".join(ast.unparse(each.value) for each in bound)
        return not self._is_known(words) and any(self._holds(each, where) for each in arguments)

    def _holds(self, node: ast.expr, where: _Where) -> bool:
        own = where.scope.own
        if isinstance(node, ast.Name) and node.id == "self" and own is not None:
            return any(scope.own is own for scope, _ in self.trunk.values())
        made = self.tracer.trace(node, where.scope)
        if not isinstance(made.node, ast.Call) or last_name(made.node) not in self.tracer.script.classes:
            return False
        inner = replace(where, scope=made.scope, taint={})
        return any(self._part(each, inner, whole=False) for each in arguments_of(made.node))

    def _by_receiver(
        self, call: ast.Call, of: ast.expr, receiver: str, where: _Where, *, own: bool
    ) -> str | None:
        """Return the part that a method call changes, by the method's name; None if the name does not decide.

        `own` is True if the script defines the method, so that its statements show what changes.
        """
        name = last_name(call)
        if receiver == LOCAL:
            in_place = where.helper and name.endswith("_")
            return LOCAL if in_place or name.startswith("register_") else ""
        if name == "load_state_dict" and call.args and self._is_loaded(call.args[0], where):
            return ""
        if own:
            return None
        if receiver == "model" and self._ends_training(call, of, where):
            return receiver
        if self._of_library(of, where) and self._is_known(name):
            return ""
        changes = name not in HARMLESS_METHODS or name == "requires_grad_" or _casts(call, receiver)
        return receiver if changes else None

    def _ends_training(self, call: ast.Call, of: ast.expr, where: _Where) -> bool:
        if not evaluates(call):
            return False
        whole = of.value if isinstance(of, ast.Attribute) and of.attr == "module" else of
        if isinstance(whole, ast.Name) and where.taint.get(whole.id) == "model":
            return False  # in a function that gets a model, it may be the entire model
        if self.tracer.trace(whole, where.scope).key in set(self.parts) - self.inner:
            return False
        loop = self.loop
        late = where.scope.node is loop.scope.node and call.lineno > (loop.node.end_lineno or 0)
        again = [
            each.lineno
            for each in here(where.scope.node.body)
            if isinstance(each, ast.Call) and last_name(each) == "train" and not evaluates(each)
        ]
        return not again or not (late or max(again) > call.lineno)

    def _inside(self, called: Scope, taint: dict[str, str]) -> str:
        key = (id(called.node), frozenset(taint))
        if key in self._busy or len(self._busy) > _DEEPEST:
            return ""
        self._busy.add(key)
        try:
            parts = [each.part for each in self._in(_Where(called, taint, helper=True))]
            return next((each for each in parts if each != HELD), HELD if parts else "")
        finally:
            self._busy.discard(key)

    def _given(self, call: ast.Call, called: Scope, where: _Where) -> dict[str, str]:
        assert not isinstance(called.node, ast.Module)
        names = parameters_of(called.node)
        of_object = called.own is not None and id(called.node) not in self.tracer.enclosing
        first = 1 if of_object else 0
        names = names[first:]
        pairs = [*zip(names, call.args, strict=False)]
        rest, others = called.node.args.vararg, called.node.args.kwarg
        if others is not None:
            pairs += [(others.arg, each.value) for each in call.keywords if each.arg not in names]
        if rest is not None:
            pairs += [(rest.arg, each) for each in call.args[len(called.node.args.args) - first :]]
        pairs += [(each.arg, each.value) for each in call.keywords if each.arg]
        return {name: part for name, value in pairs if (part := self._part(value, where))}

    def _is_pure(self, call: ast.Call, name: str) -> bool:
        if isinstance(call.func, ast.Name) and name in _BUILTINS:
            return name != "map" or not call.args or last_name(call.args[0]) in _BUILTINS
        if (
            name in _MAKERS
            or name.endswith("Sampler")
            or name in HARMLESS_METHODS - {"prepare", "requires_grad_"}
            or self._is_known(name)
        ):
            return True
        if not isinstance(call.func, ast.Name | ast.Attribute):
            return False
        if name.endswith("_"):
            # a tensor's method changes only the tensor
            return not isinstance(call.func, ast.Name) and first_name(call.func) not in _MODULES | {"init"}
        path = ast.unparse(call.func).split(".")
        module = path[0] in _MODULES and not _CHANGING & set(path) and "utils" not in path
        return module or "lr_scheduler" in path or path[-1].endswith("LR")

    def _is_known(self, name: str) -> bool:
        return any(word in name.lower() for word in _WORDS) and not name.endswith("_")

    def _of_library(self, node: ast.expr, where: _Where) -> bool:
        return self._part(node, where, whole=False) == ""

    def _is_loaded(self, node: ast.expr, where: _Where) -> bool:
        found = self.tracer.trace(node, where.scope).node
        return any("load" in last_name(each) for each in walk(found) if isinstance(each, ast.Call)) or any(
            "load" in ast.unparse(each.value)
            for each in self.tracer.bindings(where.scope).get(first_name(node), [])
        )

    def _part(self, node: ast.expr, where: _Where, depth: int = 0, *, whole: bool = True) -> str:
        """Return the part of the training that an expression belongs to; empty if none.

        If `whole` is False, objects that a step only reads do not count.
        """
        if depth > _DEEPEST:
            return ""
        known = self._by_origin(node, where, depth, whole=whole)
        if known is not None:
            return known
        match node:
            case ast.Name():
                return self._named(
                    node.id, node.lineno if hasattr(node, "lineno") else 0, where, depth, whole
                )
            case ast.ListComp() | ast.SetComp() | ast.GeneratorExp():
                return self._comprehended(node, node.elt, where, depth, whole)
            case ast.Call():
                return self._returned(node, where, depth, whole)
        parts = (self._part(each, where, depth + 1, whole=whole) for each in _given_by(node))
        return next(filter(None, parts), "")

    def _by_origin(self, node: ast.expr, where: _Where, depth: int, *, whole: bool) -> str | None:
        if isinstance(node, ast.Name) and node.id in where.taint:
            return where.taint[node.id]
        if not isinstance(node, ast.Name | ast.Attribute | ast.Call):
            return None
        origin = self.tracer.trace(node, where.scope)
        tables = (self.parts, self.state) if whole else (self.parts,)
        for part in (table[origin.key] for table in tables if origin.key in table):
            return part
        follows = isinstance(node, ast.Call) and origin.node is not node
        if isinstance(node, ast.Attribute):
            of_self = isinstance(node.value, ast.Name) and node.value.id == "self"
            follows = of_self and where.scope.own is not None and "self" not in where.taint
            if node.attr in _FACTS or (follows and origin.node is node):
                return ""
        if not follows:
            return None
        return self._part(origin.node, replace(where, scope=origin.scope), depth + 1, whole=whole)

    def _named(self, name: str, line: int, where: _Where, depth: int, whole: bool) -> str:
        key = (id(where.scope.node), name)
        if key in self._seen:
            return ""
        self._seen.add(key)
        try:
            for binding in self.tracer.bindings_at(name, where.scope, line):
                part = self._bound(binding, where, depth, whole)
                if part:
                    return part
        finally:
            self._seen.discard(key)
        origin = self.tracer.trace(
            ast.copy_location(ast.Name(name, ast.Load()), ast.Pass(lineno=line, col_offset=0)), where.scope
        )
        if (
            origin.scope.node is not where.scope.node
            and not isinstance(origin.node, ast.Name)
            and not where.helper
        ):
            return self._part(origin.node, replace(where, scope=origin.scope), depth + 1, whole=whole)
        return ""

    def _bound(self, binding: Binding, where: _Where, depth: int, whole: bool) -> str:
        value, path = binding.value, binding.path
        while binding.kind == "item" and isinstance(value, ast.Call) and path:
            if last_name(value) == "enumerate" and value.args:
                if path[0] == 0:
                    return ""
                value, path = value.args[0], path[1:]
            elif last_name(value) == "zip" and path[0] < len(value.args):
                value, path = value.args[path[0]], path[1:]
            else:
                break
        named = last_name(value).startswith("named_") or last_name(value) == "items"
        loads = (
            last_name(value).endswith("Loader") or self.tracer.trace(value, where.scope).key in self.loaders
        )
        if binding.kind == "item" and loads:
            return ""  # a batch has copies of samples
        if binding.kind == "item" and last_name(value) == "items" and path == (0,):
            return self._key(value, where, depth, whole)
        if binding.kind == "context" or (binding.kind == "item" and named and path == (0,)):
            return ""
        return self._part(value, where, depth + 1, whole=whole)

    def _key(self, items: ast.expr, where: _Where, depth: int, whole: bool) -> str:
        of = (
            items.func.value
            if isinstance(items, ast.Call) and isinstance(items.func, ast.Attribute)
            else None
        )
        if of is None:
            return ""
        origin = self.tracer.trace(of, where.scope)
        inner = replace(where, scope=origin.scope)
        if isinstance(origin.node, ast.DictComp):
            return self._comprehended(origin.node, origin.node.key, inner, depth, whole)
        return ""

    def _comprehended(
        self,
        node: ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp,
        element: ast.expr,
        where: _Where,
        depth: int,
        whole: bool,
    ) -> str:
        taint = dict(where.taint)
        for each in node.generators:
            if self.tracer.trace(each.iter, where.scope).key in self.loaders:
                continue
            part = self._part(each.iter, replace(where, taint=taint), depth + 1, whole=whole)
            names = [e.id for e in walk(each.target) if isinstance(e, ast.Name)]
            plain = isinstance(each.iter, ast.Call) and last_name(each.iter).startswith(("named_", "items"))
            for name in names[1:] if plain else names:
                if part:
                    taint[name] = part
        return self._part(element, replace(where, taint=taint), depth + 1, whole=whole)

    def _returned(self, node: ast.Call, where: _Where, depth: int, whole: bool) -> str:
        name = last_name(node)
        if isinstance(node.func, ast.Attribute) and (name in _PARTS or name.startswith("get_")):
            return self._part(node.func.value, where, depth + 1, whole=whole)
        if name in _GIVES or name in ("zip", "enumerate"):
            return next(
                filter(None, (self._part(e, where, depth + 1, whole=whole) for e in arguments_of(node))),
                "",
            )
        called = self._functions.get(name) if isinstance(node.func, ast.Name) else None
        if called is not None and not isinstance(called.node, ast.Module):
            inner = _Where(called, self._given(node, called, where), helper=True)
            for value in returned_by(called.node) if inner.taint else ():
                part = self._part(value, inner, depth + 1, whole=whole)
                if part:
                    return part
        return ""


_TYPES = ("float64", "double", "float16", "half", "bfloat16", "complex64", "complex128", "cfloat", "cdouble")


def _casts(call: ast.Call, part: str) -> bool:
    if part != "model":
        return False
    name = last_name(call)
    given = [*call.args, *(each.value for each in call.keywords)]
    return name in _TYPES or (name in ("to", "type") and any(last_name(each) in _TYPES for each in given))


def _backward_of(loop: TrainingLoop) -> tuple[int, int]:
    calls = [each for each in in_step(loop.body) if isinstance(each, ast.Call) and is_backward(each)]
    places = [(each.lineno, each.col_offset) for each in calls]
    return min(places, default=(0, 0))


def _span_of(scope: Scope, entries: list[ast.AST]) -> tuple[tuple[int, int], tuple[int, int]]:
    found = [each for each in _flat(scope.node.body) if any(inner in entries for inner in walk(each))]
    if not found:
        return _NOWHERE, _NOWHERE
    first, last = found[0], found[-1]
    return (first.lineno, first.col_offset), (last.end_lineno or 0, last.end_col_offset or 0)


def _flat(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    for each in body:
        if isinstance(each, ast.If | ast.With | ast.AsyncWith | ast.Try):
            for name in ("body", "handlers", "orelse", "finalbody"):
                for inner in getattr(each, name, []):
                    yield from _flat(inner.body if isinstance(inner, ast.ExceptHandler) else [inner])
        elif not isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield each


def _statements(body: list[ast.stmt], tests: Tests) -> Iterator[tuple[ast.stmt, list[ast.AST], Tests]]:
    for each in body:
        if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            continue
        if isinstance(each, ast.If):
            yield each, [each.test], tests
            yield from _statements(each.body, (*tests, (each.test, True)))
            yield from _statements(each.orelse, (*tests, (each.test, False)))
        elif isinstance(each, ast.For | ast.AsyncFor | ast.While):
            yield each, [each.test if isinstance(each, ast.While) else each.iter], tests
            yield from _statements([*each.body, *each.orelse], tests)
        elif isinstance(each, ast.With | ast.AsyncWith):
            yield each, [item.context_expr for item in each.items], tests
            yield from _statements(each.body, tests)
        elif isinstance(each, ast.Try):
            inner = [e for handler in each.handlers for e in handler.body]
            yield from _statements([*each.body, *inner, *each.orelse, *each.finalbody], tests)
        else:
            yield each, [each], tests


def arguments_of(call: ast.Call) -> list[ast.expr]:
    """Return the positional arguments of a call, then those by name. An argument `*rest` counts as `rest`."""
    given = [*call.args, *(each.value for each in call.keywords)]
    return [each.value if isinstance(each, ast.Starred) else each for each in given]


def causes_of(node: ast.AST, script: Script, depth: int = 0) -> Iterator[ast.stmt]:
    """Yield the statements that set a global, an attribute or an entry in the functions that a node calls.

    Only functions and methods of the script count.
    """
    for call in (each for each in walk(node) if isinstance(each, ast.Call)):
        functions = _called_by(call, script)
        if len(functions) != 1 or depth > _DEEPEST:
            continue
        body = functions[0].body
        outer = {name for e in here(body) if isinstance(e, ast.Global | ast.Nonlocal) for name in e.names}
        for each in here(body):
            if isinstance(each, ast.stmt) and any(_is_outer(target, outer) for target in _targets(each)):
                yield each
        for each in body:
            yield from causes_of(each, script, depth + 1)


def _called_by(call: ast.Call, script: Script) -> list[FunctionNode]:
    name = last_name(call)
    if isinstance(call.func, ast.Name):
        return [script.functions[name]] if name in script.functions else []
    return [each for _, each in script.methods() if each.name == name]


def _is_outer(target: ast.expr, outer: set[str]) -> bool:
    return (
        target.id in outer
        if isinstance(target, ast.Name)
        else isinstance(target, ast.Attribute | ast.Subscript)
    )


def names_set(node: ast.stmt) -> set[str]:
    """Return the names, and the last names of attributes, that a statement sets."""
    parts = {each for target in _targets(node) for each in (first_name(target), last_name(target))}
    return parts - {"", "self"}


def _targets(node: ast.stmt) -> Iterator[ast.expr]:
    found: list[ast.expr] = []
    if isinstance(node, ast.Assign | ast.Delete):
        found = [*node.targets]
    elif isinstance(node, ast.AugAssign | ast.AnnAssign):
        found = [node.target]
    while found:
        each = found.pop(0)
        if isinstance(each, ast.Tuple | ast.List):
            found = [*each.elts, *found]
        else:
            yield each


def own_functions(names: set[str], functions: Mapping[str, FunctionNode]) -> set[str]:
    """Return the functions of the script in `names`, and the functions that these call, directly or indirectly."""
    found: set[str] = set()
    todo = names & set(functions)
    while todo:
        name = todo.pop()
        found.add(name)
        calls = {e.id for e in walk(functions[name]) if isinstance(e, ast.Name)} & set(functions)
        todo |= calls - found
    return found
