"""Find errors in a generated method: unknown, unassigned or ambiguous names, and unread arguments."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterable

from ddpbench.launch.own_class.trees import children, walk

_READS = {
    "loss": ("model", "batch"),
    "step": ("model", "batch"),
    "optimizer": ("model", "parameters"),
    "before_update": ("model",),
}
"""For each method, the arguments that the method must read if it has them."""


_PARTS = (ast.Attribute, ast.Subscript)
_VALUES = (ast.Constant, ast.List, ast.Tuple, ast.Dict, ast.Set, ast.JoinedStr, ast.Compare, ast.BoolOp)


def _may_have(node: ast.AST, value: ast.AST) -> bool:
    if isinstance(node, ast.Subscript):
        return not isinstance(value, ast.Constant) or isinstance(value.value, str | bytes)
    return isinstance(node, ast.Attribute) and not (
        isinstance(value, ast.Constant) and not isinstance(value.value, str | bytes)
    )


def problems_of(
    name: str, parameters: tuple[str, ...], given: Iterable[str], body: list[ast.stmt], known: frozenset[str]
) -> list[str]:
    """Return a sentence for each error in a generated method.

    `given` has the names bound before `body`, and `known` the module's names after import.
    """
    flow = _Flow({"self", *parameters, *given}, _stored(body), known)
    flow.block(body)
    wanted = [each for each in parameters if each in _READS.get(name, ())]
    unread = [each for each in wanted if not any(_reads(statement, each) for statement in body)]
    return [*dict.fromkeys(flow.problems), *(f"it never reads `{each}`" for each in unread)]


def _reads(node: ast.AST, name: str, *, also_outer: bool = False) -> bool:
    """Return whether a node reads the method's variable `name`, not a nested function's variable.

    Reads marked as those of a module-level variable only count with `also_outer`.
    """
    if isinstance(node, ast.Name):
        outer = getattr(node, "outer", False) and not also_outer
        return node.id == name and isinstance(node.ctx, ast.Load) and not outer
    return any(_reads(each, name, also_outer=also_outer) for each in _outside(node, name))


def reads_of_module(body: list[ast.stmt], bound: Iterable[str], names: Iterable[str]) -> list[str]:
    """Return which of the module-level `names` a method reads. `bound` are the names bound before its `body`."""
    own = {*bound, *_stored(body)}
    return [
        name
        for name in names
        if name not in own and any(_reads(each, name, also_outer=True) for each in body)
    ]


def _outside(node: ast.AST, name: str) -> Iterable[ast.AST]:
    match node:
        case ast.FunctionDef() | ast.AsyncFunctionDef():
            if name in {*_arguments(node.args), *_stored(node.body)}:
                return (node.args, *node.decorator_list)
        case ast.Lambda():
            if name in _arguments(node.args):
                return (node.args,)
        case ast.ListComp() | ast.SetComp() | ast.GeneratorExp() | ast.DictComp():
            bound = [one for each in node.generators for one in walk(each.target)]
            if any(isinstance(one, ast.Name) and one.id == name for one in bound):
                return (node.generators[0].iter,)
        case _:
            pass
    return children(node)


def free_names(made: ast.AST) -> set[str]:
    """Return the names that the methods of a class read but do not bind."""
    found: set[str] = set()
    for each in children(made):
        own = (
            {*_arguments(each.args), *_stored(each.body)}
            if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)
            else set[str]()
        )
        read = (
            {each.id} if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Load) else free_names(each)
        )
        found |= read - own
    return found


def unknown_names(value: ast.expr, known: frozenset[str]) -> list[str]:
    """Return a sentence for each error in an expression of a class body, such as a name unknown to the module."""
    flow = _Flow(set(), set(), known)
    flow.expression(value)
    return flow.problems


def _stored(body: list[ast.stmt]) -> set[str]:
    found: set[str] = set()
    todo: list[ast.AST] = list(body)
    while todo:
        node = todo.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
            continue
        if isinstance(node, ast.Lambda | ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp):
            continue
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            found |= {each.asname or each.name.partition(".")[0] for each in node.names}
        elif isinstance(node, ast.ExceptHandler) and node.name:
            found.add(node.name)
        elif isinstance(node, ast.pattern):
            found |= set(_patterns(node))
        todo += children(node)
    return found


class _Flow:
    def __init__(self, bound: set[str], stored: set[str], known: frozenset[str]) -> None:
        self.bound, self.stored, self.known = bound, stored, known
        self.own = bound | stored
        self.outer = frozenset(bound)
        """The names that are bound outside of the visited function."""
        self.problems: list[str] = []
        self.loops = 0
        """The number of enclosing loops."""

    def block(self, body: list[ast.stmt]) -> None:
        for statement in body:
            self._statement(statement)

    def _loop(self, body: list[ast.stmt]) -> None:
        self.loops += 1
        self.block(body)
        self.loops -= 1

    def _statement(self, node: ast.stmt) -> None:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            self._definition(node)
        elif isinstance(node, ast.Assign | ast.AugAssign | ast.AnnAssign):
            self._assignment(node)
        elif isinstance(
            node, ast.For | ast.AsyncFor | ast.While | ast.With | ast.AsyncWith | ast.Try | ast.If
        ):
            self._compound(node)
        elif isinstance(node, ast.Match):
            self._match(node)
        elif isinstance(node, ast.Nonlocal):
            self.problems += [
                f"line {node.lineno} lets a nested function set `{name}`, which the method does not have"
                for name in node.names
                if name not in self.outer
            ]
        elif isinstance(node, ast.Continue | ast.Break) and not self.loops:
            self.problems.append(f"`{ast.unparse(node)}` is outside any loop of the method")
        elif isinstance(node, ast.Import | ast.ImportFrom):
            self.bound |= {each.asname or each.name.partition(".")[0] for each in node.names}
        elif isinstance(node, ast.Delete):
            self.bound -= {target.id for target in node.targets if isinstance(target, ast.Name)}
        else:
            for child in children(node):
                if isinstance(child, ast.expr):
                    self.expression(child)

    def _match(self, node: ast.Match) -> None:
        self.expression(node.subject)
        for case in node.cases:
            self.bound |= set(_patterns(case.pattern))
            for each in walk(case.pattern):
                if isinstance(each, ast.expr):
                    self.expression(each)
            if case.guard is not None:
                self.expression(case.guard)
            self.block(case.body)

    def _definition(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> None:
        if isinstance(node, ast.ClassDef):
            evaluated = node.bases
            inner = _Flow(self.own | {node.name} | _stored(node.body), set(), self.known)
        else:
            evaluated = [*node.args.defaults, *filter(None, node.args.kw_defaults)]
            inner = _Flow(self.own | set(_arguments(node.args)), _stored(node.body), self.known)
            self.problems += [
                f"line {each.lineno} makes a default that a nested function may change; each batch would get a new one"
                for each in evaluated
                if isinstance(each, ast.List | ast.Dict | ast.Set) and hasattr(each, "lineno")
            ]
        for each in evaluated:
            self.expression(each)
        self.bound.add(node.name)
        inner.block(node.body)
        self.problems += inner.problems

    def _assignment(self, node: ast.Assign | ast.AugAssign | ast.AnnAssign) -> None:
        if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
            self._read(ast.copy_location(ast.Name(node.target.id, ast.Load()), node))
        if node.value is None:
            return  # an annotation without a value
        self.expression(node.value)
        for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
            self.expression(target)

    def _compound(
        self, node: ast.For | ast.AsyncFor | ast.While | ast.With | ast.AsyncWith | ast.Try | ast.If
    ) -> None:
        match node:
            case ast.For() | ast.AsyncFor():
                self.expression(node.iter)
                self.expression(node.target)
                self._loop(node.body)
                self.block(node.orelse)
            case ast.While():
                self.expression(node.test)
                self._loop(node.body)
                self.block(node.orelse)
            case ast.If():
                self.expression(node.test)
                self.block([*node.body, *node.orelse])
            case ast.With() | ast.AsyncWith():
                for item in node.items:
                    self.expression(item.context_expr)
                    if item.optional_vars is not None:
                        self.expression(item.optional_vars)
                self.block(node.body)
            case ast.Try():
                self.block(node.body)
                for handler in node.handlers:
                    if handler.name:
                        self.bound.add(handler.name)
                    self.block(handler.body)
                self.block([*node.orelse, *node.finalbody])

    def expression(self, node: ast.AST) -> None:
        self._check_use(node)
        if isinstance(node, ast.Name):
            if isinstance(node.ctx, ast.Store):
                self.bound.add(node.id)
            else:
                self._read(node)
        elif isinstance(node, ast.Lambda):
            for default in filter(None, (*node.args.defaults, *node.args.kw_defaults)):
                self.expression(default)
            inner = _Flow(self.bound | set(_arguments(node.args)), set(), self.known)
            inner.expression(node.body)
            self.problems += inner.problems
        elif isinstance(node, ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp):
            inner = _Flow(set(self.bound), self.stored, self.known)
            for each in node.generators:
                for part in (each.iter, each.target, *each.ifs):
                    inner.expression(part)
            values = [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]
            for value in values:
                inner.expression(value)
            self.problems += inner.problems
        else:
            for child in children(node):
                self.expression(child)

    def _check_use(self, node: ast.AST) -> None:
        used = node.func if isinstance(node, ast.Call) else node.value if isinstance(node, _PARTS) else None
        computed = isinstance(node, ast.Call) and isinstance(
            used, ast.BinOp | ast.UnaryOp
        )  # such as (2 * 8)(x)
        if computed or (isinstance(used, _VALUES) and not _may_have(node, used)):
            self.problems.append(f"`{ast.unparse(node)}` uses a value as if it were a function or a module")

    def _read(self, node: ast.Name) -> None:
        name = node.id
        if getattr(node, "outer", False) and name in self.own:
            self.problems.append(f"`{name}` means one thing in the script and another in the method")
        elif name in self.bound:
            pass
        elif name in self.stored:
            self.problems.append(f"`{name}` is read before anything is assigned to it")
        elif not ({name, "*"} & self.known or hasattr(builtins, name) or name in ("__file__", "__name__")):
            self.problems.append(f"`{name}` is a name that the module does not have")


def _patterns(node: ast.AST) -> Iterable[str]:
    for each in walk(node):
        if isinstance(each, ast.MatchAs | ast.MatchStar) and each.name:
            yield each.name
        elif isinstance(each, ast.MatchMapping) and each.rest:
            yield each.rest


def _arguments(found: ast.arguments) -> list[str]:
    several = [each for each in (found.vararg, found.kwarg) if each is not None]
    return [each.arg for each in [*found.posonlyargs, *found.args, *found.kwonlyargs, *several]]
