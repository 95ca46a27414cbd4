"""Find statements that change module-level names after a script's import if the generated class reads these names."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterable, Iterator
from functools import cached_property

from ddpbench.launch.own_class.bindings import key_of
from ddpbench.launch.own_class.draws import is_generator
from ddpbench.launch.own_class.immutable import dotted
from ddpbench.launch.own_class.script import last_name, place_of_node
from ddpbench.launch.own_class.tracing import default_of, parameters_of
from ddpbench.launch.own_class.trees import walk
from ddpbench.launch.own_class.unchanged import Unchanged
from ddpbench.launch.own_class.variables import ScopeVariable


class ModuleNames(Unchanged):
    """Finds statements that change module-level names after the import, if the generated class reads these names."""

    def of_module(self, texts: Iterable[ast.AST]) -> list[tuple[str, ast.stmt]]:
        """Return the module-level names that the class reads and that statements change after the import.

        Each comes with one such statement. `texts` has the syntax trees of the class's methods.
        """
        nodes = [*texts, *self._reached(self.names)]
        by_functions = {
            each.id
            for node in nodes
            for each in walk(node)
            if isinstance(each, ast.Name)
            and id(each) in self.variables.above
            and self.variables.of(each).scope == id(self.script.tree)
        }
        reads = self.names | by_functions
        within = {id(each) for node in nodes for each in walk(node)}
        found: list[tuple[str, ast.stmt]] = []
        for name in sorted(reads & self.script.importable):
            variable = ScopeVariable(id(self.script.tree), name)
            rebound = list(self._rebound(variable))
            sites = list(rebound)
            if name in self.values.imports:
                sites += self._patched(name, nodes)
            elif self._is_defined(name):
                sites += [each for each in self.uses.changes(variable, None, None) if _is_patch(each)]
                sites += self._set_on_class(name)
                sites += self._called_again(name)
            else:
                value = self._value_of(variable)
                for part in () if self._is_plain(variable) else _parts_read(nodes, name):
                    sites += self.uses.changes(variable, part, value)
            if sites:
                reads_of = self._reads_of(variable, within)
                own = rebound if name in by_functions else []
                found += [(name, each) for each in self._after_import(sites, reads_of, own)]
        return found

    def _is_plain(self, variable: ScopeVariable) -> bool:
        value = self._value_of(variable)
        return value is not None and (self.values.is_immutable(value) or is_generator(value))

    def _reads_of(self, variable: ScopeVariable, within: set[int]) -> list[ast.AST]:
        uses = [each for each in self.variables.uses.get(variable, ()) if isinstance(each.ctx, ast.Load)]
        return [each for each in uses if id(each) in within or place_of_node(each) in self.places]

    def _is_defined(self, name: str) -> bool:
        return name in self.script.functions or name in self.script.classes

    def _rebound(self, variable: ScopeVariable) -> Iterator[ast.AST]:
        for use in self.variables.uses.get(variable, ()):
            if not isinstance(use.ctx, ast.Load):
                yield use

    def _after_import(
        self, sites: Iterable[ast.AST], reads: list[ast.AST], rebound: Collection[ast.AST] = ()
    ) -> Iterator[ast.stmt]:
        """Yield the statements that execute one of `sites` after the import and before the last of `reads`.

        A step's statements in the class are left out, except `rebound` ones, whose name is an attribute in the class.
        """
        for site in sites:
            for each in self._called_from(site, 0):
                statement = self.variables.statement(each)
                last = reads or [self.loop.stands or self.loop.node]
                if self._is_imported(each) or all(
                    self._is_after(each, read, self.script.tree) for read in last
                ):
                    continue
                inside = id(each) in self._body or id(statement) in self._body
                if inside and self._is_taken(statement) and (site not in rebound or self._is_run(statement)):
                    continue
                yield statement

    def _is_imported(self, node: ast.AST) -> bool:
        way = [node, *self.variables.around(node)]
        inside = any(
            isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) for each in way[1:]
        )
        return not inside and not any(each is self.script.guard or each in self.ends for each in way)

    def _patched(self, name: str, nodes: list[ast.AST]) -> Iterator[ast.AST]:
        imports = self.values.imports
        whole = imports[name]
        reads = {path for node in nodes for each in walk(node) if (path := dotted(each, imports)) is not None}
        outermost = {each for each in reads if not any(other.startswith(f"{each}.") for other in reads)}
        for node, owner, attribute in self._set:
            path = dotted(owner, imports)
            if path is None or not (path == whole or path.startswith(f"{whole}.") or whole.startswith(path)):
                continue
            target = f"{path}.{attribute}" if attribute else path
            read = path in outermost or any(each == target or each.startswith(f"{target}.") for each in reads)
            if read and (path != "os.environ" or self._reads_variable(node, nodes)):
                yield node

    @cached_property
    def _set(self) -> list[tuple[ast.AST, ast.expr, str]]:
        """The nodes that set an attribute or entry, with the object and the attribute (empty for an entry)."""
        found = ((node, *_set_by(node)) for node in walk(self.script.tree))
        return [(node, owner, attribute) for node, owner, attribute in found if owner is not None]

    def _reads_variable(self, node: ast.AST, nodes: list[ast.AST]) -> bool:
        texts = {
            each.value for each in walk(self.variables.statement(node)) if isinstance(each, ast.Constant)
        }
        return any(
            isinstance(inner, ast.Constant) and inner.value in texts
            for whole in nodes
            for each in walk(whole)
            if isinstance(each, ast.Call | ast.Subscript) and "environ" in ast.unparse(each)
            for inner in walk(each)
        )

    def _set_on_class(self, name: str) -> Iterator[ast.AST]:
        """Yield nodes that may set a class's attribute, such as `type(c).lr = 1` or `cls.lr = 1`."""
        own = self.script.classes.get(name)
        for node, of, attribute in self._set if own is not None else ():
            if not attribute:
                continue
            by_type = isinstance(of, ast.Call) and last_name(of) == "type"
            by_class = isinstance(of, ast.Attribute) and of.attr == "__class__"
            inside = (
                isinstance(of, ast.Name)
                and of.id == "cls"
                and any(each is own for each in self.variables.around(node))
            )
            if by_type or by_class or inside:
                yield node

    def _called_again(self, name: str) -> list[ast.AST]:
        calls = self.variables.calls.get(name, [])
        function = self.script.functions.get(name)
        if function is None or len(calls) < 2:
            return []
        for parameter in parameters_of(function):
            default = default_of(function, parameter)
            if default is None or self.values.is_immutable(default):
                continue
            if self.uses.changes(self.variables.named(parameter, function), None, default):
                return [each for each in calls if not self._is_taken(self.variables.statement(each))]
        return []

    def by_names(self) -> Iterator[ast.stmt]:
        """Yield statements after the import that may set any module-level name, such as `exec("lr = 1")`."""
        for call in (each for each in walk(self.script.tree) if isinstance(each, ast.Call)):
            name = call.func.id if isinstance(call.func, ast.Name) else ""
            parent = self.variables.above.get(id(call))
            stores = isinstance(parent, ast.Subscript) and not isinstance(parent.ctx, ast.Load)
            updates = isinstance(parent, ast.Attribute) and parent.attr in (
                "update",
                "setdefault",
                "pop",
                "__setitem__",
            )
            kept = isinstance(parent, ast.Assign | ast.NamedExpr)
            if name == "exec" or (
                name in ("globals", "vars") and not call.args and (stores or updates or kept)
            ):
                yield from self._after_import([call], [])


def _is_patch(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute) or (
        isinstance(node, ast.Call) and last_name(node) in ("setattr", "delattr")
    )


def _set_by(node: ast.AST) -> tuple[ast.expr | None, str]:
    """Return the object on which a node sets an attribute or entry (or None), and the attribute."""
    match node:
        case ast.Attribute() if not isinstance(node.ctx, ast.Load):
            return node.value, node.attr
        case ast.Subscript() if not isinstance(node.ctx, ast.Load):
            return node.value, ""
        case ast.Call(args=[owner, ast.Constant(value=str() as name), *_]) if last_name(node) == "setattr":
            return owner, name
        case ast.Call(func=ast.Attribute() as func) if (
            func.attr in ("update", "setdefault") and key_of(func.value) == "os.environ"
        ):
            return func.value, ""
    return None, ""


def _parts_read(nodes: list[ast.AST], name: str) -> list[str | None]:
    """Return the entries and attributes of `name` that are read; `[None]` for the entire object."""
    found: set[str | None] = set()
    for node in nodes:
        held: set[int] = set()
        for each in walk(node):
            value = getattr(each, "value", None)
            if not (
                isinstance(each, ast.Attribute | ast.Subscript)
                and isinstance(value, ast.Name)
                and value.id == name
            ):
                continue
            if isinstance(each, ast.Attribute):
                found.add(each.attr if isinstance(each.ctx, ast.Load) else None)
                held.add(id(value))
            elif isinstance(each.slice, ast.Constant):
                found.add(str(each.slice.value))
                held.add(id(value))
        if any(isinstance(e, ast.Name) and e.id == name and id(e) not in held for e in walk(node)):
            found.add(None)
    if None in found or not found:
        return [None]
    return [*sorted(each for each in found if each is not None)]
