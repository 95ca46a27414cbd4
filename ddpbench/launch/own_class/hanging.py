"""Finds names of a script's top level that hang on its own model or optimizer, of which the class makes others."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Mapping

from ddpbench.launch.own_class.bindings import Path
from ddpbench.launch.own_class.script import Script
from ddpbench.launch.own_class.tracing import Tracer

_FACTS = frozenset(
    {"shape", "device", "dtype", "ndim", "is_cuda", "config", "in_features", "out_features", "num_features"}
    | {"in_channels", "out_channels", "embedding_dim", "num_embeddings", "hidden_size"}
    | {"numel", "size", "dim", "element_size"}
)
"""Attributes and methods that are equal for two models that are made alike."""
_ALIKE = frozenset({"len", "isinstance", "type", "print", "hasattr"})
"""Functions that are."""
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.GeneratorExp, ast.DictComp)


def hanging(tracer: Tracer, keys: Collection[tuple[int, Path]], ends: Collection[ast.stmt]) -> dict[str, str]:
    """Return the names of the top level that hold what has one of these keys, or are made of it, each with that one.

    What a function reads when it is called counts, and what a class does in its methods. `ends` are the statements
    that go below the guard.
    """
    script, top = tracer.script, tracer.top
    found = {
        name: name
        for name, bindings in tracer.bindings(top).items()
        if any(tracer.trace(each.value, top).key in keys for each in bindings if each.kind == "value")
    }
    statements = list(_bindings(script, ends))
    while True:
        more = {
            name: root
            for names, node in statements
            for name in names
            if name not in found
            and (root := next((found[each] for each in reads(node) if each in found), ""))
        }
        if not more:
            return found
        found |= more


def read_by(nodes: Collection[ast.stmt], bound: Collection[str], of: Mapping[str, str]) -> list[str]:
    """Return a sentence for each of these names that statements read and do not bind."""
    stored = {
        each.id
        for node in nodes
        for each in ast.walk(node)
        if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)
    }
    names = dict.fromkeys(name for node in nodes for name in reads(node))
    return [
        f"`{name}` is made of the script's own `{of[name]}`, and the class has another"
        if name != of[name]
        else f"`{name}` is the script's own, and the class has another"
        for name in names
        if name in of and name not in stored and name not in bound
    ]


def _bindings(script: Script, ends: Collection[ast.stmt]) -> Iterator[tuple[list[str], ast.AST]]:
    """Yield what statements of the top level bind, and what that is made of; what runs as a script is not there."""
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
        heads = [
            each for each in ast.iter_child_nodes(node) if not isinstance(each, ast.stmt | ast.ExceptHandler)
        ]
        names = [
            each.id
            for head in heads
            for each in ast.walk(head)
            if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)
        ]
        if names:
            for head in heads:
                yield names, head


def reads(node: ast.AST) -> Iterator[str]:
    """Yield the names that a node reads, but for those of which it takes what is alike for every model."""
    match node:
        case ast.Name(id=name, ctx=ast.Load()):
            yield name
        case ast.Attribute(attr=attribute) if attribute in _FACTS:
            return
        case ast.Call(func=ast.Name(id=name)) if name in _ALIKE:
            return
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.Lambda():
            yield from _reads_of(node)
        case ast.ListComp() | ast.SetComp() | ast.GeneratorExp() | ast.DictComp():
            yield from _reads_of_comprehension(node)
        case _:
            for each in ast.iter_child_nodes(node):
                yield from reads(each)


def _reads_of(node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) -> Iterator[str]:
    """Yield the names that a function reads of those around it."""
    parts = [node.body] if isinstance(node, ast.Lambda) else node.body
    given = node.args
    several = [each for each in (given.vararg, given.kwarg) if each is not None]
    own = {each.arg for each in [*given.posonlyargs, *given.args, *given.kwonlyargs, *several]}
    elsewhere = {
        name
        for part in parts
        for each in ast.walk(part)
        if isinstance(each, ast.Global | ast.Nonlocal)
        for name in each.names
    }
    own |= {
        each.id
        for part in parts
        for each in ast.walk(part)
        if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)
    } - elsewhere
    yield from reads(given)
    yield from (name for part in parts for name in reads(part) if name not in own)


def _reads_of_comprehension(node: ast.expr) -> Iterator[str]:
    """Yield the names that a comprehension reads of those around it; none of what it takes but facts of."""
    assert isinstance(node, _COMPREHENSIONS)
    own = {
        each.id for made in node.generators for each in ast.walk(made.target) if isinstance(each, ast.Name)
    }
    values = [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]
    inner = {
        name
        for each in [*values, *(test for made in node.generators for test in made.ifs)]
        for name in reads(each)
    }
    yield from inner - own
    for made in node.generators:
        if inner & own:
            yield from (name for name in reads(made.iter) if name not in own)
