"""Find facts about users' classes by parsing their files, which only ranks import."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec
from pathlib import Path
from typing import TypeGuard

from ddpbench.errors import nearest


def tree_of(name: str) -> ast.Module | None:
    """Return the syntax tree of the file in a name such as `train.py:Mine`; None without a file to parse."""
    head = name.rpartition(":")[0]
    if not head.endswith(".py"):
        return None
    try:
        return ast.parse(Path(head).read_bytes())  # bytes, because the file may declare an encoding
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def missing(name: str, kind: str = "") -> str:
    """Return why the file in a name such as `train.py:Mine` surely lacks the class; else empty.

    The message suggests classes of the given `kind`: `workload`, `strategy`, `algorithm`, or empty for all.
    """
    head, _, attribute = name.rpartition(":")
    path = Path(head)
    if not head.endswith(".py") or not path.is_file():
        return ""
    try:
        source = path.read_bytes()
        before, null, _ = source.partition(b"\0")
        if null:  # Python 3.11 does not report the line
            line = before.count(b"\n") + 1
            return f"{head}, line {line}: a null byte; save the file as UTF-8 text"
        tree = ast.parse(source)
    except (SyntaxError, ValueError) as error:
        where = f", line {error.lineno}" if isinstance(error, SyntaxError) and error.lineno else ""
        return f"{head}{where}: {getattr(error, 'msg', error)}"
    except (OSError, RecursionError, MemoryError):
        return ""
    names = set(_named_in(tree))
    if attribute in names or names & _NAMING:
        return ""
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    able: list[str] = []
    telling = _TELLING[kind] if kind else set().union(*_TELLING.values())
    for node in classes:
        if telling & _declared(node) or {*map(_base_name, node.bases)} & {*able}:
            able.append(node.name)
    return f"{head} has no class {attribute}; {nearest(attribute, able or [node.name for node in classes])}"


def missing_module(name: str) -> str:
    """Return why the module in a name such as `package.module:Mine` cannot exist; else empty.

    Nothing is imported. The first part must be installed or in the working directory, and a package if more parts
    follow.
    """
    head, _, attribute = name.rpartition(":")
    if head.endswith(".py"):
        return ""
    first, *_ = head.split(".")
    file = Path(f"{(head.rpartition('.')[0] or head).replace('.', '/')}.py")
    try:
        here, installed = PathFinder.find_spec(first, [str(Path.cwd())]), find_spec(first)
    except (OSError, ValueError):
        return ""
    if here is None and installed is None:
        why = f"module {first} is neither in the working directory nor installed"
    elif "." in head and _is_file(here) and here.origin == (installed or here).origin:
        why = f"{first} is a file, not a package"
    else:
        return ""
    meant = (
        f"did you mean {f'{file}:{attribute}'!r}?"
        if file.is_file()
        else "name a class in a file as train.py:Measured"
    )
    return f"{why}; {meant}"


def _is_file(found: ModuleSpec | None) -> TypeGuard[ModuleSpec]:
    return found is not None and found.submodule_search_locations is None


_NAMING = frozenset(
    {"*", "__getattr__", "__setattr__", "__dict__", "__class__"}
    | {"exec", "eval", "globals", "locals", "vars", "setattr", "modules", "f_globals"}
)
"""Names with which a file may define or change other names that its text does not show."""
_TELLING: dict[str, set[str]] = {
    "workload": {"model"},
    "strategy": {"build", "hook"},
    "algorithm": {"_all_reduce"},
}
"""Methods or class attributes that suggest a class's kind."""
_LOGGERS = frozenset({"getLogger", "get_logger"})


def _named_in(tree: ast.Module) -> Iterator[str]:
    """Yield every name in a file, and `*` if it passes `__name__` to a call that may change the module."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name
        elif isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.alias):
            yield node.asname or node.name.partition(".")[0]
        elif isinstance(node, ast.MatchAs | ast.MatchStar):
            yield node.name or ""
        elif isinstance(node, ast.MatchMapping):
            yield node.rest or ""
        elif isinstance(node, ast.Call) and not _LOGGERS & set(_last_names(node.func)):
            given = [*node.args, *(each.value for each in node.keywords)]
            yield from ("*" for each in given if isinstance(each, ast.Name) and each.id == "__name__")


def _last_names(node: ast.expr) -> list[str]:
    return [node.id] if isinstance(node, ast.Name) else [node.attr] if isinstance(node, ast.Attribute) else []


def _declared(node: ast.ClassDef) -> set[str]:
    declared = {child.name for child in node.body if isinstance(child, ast.FunctionDef)}
    for child in node.body:
        targets = child.targets if isinstance(child, ast.Assign) else []
        declared |= {each.id for each in targets if isinstance(each, ast.Name)}
    return declared


def _base_name(base: ast.expr) -> str:
    """Return `Strategy` for `Strategy[Options]`; empty if the base is not a bare name."""
    inner = base.value if isinstance(base, ast.Subscript) else base
    return inner.id if isinstance(inner, ast.Name) else ""


def not_an_algorithm(name: str) -> str:
    """Return why the class in a name such as `mine.py:MyRing` cannot be an algorithm; else empty.

    This is certain if all its base classes are in the same file or are strategies of ddpbench.
    """
    head, _, attribute = name.rpartition(":")
    tree = tree_of(name)
    if tree is None or {*_named_in(tree)} & _NAMING or not _is_other(tree, attribute):
        return ""
    return (
        f"class {attribute} in {head} is not an algorithm: derive it from "
        "ddpbench.collectives.base.Collective"
    )


def _is_other(tree: ast.Module, name: str, derived: frozenset[str] = frozenset()) -> bool:
    """Return whether a name certainly refers to a class that does not derive from an algorithm."""
    binding = [node for node in ast.walk(tree) if name in _bound_by(node)]
    if name == "object" and not binding:
        return True
    if len(binding) != 1 or name in derived:
        return False
    (node,) = binding
    if isinstance(node, ast.ImportFrom):
        return f"{node.module}.".startswith("ddpbench.strategies.") and not node.level
    if not isinstance(node, ast.ClassDef) or node.decorator_list or node.keywords:
        return False
    return all(_is_other(tree, _base_name(base), derived | {name}) for base in node.bases)


def _bound_by(node: ast.AST) -> set[str]:
    if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        return {node.name}
    if isinstance(node, ast.Name):
        return {node.id} if isinstance(node.ctx, ast.Store | ast.Del) else set()
    if isinstance(node, ast.Import | ast.ImportFrom):
        return {each.asname or each.name.partition(".")[0] for each in node.names}
    return {node.name or ""} if isinstance(node, ast.MatchAs | ast.MatchStar) else set()


def class_of(tree: ast.Module, attribute: str) -> ast.ClassDef | None:
    """Return the last class of this name in a file, or None."""
    classes = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef) and node.name == attribute]
    return classes[-1] if classes else None


def bound_in(node: ast.ClassDef) -> Iterator[str]:
    """Yield the names that statements in a class's body, including nested ones, assign to."""
    for child in ast.walk(node):
        if isinstance(child, ast.Name) and isinstance(child.ctx, ast.Store):
            yield child.id


def has_own_step(name: str) -> bool:
    """Return whether a user's class or a base class has a `step` method, as far as files show.

    Base classes are searched in files next to the class's file or below the working directory. A rank examines those in
    installed packages.
    """
    head, _, attribute = name.rpartition(":")
    path = Path(head) if head.endswith(".py") else _module_file(head, Path())
    seen: set[tuple[Path, str]] = set()
    if path is None:
        return False
    todo = [(path, attribute)]
    while todo:
        at, wanted = todo.pop()
        tree = _parsed(at)
        if tree is None or (at, wanted) in seen:
            continue
        seen.add((at, wanted))
        node = class_of(tree, wanted)
        if node is None:
            todo += _imported(tree, at, wanted, path.parent)
            continue
        bound = [binds for child in node.body if (binds := _binds_step(child)) is not None]
        if bound:
            return bound[-1]
        for base in reversed(node.bases):
            inner = base.value if isinstance(base, ast.Subscript) else base
            if isinstance(inner, ast.Name):
                todo.append((at, inner.id))
            elif isinstance(inner, ast.Attribute):
                todo += _imported(tree, at, ast.unparse(inner), path.parent)
    return False


def _parsed(path: Path) -> ast.Module | None:
    return _parsed_as_of(path, path.stat().st_mtime_ns) if path.is_file() else None


@cache
def _parsed_as_of(path: Path, _changed_ns: int) -> ast.Module | None:
    return tree_of(f"{path}:")


def _imported(tree: ast.Module, path: Path, name: str, base: Path) -> list[tuple[Path, str]]:
    """Return the files from which a class may be imported, each with its name there.

    `name` may be `module.Name`. Absolute imports are resolved in `base`, the folder of the file that the user named.
    """
    head, _, attribute = name.rpartition(".")
    candidates: list[tuple[Path | None, str]] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            folder = path.resolve().parents[node.level - 1] if node.level else base
            for each in node.names:
                known = each.asname or each.name
                if known == name:
                    candidates.append((_module_file(node.module or "", folder), each.name))
                elif known == head:
                    within = f"{node.module}.{each.name}" if node.module else each.name
                    candidates.append((_module_file(within, folder), attribute))
        elif isinstance(node, ast.Import):
            candidates += [
                (_module_file(each.name, base), attribute)
                for each in node.names
                if head and (each.asname or each.name) == head
            ]
    return [(file, attribute) for file, attribute in candidates if file is not None]


def _module_file(module: str, folder: Path) -> Path | None:
    """Return a module's file in a folder or the working directory; None if absent or ddpbench's own.

    ddpbench's own are left out, because `Workload.step` only raises an error.
    """
    if module.partition(".")[0] == "ddpbench":
        return None
    name = "/".join(filter(None, module.split(".")))
    places = [
        start / each
        for start in (folder, Path())
        for each in (f"{name}.py", f"{name}/__init__.py".lstrip("/"))
    ]
    return next((each for each in places if each.is_file()), None)


def _binds_step(statement: ast.stmt) -> bool | None:
    """Return True if a statement defines `step`, False if it removes it with `step = None`, else None."""
    if isinstance(statement, ast.FunctionDef):
        return True if statement.name == "step" else None
    if not isinstance(statement, ast.Assign):
        return None
    if not any(isinstance(target, ast.Name) and target.id == "step" for target in statement.targets):
        return None
    return not (isinstance(statement.value, ast.Constant) and statement.value.value is None)
