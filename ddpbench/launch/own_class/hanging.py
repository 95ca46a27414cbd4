"""Find the top-level names that depend on a script's model or optimizer, which the generated class makes again."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Mapping

from ddpbench.launch.own_class.bindings import Path
from ddpbench.launch.own_class.checking import reads_of_module
from ddpbench.launch.own_class.script import Script
from ddpbench.launch.own_class.tracing import Tracer
from ddpbench.launch.own_class.trees import children, walk
from ddpbench.launch.own_class.variables import Variables

_FACTS = frozenset(
    {"shape", "device", "dtype", "ndim", "is_cuda", "config", "in_features", "out_features", "num_features"}
    | {"in_channels", "out_channels", "embedding_dim", "num_embeddings", "hidden_size"}
    | {"numel", "size", "dim", "element_size"}
)
"""Attributes and methods that have equal values for two models made in the same way."""
_ALIKE = frozenset({"len", "isinstance", "type", "print", "hasattr"})
"""Functions that have equal results for two models made in the same way."""


def hanging(
    tracer: Tracer,
    variables: Variables,
    keys: Collection[tuple[int, Path]],
    ends: Collection[ast.stmt],
) -> dict[str, str]:
    """Return the top-level names of certain objects, such as the model, and of everything that depends on them.

    `keys` has the objects' `Origin.key`. The result maps each name to the name that it depends on; functions and
    classes depend on the names that they read. `ends` has statements to be moved below the guard.
    """
    script, top = tracer.script, tracer.top
    found = {
        name: name
        for name, bindings in tracer.bindings(top).items()
        if any(tracer.trace(each.value, top).key in keys for each in bindings if each.kind == "value")
    }
    statements = [(names, list(_reads(node, variables))) for names, node in _bindings(script, ends)]
    while True:
        more = {
            name: root
            for names, reads in statements
            for name in names
            if name not in found and (root := next((found[each] for each in reads if each in found), ""))
        }
        if not more:
            return found
        found |= more


def read_by(body: list[ast.stmt], bound: Collection[str], of: Mapping[str, str]) -> list[str]:
    """Return a sentence for each name in `of` that a method's statements read without binding it.

    `of` is a result of `hanging`: it maps names to the objects of the script that they depend on.
    """
    return [
        f"`{name}` is made from the script's `{of[name]}`, but the class makes another one"
        if name != of[name]
        else f"`{name}` is made by the script, but the class makes another one"
        for name in reads_of_module(body, bound, of)
    ]


def _bindings(script: Script, ends: Collection[ast.stmt]) -> Iterator[tuple[list[str], ast.AST]]:
    todo: list[ast.stmt] = [
        each for each in script.tree.body if each not in ends and each is not script.guard
    ]
    while todo:
        node = todo.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield [node.name], node
            continue
        blocks = [getattr(node, name, []) for name in ("body", "orelse", "finalbody")]
        blocks += [each.body for each in getattr(node, "handlers", [])]
        todo += [each for block in blocks for each in block]
        heads = [each for each in children(node) if not isinstance(each, ast.stmt | ast.ExceptHandler)]
        names = [
            each.id
            for head in heads
            for each in walk(head)
            if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)
        ]
        if names:
            for head in heads:
                yield names, head


def _reads(node: ast.AST, variables: Variables) -> Iterator[str]:
    module = id(variables.script.tree)
    for each in walk(node):
        if not isinstance(each, ast.Name) or not isinstance(each.ctx, ast.Load):
            continue
        if variables.of(each).scope == module and _is_used(each, variables):
            yield each.id


def _is_used(name: ast.Name, variables: Variables) -> bool:
    inside: ast.AST = name
    for outer in variables.around(name):
        if isinstance(outer, ast.stmt):
            break
        if isinstance(outer, ast.Attribute) and outer.attr in _FACTS:
            return False
        if isinstance(outer, ast.Call) and isinstance(outer.func, ast.Name) and outer.func.id in _ALIKE:
            return False
        if isinstance(outer, ast.comprehension) and inside is outer.iter:
            items = [variables.of(each) for each in walk(outer.target) if isinstance(each, ast.Name)]
            uses = [use for item in items for use in variables.uses[item] if isinstance(use.ctx, ast.Load)]
            if not any(_is_used(use, variables) for use in uses):
                return False
        inside = outer
    return True
