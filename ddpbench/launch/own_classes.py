"""What the text of a user's file tells of a class in it, without importing it: only a rank does that."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path


def tree_of(name: str) -> ast.Module | None:
    """Return the syntax tree of the file that a name such as `train.py:Mine` is in; None where it cannot be read."""
    head = name.rpartition(":")[0]
    if not head.endswith(".py"):
        return None
    try:
        return ast.parse(Path(head).read_text(encoding="utf-8"))
    except (OSError, SyntaxError, ValueError):
        return None


def class_of(tree: ast.Module, attribute: str) -> ast.ClassDef | None:
    """Return the class of that name, the last where there are several."""
    found = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef) and node.name == attribute]
    return found[-1] if found else None


def bound_in(node: ast.ClassDef) -> Iterator[str]:
    """Yield the names to which a class's body, or what is in it, assigns something."""
    for child in ast.walk(node):
        if isinstance(child, ast.Name) and isinstance(child.ctx, ast.Store):
            yield child.id


def has_own_step(name: str) -> bool:
    """Return whether the class makes its steps itself, as far as its file tells: by `step`, or a base class's there."""
    path = Path(name.rpartition(":")[0])
    return path.is_file() and _has_own_step(name, path.stat().st_mtime_ns)


@cache
def _has_own_step(name: str, _changed_ns: int) -> bool:
    tree = tree_of(name)
    seen: set[str] = set()
    todo = [name.rpartition(":")[2]]
    while tree is not None and todo:
        node = class_of(tree, todo.pop())
        if node is None or node.name in seen:
            continue
        seen.add(node.name)
        bound = [binds for child in node.body if (binds := _binds_step(child)) is not None]
        if bound:
            return bound[-1]
        todo += [base.id for base in reversed(node.bases) if isinstance(base, ast.Name)]
    return False


def _binds_step(statement: ast.stmt) -> bool | None:
    """Return whether it makes `step` something, or takes it away with `step = None`; None where it does neither."""
    if isinstance(statement, ast.FunctionDef):
        return True if statement.name == "step" else None
    if not isinstance(statement, ast.Assign):
        return None
    if not any(isinstance(target, ast.Name) and target.id == "step" for target in statement.targets):
        return None
    return not (isinstance(statement.value, ast.Constant) and statement.value.value is None)
