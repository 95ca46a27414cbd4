"""Find every node that may change an object, through all of the object's names."""

from __future__ import annotations

import ast
import builtins
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass

from ddpbench.launch.own_class.effects import HARMLESS_METHODS
from ddpbench.launch.own_class.immutable import Values, consumed, dotted
from ddpbench.launch.own_class.script import last_name
from ddpbench.launch.own_class.tracing import parameters_of
from ddpbench.launch.own_class.trees import walk
from ddpbench.launch.own_class.variables import ScopeVariable, Variables

_PARTS = frozenset({"get", "items", "values", "copy", "elements", "most_common"})
"""Methods that return a container's contents."""
_READS = HARMLESS_METHODS | frozenset(
    {"keys", "index", "count", "isdisjoint", "issubset", "issuperset", "union", "intersection", "difference"}
    | {
        "as_dict",
        "to_dict",
        "total",
        "_asdict",
        "_replace",
        "new_child",
        "__len__",
        "__contains__",
        "is_file",
    }
) - {"add_", "requires_grad_"}
_CHANGES = frozenset(
    {"append", "appendleft", "extend", "extendleft", "insert", "update", "setdefault", "pop", "popleft"}
    | {"popitem", "remove", "discard", "clear", "sort", "reverse", "add", "rotate", "subtract", "fill", "put"}
    | {
        "move_to_end",
        "difference_update",
        "intersection_update",
        "__setitem__",
        "__delitem__",
        "resize",
        "send",
    }
    | {"__setattr__", "__next__", "partition", "itemset", "merge_update"}
)
_SETS = frozenset({"update", "setdefault", "__setitem__", "__setattr__"})
_STORES = frozenset({"append", "appendleft", "extend", "insert", "add", "put", "setdefault", "update"})
"""Methods that put their arguments into their object."""
_BUILTINS = frozenset(dir(builtins)) - {"next", "setattr", "delattr", "exec", "eval", "vars", "getattr"}
_ALIASING = frozenset(
    {"list", "tuple", "dict", "set", "frozenset", "sorted", "enumerate", "zip", "reversed", "iter", "filter"}
    | {"map", "min", "max", "sum"}
)
"""Functions whose result contains their arguments."""
_LIBRARIES = frozenset(
    {"torch", "numpy", "math", "json", "yaml", "pprint", "logging", "wandb", "itertools", "functools", "time"}
    | {
        "collections",
        "copy",
        "os",
        "sys",
        "pathlib",
        "torchvision",
        "pickle",
        "statistics",
        "types",
        "argparse",
    }
    | {
        "dataclasses",
        "tqdm",
        "transformers",
        "datasets",
        "sklearn",
        "pandas",
        "warnings",
        "string",
        "textwrap",
    }
)
_IN_PLACE = frozenset(
    {
        "shuffle",
        "heapify",
        "heappush",
        "heappop",
        "setitem",
        "delitem",
        "iadd",
        "ior",
        "insort",
        "copyto",
        "put",
    }
    | {"fill_diagonal", "place", "all_reduce", "broadcast", "reduce", "all_gather", "scatter", "putmask"}
)
_COPIES = frozenset({"deepcopy", "dumps", "dump", "tensor", "array", "asdict", "len"})
_WORDS = ("print", "log", "save", "write", "report", "plot", "info", "debug", "warn", "dump", "add_", "show")
_GIVES = (ast.Tuple, ast.List, ast.Set, ast.Dict, ast.BoolOp, ast.Starred, ast.Await, ast.IfExp)
_SHOWS = (
    *(ast.Compare, ast.FormattedValue, ast.JoinedStr, ast.UnaryOp, ast.Expr, ast.Assert, ast.If, ast.While),
    *(ast.AugAssign, ast.Subscript, ast.Lambda, ast.withitem, ast.Match),
)
"""Nodes that only read their children."""


@dataclass(frozen=True)
class _Held:
    """The object whose changes are sought, or only its `part`; `inner` if it is inside the examined value."""

    part: str | None = None
    value: ast.expr | None = None
    """The expression that makes the object, if known."""
    inner: bool = False


class Calls(ABC):
    """Finds nodes that may change an object that is passed to a call."""

    def __init__(self, variables: Variables, values: Values) -> None:
        self.variables, self.values = variables, values
        self._seen: set[tuple[int | ScopeVariable, str | None]] = set()

    def _is_flat(self, held: _Held) -> bool:
        return held.value is not None and self.values.is_flat(held.value)

    @abstractmethod
    def _named(self, variable: ScopeVariable, held: _Held) -> Iterator[ast.AST]:
        """Yield the nodes that may change an object through one of its names."""

    @abstractmethod
    def _used(self, node: ast.expr, held: _Held) -> Iterator[ast.AST]:
        """Yield the nodes that may change an object through a node that evaluates to it."""

    @abstractmethod
    def _bound(self, target: ast.expr, held: _Held) -> Iterator[ast.AST]:
        """Yield the nodes that may change an object after it is assigned to a target."""

    @abstractmethod
    def _kept(self, name: str, held: _Held) -> Iterator[ast.AST]:
        """Yield the nodes that may change an object that is stored in an attribute of this name."""

    def _called(self, call: ast.Call, func: ast.Attribute, held: _Held) -> Iterator[ast.AST]:
        name = func.attr
        own = self.values.made_by(held.value)
        methods = [
            each
            for each in (own.body if own is not None else ())
            if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef) and each.name == name
        ]
        for each in methods:
            if each.args.args:
                yield from self._named(self.variables.named(each.args.args[0].arg, each), held)
        if methods:
            return
        if name in _CHANGES or (name.endswith("_") and not name.endswith("__")):
            yield call
        elif name in _PARTS:
            if not self._is_flat(held):
                yield from self._used(call, _Held(inner=True))
        elif not (held.inner or name in _READS or self.values.is_array(held.value) or own is not None):
            yield call

    def _given(self, node: ast.expr, parent: ast.Call | ast.keyword, held: _Held) -> Iterator[ast.AST]:
        call = self.variables.above[id(parent)] if isinstance(parent, ast.keyword) else parent
        if not isinstance(call, ast.Call):
            return  # a keyword of a class statement, such as `metaclass=`
        if call.func is node:
            own = self.values.made_by(held.value)
            for each in own.body if own is not None else ():
                if isinstance(each, ast.FunctionDef) and each.name == "__call__" and each.args.args:
                    yield from self._named(self.variables.named(each.args.args[0].arg, each), held)
            return
        if isinstance(parent, ast.keyword) and parent.arg is None and self._is_flat(held):
            return  # `**given` makes a new dictionary
        taken = self._parameters(node, parent, call)
        if taken is not None:
            for variable, inner in taken:
                yield from self._named(variable, _Held(inner=True) if inner else held)
            own = self.values.script.classes.get(last_name(call)) if isinstance(call.func, ast.Name) else None
            if own is not None and not any(getattr(e, "name", "") == "__init__" for e in own.body):
                yield from self._into_field(node, parent, call, own, held)
            return
        if isinstance(call.func, ast.Name) and hasattr(builtins, call.func.id):
            yield from self._to_builtin(node, call, call.func.id, held)
        else:
            yield from self._to_library(node, call, held)

    def _into_field(
        self, node: ast.expr, parent: ast.AST, call: ast.Call, own: ast.ClassDef, held: _Held
    ) -> Iterator[ast.AST]:
        fields = [
            e.target.id for e in own.body if isinstance(e, ast.AnnAssign) and isinstance(e.target, ast.Name)
        ]
        name = parent.arg if isinstance(parent, ast.keyword) else None
        if isinstance(parent, ast.Call) and node in call.args and call.args.index(node) < len(fields):
            name = fields[call.args.index(node)]
        if name:
            yield from self._kept(name, held)

    def _to_builtin(self, node: ast.expr, call: ast.Call, name: str, held: _Held) -> Iterator[ast.AST]:
        if name in ("setattr", "delattr", "next", "exec", "eval"):
            key = (
                call.args[1].value if len(call.args) > 1 and isinstance(call.args[1], ast.Constant) else None
            )
            first = bool(call.args) and call.args[0] is node
            if first and (key is None or held.part in (None, key)):
                yield call
        elif name in ("vars", "getattr"):
            yield from self._used(call, held if name == "vars" else _Held(inner=True))
        elif name in _BUILTINS:
            if consumed(held.value) and name not in ("print", "iter", "isinstance", "type", "id"):
                yield call
            elif name in _ALIASING and not self._is_flat(held):
                yield from self._used(call, _Held(inner=True))
        elif not held.inner:
            yield call

    def _to_library(self, node: ast.expr, call: ast.Call, held: _Held) -> Iterator[ast.AST]:
        name, path = last_name(call), dotted(call.func, self.values.imports)
        into = any(each.arg == "out" and each.value is node for each in call.keywords)
        function = name.endswith("_") and path is not None
        if into or name in _IN_PLACE or (function and call.args and call.args[0] is node):
            yield call
        elif name in _COPIES or name.endswith("Loader") or (held.inner and name not in _STORES):
            return
        elif name in _STORES and isinstance(call.func, ast.Attribute):
            yield from self._bound(
                ast.copy_location(ast.Subscript(call.func.value, node, ast.Store()), node), held
            )
        elif consumed(held.value):
            yield call
        elif path is not None and path.partition(".")[0] in _LIBRARIES:
            yield from self._used(call, _Held(inner=True))
        elif path is None and isinstance(call.func, ast.Attribute):
            return  # a method of an object that is not the script's
        elif not (name[:1].isupper() or any(word in name.lower() for word in _WORDS) or name in _READS):
            yield call

    def _parameters(
        self, node: ast.expr, parent: ast.AST, call: ast.Call
    ) -> list[tuple[ScopeVariable, bool]] | None:
        """Return the parameters that receive an argument, each with True if it also receives others, as `*rest` does.

        None if a library is called.
        """
        found: list[tuple[ScopeVariable, bool]] = []
        functions = self.values.functions(call.func)
        if not functions:
            known = isinstance(call.func, ast.Name) and call.func.id in self.values.script.classes
            return [] if known else None
        for function, skipped in functions:
            names = (
                parameters_of(function)
                if not isinstance(function, ast.Lambda)
                else [
                    each.arg
                    for each in [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]
                ]
            )
            rest, others = function.args.vararg, function.args.kwarg
            placed = [each.arg for each in [*function.args.posonlyargs, *function.args.args]][skipped:]
            name, inner = "", False
            if isinstance(parent, ast.keyword):
                name = parent.arg if parent.arg in names else others.arg if others is not None else ""
                inner = name not in names
            elif node in call.args and not any(isinstance(each, ast.Starred) for each in call.args):
                place = call.args.index(node)
                name = placed[place] if place < len(placed) else rest.arg if rest is not None else ""
                inner = name not in names
            if name:
                found.append((self.variables.named(name, function), inner))
        return found


class Uses(Calls):
    """Finds the nodes of a script that may change an object."""

    def changes(self, variable: ScopeVariable, part: str | None, value: ast.expr | None) -> list[ast.AST]:
        """Return the nodes that may change a variable's object, or only its `part`, in source order.

        Uses that only read the object are left out.
        """
        self._seen.clear()
        return _in_order(self._named(variable, _Held(part, value, inner=self.values.is_of_library(value))))

    def changes_of_attribute(self, name: str, part: str | None, value: ast.expr | None) -> list[ast.AST]:
        """Return the nodes that may change the object held by attributes of this name, or only the object's `part`."""
        self._seen.clear()
        return _in_order(self._kept(name, _Held(part, value, inner=self.values.is_of_library(value))))

    def _named(self, variable: ScopeVariable, held: _Held) -> Iterator[ast.AST]:
        if (variable, held.part) in self._seen:
            return
        self._seen.add((variable, held.part))
        for use in self.variables.uses.get(variable, ()):
            parent = self.variables.above[id(use)]
            if isinstance(use.ctx, ast.Load):
                yield from self._used(use, held)
            elif isinstance(parent, ast.AugAssign):
                yield parent

    def _used(self, node: ast.expr, held: _Held) -> Iterator[ast.AST]:
        parent = self.variables.above[id(node)]
        match parent:
            case ast.Attribute():
                yield from self._attribute(parent, held)
            case ast.Subscript() if parent.value is node:
                yield from self._entry(parent, held)
            case ast.Call() | ast.keyword():
                yield from self._given(node, parent, held)
            case ast.Assign() | ast.AnnAssign() | ast.NamedExpr():
                targets = parent.targets if isinstance(parent, ast.Assign) else [parent.target]
                for target in targets:
                    yield from self._bound(target, held)
            case ast.For() | ast.AsyncFor() | ast.comprehension():
                yield from self._iterated(node, parent, held)
            case ast.Return() | ast.Yield() | ast.YieldFrom():
                yield from self._returned(parent, held)
            case ast.expr() if not isinstance(parent, _SHOWS):
                yield from self._within(node, parent, held)
            case _ if not held.inner and not self._is_shown(parent):
                yield node

    def _is_shown(self, node: ast.AST) -> bool:
        return isinstance(node, _SHOWS) and not (isinstance(node, ast.withitem) and node.optional_vars)

    def _within(self, node: ast.expr, parent: ast.expr, held: _Held) -> Iterator[ast.AST]:
        if isinstance(parent, ast.IfExp) and parent.test is node:
            return
        if isinstance(parent, ast.Dict) and node in parent.keys:
            return
        if isinstance(parent, ast.BinOp):
            whole = False
        elif isinstance(parent, _GIVES):
            whole = isinstance(parent, ast.BoolOp | ast.IfExp | ast.Await)
        else:
            if not held.inner:
                yield node
            return
        star = isinstance(parent, ast.Starred) or (
            isinstance(parent, ast.Dict) and self._is_star(parent, node)
        )
        if (star or isinstance(parent, ast.BinOp)) and self._is_flat(held):
            if star and consumed(held.value):
                yield node
            return
        yield from self._used(parent, held if whole else _Held(inner=True))

    def _is_star(self, made: ast.Dict, node: ast.expr) -> bool:
        return any(key is None and value is node for key, value in zip(made.keys, made.values, strict=True))

    def _iterated(
        self, node: ast.expr, loop: ast.For | ast.AsyncFor | ast.comprehension, held: _Held
    ) -> Iterator[ast.AST]:
        if consumed(held.value):
            yield node
        elif not self._is_flat(held) and node is loop.iter:
            yield from self._bound(loop.target, _Held(inner=True))

    def _returned(self, node: ast.AST, held: _Held) -> Iterator[ast.AST]:
        function = self.variables.function(node)
        if (
            isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
            and (id(function), held.part) not in self._seen
        ):
            self._seen.add((id(function), held.part))
            whole = isinstance(node, ast.Return)
            for call in self.variables.calls.get(function.name, ()):
                yield from self._used(call, held if whole else _Held(inner=True))

    def _bound(self, target: ast.expr, held: _Held) -> Iterator[ast.AST]:
        match target:
            case ast.Name():
                yield from self._named(self.variables.of(target), held)
            case ast.Tuple() | ast.List():
                for each in target.elts if not self._is_flat(held) else ():
                    yield from self._bound(each, _Held(inner=True))
            case ast.Starred():
                yield from self._bound(target.value, _Held(inner=True))
            case ast.Attribute():
                yield from self._kept(target.attr, held)
            case ast.Subscript():
                base: ast.expr = target
                while isinstance(base, ast.Subscript | ast.Attribute):
                    base = base.value
                if isinstance(base, ast.Name):
                    yield from self._named(self.variables.of(base), _Held(inner=True))

    def _kept(self, name: str, held: _Held) -> Iterator[ast.AST]:
        key = (-1, f"{name}.{held.part}")
        if key in self._seen:
            return
        self._seen.add(key)
        for node in walk(self.variables.script.tree):
            if isinstance(node, ast.Attribute) and node.attr == name:
                parent = self.variables.above[id(node)]
                if isinstance(node.ctx, ast.Load):
                    yield from self._used(node, held)
                elif isinstance(parent, ast.AugAssign) and not held.inner:
                    yield parent

    def _attribute(self, node: ast.Attribute, held: _Held) -> Iterator[ast.AST]:
        outer = self.variables.above[id(node)]
        if not isinstance(node.ctx, ast.Load):
            if held.part in (None, node.attr):
                yield node
        elif isinstance(outer, ast.Call) and outer.func is node:
            yield from self._called(outer, node, held)
        elif node.attr in _SETS:
            yield node  # to be called later: `set_entry = cfg.__setitem__`
        elif node.attr == "__dict__":
            yield from self._used(node, _Held(held.part))
        elif held.part in (None, node.attr):
            own = self.values.made_by(held.value)
            for each in own.body if own is not None else ():
                computed = isinstance(each, ast.FunctionDef) and each.name == node.attr
                if computed and isinstance(each, ast.FunctionDef) and each.args.args:
                    yield from self._named(
                        self.variables.named(each.args.args[0].arg, each), _Held(value=held.value)
                    )
            value = self.values.entry(held.value, node.attr)
            if value is None or not self.values.is_immutable(value):
                yield from self._used(node, _Held(value=value, inner=True))

    def _entry(self, node: ast.Subscript, held: _Held) -> Iterator[ast.AST]:
        key = node.slice.value if isinstance(node.slice, ast.Constant) else None
        if held.part is not None and key is not None and str(key) != held.part:
            return
        if not isinstance(node.ctx, ast.Load):
            yield node
            return
        value = self.values.entry(held.value, key)
        if self._is_flat(held) or (value is not None and self.values.is_immutable(value)):
            return
        yield from self._used(node, _Held(value=value, inner=True))


def _in_order(nodes: Iterator[ast.AST]) -> list[ast.AST]:
    once = {id(each): each for each in nodes}
    return sorted(
        once.values(), key=lambda each: (getattr(each, "lineno", 0), getattr(each, "col_offset", 0))
    )
