"""Decide when a script runs its statements, for example whether it runs one after the last read of a value."""

from __future__ import annotations

import ast
from collections.abc import Collection

from ddpbench.launch.own_class.decorators import returned_function
from ddpbench.launch.own_class.dropped import names_read
from ddpbench.launch.own_class.immutable import Values
from ddpbench.launch.own_class.loops import TrainingLoop
from ddpbench.launch.own_class.script import Script, place_of_node
from ddpbench.launch.own_class.tracing import Tracer
from ddpbench.launch.own_class.trees import walk
from ddpbench.launch.own_class.uses import Uses
from ddpbench.launch.own_class.variables import Variables

_LOOPS = (ast.For, ast.AsyncFor, ast.While)
_DEEPEST = 8


class Sites:
    """Decides when the statements of a script run, and whether the generated class contains them."""

    def __init__(
        self,
        tracer: Tracer,
        variables: Variables,
        loop: TrainingLoop,
        *,
        trunk: Collection[int],
        places: Collection[int],
        names: set[str],
        ends: list[ast.stmt],
    ) -> None:
        """`trunk` has the ids of the functions on the call path to the training loop.

        `places` has the script's nodes that the class contains, and `names` the module's names that it reads. `ends`
        has the top-level statements that do not run on import.
        """
        self.tracer, self.loop, self.trunk, self.places, self.ends = tracer, loop, trunk, places, ends
        self.script: Script = tracer.script
        self.variables = variables
        self.values = Values(self.script, self.variables)
        self.uses = Uses(self.variables, self.values)
        self.names = names & self.script.importable
        """The module's names that the generated class reads directly."""
        self._called = {id(each) for each in self._reached(self.names)}
        nodes = [each for body in (loop.body, [loop.node]) for part in body for each in walk(part)]
        self._body = {id(same) for each in nodes for same in (each, variables.original(each))}

    def _holds(self, block: ast.If, statement: ast.stmt) -> bool | None:
        """Return whether a branch's statement runs with the script's defaults; None if unknown."""
        if block is self.script.guard:
            return True
        own = self.variables.function(block)
        scope = next((each for each in self.tracer.scopes if each.node is own), None)
        held = self.tracer.holds(block.test, scope) if scope is not None else None
        inside = any(each is statement for part in block.body for each in walk(part))
        return None if held is None else held is inside

    def _gives_taken(self, site: ast.AST, statement: ast.Assign) -> bool:
        value = statement.value
        for target in statement.targets:
            if isinstance(target, ast.Tuple | ast.List) and isinstance(value, ast.Tuple | ast.List):
                pairs = dict(zip(map(id, target.elts), value.elts, strict=False))
                if id(site) in pairs:
                    return place_of_node(pairs[id(site)]) in self.places
        return self._is_taken(statement)

    def _is_taken(self, statement: ast.stmt) -> bool:
        value = getattr(statement, "value", None)
        if self._is_run(statement):
            return True
        return place_of_node(statement) in self.places or (
            value is not None and place_of_node(value) in self.places
        )

    def _is_run(self, statement: ast.stmt) -> bool:
        """Return whether a statement is in a function or class that the generated class uses.

        For the training loop's statements, use of the enclosing class does not count: perhaps only an attribute is
        read.
        """
        around = self.variables.around(statement)
        trains = id(statement) in self._body
        return any(
            id(each) in self._called for each in around if not (trains and isinstance(each, ast.ClassDef))
        )

    def _is_of_step(self, statement: ast.stmt) -> bool:
        return id(statement) in self._body and self._is_taken(statement)

    def _is_after(self, site: ast.AST, read: ast.AST, made: ast.AST | None = None) -> bool:
        """Return whether `site` always runs after the last time that `read` runs.

        `made` is the function or module of the variable. Each call of a function has new variables.
        """
        own = self.variables.function(site)
        reads = self._leading_to(read, own)
        if (id(site) in self._body and id(read) in self._body) or (
            made is not own and reads and self._is_called_in_loop(own)
        ):
            return False
        last = max((getattr(each, "end_lineno", 0) or 0 for each in reads), default=10**9)
        around = {
            id(each) for one in reads for each in self.variables.around(one) if isinstance(each, _LOOPS)
        }
        common = any(id(each) in around for each in self.variables.around(site))
        return getattr(site, "lineno", 0) > last and not common

    def _is_called_in_loop(self, function: ast.AST, depth: int = 0) -> bool:
        if depth > _DEEPEST or not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            return False
        for call in self.variables.calls.get(function.name, ()):
            around = list(self.variables.around(call))
            if function in around:
                continue
            if any(isinstance(each, _LOOPS) for each in around):
                return True
            if self._is_called_in_loop(self.variables.function(call), depth + 1):
                return True
        return False

    def _decorating(self, own: ast.AST, name: str) -> list[ast.AST]:
        """Return the places where the function `own`, called `name`, is used as a decorator.

        These include calls in decorators of a function that returns `own`, if this function is called nowhere else.
        """
        decorators = [
            each
            for node in walk(self.script.tree)
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
            for each in node.decorator_list
        ]
        found: list[ast.AST] = [each for each in decorators if isinstance(each, ast.Name) and each.id == name]
        makers = [each.name for each in self.script.functions.values() if returned_function(each) is own]
        for maker in makers:
            calls = self.variables.calls.get(maker, [])
            found += calls if all(any(each is call for each in decorators) for call in calls) else []
        return found

    def _leading_to(self, node: ast.AST, function: ast.AST) -> list[ast.AST]:
        found, todo, seen = [], [node], set[int]()
        while todo:
            each = todo.pop()
            own = self.variables.function(each)
            if own is function:
                found.append(each)
            elif id(own) not in seen and not isinstance(own, ast.Module | ast.Lambda):
                seen.add(id(own))
                todo += self.variables.calls.get(own.name, [])
        return found

    def _called_from(self, site: ast.AST, depth: int) -> list[ast.AST]:
        own = self.variables.function(site)
        if (
            isinstance(own, ast.Module | ast.Lambda)
            or id(own) in self.trunk
            or depth > _DEEPEST
            or id(site) in self._body
        ):
            return [site]
        method = self.variables.above.get(id(own))
        name = (
            method.name
            if isinstance(method, ast.ClassDef) and own.name in ("__init__", "__post_init__")
            else own.name
        )
        calls: list[ast.AST] = [*self.variables.calls.get(name, []), *self._decorating(own, name)]
        if not calls:
            mentioned = any(
                (isinstance(each, ast.Name) and each.id == name)
                or (isinstance(each, ast.Attribute) and each.attr == name)
                for each in walk(self.script.tree)
            )
            return [site] if mentioned or name.startswith("__") or name == "forward" else []
        inside = [each for each in calls if own not in self.variables.around(each)]
        return [outer for call in inside for outer in self._called_from(call, depth + 1)]

    def _reached(self, names: set[str]) -> list[ast.AST]:
        found = names | names_read(self.script, names)
        return [
            each
            for each in (*self.script.functions.values(), *self.script.classes.values())
            if each.name in found
        ]
