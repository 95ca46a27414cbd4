"""The nodes that reading a script goes through are those of `ast`, without contexts and operators."""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Iterable
from pathlib import Path

import pytest

from ddpbench.launch.own_class.trees import children, walk
from tests.launch.mutants import SCRIPTS

LEAVES = (ast.expr_context, ast.boolop, ast.operator, ast.unaryop, ast.cmpop)
MORE = """
    type Pair[T] = tuple[T, T]
    def first[T: int](pair: Pair[T]) -> T: ...
"""
RARE = """
    async def f(a, /, b: int = 1, *c, d=2, **e) -> "x":
        global g
        async with a as b, c: await d
        async for i in a: yield i
        return [i async for i in a if i], {**a, "k": not b}, {*a}, (yield), f"{a!r:>{b}}"
    try:
        raise a from b
    except* E as e:
        del a[1:2, ...], b.c
    else:
        (x := lambda *y, z=1: -z) and (a if b else c) or a < b <= c
    finally:
        assert a, b
    match a:
        case {"k": [1, *rest], **others} | P(1, q=None) as n if n: pass
        case True | None | -1: pass
    @d
    class C(B, metaclass=M):
        v: int = 0
        w += 1
    nonlocal_ = import_
    from .m import (a as b, c)
    while a: continue
    for a, (b, *c) in d: break
"""


def without_leaves(nodes: Iterable[ast.AST]) -> list[ast.AST]:
    return [node for node in nodes if not isinstance(node, LEAVES)]


def parsed(source: str) -> ast.Module:
    return ast.parse(textwrap.dedent(source))


def is_known(source: str | Path) -> bool:
    """Return whether this Python has the syntax of a source."""
    try:
        parsed(source if isinstance(source, str) else source.read_text("utf-8"))
    except SyntaxError:
        return False
    return True


@pytest.mark.parametrize(
    "source",
    [*filter(is_known, [RARE, MORE, *SCRIPTS.values()])],
    ids=lambda one: getattr(one, "stem", "rare"),
)
def test_they_are_those_of_ast_in_the_same_order(source: str | Path) -> None:
    tree = parsed(source if isinstance(source, str) else source.read_text(encoding="utf-8"))
    assert list(walk(tree)) == without_leaves(ast.walk(tree))
    for node in ast.walk(tree):
        assert children(node) == without_leaves(ast.iter_child_nodes(node))
