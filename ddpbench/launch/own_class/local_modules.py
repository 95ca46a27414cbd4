"""Read the modules next to a script that it imports, to find what their functions and methods change."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from ddpbench.errors import RequestError
from ddpbench.launch.own_class.script import (
    MODULES,
    FunctionNode,
    Script,
    first_name,
    here,
    is_super,
    last_name,
    read_script,
)
from ddpbench.launch.own_class.trees import walk

_CHANGES = frozenset(
    {
        "append",
        "extend",
        "insert",
        "update",
        "setdefault",
        "pop",
        "remove",
        "clear",
        "add",
        "discard",
        "popleft",
    }
)
_KNOWN_BASES = frozenset(
    {*MODULES, "object", "ABC", "Generic", "Protocol", "NamedTuple", "Dataset", "Exception"}
)
"""Base classes whose methods change no attribute that a script reads."""
_DEEPEST = 8


@dataclass(frozen=True)
class LocalFunction:
    """A function of a local module, or a method of the module's class `own`."""

    module: Script
    node: FunctionNode
    own: ast.ClassDef | None = None


class LocalModules:
    """Finds the functions and classes that a script imports from local modules."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self._folder = script.path.absolute().parent
        self._read: dict[Path, Script | None] = {}

    @cached_property
    def _names(self) -> dict[str, tuple[str, str]]:
        """For each imported name, its module and its name there (empty for the module itself)."""
        found: dict[str, tuple[str, str]] = {}
        for node in walk(self.script.tree):
            if isinstance(node, ast.Import):
                found |= {each.asname or each.name: (each.name, "") for each in node.names}
            elif isinstance(node, ast.ImportFrom):
                module = "." * node.level + (node.module or "")
                found |= {each.asname or each.name: (module, each.name) for each in node.names}
        return found

    def module_of(self, name: str) -> str:
        """Return the local module that a name of the script comes from; empty if it comes from none."""
        module, inner = self._names.get(name, ("", ""))
        within = f"{module}{inner}" if module.endswith(".") else f"{module}.{inner}"
        if inner and self._module(within) is not None:
            return within
        return module if module and self._module(module) is not None else ""

    def _module(self, dotted: str) -> Script | None:
        """Return a local module; None if there is none.

        Each dot at the beginning of `dotted` but the first is for one folder above the script's.
        """
        *folders, name = dotted.lstrip(".").split(".")
        level = len(dotted) - len(dotted.lstrip("."))
        folder = self._folder.joinpath(*[".."] * (level - 1), *folders)
        for each in (folder / f"{name}.py", folder / name / "__init__.py") if name else ():
            if each not in self._read:
                try:
                    self._read[each] = read_script(each) if each.is_file() else None
                except RequestError:
                    self._read[each] = None
            if self._read[each] is not None:
                return self._read[each]
        return None

    def function(self, func: ast.expr) -> LocalFunction | None:
        """Return the function of a local module that an expression such as `counting.bump` refers to; else None."""
        module = self._module(self.module_of(first_name(func)))
        name = (
            func.attr if isinstance(func, ast.Attribute) else self._names.get(first_name(func), ("", ""))[1]
        )
        node = module.functions.get(name) if module is not None else None
        return LocalFunction(module, node) if module is not None and node is not None else None

    def inherited(self, own: ast.ClassDef, name: str) -> LocalFunction | None:
        """Return the method that a class inherits from a class of a local module; None without one."""
        for base in self._outer_bases(own):
            module = self._module(self.module_of(first_name(base)))
            inner = (
                base.attr
                if isinstance(base, ast.Attribute)
                else self._names.get(first_name(base), ("", ""))[1]
            )
            made = module.classes.get(inner) if module is not None else None
            method = module.method(made, name) if module is not None and made is not None else None
            if module is not None and method is not None:
                return LocalFunction(module, method[1], made)
        return None

    def has_unknown_base(self, own: ast.ClassDef) -> bool:
        """Return whether a class derives from an unknown class that is in neither the script nor a local module."""
        return any(
            not self.module_of(first_name(each)) and last_name(each) not in _KNOWN_BASES
            for each in self._outer_bases(own)
        )

    def _outer_bases(self, own: ast.ClassDef) -> list[ast.expr]:
        return [
            base
            for each in self.script.lineage(own)
            for base in each.bases
            if last_name(base) not in self.script.classes
        ]


def attributes_changed(found: LocalFunction, depth: int = 0) -> set[str]:
    """Return the attributes of `self` that a method may set or change, also through methods that it calls."""
    names = {path[1] for node in _changed(found.node) if len(path := _path(node)) > 1 and path[0] == "self"}
    for call in (each for each in walk(found.node) if isinstance(each, ast.Call)):
        func = call.func
        if found.own is None or not isinstance(func, ast.Attribute) or depth > _DEEPEST:
            continue
        if is_super(func.value) or _path(func.value) == ["self"]:
            inherits = is_super(func.value)
            inner = (found.module.inherited if inherits else found.module.method)(found.own, func.attr)
            if inner is not None and inner[1] is not found.node:
                names |= attributes_changed(LocalFunction(found.module, inner[1], found.own), depth + 1)
    return names


def changes_module(found: LocalFunction, depth: int = 0) -> bool:
    """Return whether a function may set or change a name of its module, also through functions that it calls."""
    nodes = list(here(found.node.body))
    outer = {name for each in nodes if isinstance(each, ast.Global) for name in each.names}
    local = {each.arg for each in walk(found.node.args) if isinstance(each, ast.arg)}
    local |= {e.id for e in nodes if isinstance(e, ast.Name) and isinstance(e.ctx, ast.Store)} - outer
    changed = {_path(each)[0] for each in _changed(found.node)}
    if (changed - local) & found.module.importable:
        return True
    called = {
        each.func.id for each in nodes if isinstance(each, ast.Call) and isinstance(each.func, ast.Name)
    }
    return depth < _DEEPEST and any(
        changes_module(LocalFunction(found.module, node), depth + 1)
        for name, node in found.module.functions.items()
        if name in called and node is not found.node
    )


def _changed(function: FunctionNode) -> Iterator[ast.expr]:
    for each in walk(function):
        if isinstance(each, ast.Name | ast.Attribute | ast.Subscript) and not isinstance(each.ctx, ast.Load):
            yield each
        elif isinstance(each, ast.Call) and isinstance(each.func, ast.Attribute):
            name = each.func.attr
            if name in _CHANGES or (name.endswith("_") and not name.endswith("__")):
                yield each.func.value


def _path(node: ast.expr) -> list[str]:
    """Return the names in an expression, such as `["a", "b"]` for `a.b`, `a.b[0]` or `a.b()`."""
    found: list[str] = []
    while isinstance(node, ast.Attribute | ast.Subscript | ast.Call | ast.Starred):
        if isinstance(node, ast.Attribute):
            found.append(node.attr)
        node = node.func if isinstance(node, ast.Call) else node.value
    return [node.id if isinstance(node, ast.Name) else "", *found[::-1]]
