"""Find which assignments to a name may be in effect when it is read, from the order of a function's statements."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from ddpbench.launch.own_class.bindings import key_of
from ddpbench.launch.own_class.trees import children

State = frozenset[int]
"""The ids of statements or parameters. One of them gave the name its current value."""
Holds = Callable[[ast.expr], bool | None]
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
_BLOCKS = (ast.If, ast.For, ast.AsyncFor, ast.While, ast.With, ast.AsyncWith, ast.Try, ast.Match)
_AGAIN = 2
"""Number of passes through a loop's body after which the state at the start of the body is complete."""


@dataclass
class FlowVisitor:
    """Visits a function's statements in order, and tracks which assignments to one name may be in effect."""

    key: str
    """The name, or an attribute of a name, such as `cfg.lr`."""
    holds: Holds
    """Returns whether a condition holds; None if unknown."""
    is_same: Callable[[ast.stmt], bool]
    """Returns whether a statement binds the name to its current object, as `model = model.to(device)` does."""
    read: Callable[[ast.stmt], bool]
    """Returns whether a statement, or the head of a block, contains the read whose bindings are sought."""
    found: set[int] = field(default_factory=set)
    """The bindings that may be current at the read."""
    was_read: bool = False
    bound: dict[int, ast.AST] = field(default_factory=dict)
    """The statements whose ids are in states."""
    _ends: list[State] = field(default_factory=list)
    _breaks: list[list[State]] = field(default_factory=list)

    def at_end(self, body: list[ast.stmt], begin: State) -> State:
        """Return the assignments that may be in effect at a function's end, given those at its start (`begin`)."""
        last = self.block(body, begin)
        return (last or frozenset()).union(*self._ends)

    def block(self, body: list[ast.stmt], state: State | None) -> State | None:
        """Return the assignments that may be in effect after `body`; None if its end is unreachable."""
        for each in body:
            if state is None:
                return None
            if self.read(each):
                self.was_read = True
                self.found |= state
            state = self._statement(each, state)
        return state

    def _statement(self, node: ast.stmt, state: State) -> State | None:
        match node:
            case ast.Return() | ast.Raise() | ast.Break() | ast.Continue():
                if isinstance(node, ast.Return):
                    self._ends.append(state)
                elif isinstance(node, ast.Break | ast.Continue) and self._breaks:
                    self._breaks[-1].append(state)
                after: State | None = None
            case ast.If():
                after = self._if(node, state)
            case ast.For() | ast.AsyncFor() | ast.While():
                after = self._loop(node, state)
            case ast.With() | ast.AsyncWith():
                given = [each.optional_vars for each in node.items]
                after = self.block(node.body, self._after(node, given, state))
            case ast.Try():
                after = self._try(node, state)
            case ast.Match():
                cases = [self.block(e.body, self._after(node, [e.pattern], state)) for e in node.cases]
                after = _joined([*cases, state])
            case ast.AnnAssign(value=None):
                after = state
            case _:
                after = self._after(node, [node], state)
        return after

    def _after(self, node: ast.AST, parts: Sequence[ast.AST | None], state: State) -> State:
        if isinstance(node, ast.stmt) and self.is_same(node):
            return state
        if any(self._binds(each) for part in parts if part is not None for each in _outside(part)):
            self.bound[id(node)] = node
            return frozenset({id(node)})
        return state

    def _binds(self, node: ast.AST) -> bool:
        base = self.key.partition(".")[0]
        match node:
            case ast.Name() | ast.Attribute():
                return isinstance(node.ctx, ast.Store | ast.Del) and key_of(node) in (self.key, base)
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                return node.name == base
            case ast.Import() | ast.ImportFrom():
                return any((each.asname or each.name.partition(".")[0]) == base for each in node.names)
            case ast.MatchAs() | ast.MatchStar():
                return node.name == base
            case ast.MatchMapping():
                return node.rest == base
        return False

    def _if(self, node: ast.If, state: State) -> State | None:
        held = self.holds(node.test)
        state = self._after(node, [node.test], state)
        taken = self.block(node.body, state) if held is not False else None
        other = self.block(node.orelse, state) if held is not True else None
        return _joined([taken, other])

    def _loop(self, node: ast.For | ast.AsyncFor | ast.While, state: State) -> State | None:
        self._breaks.append([])
        head = node.test if isinstance(node, ast.While) else node.target
        now: State = state
        for _ in range(_AGAIN):
            begun = self._after(node, [head], now)
            now = _joined([now, self.block(node.body, begun), *self._breaks[-1]]) or now
        self._breaks.pop()
        return self.block(node.orelse, now)

    def _try(self, node: ast.Try, state: State) -> State | None:
        begun: list[State | None] = []
        ended: State | None = state
        for each in node.body:
            if ended is None:
                break
            before, ended = ended, self.block([each], ended)
            if _may_raise(each):
                begun += [before, ended if isinstance(each, _BLOCKS) else None]
        ended = self.block(node.orelse, ended)
        thrown = _joined(begun)
        handled = [self.block(each.body, thrown) for each in node.handlers]
        return self.block(node.finalbody, _joined([ended, *handled]))


def _outside(node: ast.AST) -> Iterator[ast.AST]:
    yield node
    if isinstance(node, _SCOPES):
        return
    for each in children(node):
        if not (isinstance(node, ast.comprehension) and each is node.target):
            yield from _outside(each)


def _may_raise(node: ast.stmt) -> bool:
    plain = isinstance(node, ast.Assign) and all(isinstance(each, ast.Name) for each in node.targets)
    return not (plain and isinstance(getattr(node, "value", None), ast.Constant))


def _joined(states: list[State | None]) -> State | None:
    known = [each for each in states if each is not None]
    return frozenset().union(*known) if known else None
