"""Decide which values of a script are immutable, arrays, containers or objects of a library."""

from __future__ import annotations

import ast

from ddpbench.launch.own_class.script import FunctionNode, Script, last_name
from ddpbench.launch.own_class.trees import walk
from ddpbench.launch.own_class.variables import ScopeVariable, Variables

_MAKES = frozenset(
    {
        "int",
        "float",
        "str",
        "bool",
        "complex",
        "bytes",
        "len",
        "abs",
        "round",
        "pow",
        "hash",
        "id",
        "ord",
        "chr",
    }
    | {
        "type",
        "isinstance",
        "hasattr",
        "range",
        "any",
        "all",
        "repr",
        "format",
        "getenv",
        "Path",
        "frozenset",
    }
    | {
        "device",
        "is_available",
        "device_count",
        "cpu_count",
        "sqrt",
        "log",
        "exp",
        "ceil",
        "floor",
        "cos",
        "sin",
    }
    | {
        "join",
        "strip",
        "lower",
        "upper",
        "replace",
        "item",
        "get_world_size",
        "get_rank",
        "time",
        "numel",
        "size",
    }
)
_CONTAINERS = frozenset(
    {"deque", "defaultdict", "Counter", "OrderedDict", "ChainMap", "SimpleNamespace", "Namespace", "partial"}
)
"""Classes of the standard library whose objects contain their arguments."""
_CONSUMED = frozenset(
    {"iter", "map", "zip", "filter", "enumerate", "reversed", "cycle", "count", "open", "chain", "islice"}
)
_DEEPEST = 8


def dotted(node: ast.AST, imports: dict[str, str]) -> str | None:
    """Return the full name of an imported object, such as `torch.nn.functional.relu` for `F.relu`; None for others."""
    if isinstance(node, ast.Name):
        return imports.get(node.id)
    if isinstance(node, ast.Attribute):
        of = dotted(node.value, imports)
        return None if of is None else f"{of}.{node.attr}"
    return None


def consumed(value: ast.expr | None) -> bool:
    """Return whether a value is an iterator or generator, which can be iterated over only once."""
    if isinstance(value, ast.GeneratorExp):
        return True
    return isinstance(value, ast.Call) and last_name(value) in _CONSUMED


def _parts_of(node: ast.AST) -> list[ast.expr] | None:
    """Return the subexpressions that decide whether a value is immutable; None for other nodes."""
    match node:
        case ast.Constant() | ast.JoinedStr() | ast.Compare() | ast.Lambda():
            return []
        case ast.UnaryOp():
            return [node.operand]
        case ast.BinOp():
            return [node.left, node.right]
        case ast.BoolOp() | ast.Tuple():
            return node.elts if isinstance(node, ast.Tuple) else node.values
        case ast.IfExp():
            return [node.body, node.orelse]
        case _:
            return None


class Values:
    """Classifies the values of a script's expressions, for example as immutable or as arrays."""

    def __init__(self, script: Script, variables: Variables) -> None:
        self.script, self.variables = script, variables
        self.imports: dict[str, str] = {}
        for node in walk(script.tree):
            if isinstance(node, ast.Import):
                for each in node.names:
                    whole = each.name if each.asname else each.name.partition(".")[0]
                    self.imports[each.asname or whole] = whole
            elif isinstance(node, ast.ImportFrom):
                for each in node.names:
                    self.imports[each.asname or each.name] = f"{node.module or ''}.{each.name}"

    def is_immutable(self, node: ast.AST, depth: int = 0) -> bool:
        """Return whether a value and everything in it are immutable. Unknown values count as mutable."""
        if depth > _DEEPEST:
            return False
        match node:
            case ast.Name():
                return self._is_name_immutable(node, depth)
            case ast.Attribute():
                return dotted(node, self.imports) is not None
            case ast.Call():
                known = dotted(node.func, self.imports) in ("os.environ.get", "math.prod")
                return known or (last_name(node) in _MAKES and last_name(node) not in self.script.functions)
        parts = _parts_of(node)
        return parts is not None and all(self.is_immutable(each, depth + 1) for each in parts)

    def _is_name_immutable(self, node: ast.Name, depth: int) -> bool:
        if id(node) not in self.variables.above:
            return False
        if node.id in self.imports:
            return True
        variable = self.variables.of(node)
        stores = [each for each in self.variables.uses.get(variable, ()) if isinstance(each.ctx, ast.Store)]
        made = [self.variables.above[id(each)] for each in stores]
        values = [each.value for each in made if isinstance(each, ast.Assign | ast.AugAssign)]
        return (
            bool(made)
            and len(values) == len(made)
            and all(self.is_immutable(each, depth + 1) for each in values)
        )

    def is_flat(self, node: ast.expr) -> bool:
        """Return whether everything in a value is immutable. The value itself may be a list or a dictionary."""
        match node:
            case ast.List() | ast.Tuple() | ast.Set():
                return all(self.is_immutable(each) for each in node.elts)
            case ast.Dict():
                return None not in node.keys and all(self.is_immutable(each) for each in node.values)
            case ast.Call() if last_name(node) in ("dict", "SimpleNamespace", "Namespace") and not node.args:
                return all(each.arg and self.is_immutable(each.value) for each in node.keywords)
            case ast.Call() if last_name(node) in ("Counter", "range"):
                return True
            case ast.Call() if (
                last_name(node) in ("list", "tuple", "sorted", "iter", "reversed") and len(node.args) == 1
            ):
                return self.is_flat(node.args[0])
        return self.is_immutable(node)

    def entry(self, node: ast.expr | None, key: object) -> ast.expr | None:
        """Return the expression for a key, index or argument name in a literal or a call; None if there is none."""
        if isinstance(node, ast.Dict):
            for each, value in zip(reversed(node.keys), reversed(node.values), strict=True):
                if not isinstance(each, ast.Constant):
                    return None
                if each.value == key:
                    return value
        if isinstance(node, ast.List | ast.Tuple) and isinstance(key, int) and key < len(node.elts):
            return node.elts[key]
        if isinstance(node, ast.Call):
            for word in node.keywords:
                if word.arg == key:
                    return word.value
        return None

    def made_by(self, node: ast.expr | None) -> ast.ClassDef | None:
        """Return the class of the script that a call instantiates; None for other expressions."""
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            return self.script.classes.get(node.func.id)
        return None

    def is_container(self, node: ast.expr | None) -> bool:
        """Return whether a value is a list, a dictionary, or another container or iterator of Python."""
        made = last_name(node) if isinstance(node, ast.Call) else ""
        literal = isinstance(node, ast.List | ast.Dict | ast.Set | ast.ListComp | ast.DictComp | ast.SetComp)
        return literal or made in _CONTAINERS | _CONSUMED | {"list", "dict", "set"}

    def is_of_library(self, node: ast.expr | None) -> bool:
        """Return whether a value is an object of a library's class. Python's containers do not count."""
        path = dotted(node.func, self.imports) if isinstance(node, ast.Call) else None
        name = path.rpartition(".")[2] if path is not None else ""
        return name[:1].isupper() and name not in _CONTAINERS

    def is_array(self, node: ast.expr | None) -> bool:
        """Return whether a value is a tensor or array of torch or numpy, or the result of an arithmetic expression."""
        of = node
        while (
            isinstance(of, ast.Call)
            and isinstance(of.func, ast.Attribute)
            and dotted(of.func, self.imports) is None
        ):
            of = of.func.value
        path = dotted(of.func, self.imports) if isinstance(of, ast.Call) else None
        return isinstance(of, ast.BinOp) or (
            path is not None and path.partition(".")[0] in ("torch", "numpy")
        )

    def functions(self, func: ast.expr) -> list[tuple[FunctionNode | ast.Lambda, int]]:
        """Return the script's functions that a call of `func` may run, each with the number of parameters to skip.

        The call's arguments go to the parameters after the skipped ones. Methods skip 1 parameter, `self`; functions
        skip 0.
        """
        tree = self.script.tree
        if isinstance(func, ast.Lambda):
            return [(func, 0)]
        if isinstance(func, ast.Attribute):
            methods = [each for _, each in self.script.methods() if each.name == func.attr]
            return [
                (each, 0 if any(last_name(d) == "staticmethod" for d in each.decorator_list) else 1)
                for each in methods
            ]
        if not isinstance(func, ast.Name):
            return []
        own = self.script.classes.get(func.id)
        if own is not None:
            return [
                (each, 1)
                for each in own.body
                if isinstance(each, ast.FunctionDef) and each.name in ("__init__", "__new__")
            ]
        variable = (
            self.variables.of(func) if id(func) in self.variables.above else ScopeVariable(id(tree), func.id)
        )
        found: list[tuple[FunctionNode | ast.Lambda, int]] = [
            (each, 0)
            for each in self.defined.get(func.id, ())
            if self.variables.named(each.name, self.variables.function(each)) == variable
        ]
        for use in self.variables.uses.get(variable, ()):
            made = self.variables.above[id(use)]
            if (
                isinstance(use.ctx, ast.Store)
                and isinstance(made, ast.Assign)
                and isinstance(made.value, ast.Lambda)
            ):
                found.append((made.value, 0))
        return found

    @property
    def defined(self) -> dict[str, list[FunctionNode]]:
        """The script's functions by name, including nested ones."""
        if not hasattr(self, "_defined"):
            self._defined: dict[str, list[FunctionNode]] = {}
            for each in walk(self.script.tree):
                if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef):
                    self._defined.setdefault(each.name, []).append(each)
        return self._defined
