"""Decide whether a script may change a value after it makes the value, through any of the value's names."""

from __future__ import annotations

import ast
from functools import cached_property

from ddpbench.launch.own_class.bindings import Binding, Scope
from ddpbench.launch.own_class.immutable import Values
from ddpbench.launch.own_class.script import FunctionNode, Script, last_name
from ddpbench.launch.own_class.tracing import parameters_of, returned_by
from ddpbench.launch.own_class.trees import walk
from ddpbench.launch.own_class.uses import Uses
from ddpbench.launch.own_class.variables import ScopeVariable, Variables

_NESTS = (ast.If, ast.For, ast.AsyncFor, ast.While, ast.Try, ast.Match)
_LOOPS = (ast.For, ast.AsyncFor, ast.While)
_SEVERAL = 2


class AttributeWrites:
    """Finds the statements that set attributes of the objects of a script's classes."""

    def __init__(self, script: Script, variables: Variables) -> None:
        self.script, self.variables = script, variables
        self.values = Values(script, variables)
        self.uses = Uses(variables, self.values)
        self._set: dict[tuple[str, str], bool] = {}

    def sets_again(self, own: ast.ClassDef, name: str) -> bool:
        """Return whether an attribute may be set more than once, or by code outside the class.

        A property counts as set at each read, because its getter may return another value.
        """
        if (own.name, name) not in self._set:
            self._set[own.name, name] = self._is_set_again(own, name)
        return self._set[own.name, name]

    def is_computed(self, own: ast.ClassDef, name: str) -> bool:
        """Return whether a class, or a base or derived class, has a function `name`, such as a property's getter."""
        functions = ast.FunctionDef | ast.AsyncFunctionDef
        return any(
            isinstance(each, functions) and each.name == name for of in self._family(own) for each in of.body
        )

    def sets_of(self, own: ast.ClassDef, name: str) -> list[ast.AST]:
        """Return the nodes that may set an attribute of the objects of a class, other than in the class's body."""
        family = self._family(own)
        stores = [each for each in self._attributes.get(name, ()) if self._is_of(each, family)]
        return [*stores, *(site for of in family for site in self._changed_through_self(of, name))]

    def begins_in_class(self, own: ast.ClassDef, name: str) -> bool:
        """Return whether the body of a class, or of a base or derived class, sets an attribute to anything but None."""
        bound = [each for of in self._family(own) for each in self._of_class(of, name)]
        values = [getattr(self.variables.above[id(each)], "value", None) for each in bound]
        return any(not isinstance(each, ast.Constant) or each.value is not None for each in values)

    def _family(self, own: ast.ClassDef) -> list[ast.ClassDef]:
        return [each for each in self.script.classes.values() if self._is_related(each, own)]

    def _is_set_again(self, own: ast.ClassDef, name: str) -> bool:
        if self.is_computed(own, name):
            return True
        sites = self.sets_of(own, name)
        stores = [each for each in sites if isinstance(each, ast.Attribute)]
        if len(stores) < len(sites):
            return True
        begins = [each for each in stores if self._begins(each)]
        count = sum(map(self._weight, stores))
        count += sum(len(self._of_class(of, name)) for of in self._family(own))
        return count >= _SEVERAL and not (len(begins) == len(stores) == 1 and count == _SEVERAL)

    def _changed_through_self(self, own: ast.ClassDef, name: str) -> list[ast.AST]:
        """Return the nodes that may set an attribute of `self` indirectly, such as a call of `setattr`."""
        made = ast.Call(ast.Name(own.name, ast.Load()), [], [])
        methods = [each for each in own.body if isinstance(each, ast.FunctionDef) and each.args.args]
        return [
            site
            for each in methods
            for site in self.uses.changes(self.variables.named(each.args.args[0].arg, each), name, made)
            if not isinstance(site, ast.Attribute)
        ]

    def _is_related(self, each: ast.ClassDef, own: ast.ClassDef) -> bool:
        derives = self.script.derives
        return each is own or derives(each.name, (own.name,)) or derives(own.name, (each.name,))

    def _of_class(self, own: ast.ClassDef, name: str) -> list[ast.Name]:
        return [
            each
            for each in self.variables.uses.get(ScopeVariable(id(own), name), ())
            if not isinstance(each.ctx, ast.Load)
            and getattr(self.variables.above[id(each)], "value", None) is not None
        ]

    def _is_of(self, store: ast.Attribute, family: list[ast.ClassDef]) -> bool:
        base = store.value
        if isinstance(base, ast.Name) and base.id not in ("self", "cls"):
            return base.id in {each.name for each in family}
        if not isinstance(base, ast.Name) and ast.unparse(base) not in ("type(self)", "self.__class__"):
            return False
        return any(each is of for each in self.variables.around(store) for of in family)

    def _begins(self, store: ast.Attribute) -> bool:
        function: FunctionNode | ast.AST = self.variables.function(store)
        around = list(self.variables.around(store))
        inside = around[: around.index(function)]
        return getattr(function, "name", "") == "__init__" and not any(isinstance(e, _NESTS) for e in inside)

    @cached_property
    def _attributes(self) -> dict[str, list[ast.Attribute]]:
        found: dict[str, list[ast.Attribute]] = {}
        for node in walk(self.script.tree):
            if isinstance(node, ast.Attribute) and not isinstance(node.ctx, ast.Load):
                found.setdefault(node.attr, []).append(node)
        return found

    def _weight(self, store: ast.expr) -> int:
        above = self.variables.above[id(store)]
        return _SEVERAL if isinstance(above, ast.AugAssign) or isinstance(_context(store), ast.Del) else 1


class Writes(AttributeWrites):
    """Finds the writes of a script: assignments, deletions, and calls that may change an object."""

    def __init__(self, script: Script, variables: Variables) -> None:
        super().__init__(script, variables)
        self._rebound: dict[tuple[ScopeVariable, int], bool] = {}
        self._sites: dict[tuple[ScopeVariable | str, str | None], list[ast.AST]] = {}

    def is_rebound(self, node: ast.expr, scope: Scope, line: int = 0) -> bool:
        """Return whether the script may bind a name, or an attribute of `self`, more than once.

        Assignments to a local variable that always follow `line`, the read, do not count.
        """
        name, *parts = _path(node)
        if name not in ("self", "cls") or scope.own is None:
            return bool(name) and self._binds_again(name, scope, line or getattr(node, "lineno", 0))
        return bool(parts) and self.sets_again(scope.own, parts[0])

    def may_change(self, key: str, scope: Scope, line: int, binding: Binding | None, made: ast.expr) -> bool:
        """Return whether a value that is read at a line of a function may be different at another time.

        `key` names it, for example `x`, `self.x`, `x.y` or `x['y']`. `binding` is its assignment, if known, and `made`
        the expression that it comes from.
        """
        node = ast.parse(key, mode="eval").body
        if self.is_rebound(node, scope, line):
            return True
        name, *parts = _path(node)
        own = name in ("self", "cls") and scope.own is not None
        held: ScopeVariable | str = self.variables.named(name, scope.node)
        if own:
            held, *parts = parts or [""]
        whole = made if binding is None else binding.value
        if not held or not (parts or not self.values.is_immutable(whole)):
            return False
        sites = self._changes(held, parts[0] if parts else None)
        return any(
            not (self._is_before(each, scope, line, binding) or self.is_after(each, scope, line))
            for each in sites
        )

    def _is_before(self, site: ast.AST, scope: Scope, line: int, binding: Binding | None) -> bool:
        made = self.variables.statement(site)
        if binding is None or getattr(made, "value", None) is not binding.value:
            return False
        around = list(self.variables.around(made))
        inside = around[: around.index(scope.node)] if scope.node in around else []
        own = self.variables.function(made) is scope.node
        return own and made.lineno < line and not any(isinstance(each, _NESTS) for each in inside)

    def _changes(self, held: ScopeVariable | str, part: str | None) -> list[ast.AST]:
        if (held, part) not in self._sites:
            value = self._value_of(held)
            if isinstance(held, str):
                found = self.uses.changes_of_attribute(held, part, value)
            else:
                found = self.uses.changes(held, part, value)
            self._sites[held, part] = found  # stored before the next line, which may ask for it
            self._sites[held, part] = [*found, *self._changes_before_return(value, part)]
        return self._sites[held, part]

    def _changes_before_return(self, value: ast.expr | None, part: str | None) -> list[ast.AST]:
        function = self.script.functions.get(last_name(value)) if isinstance(value, ast.Call) else None
        return [
            site
            for each in (returned_by(function) if function is not None else ())
            if isinstance(each, ast.Name) and function is not None
            for site in self._changes(self.variables.named(each.id, function), part)
        ]

    def _value_of(self, held: ScopeVariable | str) -> ast.expr | None:
        stores: list[ast.expr] = []
        if isinstance(held, ScopeVariable):
            stores += [
                each for each in self.variables.uses.get(held, ()) if not isinstance(each.ctx, ast.Load)
            ]
        else:
            stores += self._attributes.get(held, ())
        for each in reversed(stores):
            made = self.variables.above[id(each)]
            if isinstance(made, ast.Assign | ast.AnnAssign) and made.value is not None:
                return made.value
        return None

    def _binds_again(self, name: str, scope: Scope, line: int) -> bool:
        variable = self.variables.named(name, scope.node)
        if (variable, line) not in self._rebound:
            stores = [
                each
                for each in self.variables.uses.get(variable, ())
                if not isinstance(each.ctx, ast.Load) and not self.is_after(each, scope, line)
            ]
            count = sum(map(self._weight, stores)) + self._given.get(variable, 0)
            of_module = variable.scope == id(self.script.tree)
            self._rebound[variable, line] = count >= _SEVERAL or (of_module and self._sets_global(name))
        return self._rebound[variable, line]

    def is_after(self, node: ast.AST, scope: Scope, line: int) -> bool:
        """Return whether a node lies directly in a function, and is always evaluated after `line` of the function."""
        own = self.variables.function(node) is scope.node and 0 < line < getattr(node, "lineno", 0)
        loops = (each for each in self.variables.around(node) if isinstance(each, _LOOPS))
        return own and not any(each.lineno <= line <= (each.end_lineno or 0) for each in loops)

    @cached_property
    def _given(self) -> dict[ScopeVariable, int]:
        found: dict[ScopeVariable, int] = {}
        for node in walk(self.script.tree):
            names: list[str] = []
            where: ast.AST = self.variables.function(node)
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                for each in parameters_of(node):
                    found[ScopeVariable(id(node), each)] = 1
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                names, where = [node.name], self._outer(node)
            elif isinstance(node, ast.Import | ast.ImportFrom):
                names = [each.asname or each.name.partition(".")[0] for each in node.names]
            for name in names:
                variable = self.variables.named(name, where)
                found[variable] = found.get(variable, 0) + 1
        return found

    def _outer(self, node: ast.AST) -> ast.AST:
        scopes = (ast.Module, ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)
        return next(each for each in self.variables.around(node) if isinstance(each, scopes))

    def _sets_global(self, name: str) -> bool:
        return name in self._globals or "" in self._globals

    @cached_property
    def _globals(self) -> set[str]:
        """Global names that are set through `globals()` or `sys.modules`; "" stands for any name."""
        found: set[str] = set()
        for node in walk(self.script.tree):
            if (
                isinstance(node, ast.Call)
                and last_name(node) in ("globals", "locals", "vars")
                and not node.args
            ):
                found |= self._set_through(node)
            elif isinstance(node, ast.Attribute) and not isinstance(node.ctx, ast.Load):
                found |= {node.attr} if "sys.modules" in ast.unparse(node.value) else set()
            elif isinstance(node, ast.Call) and last_name(node) == "setattr" and len(node.args) > 1:
                name = node.args[1].value if isinstance(node.args[1], ast.Constant) else ""
                found |= {str(name)} if "sys.modules" in ast.unparse(node.args[0]) else set()
        return found

    def _set_through(self, names: ast.Call) -> set[str]:
        """Return the global names that `globals()`, `locals()` or `vars()` may set; "" stands for any name."""
        parent = self.variables.above[id(names)]
        outer = self.variables.above.get(id(parent))
        if last_name(names) != "globals" and not isinstance(self.variables.function(names), ast.Module):
            return set()
        if isinstance(parent, ast.Subscript):
            key = parent.slice.value if isinstance(parent.slice, ast.Constant) else ""
            return set() if isinstance(parent.ctx, ast.Load) else {str(key)}
        if isinstance(parent, ast.Attribute) and isinstance(outer, ast.Call):
            if parent.attr in ("get", "items", "keys", "values", "copy"):
                return set()
            if parent.attr == "update" and not outer.args:
                return {each.arg or "" for each in outer.keywords}
            first = outer.args[0] if outer.args else None
            return {str(first.value)} if isinstance(first, ast.Constant) else {""}
        reads = isinstance(parent, ast.Compare | ast.comprehension | ast.For)
        shown = isinstance(parent, ast.Call) and last_name(parent) in (
            "print",
            "len",
            "sorted",
            "list",
            "set",
        )
        return set() if reads or shown else {""}


def _context(node: ast.expr) -> ast.expr_context:
    context = getattr(node, "ctx", None)
    return context if isinstance(context, ast.expr_context) else ast.Load()


def _path(node: ast.expr) -> list[str]:
    """Return `["a", "b", "c"]` for `a.b["c"]`; the first is empty unless the expression begins with a name."""
    found: list[str] = []
    while isinstance(node, ast.Attribute | ast.Subscript):
        if isinstance(node, ast.Attribute):
            found.append(node.attr)
        elif isinstance(node.slice, ast.Constant):
            found.append(str(node.slice.value))
        node = node.value
    return [node.id if isinstance(node, ast.Name) else "", *found[::-1]]
