"""Rewrite expressions of the script for the generated class, with variables replaced by their values."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Mapping, Set
from copy import copy, deepcopy
from dataclasses import dataclass, field
from keyword import iskeyword

from ddpbench.launch.own_class.bindings import Path, Scope, key_of
from ddpbench.launch.own_class.draws import is_another, is_generator, reads_file
from ddpbench.launch.own_class.models import settings_of
from ddpbench.launch.own_class.script import first_name, here, last_name, place_of_node
from ddpbench.launch.own_class.tracing import Origin, Tracer, TraceStep, parameters_of
from ddpbench.launch.own_class.trees import walk
from ddpbench.units import series_of

Roles = Mapping[tuple[int, Path], ast.expr]
_FUNCTIONAL = {
    "MSELoss": "mse_loss",
    "CrossEntropyLoss": "cross_entropy",
    "L1Loss": "l1_loss",
    "SmoothL1Loss": "smooth_l1_loss",
    "HuberLoss": "huber_loss",
    "NLLLoss": "nll_loss",
    "BCELoss": "binary_cross_entropy",
    "BCEWithLogitsLoss": "binary_cross_entropy_with_logits",
    "KLDivLoss": "kl_div",
}
_DEVICES = frozenset({"gpu", "local_rank", "rank", "dev"})
_DEEPEST = 12
_OF_CLASS = frozenset(
    {
        "model",
        "dataset",
        "loader",
        "loss",
        "step",
        "optimizer",
        "before_update",
        "collate",
        "samples",
        "batch",
    }
    | {"batches"}
)
"""Names that the generated class's attributes must not have."""
EPOCH = "updates_per_epoch"
"""The name, in a method, for the number of batches in an epoch."""


@dataclass(frozen=True)
class ReplacedValue:
    """An expression in the generated class that replaces a name of the script and must have the same value."""

    node: ast.expr
    """The script's expression, or a copy of it."""
    made: ast.expr
    """The expression that replaces `node`."""
    steps: tuple[TraceStep, ...]
    root: ast.expr | None
    """The script's name for the object that contains the value, if any."""


@dataclass
class Renderer:
    """Rewrites the expressions of one method, and collects unknown names, imports and attributes of `self`."""

    tracer: Tracer
    roles: Roles
    parts: Mapping[tuple[int, Path], ast.expr | None] = field(default_factory=dict)
    """The model's parts for which the script has names, each with the expression that reads it; None if unknown."""
    device: ast.expr | None = None
    """The expression for the device of a step's tensors. If None, arguments named `device` are left out."""
    keeps: bool = False
    """True if objects that the script makes before the loop become attributes of `self`, as in a step."""
    often: bool = False
    """True if the method runs often, so that values drawn once become attributes of `self`."""
    once: Set[tuple[int, Path]] = frozenset()
    """The keys of values that several methods read, so that they are computed once and become attributes of `self`."""
    drawn: set[tuple[int, Path]] = field(default_factory=set)
    """The keys of rendered values that may differ when recomputed."""
    local: set[str] = field(default_factory=set)
    missing: dict[str, str] = field(default_factory=dict)
    lacking: dict[str, tuple[int, Path] | str] = field(default_factory=dict)
    """For each name that the user must fill in, the `Origin.key` of the value, or source text if it is unknown."""
    imports: dict[str, str] = field(default_factory=dict)
    before: dict[str, list[ast.stmt]] = field(default_factory=dict)
    """Statements to put before the method's own, for example to make a configuration, by the name that they bind."""
    inlined: dict[tuple[int, Path], ast.expr] = field(default_factory=dict)
    """The expressions of values made by a call, by the keys of their origins."""
    kept: dict[str, ast.expr] = field(default_factory=dict)
    """Objects that the generated class's constructor makes, by their names in `self`."""
    keeper: dict[str, tuple[int, Path]] = field(default_factory=dict)
    """For each attribute of `self`, the `Origin.key` of its object."""
    places: set[int] = field(default_factory=set)
    """The numbers of the script's nodes that another expression replaces."""
    named: dict[str, tuple[int, Path]] = field(default_factory=dict)
    """For each name that `before` binds, the `Origin.key` of its object."""
    root: ast.expr | None = None
    """The name or attribute in the script whose value is being rendered."""
    claims: list[ReplacedValue] = field(default_factory=list)
    """The values that replace names of the script."""
    written: frozenset[str] = frozenset()
    """Attributes, such as `meter.n`, that a step sets, and objects whose entries a step sets. They are not replaced."""
    counters: frozenset[str] = frozenset()
    """Names of the loop's counters. They become attributes of `self`."""

    def render(self, node: ast.expr, scope: Scope) -> ast.expr:
        """Return an expression of the script, rewritten for the generated class."""
        found = _Pass(self, scope, 0).visit(deepcopy(node))
        assert isinstance(found, ast.expr)
        return found

    def keep(self, name: str, found: Origin) -> ast.expr:
        """Make the constructor of the generated class set an attribute to a value, and return the attribute."""
        return _Pass(self, found.scope, 0).keep(name, found)

    def statement(self, node: ast.stmt, scope: Scope) -> ast.stmt:
        """Return a statement of the script, rewritten for the generated class.

        Names that it assigns become local variables.
        """
        found = _Pass(self, scope, 0).visit(deepcopy(node))
        assert isinstance(found, ast.stmt)
        return found


class _Pass(ast.NodeTransformer):
    def __init__(
        self,
        renderer: Renderer,
        scope: Scope,
        depth: int,
        hidden: frozenset[str] = frozenset(),
        *,
        repeats: bool = False,
    ) -> None:
        """`hidden` has names that an enclosing function or comprehension binds; the code may rerun if `repeats`."""
        self.to, self.scope, self.depth, self.hidden, self.repeats = renderer, scope, depth, hidden, repeats
        self.tracer = renderer.tracer

    def visit_Assign(self, node: ast.Assign) -> ast.AST:
        node.value = self.visit(node.value)
        node.targets = [self.visit(each) for each in node.targets]
        return node

    def visit_For(self, node: ast.For) -> ast.AST:
        node.iter = self.visit(node.iter)
        node.target = self.visit(node.target)
        node.body = [self.visit(each) for each in node.body]
        node.orelse = [self.visit(each) for each in node.orelse]
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        nodes = list(here(node.body))
        outer = {name for each in nodes if isinstance(each, ast.Nonlocal) for name in each.names}
        own = {e.id for e in nodes if isinstance(e, ast.Name) and isinstance(e.ctx, ast.Store)}
        with_inner = self._with([*parameters_of(node), *sorted(own - (outer & self.to.counters))])
        made = [with_inner.visit(each) for each in node.body]
        node.body = [each for each in made if not isinstance(each, ast.Pass)] or [ast.Pass()]
        self.to.local.add(node.name)
        return node

    def visit_Nonlocal(self, node: ast.Nonlocal) -> ast.AST:
        node.names = [name for name in node.names if name not in self.to.counters]
        return node if node.names else ast.copy_location(ast.Pass(), node)

    def visit_Lambda(self, node: ast.Lambda) -> ast.AST:
        arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
        node.body = self._with([each.arg for each in arguments]).visit(node.body)
        return node

    def _comprehension(self, node: ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp) -> ast.AST:
        names = [
            each.id for each in walk(node) if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)
        ]
        first = node.generators[0]
        taken = self.visit(first.iter)  # evaluated once, outside of the comprehension
        first.iter = ast.Constant(None)
        made = ast.NodeTransformer.generic_visit(self._with(names), node)
        first.iter = taken
        return made

    def visit_ListComp(self, node: ast.ListComp) -> ast.AST:
        return self._comprehension(node)

    def visit_SetComp(self, node: ast.SetComp) -> ast.AST:
        return self._comprehension(node)

    def visit_DictComp(self, node: ast.DictComp) -> ast.AST:
        return self._comprehension(node)

    def visit_GeneratorExp(self, node: ast.GeneratorExp) -> ast.AST:
        return self._comprehension(node)

    def _with(self, names: list[str]) -> _Pass:
        return _Pass(self.to, self.scope, self.depth, self.hidden.union(names), repeats=True)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        moved = moved_only(node, self.scope, self.tracer)
        if moved is not None:
            found: ast.AST = self.visit(moved)
            return found
        if last_name(node) == "len" and len(node.args) == 1 and self._is_loader(node.args[0]):
            name = EPOCH
            self.to.missing[name] = f"in the script, {ast.unparse(node)}"
            return ast.Name(name, ast.Load())
        functional = self._functional(node)
        if functional is not None:
            node.func, extra = functional
            arguments: list[ast.expr] = [self.visit(each) for each in node.args]
            node.args, node.keywords = arguments, [*map(self.visit, node.keywords), *extra]
            return node
        if self.to.device is None:
            node.keywords = [
                each
                for each in node.keywords
                if each.arg != "device" or not is_device(each.value, self.scope, self.tracer)
            ]
        elif last_name(node) == "autocast":
            return self._autocast(node)
        return self.generic_visit(node)

    def _is_loader(self, node: ast.expr) -> bool:
        found = self._origin(node)
        if found is None or found.item or found.path:
            return False  # a loader's batch is not a loader
        return "loader" in last_name(node).lower() or last_name(found.node) == "DataLoader"

    def _autocast(self, node: ast.Call) -> ast.AST:
        """Replace the device in a call of `autocast` with a device type, such as `x.device.type`."""
        assert self.to.device is not None
        kind = ast.Attribute(deepcopy(self.to.device), "type", ast.Load())

        def is_named(value: ast.expr) -> bool:
            return not isinstance(value, ast.Constant) and is_device(value, self.scope, self.tracer)

        node.args = [kind if is_named(each) else self.visit(each) for each in node.args]
        for each in node.keywords:
            each.value = kind if is_named(each.value) else self.visit(each.value)
        return node

    def _functional(self, node: ast.Call) -> tuple[ast.expr, list[ast.keyword]] | None:
        """Return a function and arguments for a loss module, such as `F.mse_loss` for `nn.MSELoss`; else None."""
        found = self._origin(node.func)
        if found is None or not isinstance(found.node, ast.Call) or found.node.args or found.path:
            return None
        name, made = last_name(found.node), found.node.func
        if name not in _FUNCTIONAL or not isinstance(made, ast.Attribute):
            return None
        if first_name(made) not in self.tracer.script.importable:
            return None
        if not all(isinstance(each.value, ast.Constant) for each in found.node.keywords):
            return None
        if self.tracer.changed(node.func, self.scope):
            return None  # the criterion was changed after it was made
        self.to.places.add(place_of_node(found.node))
        path = ast.Attribute(deepcopy(made.value), "functional", ast.Load())
        return ast.Attribute(path, _FUNCTIONAL[name], ast.Load()), deepcopy(found.node.keywords)

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        if node.attr == "module" and isinstance(node.ctx, ast.Load):
            wrapped = self._origin(node.value)
            if wrapped is not None and wrapped.key in self.to.roles:
                found: ast.AST = self.visit(node.value)  # how a strategy wraps it is unknown here
                return found
        return (self._placed(node) if isinstance(node.ctx, ast.Load) else None) or self.generic_visit(node)

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        return (self._placed(node) if isinstance(node.ctx, ast.Load) else None) or self.generic_visit(node)

    def visit_Name(self, node: ast.Name) -> ast.AST:
        if isinstance(node.ctx, ast.Store | ast.Del):
            if node.id in self.to.counters - self.hidden:
                return ast.Attribute(ast.Name("self", ast.Load()), counted_as(node.id), node.ctx)
            if node.id not in self.hidden:
                self.to.local.add(node.id)
            return node
        return self._placed(node) or node

    def _origin(self, node: ast.expr) -> Origin | None:
        name = first_name(node)
        return None if name in self.to.local | self.hidden else self.tracer.trace(node, self.scope)

    def _placed(self, node: ast.expr) -> ast.expr | None:
        of = getattr(node, "value", node)
        traced = isinstance(of, ast.Name | ast.Attribute | ast.Subscript) or last_name(of) == "parse_args"
        found = self._origin(node) if traced else None
        if found is None:
            return None
        if isinstance(node, ast.Name) and node.id in self.to.counters:
            return ast.Attribute(ast.Name("self", ast.Load()), counted_as(node.id), ast.Load())
        if found.key in self.to.roles or found.key in self.to.parts:
            return self._of_class(node, found)
        # Use the model's part itself, not a copy that is made in the same way.
        of_role = isinstance(node, ast.Attribute) and self._is_role(node.value)
        written = of if isinstance(node, ast.Subscript) else node
        if of_role or (not isinstance(node, ast.Name) and dotted_name(written) in self.to.written):
            return None
        if self.to.device is not None and is_device(node, self.scope, self.tracer):
            return deepcopy(self.to.device)
        return self._value(node, found)

    def _of_class(self, node: ast.expr, found: Origin) -> ast.expr:
        place = self.to.roles.get(found.key) or self.to.parts[found.key]
        if place is not None:
            return _as_of(node, deepcopy(place))
        name = last_name(node) or "part"
        self.to.missing[name] = "the part of the model that has this name in the script, not a copy of it"
        return ast.Name(name, ast.Load())

    def _value(self, node: ast.expr, found: Origin) -> ast.expr | None:
        own = isinstance(node, ast.Attribute) and ast.unparse(node.value) == "self"
        known = found.node is not node
        if isinstance(node, ast.Attribute) and not known and self._parsed(node):
            self.to.missing[node.attr] = f"the option `{node.attr}`, whose value was not found"
            return ast.Name(node.attr, ast.Load())
        stays = self._stays(first_name(node)) and first_name(node) != "self" and not self._parsed(node)
        if not isinstance(node, ast.Name) and not own and (not known or stays):
            return None
        if isinstance(node, ast.Name) and self._stays(node.id):
            node.outer = True  # type: ignore[attr-defined]  # the class must not give this name a different meaning
            return None
        name = node.id if isinstance(node, ast.Name) else last_name(node) or _entry_name(node)
        if not known or found.item or found.path or self.depth > _DEEPEST:
            return self._unseen(node, name, found)
        if self.depth == 0:
            self.to.root = node
        steps = self.tracer.steps(node, self.scope)
        read = self._read_at_import(steps, found)
        if read is not None:
            outer = _outer_name(steps[read].key)
            self.to.claims.append(ReplacedValue(node, outer, steps[:read], self.to.root))
            return outer
        claim = ReplacedValue(node, found.node, steps, self.to.root)
        made = self._made(name, found, self.tracer.changed(node, self.scope))
        if not (isinstance(made, ast.Name) and made.id in self.to.missing):
            self.to.claims.append(claim)
        return made

    def _read_at_import(self, steps: tuple[TraceStep, ...], found: Origin) -> int | None:
        """Return the step whose module-level name holds what the import reads from a file; None for other values.

        The file may be closed by then, so that the class uses the name and does not read the file again.
        """
        top = self.tracer.top
        bound = self.tracer.bindings(top)
        names = {each.id for each in walk(found.node) if isinstance(each, ast.Name)}
        opened = any(each.kind == "context" for name in names for each in bound.get(name, ()))
        for place, step in enumerate(steps if found.scope.node is top.node else ()):
            binding = step.binding
            if step.scope.node is not top.node or binding is None or binding.value is not found.node:
                continue
            once = step.key in self.tracer.script.importable and len(bound.get(step.key, ())) == 1
            plain = binding.kind == "value" and not binding.path
            free = step.key not in self.to.local | self.hidden
            if once and plain and free and (opened or reads_file(found.node)):
                return place
        return None

    def _is_role(self, node: ast.expr) -> bool:
        found = self._origin(node)
        return found is not None and (found.key in self.to.roles or found.key in self.to.parts)

    def _parsed(self, node: ast.expr) -> bool:
        holder = self.tracer.trace(node.value, self.scope) if isinstance(node, ast.Attribute) else None
        return holder is not None and last_name(holder.node) == "parse_args"

    def _made(self, name: str, found: Origin, changed_in: list[int]) -> ast.expr:
        calls = {last_name(each) for each in walk(found.node) if isinstance(each, ast.Call)}
        if last_name(found.node) in ("DataLoader", "parse_args") or "input" in calls:
            return self._unseen(ast.Name(name, ast.Load()), name, found)
        changed = self._changed(found)
        if changed is not None:
            return changed
        another = bool(calls) and is_another(found.node, self.tracer.script)
        changed_in = (
            changed_in if self.to.keeps or last_name(found.node) not in self.tracer.script.classes else []
        )
        in_turn = another and found.key in self.to.once and self._is_drawn_from_again(found)
        if changed_in or in_turn:
            lines = series_of([str(each) for each in changed_in])
            why = f"changed in line{'s' * (len(changed_in) > 1)} {lines}"
            why = why if changed_in else "from which several values are drawn in turn"
            return self._lacking(name, f"in the script, {ast.unparse(found.node)}, {why}", found.key)
        if another:
            self.to.drawn.add(found.key)
        # An attribute with an open file could not be pickled for a loader's workers.
        opened = last_name(found.node) == "open" and self._reads(found) == 1
        own = None if opened else self._kept(name, found, calls=bool(calls), another=another)
        if own is not None:
            return own
        inner = _Pass(self.to, found.scope, self.depth + 1, repeats=self.repeats)
        made: ast.expr = inner.visit(deepcopy(found.node))
        if another and self.repeats:
            self._shared(name, found, made)
            return self._shared(name, found, copy(made))  # twice, to assign a name even for a single use
        return self._shared(name, found, made) if calls and not self.hidden and not opened else made

    def _is_drawn_from_again(self, found: Origin) -> bool:
        return is_generator(found.node) and self._reads(found) > 1

    def _reads(self, found: Origin) -> int:
        """Return how often the function that makes a value reads it by name. A call of its `close` does not count."""
        bound = self.tracer.bindings(found.scope)
        names = {name for name, each in bound.items() if any(e.value is found.node for e in each)}
        nodes = [each for each in walk(found.scope.node) if isinstance(each, ast.expr)]
        closed = {
            id(each.value) for each in nodes if isinstance(each, ast.Attribute) and each.attr == "close"
        }
        reads = [each for each in nodes if key_of(each) in names and id(each) not in closed]
        return sum(isinstance(getattr(each, "ctx", None), ast.Load) for each in reads)

    def _kept(self, name: str, found: Origin, *, calls: bool, another: bool) -> ast.expr | None:
        """Return an attribute of `self` for a value computed once; None if computed at each read."""
        if self.to.keeps and calls:
            return self.keep(name, found)
        if found.key not in self.to.once and not (another and self.to.often):
            return None
        missing, kept = self.to.missing, dict(self.to.kept)
        self.to.missing = {}
        own = self.keep(name, found)
        lacks, self.to.missing = bool(self.to.missing), missing
        if lacks:
            self.to.kept = kept  # a value to be filled in is in the method itself
        return None if lacks else own

    def keep(self, name: str, found: Origin) -> ast.expr:
        to = self.to
        device, keeps = to.device, to.keeps
        to.device, to.keeps = None, True
        made = _Pass(to, found.scope, self.depth + 1).visit(deepcopy(found.node))
        to.device, to.keeps = device, keeps
        own = self._kept_as(name, found)
        to.kept[own] = self._as_set(found, made)
        return ast.Attribute(ast.Name("self", ast.Load()), own, ast.Load())

    def _kept_as(self, name: str, found: Origin) -> str:
        known = next((own for own, key in self.to.keeper.items() if key == found.key), None)
        if known is not None:
            return known
        while name in _OF_CLASS or self.to.keeper.setdefault(name, found.key) != found.key:
            name += "_"
        return name

    def _as_set(self, found: Origin, made: ast.expr) -> ast.expr:
        """Add the script's changes, `.eval()` and `.requires_grad_(False)`, to a module's expression."""
        for does, nodes in settings_of(self.tracer, found).items():
            made = ast.Call(ast.Attribute(made, does, ast.Load()), [], [])
            if does == "requires_grad_":
                made.args = [ast.Constant(False)]
            self.to.places |= {place_of_node(each) for node in nodes for each in walk(node)} - {-1}
        return made

    def _shared(self, name: str, found: Origin, made: ast.expr) -> ast.expr:
        """Return a value's expression, or a local variable if a method uses it more than once."""
        first = self.to.inlined.setdefault(found.key, made)
        if first is made:
            return made
        if not isinstance(first, ast.Name):
            own = f"{name}_" if name in ("self", "model", "parameters", "batch", "optimizer") else name
            while self.to.named.setdefault(own, found.key) != found.key:
                own += "_"
            value = copy(first)
            self.to.before = {own: [ast.Assign([ast.Name(own, ast.Store())], value)], **self.to.before}
            first.__class__ = ast.Name  # turn the first use into the name, too
            first.__dict__.clear()
            vars(first).update(id=own, ctx=ast.Load())
        return copy(first)

    def _changed(self, found: Origin) -> ast.expr | None:
        if self.to.keeps or last_name(found.node) not in self.tracer.script.classes:
            return None
        bound = self.tracer.bindings(found.scope)
        names = [name for name, each in bound.items() if any(e.value is found.node for e in each)]
        for name in names:
            made: list[ast.stmt] = []
            for key in (each for each in bound if each.startswith(f"{name}.")):
                inner = _Pass(self.to, found.scope, self.depth + 1)
                value = inner.visit(deepcopy(bound[key][-1].value))
                path = f"{last_name(found.node)}.{key.partition('.')[2]}"
                if ast.unparse(value) == path:  # it is set to the value that it has
                    self.to.places |= {place_of_node(bound[key][-1].value)} - {-1}
                if ast.unparse(value) != path and not bound[key][-1].path:
                    target = ast.parse(key, mode="eval").body
                    assert isinstance(target, ast.Attribute)
                    made.append(ast.Assign([ast.Attribute(target.value, target.attr, ast.Store())], value))
            if made:
                call = _Pass(self.to, found.scope, self.depth + 1).visit(deepcopy(found.node))
                self.to.before[name] = [ast.Assign([ast.Name(name, ast.Store())], call), *made]
                return ast.Name(name, ast.Load())
        return None

    def _stays(self, name: str) -> bool:
        if not isinstance(self.scope.node, ast.Module):
            outer: Scope | None = self.scope
            while outer is not None and not isinstance(outer.node, ast.Module):
                if name in self.tracer.bindings(outer) or name in parameters_of(outer.node):
                    return False
                outer = self.tracer.enclosing.get(id(outer.node))
            for node in here(self.scope.node.body):
                if isinstance(node, ast.Import | ast.ImportFrom) and name in _imported(node):
                    self.to.imports[name] = ast.unparse(node)
                    return True
        script = self.tracer.script
        if "*" in script.importable:  # after `from parts import *`, which may bind the name
            return True
        return name in script.importable or hasattr(builtins, name) or name in ("self", "__file__")

    def _defined(self, node: ast.expr) -> ast.ClassDef | None:
        if not isinstance(node, ast.Name) or isinstance(self.scope.node, ast.Module):
            return None
        return _definitions(self.scope).get(node.id)

    def _unseen(self, node: ast.expr, name: str, found: Origin) -> ast.expr:
        own = self._defined(node)
        if own is not None:
            self.to.before.setdefault(own.name, [deepcopy(own)])
            return node
        where = getattr(found.scope.node, "name", "")
        comment = (
            f"in the script, {ast.unparse(found.node)}" if found.node is not node else "as in the script"
        )
        comment += f", in {where}()" if where and found.node is node else ""
        comment += self._lines_of(node)
        return self._lacking(name, comment, found.key if found.node is not node else ast.unparse(node))

    def _lines_of(self, node: ast.expr) -> str:
        own = self.scope.own
        if own is None or not isinstance(node, ast.Attribute) or key_of(node) != f"self.{node.attr}":
            return ""
        method = self.tracer.script.method(own, node.attr)
        if method is not None:
            return f"; line {method[1].lineno} computes it at each read"
        lines = sorted({each.lineno for each in self.tracer.writes.sets_of(own, node.attr)})  # type: ignore[attr-defined]
        return f"; set in line{'s' * (len(lines) > 1)} {series_of(list(map(str, lines)))}" if lines else ""

    def _lacking(self, name: str, comment: str, key: tuple[int, Path] | str) -> ast.expr:
        while self.to.lacking.setdefault(name, key) != key:
            name += "_"
        self.to.missing[name] = comment
        return ast.Name(name, ast.Load())


def _outer_name(name: str) -> ast.Name:
    """Return a module-level name to which the generated class must not give a different meaning."""
    made = ast.Name(name, ast.Load())
    made.outer = True  # type: ignore[attr-defined]
    return made


def _entry_name(node: ast.expr) -> str:
    key = (
        node.slice.value if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant) else None
    )
    return key if isinstance(key, str) and key.isidentifier() and not iskeyword(key) else "value"


def dotted_name(node: ast.expr) -> str:
    """Return the source text of a name, or of an attribute such as `a.b.c`; an empty text for any other node."""
    return ast.unparse(node) if isinstance(node, ast.Name | ast.Attribute) and first_name(node) else ""


def counted_as(name: str) -> str:
    """Return the name of the attribute of `self` that replaces a loop counter called `name`."""
    return f"{name}_" if name in _OF_CLASS else name


def _definitions(scope: Scope) -> dict[str, ast.ClassDef]:
    return {each.name: each for each in here(scope.node.body) if isinstance(each, ast.ClassDef)}


def _as_of(node: ast.expr, made: ast.expr) -> ast.expr:
    made.place = place_of_node(node)  # type: ignore[attr-defined]
    return made


def moved_only(node: ast.Call, scope: Scope, tracer: Tracer) -> ast.expr | None:
    """Return the object that a call such as `x.to(device)` only moves to a device; None for any other call."""
    if not isinstance(node.func, ast.Attribute):
        return None
    if node.func.attr == "cuda" and first_name(node.func) != "torch":
        return node.func.value
    arguments = [*node.args, *(each.value for each in node.keywords if each.arg != "non_blocking")]
    if node.func.attr == "to" and arguments and all(is_device(each, scope, tracer) for each in arguments[:1]):
        rest = [each for each in arguments[1:] if not isinstance(each, ast.Constant)]
        return node.func.value if not rest else None
    return None


def is_device(node: ast.expr, scope: Scope, tracer: Tracer) -> bool:
    """Return whether an expression is a device, such as `"cuda"`, `torch.device(...)` or `args.device`."""
    if isinstance(node, ast.Constant):
        return isinstance(node.value, str) and node.value.partition(":")[0] in ("cuda", "cpu", "mps")
    if isinstance(node, ast.Call):
        return last_name(node) == "device"
    if isinstance(node, ast.IfExp):
        return is_device(node.body, scope, tracer) and is_device(node.orelse, scope, tracer)
    if not isinstance(node, ast.Name | ast.Attribute) or last_name(node) in tracer.script.functions:
        return False
    name = last_name(node).lower()
    if "device" in name or name in _DEVICES:
        return True
    found = tracer.trace(node, scope)
    return found.node is not node and not found.path and is_device(found.node, found.scope, tracer)


def _imported(node: ast.Import | ast.ImportFrom) -> list[str]:
    return [each.asname or each.name.partition(".")[0] for each in node.names]
