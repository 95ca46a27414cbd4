"""Read a training script: its syntax tree, functions, classes and names, and the statements that run at import."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from ddpbench.errors import RequestError, meant_path
from ddpbench.launch.own_class.trees import children, walk
from ddpbench.records.files import kind_of

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef
MODULES = ("Module", "LightningModule", "PreTrainedModel")
"""The classes that a script's modules derive from."""
_MAGICS = ("%", "!", "?")
"""The characters with which a notebook's own commands begin."""
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)


@dataclass(frozen=True)
class Script:
    """A script's syntax tree, with its top-level functions, classes and names."""

    path: Path
    source: str
    tree: ast.Module
    guard: ast.If | None
    """The script's first `if __name__ == "__main__":`."""
    functions: dict[str, FunctionNode] = field(default_factory=dict)
    classes: dict[str, ast.ClassDef] = field(default_factory=dict)
    importable: frozenset[str] = frozenset()
    """Names that are bound once the script is imported."""
    encoding: str = "utf-8"

    def encoded(self, source: str) -> bytes:
        """Encode a source text in the script's encoding. Characters that the encoding lacks are written as escapes."""
        return source.encode(self.encoding, "backslashreplace")

    def methods(self) -> Iterator[tuple[ast.ClassDef, FunctionNode]]:
        """Yield each method of each class, as (class, method)."""
        for found in self.classes.values():
            for each in found.body:
                if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef):
                    yield found, each

    def derives(self, name: str, roots: tuple[str, ...]) -> bool:
        """Return whether the class `name` derives from one of `roots`, directly or through classes of the script."""
        found = self.classes.get(name)
        bases = [last_name(base) for base in found.bases] if found else []
        return any(base in roots or (base != name and self.derives(base, roots)) for base in bases)

    def lineage(self, own: ast.ClassDef) -> list[ast.ClassDef]:
        """Return a class and the classes of the script that it derives from, the nearest first."""
        found = [own]
        for each in found:
            bases = (self.classes.get(last_name(base)) for base in each.bases)
            found += [base for base in bases if base is not None and base not in found]
        return found

    def method(self, own: ast.ClassDef, name: str) -> tuple[ast.ClassDef, FunctionNode] | None:
        """Return the method `name` of objects of the class `own`, as (class that defines it, method).

        None if no class of the script defines it.
        """
        for each in self.lineage(own):
            for made in each.body:
                if isinstance(made, ast.FunctionDef | ast.AsyncFunctionDef) and made.name == name:
                    return each, made
        return None

    def inherited(self, own: ast.ClassDef, name: str) -> tuple[ast.ClassDef, FunctionNode] | None:
        """Return the method `name` that `super()` has in the class `own`, as (class that defines it, method)."""
        bases = (self.classes.get(last_name(base)) for base in own.bases)
        found = (self.method(base, name) for base in bases if base is not None)
        return next((each for each in found if each is not None), None)

    def is_overridden(self, own: ast.ClassDef, name: str) -> bool:
        """Return whether a class that derives from `own` defines the attribute or method `name`."""
        return any(
            _has(each, name)
            for each in self.classes.values()
            if each is not own and self.derives(each.name, (own.name,))
        )


def _has(own: ast.ClassDef, name: str) -> bool:
    bound = [node for each in own.body for node in bound_by(each)]
    set_ = (each for each in walk(own) if isinstance(each, ast.Attribute))
    return name in bound or any(each.attr == name and isinstance(each.ctx, ast.Store) for each in set_)


def read_script(path: Path) -> Script:
    """Read a script and number the nodes of its syntax tree (see `place_of_node`).

    Raises:
        RequestError: the file does not exist, is not a regular file, or is not valid Python.
    """
    if path.exists() and not path.is_file():
        raise RequestError(
            f"{path} is {kind_of(path.stat().st_mode)}, not a script: give the path of a script"
        )
    if not path.is_file():
        near = meant_path(path, Path.is_file)
        raise RequestError(f"there is no file {path}{near or '; give the path of the script'}")
    if path.suffix == ".ipynb":
        raise RequestError(
            f"{path} is a notebook: export it (jupyter nbconvert --to script), and give the script"
        )
    raw = path.read_bytes()
    try:
        tree = ast.parse(raw, str(path))
    except SyntaxError as error:
        where = f", line {error.lineno}" if error.lineno else ""
        line = (error.text or "").strip()
        magic = f" (remove the notebook's command `{line}`)" if line.startswith(_MAGICS) else ""
        raise RequestError(f"{path}{where}: not valid Python: {error.msg}{magic}") from error
    except ValueError as error:
        raise RequestError(f"{path}: not valid Python: {error}") from error
    except (RecursionError, MemoryError):
        raise RequestError(f"{path} cannot be read: its expressions are nested too deeply") from None
    for place, node in enumerate(walk(tree)):
        if isinstance(node, ast.stmt | ast.expr | ast.keyword | ast.withitem):
            node.place = place  # type: ignore[union-attr]
    for own in (each for each in walk(tree) if isinstance(each, ast.ClassDef)):
        for each in own.body:
            if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef):
                _name_self(each)
    guard = next((each for each in tree.body if isinstance(each, ast.If) and _is_guard(each.test)), None)
    outside = [each for each in tree.body if each is not guard]
    return Script(
        path=path,
        source=raw.decode(_encoding(raw)),
        encoding=_encoding(raw),
        tree=tree,
        guard=guard,
        functions={e.name: e for e in outside if isinstance(e, ast.FunctionDef | ast.AsyncFunctionDef)},
        classes={each.name: each for each in outside if isinstance(each, ast.ClassDef)},
        importable=frozenset(name for each in outside for name in bound_by(each)),
    )


def _name_self(method: FunctionNode) -> None:
    """Rename a method's first parameter to `self`, so that other functions recognize it."""
    first = next(iter([*method.args.posonlyargs, *method.args.args]), None)
    bound = {last_name(each) for each in method.decorator_list} & {"staticmethod", "classmethod"}
    if first is None or first.arg in ("self", "cls") or bound:
        return
    nodes = list(walk(method))
    names = [each for each in nodes if isinstance(each, ast.Name)]
    taken = {each.id for each in names} | {each.arg for each in nodes if isinstance(each, ast.arg)}
    again = [
        each for each in nodes if isinstance(each, ast.arg) and each.arg == first.arg and each is not first
    ]
    mine = [each for each in names if each.id == first.arg]
    if "self" in taken or again or not all(isinstance(each.ctx, ast.Load) for each in mine):
        return
    first.arg = "self"
    for each in mine:
        each.id = "self"


def _encoding(raw: bytes) -> str:
    import io
    import tokenize

    return tokenize.detect_encoding(io.BytesIO(raw).readline)[0]


def package_of(script: Script) -> tuple[Path, str] | None:
    """Return the folder above a script's outermost package, and the script's module name from there, such as `a.train`.

    The result is None if the script has no relative imports, so that it can be run as a file.
    """
    level = max((e.level for e in walk(script.tree) if isinstance(e, ast.ImportFrom)), default=0)
    if not level:
        return None
    folder, parts = script.path.resolve().parent, [script.path.stem]
    while len(parts) <= level or (folder / "__init__.py").is_file():
        parts.insert(0, folder.name)
        folder = folder.parent
    return folder, ".".join(parts)


def place_of_node(node: ast.AST) -> int:
    """Return a node's number in the script; -1 for a generated node. Copies of a node have the same number."""
    return int(getattr(node, "place", -1))


def in_step(body: list[ast.stmt]) -> Iterator[ast.AST]:
    """Yield what `here` yields, and also the descendants of functions that are defined among these statements."""
    yield from here(body)
    for each in body:
        if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from in_step(each.body)


def here(node: ast.AST | list[ast.stmt]) -> Iterator[ast.AST]:
    """Yield all descendants of a node or statements in source order, except those in nested functions and classes."""
    waiting = list(node if isinstance(node, list) else children(node))[::-1]
    while waiting:
        child = waiting.pop()
        yield child
        if not isinstance(child, _SCOPES):
            waiting += children(child)[::-1]


def last_name(node: ast.AST) -> str:
    """Return `c` for `a.b.c`, for `c`, and for a call of either; empty for anything else."""
    if isinstance(node, ast.Call):
        return last_name(node.func)
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def first_name(node: ast.AST) -> str:
    """Return `a` for `a.b(...)[...].c`; empty if the expression does not start with a name."""
    while isinstance(node, ast.Attribute | ast.Call | ast.Subscript | ast.Starred):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else ""


def is_super(node: ast.AST) -> bool:
    """Return whether a node is a call of `super`."""
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "super"


def required(function: FunctionNode) -> list[str]:
    """Return the names of a function's parameters that have no default."""
    found = function.args
    positional = [*found.posonlyargs, *found.args]
    given = positional[: len(positional) - len(found.defaults)]
    keywords = [
        name for name, default in zip(found.kwonlyargs, found.kw_defaults, strict=True) if default is None
    ]
    return [each.arg for each in [*given, *keywords]]


def _is_guard(test: ast.expr) -> bool:
    return isinstance(test, ast.Compare) and {
        ast.unparse(test.left),
        *map(ast.unparse, test.comparators),
    } == {"__name__", "'__main__'"}


def bound_by(statement: ast.stmt) -> Iterator[str]:
    """Yield the names that a top-level statement binds."""
    for node in [statement, *(() if isinstance(statement, _SCOPES) else here(statement))]:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Import | ast.ImportFrom):
            for each in node.names:
                yield each.asname or each.name.partition(".")[0]
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
