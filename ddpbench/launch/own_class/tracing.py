"""Trace values back to the expressions that they come from, through assignments, parameters, attributes and options."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

from ddpbench.launch.own_class.bindings import (
    Binding,
    Mutation,
    Path,
    Scope,
    Tests,
    bindings_of,
    changes_of,
    key_of,
    simple_statements,
)
from ddpbench.launch.own_class.decorators import passed_on, unknown_decorator
from ddpbench.launch.own_class.draws import is_another, is_layer
from ddpbench.launch.own_class.entries import is_told_apart
from ddpbench.launch.own_class.script import FunctionNode, Script, first_name, here, last_name
from ddpbench.launch.own_class.trees import walk

MOVES = frozenset({"to", "cuda", "cpu", "train", "eval", "pin_memory"})
_WRAPPERS = frozenset(
    {
        "DistributedDataParallel",
        "DDP",
        "DataParallel",
        "FullyShardedDataParallel",
        "FSDP",
        "compile",
        "tqdm",
        "iter",
    }
)
PREPARE = frozenset({"prepare", "setup", "setup_dataloaders"})
"""Methods of libraries that return their arguments, wrapped."""
_HOLDERS = frozenset({"SimpleNamespace", "Namespace", "dict", "EasyDict", "AttrDict", "DictConfig"})
_DISTRIBUTED = frozenset({"is_initialized", "is_torchelastic_launched"})
_VARIABLES = frozenset({"RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR"})
_DEEPEST = 20
_ELSEWHERE = sys.maxsize
"""A line number after all lines. It is used for an attribute that one method sets and another method reads."""


@dataclass(frozen=True)
class Origin:
    """The source of a value: the expression `node` (or the element of its value at `path`), and its scope."""

    node: ast.expr
    scope: Scope
    path: Path = ()
    item: bool = False
    """True if the value is an item of the expression's value, from a `for`."""

    @property
    def key(self) -> tuple[int, Path]:
        """An identifier of the value, equal for all of its names."""
        return id(self.node), self.path


@dataclass(frozen=True)
class TraceStep:
    """A step of tracing a value: a name, the place of its read, and the assignment followed (if any)."""

    key: str
    scope: Scope
    line: int
    binding: Binding | None
    holds: bool = True
    """False for the name of an object whose attribute or entry is read, which is a separate step."""


class ScriptWrites(Protocol):
    """Decides whether a script may change a value after it makes the value (see `writes.Writes`)."""

    def is_rebound(self, node: ast.expr, scope: Scope, line: int = 0) -> bool:
        """Return whether the script may bind a name, or an attribute of `self`, more than once."""

    def begins_in_class(self, own: ast.ClassDef, name: str) -> bool:
        """Return whether the body of a class, or of a base or derived class, sets an attribute to anything but None."""

    def is_after(self, node: ast.AST, scope: Scope, line: int) -> bool:
        """Return whether a node lies directly in a function, and is always evaluated after `line` of the function."""

    def is_computed(self, own: ast.ClassDef, name: str) -> bool:
        """Return whether a class, or a base or derived class, has a function `name`, such as a property's getter."""

    def sets_of(self, own: ast.ClassDef, name: str) -> list[ast.AST]:
        """Return the nodes that may set an attribute of the objects of a class, other than in the class's body."""

    def sets_again(self, own: ast.ClassDef, name: str) -> bool:
        """Return whether an attribute of a class's objects may be set more than once, or by code outside the class."""

    def may_change(self, key: str, scope: Scope, line: int, binding: Binding | None, made: ast.expr) -> bool:
        """Return whether a value that is read at a line of a function may be different at another time."""


class Tracer:
    """Finds the expressions that a script's values come from."""

    def __init__(self, script: Script, writes: ScriptWrites) -> None:
        self.script, self.writes = script, writes
        self.top = Scope(script.tree)
        self._bindings: dict[int, dict[str, list[Binding]]] = {}
        self._changes_in: dict[int, dict[str, list[Mutation]]] = {}
        self._way: list[tuple[str, Scope, int]] = []
        """The names through which the last value was traced, each with its scope and the line that reads it."""
        self._taken: dict[tuple[str, int, int], Binding] = {}
        """The binding that was followed for a name, by name, scope and line."""
        self.trains_by: dict[int, tuple[ast.Call, Scope]] = {}
        """The training call of a function, with its caller, by the function's id."""
        self._held_by: dict[tuple[int, int, int], tuple[int, bool | None]] = {}
        """For each examined condition, the depth at which it was examined, and its outcome (None if unknown)."""
        self._kept_alive: list[ast.expr | Scope] = []
        """The conditions and scopes whose ids are in `_held_by`, so that no other object gets such an id."""
        self._loops: dict[int, ast.For] = {}
        self.enclosing: dict[int, Scope] = {}
        """The enclosing function of each nested function, by the id of the nested function."""

    def as_loop(self, node: ast.ListComp | ast.SetComp | ast.GeneratorExp) -> ast.For:
        """Return a loop for a comprehension that has one `for`. The same comprehension always gets the same node."""
        if id(node) not in self._loops:
            made = node.generators[0]
            body: list[ast.stmt] = [ast.copy_location(ast.Expr(node.elt), node.elt)]
            loop = ast.For(made.target, made.iter, body, [])
            self._loops[id(node)] = ast.copy_location(loop, node)
        return self._loops[id(node)]

    @cached_property
    def scopes(self) -> list[Scope]:
        """The scopes of the module, its functions and its methods."""
        functions = [Scope(each) for each in self.script.functions.values()]
        guarded = [
            Scope(each)
            for each in (self.script.guard.body if self.script.guard else [])
            if isinstance(each, ast.FunctionDef)
        ]
        methods = [Scope(each, found) for found, each in self.script.methods()]
        whole = [*functions, *methods, *guarded]
        return [self.top, *whole, *(inner for each in whole for inner in self._inner(each))]

    def _inner(self, scope: Scope) -> Iterator[Scope]:
        for each in here(scope.node.body):
            if isinstance(each, ast.FunctionDef):
                inner = Scope(each, scope.own)
                self.enclosing[id(each)] = scope
                yield inner
                yield from self._inner(inner)

    def bindings(self, scope: Scope) -> dict[str, list[Binding]]:
        """Return the bindings of each name in a scope."""
        if id(scope.node) not in self._bindings:
            self._bindings[id(scope.node)] = bindings_of(scope.node)
        return self._bindings[id(scope.node)]

    def trace(self, node: ast.expr, scope: Scope, depth: int = 0) -> Origin:
        """Return where a value comes from, behind moves such as `.to(device)` and wrappers such as DDP."""
        found = Origin(node, scope)
        if depth > _DEEPEST:
            return found
        inner = self.unwrapped(node, scope)
        if inner is not None:
            return self.trace(inner, scope, depth + 1)
        if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
            passed = len(self._way)
            value = self.trace(node.value, scope, depth + 1)
            part = self._entry(value, node.slice.value)
            key, names = node.slice.value, {name: where for name, where, _ in self._way[passed:]}
            if part is not None and is_told_apart(self.script, value.node, key, part, names):
                of = f"[{ast.unparse(node.slice)}]"
                self._way[passed:] = [
                    (f"{name}{of}", where, line) for name, where, line in self._way[passed:]
                ]
            return self.trace(part, value.scope, depth + 1) if part is not None else found
        if isinstance(node, ast.Attribute) and not self._own_attribute(node, scope):
            part_of = self.attribute(node, scope, depth + 1)
            return self.trace(part_of.node, part_of.scope, depth + 1) if part_of else found
        if not key_of(node):
            return found
        return self._traced_name(key_of(node), scope, depth, getattr(node, "lineno", 0)) or found

    def _pass(self, key: str, scope: Scope, line: int, binding: Binding) -> None:
        self._way.append((key, scope, line))
        self._taken[key, id(scope.node), line] = binding

    def steps(self, node: ast.expr, scope: Scope) -> tuple[TraceStep, ...]:
        """Return the steps that trace a value from where it is used to its origin."""
        self._way.clear()
        self.trace(node, scope)
        found: list[TraceStep] = []
        for key, where, line in self._way:
            own = self._taken.get((key, id(where.node), line))
            found.append(TraceStep(key, where, line, own))
            base = key.partition("[")[0].partition(".")[0]
            if own is None and base != key and (base, id(where.node), line) in self._taken:
                found.append(
                    TraceStep(base, where, line, self._taken[base, id(where.node), line], holds=False)
                )
        return tuple(found)

    def _traced_name(
        self, key: str, scope: Scope, depth: int, line: int = 0, read: int | None = None
    ) -> Origin | None:
        """Return the origin of a name read at `line`, or current at line `read`; None if unknown."""
        if "." in key:
            return self._traced_attribute(key, scope, depth, line)
        argument = self._argument(key, scope)
        given = Binding(argument[0], kind="given") if argument is not None else None
        for binding in self._chosen(key, scope, depth, line, line if read is None else read, given):
            self._pass(key, scope, line, binding)
            if argument is not None and binding is given:
                return self.trace(*argument, depth + 1)
            return self._of(binding, scope, depth)
        if isinstance(scope.node, ast.Module) or key in parameters_of(scope.node):
            return None
        if any(isinstance(each, FunctionNode) and each.name == key for each in here(scope.node.body)):
            return None  # a nested function, not an outer variable of the same name
        outer = self.enclosing.get(id(scope.node), self.top)
        return self._traced_name(key, outer, depth, line, self._called_at(scope, outer))

    def _traced_attribute(self, key: str, scope: Scope, depth: int, line: int) -> Origin | None:
        name = key.partition(".")[2]
        if scope.own is None or self.script.is_overridden(scope.own, name):
            return None
        if self.writes.is_computed(scope.own, name) or self._is_set_outside(name, scope.own, depth):
            return None
        methods = [each for each in self.scopes if each.own is scope.own]
        methods.sort(key=lambda each: getattr(each.node, "name", "") != "__init__")
        for method in methods:
            read = line if method.node is scope.node else _ELSEWHERE
            for binding in self._chosen(key, method, depth, read=read):
                if self._is_set_again(key, binding, method, methods, depth):
                    return None  # the value depends on when it is read
                self._pass(key, method, read, binding)
                return self._of(binding, method, depth)
        for each in scope.own.body if not self.writes.sets_again(scope.own, name) else ():
            if isinstance(each, ast.Assign) and name in map(key_of, each.targets):
                return self.trace(each.value, self.top, depth + 1)
        return None

    def _is_set_outside(self, name: str, own: ast.ClassDef, depth: int) -> bool:
        passed, found = len(self._way), False
        for key in (name, ""):
            waiting = self._set_elsewhere.pop(key, [])  # to avoid endless recursion by `trace`
            for node, scope in waiting:
                made = self.trace(node, scope, depth + 1).node
                kind = last_name(made) if isinstance(made, ast.Call) else own.name
                if key_of(node) == "self" and scope.own is not None:
                    kind = scope.own.name
                found = found or kind == own.name or self.script.derives(kind, (own.name,))
            if waiting:
                self._set_elsewhere[key] = waiting
        del self._way[passed:]
        return found

    @cached_property
    def _set_elsewhere(self) -> dict[str, list[tuple[ast.expr, Scope]]]:
        """The objects whose attributes are set through names other than `self`, by attribute (empty for any).

        Assignments that only wrap a value, such as `x.m = DDP(x.m)`, do not count.
        """
        found: dict[str, list[tuple[ast.expr, Scope]]] = {}
        for scope in self.scopes:
            nodes = list(here(scope.node.body))
            wraps = {
                ast.unparse(each.targets[0])
                for each in nodes
                if isinstance(each, ast.Assign)
                and ast.unparse(self.innermost(each.value, scope)) == ast.unparse(each.targets[0])
            }
            for each in nodes:
                for name, owner in _sets_attribute(each):
                    if not name or (key_of(owner) not in ("self", "cls") and ast.unparse(each) not in wraps):
                        found.setdefault(name, []).append((owner, scope))
        return found

    def _is_set_again(
        self, key: str, binding: Binding, method: Scope, methods: list[Scope], depth: int
    ) -> bool:
        if binding.kind != "value" or binding.path or getattr(method.node, "name", "") != "__init__":
            return False
        name = key.partition(".")[2]
        setters = [each for each in methods if each is not method and self._sets(each, name)]
        called = [each for each in setters if self.calls(each)]
        if not called:
            return False
        passed = len(self._way)
        plain = not isinstance(self.trace(binding.value, method, depth + 1).node, ast.Call)
        again = plain and any(self._gives(each, key, depth) for each in called)
        del self._way[passed:]
        return again

    def _gives(self, method: Scope, key: str, depth: int) -> bool:
        loops = [
            each for each in here(method.node.body) if isinstance(each, ast.For | ast.AsyncFor | ast.While)
        ]
        within = {
            id(each.value) for loop in loops for each in here(loop.body) if isinstance(each, ast.Assign)
        }
        given = any(id(each.value) not in within for each in self._chosen(key, method, depth))
        return given or any(
            not each.loops and each.sets(key) and self._takes(each, method)
            for each in self._changes(method).get(key, ())
        )

    def _chosen(
        self,
        key: str,
        scope: Scope,
        depth: int,
        line: int = 0,
        read: int = 0,
        given: Binding | None = None,
    ) -> Iterator[Binding]:
        """Yield the assignments to a name that may be in effect, the most likely first.

        Assignments in a loop around `line` come first, those replaced before line `read` last. Assignments of the
        name's own earlier value, of None, and in branches not taken by default are left out. `given` binds a parameter.
        """
        bound = self.bindings(scope).get(key, [])
        earlier = [each for each in bound if not self.writes.is_after(each.value, scope, read)]
        found = [
            each
            for each in (earlier if earlier or given is not None else bound)
            # In `model = model.to(device)`, the value is the name's earlier one.
            if each.kind != "value" or not any(key_of(part) == key for part in walk(each.value))
            if not isinstance(each.value, ast.Constant) or each.value.value is not None
            if not self.is_untaken(each.tests, scope, depth)
        ]
        found = [*([given] if given is not None else []), *found]
        replaced = {
            id(each)
            for place, each in enumerate(found)
            if any(self._replaces(other, each, scope, depth, read) for other in found[place + 1 :])
            or (isinstance(each.value, ast.Constant) and each.value.value is None)
        }
        yield from sorted(found, key=lambda each: (not self._is_around(line, each), id(each) in replaced))

    def _replaces(self, later: Binding, earlier: Binding, scope: Scope, depth: int, read: int) -> bool:
        if later.kind != "value" or earlier.kind not in ("value", "given") or later.handles or not read:
            return False
        begin = earlier.value.lineno if earlier.kind == "value" else 0
        if not begin < later.value.lineno <= (later.value.end_lineno or read) < read:
            return False
        return later.tests == earlier.tests[: len(later.tests)] or self.is_taken(later.tests, scope, depth)

    def _called_at(self, scope: Scope, outer: Scope) -> int:
        """Return the first line in `outer` that calls `scope`, or a line after all others."""
        calls = [call.lineno for call, caller in self.calls(scope) if caller.node is outer.node]
        return min(calls, default=_ELSEWHERE)

    def bindings_at(self, name: str, scope: Scope, line: int) -> list[Binding]:
        """Return the possible bindings of a name at a line: its bindings by loops around the line, or else all.

        Bindings by other loops are left out if the name also has bindings of different kinds.
        """
        found = self.bindings(scope).get(name, [])
        around = [each for each in found if self._is_around(line, each)]
        return around or [each for each in found if id(each.value) not in self._loop_of] or found

    def is_untaken(self, tests: Tests, scope: Scope, depth: int = 0) -> bool:
        """Return whether the script's default settings certainly skip the branch with these conditions."""
        if depth >= _DEEPEST:
            return False
        passed = len(self._way)
        untaken = any(self.holds(test, scope, depth + 1) is (not wanted) for test, wanted in tests)
        del self._way[passed:]
        return untaken

    def is_taken(self, tests: Tests, scope: Scope, depth: int = 0) -> bool:
        """Return whether the script's default settings certainly run the branch with these conditions."""
        if depth >= _DEEPEST:
            return False
        passed = len(self._way)
        taken = all(self.holds(test, scope, depth + 1) is wanted for test, wanted in tests)
        del self._way[passed:]
        return taken

    def changed(self, node: ast.expr, scope: Scope) -> list[int]:
        """Return the lines that change a value's object between its making and its read.

        Changes in a loop around the read are left out, because they carry over from batch to batch.
        """
        self._way.clear()
        self.trace(node, scope)
        found = set()
        for key, where, line in [*self._way]:
            name, _, entries = key.partition("[")
            entry = entries.partition("]")[0]
            for each in self._changes(where).get(name, ()):
                if entry and each.entry not in (None, entry):
                    continue
                loops = each.loops
                around = loops if line == _ELSEWHERE else any(first <= line <= last for first, last in loops)
                if each.statement.lineno < line and not (around or each.freezes) and self._takes(each, where):
                    found.add(each.statement.lineno)
        return sorted(found)

    def changes_after(self, made: Origin) -> list[Mutation]:
        """Return the changes made to an object, through any of its names, in the function that makes it."""
        names = {
            name
            for name, bindings in self.bindings(made.scope).items()
            for each in bindings
            if each.kind == "value" and self.trace(each.value, made.scope).node is made.node
        }
        firsts = {name.partition(".")[0] for name in names}

        def is_part(name: str, line: int) -> bool:  # as an item of a loop over the object
            bound = self.bindings_at(name, made.scope, line)
            return any(each.kind == "item" and first_name(each.value) in firsts for each in bound)

        def is_of_it(key: str, change: Mutation) -> bool:
            named = any(key == name or key.startswith(f"{name}.") for name in names)
            return named or (change.freezes and is_part(key, change.statement.lineno))

        found = [
            each
            for key, changes in self._changes(made.scope).items()
            for each in changes
            if is_of_it(key, each) and self._takes(each, made.scope)
        ]
        once = {id(each.statement): each for each in found}  # a statement is listed under each of its names
        return sorted(once.values(), key=lambda each: each.statement.lineno)

    def _changes(self, scope: Scope) -> dict[str, list[Mutation]]:
        if id(scope.node) not in self._changes_in:
            self._changes_in[id(scope.node)] = changes_of(scope.node)
        return self._changes_in[id(scope.node)]

    def _takes(self, change: Mutation, scope: Scope) -> bool:
        moves = change.value is not None and bool(key_of(self.innermost(change.value, scope)))
        return not moves and not self.is_untaken(change.tests, scope, 0)

    def _is_around(self, line: int, binding: Binding) -> bool:
        loop = self._loop_of.get(id(binding.value)) if line and binding.kind == "item" else None
        return loop is not None and loop.body[0].lineno <= line <= (loop.end_lineno or 0)

    @cached_property
    def _loop_of(self) -> dict[int, ast.For | ast.AsyncFor]:
        loops = (each for each in walk(self.script.tree) if isinstance(each, ast.For | ast.AsyncFor))
        return {id(each.iter): each for each in loops}

    def _of(self, binding: Binding, scope: Scope, depth: int) -> Origin:
        if binding.kind == "item":
            return Origin(binding.value, scope, binding.path, item=True)
        prepared = self._prepared(binding)
        if prepared is not None:
            return self.trace(prepared, scope, depth + 1)
        found = self.trace(binding.value, scope, depth + 1)
        return Origin(found.node, found.scope, found.path + binding.path, found.item)

    def _prepared(self, binding: Binding) -> ast.expr | None:
        """Return the argument that belongs to a result's element, as in `a, b = accelerator.prepare(a, b)`."""
        call = binding.value
        library = isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute)
        if library and isinstance(call, ast.Call) and last_name(call) in PREPARE and len(binding.path) == 1:
            return call.args[binding.path[0]] if binding.path[0] < len(call.args) else None
        return None

    def unwrapped(self, node: ast.expr, scope: Scope) -> ast.expr | None:
        if not isinstance(node, ast.Call):
            return None
        if isinstance(node.func, ast.Attribute) and node.func.attr in MOVES:
            return node.func.value if not self._is_module_path(node.func.value) else None
        if last_name(node) in _WRAPPERS:
            given = [each.value for each in node.keywords if each.arg in ("module", "model")]
            for each in [*node.args[:1], *given]:
                return each
        if last_name(node) in PREPARE and len(node.args) == 1 and isinstance(node.func, ast.Attribute):
            return node.args[0]
        return None

    def innermost(self, node: ast.expr, scope: Scope) -> ast.expr:
        """Return the expression inside all moves and wrappers, or the expression itself if there are none."""
        while (inner := self.unwrapped(node, scope)) is not None:
            node = inner
        return node

    def _is_module_path(self, node: ast.expr) -> bool:
        return first_name(node) in ("torch", "np", "numpy") and not isinstance(node, ast.Call)

    def _argument(self, name: str, scope: Scope) -> tuple[ast.expr, Scope] | None:
        """Return a parameter's argument or default, with its scope; of several calls, the first counts."""
        names = parameters_of(scope.node) if not isinstance(scope.node, ast.Module) else []
        if isinstance(scope.node, ast.Module) or name not in names:
            return None
        if scope.own is not None and id(scope.node) not in self.enclosing:
            names = names[1:]
        known = (scope.call, scope.caller) if scope.call else self.trains_by.get(id(scope.node))
        calls = [known] if known is not None else self.calls(scope)
        if self._is_called_otherwise(scope, known=scope.call is not None):
            return None
        for call, caller in calls[:1]:
            if call is None or caller is None:
                continue
            for keyword in call.keywords:
                if keyword.arg == name:
                    return keyword.value, caller
            place = names.index(name) if name in names else len(call.args)
            starred = any(isinstance(each, ast.Starred) for each in call.args[: place + 1])
            if place < len(call.args) and not starred:
                return call.args[place], caller
            if starred or any(each.arg is None for each in call.keywords):
                return None  # the argument may be in the unpacked ones
        default = default_of(scope.node, name)
        return (default, self.top) if default is not None else None

    def _is_called_otherwise(self, scope: Scope, *, known: bool) -> bool:
        """Return whether a function may have unknown callers, such as a decorator or code that it was passed to.

        If the call is known, code that the function was passed to does not count.
        """
        node, made = scope.node, scope.own if _name(scope) == "__init__" else None
        if isinstance(node, ast.Module) or unknown_decorator(made or node, self.script) is not None:
            return True
        if made is not None and self.script.is_overridden(made, "__init__"):
            return True
        if scope.own is None and any(caller.node is node for _, caller in self.calls(scope)):
            return True
        inner = scope.own is None or id(node) in self.enclosing
        return (
            not known
            and made is None
            and (ast.Name if inner else ast.Attribute, node.name) in self._passed_on
        )

    @cached_property
    def _passed_on(self) -> set[tuple[type[ast.expr], str]]:
        """The functions that the script passes to other code, as in `launch(main)`, as (kind of node, name)."""
        found: set[tuple[type[ast.expr], str]] = set()
        for scope in self.scopes:
            own = set() if isinstance(scope.node, ast.Module) else set(parameters_of(scope.node))
            found |= {
                (type(each), last_name(each))
                for each in passed_on(scope.node.body)
                if not isinstance(each, ast.Name)
                or each.id not in own | set(self.bindings(scope))
                or isinstance(scope.node, ast.Module)
            }
        return found

    def calls(self, scope: Scope) -> list[tuple[ast.Call, Scope]]:
        """Return the script's calls of a function, method or class (for its `__init__`), each with its scope."""
        assert not isinstance(scope.node, ast.Module)
        name = scope.node.name
        if id(scope.node) in self.enclosing:
            return self._calls.get((ast.Name, name), [])
        if scope.own is None or name == "__init__":
            return self._calls.get((ast.Name, name if scope.own is None else scope.own.name), [])
        return self._calls.get((ast.Attribute, name), [])

    @cached_property
    def _calls(self) -> dict[tuple[type[ast.expr], str], list[tuple[ast.Call, Scope]]]:
        found: dict[tuple[type[ast.expr], str], list[tuple[ast.Call, Scope]]] = {}
        for caller in self.scopes:
            for node in here(caller.node.body):
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Name | ast.Attribute):
                    found.setdefault((type(node.func), last_name(node)), []).append((node, caller))
        return found

    def entered(self, found: Origin) -> Origin | None:
        """Return the origin of the result of a call of a script's function; None if unknown or not such a call."""
        if not isinstance(found.node, ast.Call) or not isinstance(found.node.func, ast.Name):
            return None
        function = self.script.functions.get(found.node.func.id)
        if function is None or unknown_decorator(function, self.script) is not None:
            return None
        scope = Scope(function, None, found.node, found.scope)
        value, path = self._returned(function, scope), found.path
        if value is None:
            return None
        while path and isinstance(value, ast.Tuple | ast.List) and path[0] < len(value.elts):
            value, path = value.elts[path[0]], path[1:]
        inner = self.trace(value, scope)
        return Origin(inner.node, inner.scope, inner.path + path)

    def _returned(self, function: FunctionNode, scope: Scope) -> ast.expr | None:
        found: dict[str, ast.expr] = {}
        for statement, tests, _ in simple_statements(function.body):
            if (
                not isinstance(statement, ast.Return)
                or statement.value is None
                or self.is_untaken(tests, scope)
            ):
                continue
            found.setdefault(ast.unparse(statement.value), statement.value)
            if self.is_taken(tests, scope):
                break
        return next(iter(found.values())) if len(found) == 1 else None

    def attribute(self, node: ast.Attribute, scope: Scope, depth: int = 0) -> Origin | None:
        """Return the origin of an attribute that is a command-line option or belongs to a configuration; else None."""
        if depth > _DEEPEST:
            return None
        read = getattr(node, "lineno", 0)  # 0 for a generated node
        for binding in self._chosen(key_of(node), scope, depth, read=read) if key_of(node) else ():
            self._pass(key_of(node), scope, read, binding)
            return Origin(binding.value, scope, binding.path)
        passed = len(self._way)
        holder = self.trace(node.value, scope, depth + 1)
        held = self._way[passed:]
        self._way[passed:] = [(f"{key}.{node.attr}", where, line) for key, where, line in held]
        for key, where, line in self._way[passed:]:
            for binding in self._chosen(key, where, depth, read=line) if where is not scope else ():
                self._way[passed:] = [(key, where, line)]
                return Origin(binding.value, where, binding.path)
        return self._held(holder, node.attr)

    def _held(self, holder: Origin, name: str) -> Origin | None:
        """Return the origin of a configuration's or parsed options' attribute; None if unknown."""
        if not isinstance(holder.node, ast.Call) or holder.path:
            return None
        if last_name(holder.node) == "parse_args":
            return self._option(name)
        if last_name(holder.node) in _HOLDERS:
            return self._keyword(holder, name)
        made = holder.node.func.id if isinstance(holder.node.func, ast.Name) else ""
        if made in self.script.functions:
            inner = self.entered(holder)
            parsed = inner is not None and last_name(inner.node) == "parse_args"
            return self._option(name) if parsed else None
        found = self.script.classes.get(made)
        return None if found is None else self._given_field(holder.node, holder.scope, found, name)

    def _given_field(self, call: ast.Call, scope: Scope, found: ast.ClassDef, name: str) -> Origin | None:
        holder = Origin(call, scope)
        if any(each.arg is None for each in call.keywords) or unknown_decorator(found, self.script):
            return None
        if self.writes.is_computed(found, name) or _computes_attributes(found, self.script):
            return None
        own = {getattr(each, "name", "") for each in found.body}
        if call.args and "__init__" not in own:
            fields = [
                key_of(each.target)
                for each in found.body
                if isinstance(each, ast.AnnAssign) and key_of(each.target)
            ]
            placed = dict(zip(fields, call.args, strict=False))
            if found.bases or name not in fields or any(isinstance(e, ast.Starred) for e in placed.values()):
                return None
            if name in placed:
                return Origin(placed[name], scope)
        if any(
            each.own is found and self._sets(each, name)
            for each in self.scopes
            if _name(each) == "__post_init__"
        ):
            return None
        return self._keyword(holder, name) or self._field(found, name)

    def _keyword(self, holder: Origin, name: str) -> Origin | None:
        assert isinstance(holder.node, ast.Call)
        if any(each.arg is None for each in holder.node.keywords):
            return None  # the value may be in the unpacked dictionary
        for each in holder.node.keywords:
            if each.arg == name:
                return Origin(each.value, holder.scope)
        return None

    def _field(self, found: ast.ClassDef, name: str) -> Origin | None:
        for each in found.body:
            targets = each.targets if isinstance(each, ast.Assign) else []
            target = each.target if isinstance(each, ast.AnnAssign) and each.value is not None else None
            if any(key_of(item) == name for item in [*targets, *([target] if target is not None else [])]):
                made = getattr(each, "value", None)
                if isinstance(made, ast.Call) and last_name(made) in ("field", "Field"):
                    default = _default_of_field(made)
                    own = default is None or is_another(default, self.script)  # different for each object
                    return None if own or default is None else Origin(default, self.top)
                path = ast.Attribute(ast.Name(found.name, ast.Load()), name, ast.Load())
                return Origin(path, self.top)
        methods = [each for each in self.scopes if each.own is found]
        if any(getattr(each.node, "name", "") != "__init__" and self._sets(each, name) for each in methods):
            return None  # the value depends on when it is read, as a method changes it
        for scope in methods:
            if getattr(scope.node, "name", "") == "__init__":
                for binding in self.bindings(scope).get(f"self.{name}", ()):
                    if is_another(binding.value, self.script) and not is_layer(binding.value, self.script):
                        return None  # different for each object; a module's parts belong to the model
                    return Origin(binding.value, scope, binding.path)
        return None

    def _sets(self, method: Scope, name: str) -> bool:
        key = f"self.{name}"
        return key in self.bindings(method) or key in self._changes(method)

    def _option(self, name: str) -> Origin | None:
        """Return the origin of an option's default (`set_defaults` or `add_argument`); None if unknown."""
        for scope in self.scopes:
            for node in here(scope.node.body):
                if not isinstance(node, ast.Call):
                    continue
                parses = last_name(node) in ("parse_args", "parse_known_args")
                if parses and (
                    _names_option(node, name) or any(each.arg == "namespace" for each in node.keywords)
                ):
                    return None  # such as `--lr` in the script's list: only argparse knows the result
                set_ = {each.arg: each.value for each in node.keywords}
                if last_name(node) == "set_defaults" and name in set_:
                    return Origin(set_[name], scope)
        found = [
            (node, scope)
            for scope in self.scopes
            for node in here(scope.node.body)
            if isinstance(node, ast.Call) and last_name(node) == "add_argument" and name in _dests(node)
        ]
        given = [
            {each.arg: ast.dump(each.value) for each in node.keywords if each.arg != "help"}
            for node, _ in found
        ]
        if not found or any(each != given[0] for each in given):
            return None  # the option may belong to any of several parsers
        node, scope = found[0]
        return _default_of_option(node, scope)

    def _entry(self, holder: Origin, name: object) -> ast.expr | None:
        if isinstance(holder.node, ast.Dict):
            for key, value in reversed(list(zip(holder.node.keys, holder.node.values, strict=True))):
                if not isinstance(key, ast.Constant):
                    return None  # a computed key may equal `name`
                if key.value == name:
                    return value
        if isinstance(holder.node, ast.Call) and last_name(holder.node) == "dict" and isinstance(name, str):
            found = self._keyword(holder, name)
            return found.node if found else None
        return None

    def _own_attribute(self, node: ast.Attribute, scope: Scope) -> bool:
        return scope.own is not None and isinstance(node.value, ast.Name) and node.value.id == "self"

    def holds(self, test: ast.expr, scope: Scope, depth: int = 0) -> bool | None:
        """Return the outcome of a condition with the script's default settings; None if it is unknown or may change."""
        key = id(test), id(scope.node), id(scope.call)
        examined, known = self._held_by.get(key, (depth + 1, None))
        if known is not None or examined <= depth:
            return known
        self._held_by[key] = (0, None)  # unknown so far, if the condition depends on itself
        self._kept_alive += [test, scope]
        passed = len(self._way)
        found = self._holds(test, scope, depth)
        del self._way[passed:]
        self._held_by[key] = (depth, found)
        return found

    def _holds(self, test: ast.expr, scope: Scope, depth: int) -> bool | None:
        every = self._of_every(test, scope, depth)
        if every is not None:
            return every
        if any(self.writes.is_rebound(each, scope) for each in _reads(test)):
            parts = test.values if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.Or) else []
            return True if any(self._of_every(each, scope, depth) for each in parts) else None
        if depth > _DEEPEST:
            return None
        if self._only_distributed(test, scope, depth):
            return False
        return self._holds_by_parts(test, scope, depth)

    def _holds_by_parts(self, test: ast.expr, scope: Scope, depth: int) -> bool | None:
        if isinstance(test, ast.BoolOp):
            found = [self.holds(each, scope, depth + 1) for each in test.values]
            decides = isinstance(test.op, ast.Or)
            return decides if decides in found else None if None in found else not decides
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            inner = self.holds(test.operand, scope, depth)
            return None if inner is None else not inner
        if isinstance(test, ast.Compare) and len(test.ops) == 1:
            known, left = self._literal(test.left, scope, depth)
            also, right = self._literal(test.comparators[0], scope, depth)
            equality = isinstance(test.ops[0], ast.Eq | ast.NotEq | ast.Is | ast.IsNot)
            if known and also and not equality:
                return _ordered(test.ops[0], left, right)
            equal = bool(left == right) is isinstance(test.ops[0], ast.Eq | ast.Is)
            return equal if known and also else None
        if isinstance(test, ast.Name):  # a comparison's result: `ddp = int(os.environ.get("RANK", -1)) != -1`
            named = self._unchanging(test, scope, depth + 1)
            if named is not None and isinstance(named.node, ast.Compare | ast.BoolOp) and not named.path:
                return self.holds(named.node, named.scope, depth + 1)
        simple = isinstance(test, ast.Name | ast.Attribute | ast.Constant | ast.Subscript)
        known, value = self._literal(test, scope, depth) if simple else (False, None)
        return bool(value) if known else None

    def _of_every(self, test: ast.expr, scope: Scope, depth: int) -> bool | None:
        """Return the outcome of a condition such as `(step + 1) % every == 0` if `every` is 1; otherwise None."""
        if not isinstance(test, ast.Compare) or len(test.ops) != 1 or depth > _DEEPEST:
            return None
        left = test.left
        if not isinstance(left, ast.BinOp) or not isinstance(left.op, ast.Mod):
            return None
        rest = self._literal(test.comparators[0], scope, depth)
        if self._literal(left.right, scope, depth) != (True, 1) or rest != (True, 0):
            return None
        return {ast.Eq: True, ast.NotEq: False}.get(type(test.ops[0]))

    def _only_distributed(self, test: ast.expr, scope: Scope, depth: int) -> bool:
        """Return whether a condition needs several ranks; such code is left to a strategy."""
        found = self._unchanging(test, scope, depth + 1)
        if found is None or found.path or found.item:
            return False
        node = found.node
        if isinstance(node, ast.Call):
            return last_name(node) in _DISTRIBUTED
        if isinstance(node, ast.Compare) and len(node.ops) == 1:
            left, right = node.left, node.comparators[0]
            if isinstance(node.ops[0], ast.In):
                named = isinstance(left, ast.Constant) and left.value in _VARIABLES
                return named and "environ" in ast.unparse(right)
            size = self.trace(left, found.scope, depth + 1).node
            counted = isinstance(node.ops[0], ast.Gt) and isinstance(right, ast.Constant) and right.value == 1
            return counted and (last_name(size) == "get_world_size" or "WORLD_SIZE" in ast.unparse(size))
        return False

    def _unchanging(self, node: ast.expr, scope: Scope, depth: int) -> Origin | None:
        passed = len(self._way)
        found = self.trace(node, scope, depth)
        for key, where, line in self._way[passed:]:
            binding = self._taken.get((key, id(where.node), line))
            if self.writes.may_change(key, where, line, binding, found.node):
                return None
        return found

    def words(self, call: ast.Call, scope: Scope) -> Iterator[tuple[str, ast.expr]]:
        """Yield a call's keyword arguments as (name, value), including those of `**given` for a literal dictionary."""
        for each in call.keywords:
            if each.arg is not None:
                yield each.arg, each.value
                continue
            found = self.trace(each.value, scope)
            if isinstance(found.node, ast.Dict):
                for key, value in zip(found.node.keys, found.node.values, strict=True):
                    if isinstance(key, ast.Constant) and isinstance(key.value, str):
                        yield key.value, value
            elif last_name(found.node) == "dict" and isinstance(found.node, ast.Call):
                yield from ((word.arg, word.value) for word in found.node.keywords if word.arg)

    def value(self, node: ast.expr, scope: Scope) -> tuple[bool, object]:
        """Return whether the script's default settings determine an expression's value, and the value."""
        return self._literal(node, scope, 0)

    def _literal(self, node: ast.expr, scope: Scope, depth: int) -> tuple[bool, object]:
        found = self._unchanging(node, scope, depth + 1)
        if found is None or found.item:
            return False, None
        default = _of_environment(found.node)
        if default is not None and not found.path:
            return True, default[0]
        try:
            return not found.path, ast.literal_eval(found.node)
        except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
            return False, None


def _reads(node: ast.expr) -> list[ast.expr]:
    return [each for each in walk(node) if isinstance(each, ast.expr) and key_of(each)]


def _name(scope: Scope) -> str:
    return getattr(scope.node, "name", "")


def _computes_attributes(own: ast.ClassDef, script: Script) -> bool:
    for name in ("__getattr__", "__getattribute__"):
        found = script.method(own, name)
        if found is None:
            continue
        key = parameters_of(found[1])[-1]
        plain = (f"self[{key}]", f"self.get({key})", f"super().{name}({key})")
        if any(ast.unparse(each) not in plain for each in returned_by(found[1])):
            return True
    return False


def _sets_attribute(node: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    match node:
        case ast.Attribute(ctx=ast.Store()):
            yield node.attr, node.value
        case ast.Call(func=ast.Name(id="setattr"), args=[owner, name, *_]):
            yield str(name.value) if isinstance(name, ast.Constant) else "", owner
        case (
            ast.Subscript(value=held, ctx=ast.Store())
            | ast.Call(func=ast.Attribute(value=held, attr="update" | "setdefault" | "__setitem__"))
        ):
            if isinstance(held, ast.Attribute) and held.attr == "__dict__":
                yield "", held.value
            elif isinstance(held, ast.Call) and last_name(held) == "vars" and held.args:
                yield "", held.args[0]


def _ordered(operator: ast.cmpop, left: object, right: object) -> bool | None:
    if not isinstance(left, int | float) or not isinstance(right, int | float):
        return None
    match operator:
        case ast.Lt():
            return left < right
        case ast.LtE():
            return left <= right
        case ast.Gt():
            return left > right
        case ast.GtE():
            return left >= right
    return None


def _of_environment(node: ast.expr) -> tuple[object] | None:
    """Return, as (value,), what `int(os.environ.get("RANK", -1))` gives without a launcher; else None."""
    if isinstance(node, ast.Call) and last_name(node) in ("int", "str", "bool") and len(node.args) == 1:
        inner = _of_environment(node.args[0])
        made: Any = {"int": int, "str": str, "bool": bool}[last_name(node)]
        try:
            return None if inner is None else (made(inner[0]),)
        except (TypeError, ValueError):
            return None
    if isinstance(node, ast.Call) and last_name(node) in ("get", "getenv") and node.args:
        name, default = node.args[0], node.args[1] if len(node.args) > 1 else ast.Constant(None)
        if isinstance(name, ast.Constant) and name.value in _VARIABLES and isinstance(default, ast.expr):
            try:
                return (ast.literal_eval(default),)
            except (ValueError, TypeError):
                return None
    return None


def parameters_of(function: FunctionNode) -> list[str]:
    """Return the names of a function's parameters, positional ones first, without `*args` and `**kwargs`."""
    found = function.args
    return [each.arg for each in [*found.posonlyargs, *found.args, *found.kwonlyargs]]


def default_of(function: FunctionNode, name: str) -> ast.expr | None:
    """Return the default of the parameter `name`; None if it has no default."""
    found = function.args
    positional = [*found.posonlyargs, *found.args]
    by_place = zip(reversed(positional), reversed(found.defaults), strict=False)
    by_name = zip(found.kwonlyargs, found.kw_defaults, strict=True)
    return next((default for each, default in [*by_place, *by_name] if each.arg == name), None)


def returned_by(function: FunctionNode) -> list[ast.expr]:
    """Return the expressions in a function's return statements."""
    return [
        node.value for node in here(function.body) if isinstance(node, ast.Return) and node.value is not None
    ]


def _default_of_field(value: ast.Call) -> ast.expr | None:
    given = {each.arg: each.value for each in value.keywords}
    default = given.get("default", value.args[0] if value.args else None)
    factory = given.get("default_factory")
    if isinstance(factory, ast.Lambda):
        return factory.body
    if isinstance(default, ast.Constant) and default.value is ...:  # pydantic's mark of a required field
        return None
    return default if factory is None else ast.Call(factory, [], [])


def _default_of_option(call: ast.Call, scope: Scope) -> Origin | None:
    """Return the origin of an argparse default, strings converted by `type`; None if there is none."""
    given = {each.arg: each.value for each in call.keywords}
    default, kind = given.get("default"), given.get("type")
    if default is not None:
        text = isinstance(default, ast.Constant) and isinstance(default.value, str)
        if text and kind is not None and not (isinstance(kind, ast.Name) and kind.id == "str"):
            return Origin(ast.copy_location(ast.Call(kind, [default], []), default), scope)
        return Origin(default, scope)
    action = given.get("action")
    stored = {"store_true": False, "store_false": True}
    if isinstance(action, ast.Constant) and action.value in stored:
        return Origin(ast.copy_location(ast.Constant(stored[str(action.value)]), call), scope)
    return None


def _names_option(call: ast.Call, name: str) -> bool:
    given = next(iter([*call.args, *(each.value for each in call.keywords if each.arg == "args")]), None)
    if not isinstance(given, ast.List | ast.Tuple):
        return isinstance(given, ast.Call) and last_name(given) == "split"
    texts = [each.value for each in given.elts if isinstance(each, ast.Constant)]
    words = [str(each).partition("=")[0].lstrip("-").replace("-", "_") for each in texts]
    return len(texts) < len(given.elts) or name in words or any(len(each) == 1 for each in words)


def _dests(call: ast.Call) -> set[str]:
    for each in call.keywords:
        if each.arg == "dest" and isinstance(each.value, ast.Constant):
            return {str(each.value.value)}
    flags = [each.value for each in call.args if isinstance(each, ast.Constant)]
    return {str(flag).lstrip("-").replace("-", "_") for flag in flags}
