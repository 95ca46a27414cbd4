"""Replace each `:=` that sets a name kept between batches by an assignment before its statement."""

from __future__ import annotations

import ast
from copy import copy, deepcopy

from ddpbench.errors import RequestError
from ddpbench.launch.own_class.loops import TrainingLoop
from ddpbench.launch.own_class.script import Script, here
from ddpbench.launch.own_class.trees import children, walk

_LATER = (ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
"""Expressions whose parts may be evaluated several times, or later than the expression itself."""
_BLOCKS = ("body", "orelse", "finalbody")


def without_kept_walrus(script: Script, loop: TrainingLoop, body: list[ast.stmt]) -> list[ast.stmt]:
    """Return a step's statements, with `:=` replaced for each name that is also set outside of the step.

    Raises:
        RequestError: the assignment cannot precede the statement, for example if the `:=` follows `and`. The message
            names the line.
    """
    inside = {id(each) for each in [*walk(loop.node), *(e for part in loop.body for e in walk(part))]}
    bound = {
        each.id
        for each in here(loop.scope.node.body)
        if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store) and id(each) not in inside
    }
    return _hoisted(script, body, bound)


def _hoisted(script: Script, body: list[ast.stmt], names: set[str]) -> list[ast.stmt]:
    found: list[ast.stmt] = []
    for statement in body:
        heads = [
            each for each in children(statement) if isinstance(each, ast.expr | ast.keyword | ast.withitem)
        ]
        kept = [
            each
            for head in heads
            for each in walk(head)
            if isinstance(each, ast.NamedExpr) and each.target.id in names
        ]
        made = deepcopy(statement) if kept else copy(statement)
        for each in kept:
            if isinstance(statement, ast.While) or not _comes_first(statement, each):
                raise RequestError(
                    f"{script.path}, line {each.lineno}: `{ast.unparse(each)}` sets a name that the script keeps "
                    "between batches, in the middle of an expression: make it an assignment before this line"
                )
            value = deepcopy(each.value)
            found.append(
                ast.copy_location(ast.Assign([ast.Name(each.target.id, ast.Store())], value), statement)
            )
        if kept:
            made = _Read({(each.lineno, each.col_offset) for each in kept}).visit(made)
        for name in _BLOCKS:
            if isinstance(getattr(made, name, None), list):
                setattr(made, name, _hoisted(script, getattr(made, name), names))
        found.append(made)
    return found


def _comes_first(statement: ast.stmt, wanted: ast.NamedExpr) -> bool:
    """Return whether a statement always evaluates a `:=` once, and reads its name only after that."""
    name, place = wanted.target.id, (wanted.lineno, wanted.col_offset)
    own = {id(each) for each in walk(wanted)}
    for each in here(statement):
        earlier = isinstance(each, ast.Name) and (each.lineno, each.col_offset) < place
        if earlier and isinstance(each, ast.Name) and each.id == name and id(each) not in own:
            return False
    return _is_certain(statement, wanted)


def _is_certain(node: ast.AST, wanted: ast.AST) -> bool:
    if node is wanted:
        return True
    if isinstance(node, _LATER):
        return False
    parts = children(node)
    if isinstance(node, ast.BoolOp):
        parts = [node.values[0]]
    elif isinstance(node, ast.IfExp):
        parts = [node.test]
    elif isinstance(node, ast.Compare):
        parts = [node.left, node.comparators[0]]
    elif isinstance(node, ast.stmt):
        parts = [each for each in parts if not isinstance(each, ast.stmt | ast.ExceptHandler)]
    return any(_is_certain(each, wanted) for each in parts)


class _Read(ast.NodeTransformer):
    def __init__(self, places: set[tuple[int, int]]) -> None:
        self.places = places

    def visit_NamedExpr(self, node: ast.NamedExpr) -> ast.AST:
        if (node.lineno, node.col_offset) in self.places:
            return ast.copy_location(ast.Name(node.target.id, ast.Load()), node)
        return self.generic_visit(node)
