"""Find the statements that may make a value in the script differ from its copy in the generated class."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ddpbench.launch.own_class.bindings import Binding, Scope, key_of
from ddpbench.launch.own_class.draws import is_generator
from ddpbench.launch.own_class.flow import FlowVisitor
from ddpbench.launch.own_class.rendering import ReplacedValue
from ddpbench.launch.own_class.script import last_name
from ddpbench.launch.own_class.sites import Sites
from ddpbench.launch.own_class.tracing import PREPARE, TraceStep, parameters_of
from ddpbench.launch.own_class.trees import walk
from ddpbench.launch.own_class.variables import ScopeVariable

_LOOPS = (ast.For, ast.AsyncFor, ast.While)
_COPIES = frozenset(
    {"dict", "list", "tuple", "set", "sorted", "deepcopy", "float", "int", "str", "len", "sum", "min", "max"}
)
_BLOCKS = (ast.If, ast.Try, ast.For, ast.AsyncFor, ast.While)
LISTED = frozenset(
    {"convert_sync_batchnorm", "float", "requires_grad_", "apply", "deepcopy"}
    | {"fully_shard", "script", "trace", "initialize"}
)
"""Calls that do not count as changes of a model; they are listed as left out."""
_DEFAULT = -1
"""A number used like a statement's id, for the value that a name has before any statement sets it."""


class Unchanged(Sites):
    """Finds the statements that may make a value in the script differ from its copy in the generated class."""

    def of(self, claim: ReplacedValue) -> list[ast.stmt]:
        """Return the statements that may make the script's value differ from the value that replaces it."""
        found: list[ast.stmt] = []
        read = self.variables.original(claim.node)
        for number, step in enumerate(claim.steps):
            found += self._set_otherwise(step, read if number == 0 else None)
        if not found and not is_generator(claim.made):
            for step in claim.steps:
                found += self._changed(step, self._last_read(claim)) if step.holds else ()
            found += self._drawn_before(claim, read)
        return found

    def _last_read(self, claim: ReplacedValue) -> ast.AST:
        read = self.variables.original(claim.node)
        parent = self.variables.above.get(id(read))
        copied = isinstance(parent, ast.Call) and last_name(parent) in _COPIES
        call = (
            self.variables.above.get(id(parent)) if isinstance(parent, ast.keyword) and parent.arg else parent
        )
        if isinstance(call, ast.Call) and call.func is not read and last_name(call) in self.script.classes:
            return self.loop.stands or self.loop.node  # the constructed object holds the value
        if claim.root is None or copied or isinstance(parent, ast.keyword | ast.Dict | ast.BinOp):
            return read
        return self.variables.original(claim.root)

    def _drawn_before(self, claim: ReplacedValue, read: ast.AST) -> list[ast.stmt]:
        """Return other calls of a function with state, like `tick` in `tick = make(); tick()`."""
        made = claim.made
        if not isinstance(made, ast.Call) or not isinstance(made.func, ast.Name):
            return []
        if not any(self._keeps(each) for each, _ in self.values.functions(made.func)):
            return []
        own = self.variables.statement(read)
        steps = [
            each
            for each in claim.steps
            if each.binding is not None and "." not in each.key and "[" not in each.key
        ]
        uses = [
            use
            for step in steps
            for use in self.variables.uses.get(self.variables.named(step.key, step.scope.node), ())
            if isinstance(use.ctx, ast.Load) and id(use) not in self._body
        ]
        others = [self.variables.statement(use) for use in uses]
        return [each for each in others if each is not own and not self._is_after(each, read)]

    def _keeps(self, function: ast.AST) -> bool:
        inner = [
            each
            for each in walk(function)
            if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) and each is not function
        ]
        if any(isinstance(e, ast.Nonlocal) for each in inner for e in walk(each)):
            return True
        names = {e.id for e in walk(function) if isinstance(e, ast.Name) and isinstance(e.ctx, ast.Store)}
        changes = (
            site
            for name in sorted(names)
            for site in self.uses.changes(self.variables.named(name, function), None, None)
        )
        return any(self.variables.function(site) in inner for site in changes)

    def of_part(self, node: ast.expr, scope: Scope) -> list[ast.stmt]:
        """Return the statements that may replace a model, optimizer or dataset before a step reads its name."""
        read = self.variables.original(node)
        return [
            each
            for number, step in enumerate(self.tracer.steps(node, scope))
            for each in self._set_otherwise(step, read if number == 0 else None, is_part=True)
        ]

    def _set_otherwise(
        self, step: TraceStep, read: ast.AST | None, *, is_part: bool = False
    ) -> list[ast.stmt]:
        """Return the statements, other than the traced one, that may set a name before it is read.

        With `is_part`, statements that set None, or make the object again from its value where it was made, do not
        count.
        """
        key, node = step.key.partition("[")[0], step.scope.node
        base, _, attribute = key.partition(".")
        if base in ("self", "cls"):
            return [] if is_part else self._set_in_self(step, attribute.partition(".")[0])
        flow = self._flow(key, step, is_part=is_part)
        outer = self.variables.named(base, node).scope != id(node)
        begun = frozenset({_DEFAULT} if attribute or outer or _is_parameter(base, node) else ())
        inner = self._is_inner(step, read)
        at_end = flow.at_end(node.body, begun)
        may = flow.found if flow.was_read and not inner else {*flow.bound} | (at_end & {_DEFAULT})
        statements = [flow.bound[each] for each in may - {_DEFAULT}]
        others = [each for each in statements if not _is_own(each, step)]
        if step.binding is None:
            others = [each for each in others if not self._binds_base(each, base)]
        elif _is_entered(step.binding) or _DEFAULT in may or (attribute and others):
            others = [each for each in statements if not attribute or not self._binds_base(each, base)]
        if step.binding is not None:
            asked = read if read is not None else step.binding.value
            others += [
                each
                for each in self.variables.set_within(base, node)
                if not self._is_after(each, asked, node)
            ]
        return [
            each
            for each in others
            if isinstance(each, ast.stmt) and not _is_alike(each, step) and not self._is_of_step(each)
        ]

    def _set_in_self(self, step: TraceStep, name: str) -> list[ast.stmt]:
        own, made = step.scope.own, step.binding.value if step.binding is not None else None
        if own is None or made is None:
            return []
        found: list[ast.stmt] = []
        constructor = getattr(self.variables.function(made), "name", "") == "__init__"
        later = not constructor and self.tracer.writes.begins_in_class(own, name)
        for site in self.tracer.writes.sets_of(own, name):
            statement = self.variables.statement(site)
            begins = self.variables.function(site) is self.variables.function(made)
            if (_is_own(statement, step) and not later) or (begins and statement.lineno < made.lineno):
                continue
            if self._called_from(site, 0) and not _is_alike(statement, step):
                found.append(statement)
        return [each for each in found if not self._is_of_step(each)]

    def _flow(self, key: str, step: TraceStep, *, is_part: bool) -> FlowVisitor:
        guard = self.script.guard
        given = step.binding is not None and step.binding.kind == "given"

        def holds(test: ast.expr) -> bool | None:
            return True if guard is not None and test is guard.test else self.tracer.holds(test, step.scope)

        def is_same(node: ast.stmt) -> bool:
            value = node.value if isinstance(node, ast.Assign) else None
            none = isinstance(value, ast.Constant) and value.value is None
            again = value is not None and any(key_of(each) == key for each in walk(value))
            listed = value is not None and last_name(value) in LISTED
            if is_part and (none or (again and (listed or not given))):
                return True
            inner = self.tracer.innermost(value, step.scope) if value is not None else None
            moved = inner is not None and inner is not value and key_of(inner) == key
            library = isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute)
            return moved or (library and last_name(value) in PREPARE)  # type: ignore[arg-type]

        def read(node: ast.stmt) -> bool:
            heads: list[ast.AST] = [node]
            if isinstance(node, ast.If | ast.While):
                heads = [node.test]
            elif isinstance(node, ast.For | ast.AsyncFor):
                heads = [node.iter]
            elif isinstance(node, ast.With | ast.AsyncWith):
                heads = [each.context_expr for each in node.items]
            elif isinstance(
                node, ast.Try | ast.Match | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
            ):
                return False
            return any(each.lineno <= step.line <= (each.end_lineno or 0) for each in heads)  # type: ignore[attr-defined]

        return FlowVisitor(key, holds, is_same, read)

    def _is_inner(self, step: TraceStep, read: ast.AST | None) -> bool:
        for each in self.variables.around(read) if read is not None else ():
            if each is step.scope.node:
                return False
            if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
                return any(outer is step.scope.node for outer in self.variables.around(each))
        return False

    def _binds_base(self, node: ast.AST, base: str) -> bool:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", node)]
        return any(isinstance(e, ast.Name) and e.id == base for t in targets for e in walk(t))

    def _changed(self, step: TraceStep, read: ast.AST) -> Iterator[ast.stmt]:
        key, _, entry = step.key.partition("[")
        base, _, attribute = key.partition(".")
        if base in ("self", "cls"):
            return
        variable = self.variables.named(base, step.scope.node)
        part = attribute or entry.partition("]")[0].strip("'\"") or _entry_of(read, base)
        value = step.binding.value if step.binding is not None and not attribute else self._value_of(variable)
        if value is not None and (self.values.is_immutable(value) or is_generator(value)):
            return
        sites = self.uses.changes(variable, part or None, value)
        if len(sites) == 1 and self._is_only_use(variable):
            return
        for site in sites:
            for each in self._called_from(site, 0):
                if not self._is_allowed(each, step, read, value):
                    yield self.variables.statement(each)

    def _value_of(self, variable: ScopeVariable) -> ast.expr | None:
        for use in reversed(self.variables.uses.get(variable, ())):
            made = self.variables.above[id(use)]
            if (
                isinstance(use.ctx, ast.Store)
                and isinstance(made, ast.Assign | ast.AnnAssign)
                and made.value is not None
            ):
                return made.value
        return None

    def _is_only_use(self, variable: ScopeVariable) -> bool:
        reads = [each for each in self.variables.uses.get(variable, ()) if isinstance(each.ctx, ast.Load)]
        around = [each for use in reads for each in self.variables.around(use)]
        return len(reads) == 1 and not any(isinstance(each, _LOOPS) for each in around)

    def _is_allowed(self, site: ast.AST, step: TraceStep, read: ast.AST, value: ast.expr | None) -> bool:
        statement = self.variables.statement(site)
        if id(site) in self._body or id(statement) in self._body:
            return self._is_taken(statement) or not (
                self.values.is_container(value) or last_name(value) in ("parse_args", "parse_known_args")  # type: ignore[arg-type]
            )
        blocks = [each for each in self.variables.around(statement) if isinstance(each, _BLOCKS)]
        held = [self._holds(each, statement) if isinstance(each, ast.If) else None for each in blocks]
        if False in held:
            return True
        if (
            isinstance(statement, ast.Assign)
            and key_of(site)
            and all(held)
            and self._gives_taken(site, statement)
        ):
            return True
        return self._is_after(site, read, step.scope.node)


def _is_entered(binding: Binding) -> bool:
    """Return whether a `with` binds a name to what may be another object than its expression. A file gives itself."""
    return binding.kind == "context" and last_name(binding.value) != "open"


def _is_own(bound: ast.AST, step: TraceStep) -> bool:
    value = step.binding.value if step.binding is not None else None
    return value is not None and any(each is value for each in walk(bound))


def _is_alike(other: ast.stmt, step: TraceStep) -> bool:
    value = getattr(other, "value", None)
    if step.binding is None or not isinstance(other, ast.Assign) or value is None or step.binding.path:
        return False
    written = step.binding.value
    return value is not written and isinstance(written, ast.Constant) and ast.dump(value) == ast.dump(written)


def _entry_of(node: ast.AST, base: str) -> str:
    """Return the key of the entry of `base` that is read: `lr` for `given["lr"]`; else empty."""
    while isinstance(node, ast.Subscript) and not isinstance(node.value, ast.Name):
        node = node.value
    named = isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name) and node.value.id == base
    key = node.slice if isinstance(node, ast.Subscript) and named else None
    return str(key.value) if isinstance(key, ast.Constant) else ""


def _is_parameter(name: str, node: ast.AST) -> bool:
    return isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and name in parameters_of(node)
