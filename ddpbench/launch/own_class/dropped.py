"""List the statements of a script that its generated class leaves out, and the script's settings for an experiment."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Set
from dataclasses import dataclass

from ddpbench.launch.own_class.bindings import Path, Scope
from ddpbench.launch.own_class.loops import TrainingLoop
from ddpbench.launch.own_class.script import (
    FunctionNode,
    Script,
    first_name,
    here,
    in_step,
    is_super,
    last_name,
    place_of_node,
)
from ddpbench.launch.own_class.tracing import Tracer
from ddpbench.launch.own_class.trees import walk
from ddpbench.launch.own_class.updates import is_scheduler
from ddpbench.units import series_of

_LONGEST = 88
_WRAPPERS = {
    "DistributedDataParallel": "ddp",
    "DDP": "ddp",
    "DataParallel": "data_parallel",
    "FullyShardedDataParallel": "fsdp",
    "FSDP": "fsdp",
    "fully_shard": "fsdp",
}
_DDP_OPTIONS = ("gradient_as_bucket_view", "static_graph", "find_unused_parameters", "broadcast_buffers")
_PLACES = ("module", "device_ids", "output_device", "process_group", "dim")
"""Arguments of a wrapper such as DDP that the strategy sets, for example devices and process groups."""
_HOOKS = {"fp16_compress_hook": "fp16", "bf16_compress_hook": "bf16", "powerSGD_hook": "powersgd"}
_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
_LOADED = ("dataset", "batch_size", "collate_fn")
"""Arguments of a `DataLoader` that the generated class sets too."""

WRAPPED = "how the model is wrapped"
SCHEDULE = "learning-rate schedule"
WAITS = "waits, and messages between ranks"
SYNC = "when gradients are averaged"
MACHINE = "threads, environment and backends"
READS = "results read from the device"
DATA = "data loading"
CHECKPOINTS = "checkpoints"
SEEDS = "seeds"
MODEL = "what else is done to the model"
OTHER = "other statements"
DONE = "what a sweep does itself (process group, devices, epochs, backward and update)"
OPTIONS = "options of the command line"
PRINTED = "printing, timing and logging"
BRIEF = (DONE, OPTIONS, PRINTED)
"""Groups that are listed by line numbers only."""

_CALLS: dict[str, frozenset[str]] = {
    WRAPPED: frozenset({*_WRAPPERS, "register_comm_hook"}),
    WAITS: frozenset(
        {
            "sleep",
            "barrier",
            "synchronize",
            "all_reduce",
            "all_gather",
            "all_gather_object",
            "reduce",
            "broadcast",
        }
        | {
            "broadcast_object_list",
            "gather",
            "reduce_scatter",
            "monitored_barrier",
            "wait",
            "allreduce",
            "send",
        }
        | {"recv", "all_gather_into_tensor", "empty_cache", "collect"}
    ),
    SYNC: frozenset({"no_sync"}),
    MACHINE: frozenset(
        {"set_num_threads", "set_num_interop_threads", "set_float32_matmul_precision", "set_start_method"}
        | {"use_deterministic_algorithms", "set_detect_anomaly", "set_default_dtype", "set_sharing_strategy"}
        | {"sched_setaffinity", "putenv", "setdefault"}
    ),
    DATA: frozenset({"DataLoader", "set_epoch", "random_split", "Subset"}),
    CHECKPOINTS: frozenset({"load", "save", "load_state_dict", "state_dict", "save_pretrained"}),
    SEEDS: frozenset({"manual_seed", "manual_seed_all", "seed", "set_seed", "seed_everything"}),
    MODEL: frozenset(
        {"compile", "requires_grad_", "apply", "deepcopy", "convert_sync_batchnorm"}
        | {"update_parameters", "lerp_", "half", "bfloat16", "double", "AveragedModel", "set_grad_enabled"}
    ),
    OPTIONS: frozenset(
        {"ArgumentParser", "add_argument", "parse_args", "add_argument_group", "parse_known_args"}
    ),
    PRINTED: frozenset(
        {"print", "info", "debug", "warning", "log", "add_scalar", "set_postfix", "set_description", "write"}
        | {"time", "perf_counter", "tqdm", "flush", "close", "append", "basicConfig", "getLogger", "makedirs"}
    ),
    DONE: frozenset(
        {"init_process_group", "destroy_process_group", "get_rank", "get_world_size", "set_device", "device"}
        | {
            "is_available",
            "is_initialized",
            "backward",
            "step",
            "zero_grad",
            "to",
            "cuda",
            "next",
            "iter",
            "update",
        }
        | {"is_torchelastic_launched", "scale", "unscale_", "spawn", "train", "eval"}
    ),
}
_OF_MODEL = frozenset({"parameters", "named_parameters", "state_dict"})
_READERS = frozenset({"item", "cpu", "numpy", "tolist", "detach"})


@dataclass(frozen=True)
class Dropped:
    """A statement, or a part of one, that the generated class leaves out."""

    group: str
    line: int
    text: str


@dataclass(frozen=True)
class ScriptSetting:
    """A setting of the script that experiments have too. `value` is TOML, or empty if the value is unknown."""

    key: str
    value: str
    line: int
    source: str = ""
    """The value as written in the script."""


@dataclass(frozen=True)
class KeptParts:
    """The parts of a script that the generated class keeps."""

    places: frozenset[int]
    """The numbers (see `place_of_node`) of the script's nodes that the generated class has copies of."""
    names: frozenset[str]
    """The names that the generated class uses."""
    loop: TrainingLoop | None
    whole_step: bool
    """True if the generated class makes the update itself."""
    models: frozenset[tuple[int, Path]]
    """The script's models, each as its `Origin.key`."""
    opened: frozenset[int] = frozenset()
    """The script's lines for which the generated class has a line to fill in."""
    outside: frozenset[int] = frozenset()
    """The script's lines that make updates outside the loop over batches, which no sweep makes."""


class Leavings:
    """Collects the statements that the generated class leaves out, and the script's settings for an experiment."""

    def __init__(self, script: Script, tracer: Tracer, taken: KeptParts, ends: list[ast.stmt]) -> None:
        """`ends` are the top-level statements that will not run when the module is imported."""
        self.script, self.tracer, self.taken = script, tracer, taken
        self.dropped: list[Dropped] = []
        self.settings: list[ScriptSetting] = []
        used = _reached(script, [], set(taken.names))
        self.used = used
        self._behind(self.tracer.top, ends)
        for name in _reached(script, ends, set()) - used:
            if name in script.functions:
                self._function(Scope(script.functions[name]))
            elif name in script.classes:
                for method in script.classes[name].body:
                    if isinstance(method, ast.FunctionDef | ast.AsyncFunctionDef):
                        self._function(Scope(method, script.classes[name]))
        self._at_import([each for each in script.tree.body if each not in ends and each is not script.guard])
        self.dropped.sort(key=lambda each: each.line)
        self.settings.sort(key=lambda each: each.line)

    def has(self, node: ast.AST) -> bool:
        return any(place_of_node(each) in self.taken.places for each in walk(node) if hasattr(each, "place"))

    def _function(self, scope: Scope) -> None:
        node = scope.node
        assert not isinstance(node, ast.Module)
        inner = _Collected(self, scope)
        inner.block(node.body)
        loop = self.taken.loop
        trains = loop is not None and loop.node in walk(node)
        plain = any(each.group in (OTHER, READS) for each in inner.found) and node.name != "__init__"
        if plain and not self.has(node) and not trains:
            grave = [each for each in inner.found if each.group not in (*BRIEF, OTHER, READS)]
            self.dropped.append(Dropped(OTHER, node.lineno, f"{node.name}(), to line {node.end_lineno}"))
            self.dropped += grave
        else:
            self.dropped += inner.found

    def _behind(self, scope: Scope, body: list[ast.stmt]) -> None:
        inner = _Collected(self, scope)
        inner.block(body)
        self.dropped += inner.found

    def _at_import(self, body: list[ast.stmt]) -> None:
        inner, before = _Collected(self, self.tracer.top), [*self.settings]
        inner.block([each for each in body if not isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)])
        self.dropped += [
            each for each in inner.found if each.group == MODEL or "load_state_dict(" in each.text
        ]
        self.settings = before
        loads = _Collected(self, self.tracer.top)
        for each in here(body):
            if isinstance(each, ast.Call) and last_name(each) == "set_num_threads":
                self.threads(each, self.tracer.top)
            elif isinstance(each, ast.Call) and last_name(each) == "DataLoader":
                loads.loader(each)
        self.dropped += [each for each in loads.found if each.group == DATA]

    def threads(self, call: ast.Call, scope: Scope) -> None:
        if call.args:
            self.setting("base.threads_per_rank", call.args[0], scope, call.lineno)

    def setting(self, key: str, value: ast.expr, scope: Scope, line: int) -> None:
        """Record a setting of an experiment, with the value if it can be computed from the script's constants."""
        known, found = self.tracer.value(value, scope)
        shown = known and isinstance(found, bool | int | float | str)
        text = ("true" if found else "false") if isinstance(found, bool) else str(found) if shown else ""
        self.settings.append(ScriptSetting(key, text, line, ast.unparse(value)))


class _Collected:
    def __init__(self, of: Leavings, scope: Scope) -> None:
        self.of, self.scope = of, scope
        self.found: list[Dropped] = []

    def block(self, body: list[ast.stmt]) -> None:
        for statement in body:
            self._statement(statement)

    def _add(self, group: str, node: ast.AST, text: str = "") -> None:
        if group == DONE and getattr(node, "lineno", 0) in self.of.taken.opened:
            return  # the user has to fill this in: no sweep does it
        whole = " ".join((text or ast.unparse(node)).split())
        short = whole if len(whole) <= _LONGEST else f"{whole[: _LONGEST - 3]}..."
        self.found.append(Dropped(group, getattr(node, "lineno", 0), short))

    def _statement(self, node: ast.stmt) -> None:
        if isinstance(
            node, ast.Import | ast.ImportFrom | ast.Pass | ast.Global | ast.Nonlocal | ast.ClassDef
        ):
            return
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            if place_of_node(node) not in self.of.taken.places:
                self.block(node.body)
            return
        if isinstance(node, ast.With | ast.AsyncWith):
            for item in node.items:
                quiet = last_name(item.context_expr) in ("no_grad", "nullcontext", "inference_mode")
                if not quiet and not self.of.has(item.context_expr):
                    self._calls(item.context_expr, item.context_expr)
        if isinstance(node, ast.If | ast.For | ast.AsyncFor | ast.While | ast.With | ast.AsyncWith | ast.Try):
            self._settings(node)
            for name in ("body", "handlers", "orelse", "finalbody"):
                for each in getattr(node, name, []):
                    self.block(each.body if isinstance(each, ast.ExceptHandler) else [each])
            return
        if isinstance(node, ast.Match) and place_of_node(node) not in self.of.taken.places:
            for case in node.cases:
                self.block(case.body)
            return
        self._settings(node)
        if isinstance(node, ast.Assign) and "'OMP_NUM_THREADS'" in ast.unparse(node.targets[0]):
            self.of.setting("base.threads_per_rank", node.value, self.scope, node.lineno)
        self._simple(node)

    def _simple(self, node: ast.stmt) -> None:
        taken, loop = self.of.taken, self.of.taken.loop
        value = getattr(node, "value", None)
        if isinstance(value, ast.Constant) and isinstance(node, ast.Expr):
            return
        steps = loop is not None and any(each in (loop.call, loop.stands) for each in walk(node))
        if place_of_node(node) in taken.places or (value is not None and _is_taken(value, taken.places)):
            return
        if steps:
            return
        if isinstance(node, ast.Break | ast.Continue | ast.Raise | ast.Assert):
            return
        self._calls(node, node)

    def _calls(self, node: ast.AST, shown: ast.AST) -> None:
        calls = [each for each in walk(node) if isinstance(each, ast.Call)]
        targets = node.targets if isinstance(node, ast.Assign) else []
        if isinstance(node, ast.AugAssign):
            own = isinstance(node.target, ast.Name) or ast.unparse(node.target).startswith("self.")
            if own and not any(last_name(each) in _READERS for each in calls):
                return  # a counter or a sum; nothing is read from the device
            targets = [] if own else [node.target]
        placed = any(
            isinstance(each, ast.Subscript)
            or (isinstance(each, ast.Attribute) and ast.unparse(each.value) != "self")
            for each in targets
        )
        if not calls and not placed:
            return  # a new name for an existing object
        left = {*self.of.script.functions, *self.of.script.classes}
        if calls and not placed and (first_name(calls[0]) in left or self._is_own_method(calls[0])):
            return  # its statements are visited separately
        if loads := [each for each in calls if last_name(each) == "DataLoader"]:
            self._loads(loads, shown)
            return
        group = self._group(node, calls)
        part = any(last_name(each) in ("Subset", "random_split") for each in calls)
        if group == DATA and part:
            self._add(DATA, shown, f"{ast.unparse(node)}: dataset() has all samples")
        elif not (isinstance(node, ast.Return) and group in (OTHER, DONE)):
            kept = isinstance(node, ast.AugAssign) or getattr(shown, "lineno", 0) in self.of.taken.outside
            self._add(OTHER if group == DONE and kept else group, shown)

    def _loads(self, loads: list[ast.Call], shown: ast.AST) -> None:
        rest = [word for each in loads for word in _rest(each, _LOADED)]
        if not rest:
            return
        if all(
            each.arg in ("shuffle", "drop_last") or last_name(each.value) == "DistributedSampler"
            for each in rest
        ):
            self._add(DONE, shown)
        else:
            words = ", ".join(map(ast.unparse, rest))
            self._add(DATA, shown, f"{ast.unparse(loads[0].func)}({words})")

    def loader(self, call: ast.Call) -> None:
        for key, value in self._set_by(call):
            self.of.setting(key, value, self.scope, call.lineno)
        self._loads([call], call)

    def _is_own_method(self, call: ast.Call) -> bool:
        """Return whether a call runs a method of the script. Its statements are listed separately."""
        if not isinstance(call.func, ast.Attribute):
            return False
        receiver = call.func.value
        if isinstance(receiver, ast.Name) and receiver.id == "self" and self.scope.own is not None:
            return self.of.script.method(self.scope.own, call.func.attr) is not None
        if self.scope.own is not None and is_super(receiver):
            return self.of.script.inherited(self.scope.own, call.func.attr) is not None
        made = last_name(self.of.tracer.trace(receiver, self.scope).node)
        found = self.of.script.classes.get(made)
        if found is None or made in self.of.used:
            return False
        return self.of.script.method(found, call.func.attr) is not None

    def _group(self, node: ast.AST, calls: list[ast.Call]) -> str:
        text = ast.unparse(node)
        names = {last_name(each) for each in calls}
        if names & _CALLS[WRAPPED]:
            words = [
                each for call in calls if last_name(call) in _CALLS[WRAPPED] for each in self._words(call)
            ]
            plain = "register_comm_hook" not in names and all(each.arg in _PLACES for each in words)
            return DONE if plain else WRAPPED
        return self._schedules(calls) or _by_text(text) or self._by_calls(calls, names)

    def _by_calls(self, calls: list[ast.Call], names: set[str]) -> str:
        """Return the group of a left-out statement, such as `CHECKPOINTS`, from the functions that it calls."""
        sampler = any(each.endswith("Sampler") for each in names)
        changes_model = any(map(self._sets_part, calls)) or any(map(self._follows_model, calls))
        collects = any(map(self._collects, calls))
        groups = (
            *(
                (group, bool(names & _CALLS[group]) or (group == DATA and sampler))
                for group in (WAITS, SYNC, MACHINE, DATA, CHECKPOINTS, SEEDS, OPTIONS)
            ),
            (PRINTED, bool(names & {"print", "info", "debug", "set_postfix", "add_scalar"})),
            (READS, bool(names & {"item", "cpu", "numpy", "tolist"})),
            (MODEL, changes_model or bool(names & _CALLS[MODEL])),
            (PRINTED, bool(names & _CALLS[PRINTED]) and not collects),
            (DONE, bool(names & _CALLS[DONE])),
        )
        return next((group for group, fits in groups if fits), OTHER)

    def _collects(self, call: ast.Call) -> bool:
        if last_name(call) != "append" or not call.args:
            return False
        if first_name(call.func) in self.of.taken.names:
            return True
        found = self.of.tracer.trace(call.args[0], self.scope)
        script, made = self.of.script, last_name(found.node)
        parts = found.item and made.removeprefix("named_") in ("parameters", "modules", "children", "buffers")
        return parts or (isinstance(found.node, ast.Call) and made in script.classes)

    def _follows_model(self, call: ast.Call) -> bool:
        """Return whether a call updates an average of a model, such as `ema.update(model.parameters())`."""
        if last_name(call) != "update":
            return False
        given = [each.func if isinstance(each, ast.Call) else each for each in call.args]
        objects = [
            each.value if isinstance(each, ast.Attribute) and each.attr in _OF_MODEL else each
            for each in given
        ]
        return any(self.of.tracer.trace(each, self.scope).key in self.of.taken.models for each in objects)

    def _sets_part(self, call: ast.Call) -> bool:
        if not isinstance(call.func, ast.Attribute) or call.func.attr not in ("train", "eval"):
            return False
        of = call.func.value
        if isinstance(of, ast.Attribute) and of.attr == "module":
            of = of.value
        if isinstance(of, ast.Name):
            return self.of.tracer.trace(of, self.scope).item
        return (
            isinstance(of, ast.Subscript | ast.Attribute) and ast.unparse(getattr(of, "value", of)) != "self"
        )

    def _schedules(self, calls: Iterable[ast.Call]) -> str | None:
        """Return `SCHEDULE` for a learning-rate scheduler, or `DONE` if the class makes the same call; else None."""
        for call in calls:
            made = last_name(call)
            if isinstance(call.func, ast.Attribute) and made in ("step", "get_last_lr"):
                receiver = call.func.value
                found = self.of.tracer.trace(receiver, self.scope)
                if is_scheduler(found, receiver):
                    inside = self.of.taken.loop is not None and call in in_step(self.of.taken.loop.body)
                    has = place_of_node(found.node) in self.of.taken.places and inside and not call.args
                    return DONE if has else SCHEDULE
            if made.endswith("LR") or "schedule" in made.lower() or "ReduceLROnPlateau" in made:
                return SCHEDULE
        return None

    def _settings(self, node: ast.stmt) -> None:
        heads: list[ast.AST] = [node]
        if isinstance(node, ast.If | ast.While):
            heads = [node.test]
        elif isinstance(node, ast.For | ast.AsyncFor):
            heads = [node.iter]
        elif isinstance(node, ast.With | ast.AsyncWith):
            heads = [item.context_expr for item in node.items]
        elif isinstance(node, ast.Try):
            heads = []
        for call in (each for head in heads for each in walk(head) if isinstance(each, ast.Call)):
            for key, value in self._set_by(call):
                self.of.setting(key, value, self.scope, call.lineno)

    def _set_by(self, call: ast.Call) -> Iterator[tuple[str, ast.expr]]:
        """Yield the settings that a call corresponds to, and record arguments that no experiment can set."""
        name, words = last_name(call), self._words(call)
        if _WRAPPERS.get(name) == "ddp":
            for word in words:
                if word.arg in _DDP_OPTIONS or word.arg == "bucket_cap_mb":
                    cap = word.arg == "bucket_cap_mb"
                    yield "base.bucket_cap_mb" if cap else f"options.ddp.{word.arg}", word.value
            self._wrapped(call, [*_DDP_OPTIONS, "bucket_cap_mb", *_PLACES])
        elif name in _WRAPPERS:
            self._wrapped(call, _PLACES)
        elif name == "register_comm_hook":
            hooks = [kind for hook, kind in _HOOKS.items() if hook in ast.unparse(call)]
            yield from (("options.ddp.compression", ast.Constant(kind)) for kind in hooks[:1])
        elif name == "set_num_threads":
            self.of.threads(call, self.scope)
        elif name == "set_default_dtype" and call.args:
            kind = last_name(call.args[0])
            if kind in ("float64", "double", "bfloat16"):
                yield "base.dtype", ast.Constant("float64" if kind == "double" else kind)
        elif name == "DataLoader":
            for word in words:
                if word.arg == "num_workers" and not self._zero(word.value):
                    yield "base.loader_workers", word.value

    def _words(self, call: ast.Call) -> list[ast.keyword]:
        return [ast.keyword(name, value) for name, value in self.of.tracer.words(call, self.scope)]

    def _wrapped(self, call: ast.Call, known: Iterable[str]) -> None:
        for word in (each for each in self._words(call) if (each.arg or "") not in known):
            self._add(
                WRAPPED, call, f"{last_name(call)}({ast.unparse(word)}), which an experiment cannot set"
            )

    def _zero(self, value: ast.expr) -> bool:
        known, found = self.of.tracer.value(value, self.scope)
        return known and found == 0


def _is_taken(value: ast.expr, places: Set[int]) -> bool:
    if place_of_node(value) in places:
        return True
    made = [each for each in getattr(value, "elts", ()) if not isinstance(each, ast.Constant)]
    return isinstance(value, ast.Tuple) and bool(made) and all(place_of_node(e) in places for e in made)


def _by_text(text: str) -> str:
    groups = (
        (SCHEDULE, "['lr']" in text),
        (SYNC, "require_backward_grad_sync" in text),
        (DONE, "environ" in text and any(f"'{each}'" in text for each in _VARIABLES)),
        (MACHINE, "environ" in text or "backends." in text),
    )
    return next((group for group, fits in groups if fits), "")


def _rest(call: ast.Call, known: Iterable[str]) -> list[ast.keyword]:
    return [each for each in call.keywords if (each.arg or "") not in known]


def _reached(script: Script, body: list[ast.stmt], names: set[str]) -> set[str]:
    found: set[str] = set()
    todo = names | set(_named(body))
    while todo:
        name = todo.pop()
        node: FunctionNode | ast.ClassDef | None = script.functions.get(name) or script.classes.get(name)
        if node is not None and name not in found:
            found.add(name)
            todo |= set(_named([node]))
    return found


def names_read(script: Script, names: set[str]) -> set[str]:
    """Return all names read by the functions and classes in `names`, and by the functions and classes that they use."""
    found = _reached(script, [], names)
    nodes = [each for each in (*script.functions.values(), *script.classes.values()) if each.name in found]
    return set(_named(nodes))


def _named(body: Iterable[ast.AST]) -> Iterator[str]:
    for statement in body:
        for each in walk(statement):
            if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Load):
                yield each.id


def summary(dropped: list[Dropped], most: int = 10_000) -> list[str]:
    """Return a line for each group of left-out statements, the most severe first.

    Each line quotes at most `most` statements. For the other statements, it only gives their line numbers.
    """
    order = [WRAPPED, SCHEDULE, WAITS, SYNC, MACHINE, READS, DATA, MODEL, CHECKPOINTS, SEEDS, OTHER, *BRIEF]
    lines = []
    for group in order:
        mine = [each for each in dropped if each.group == group]
        if mine and group in BRIEF:
            lines.append(f"{group}: {_numbers(mine)}")
        elif mine:
            shown = "; ".join(f"line {each.line} `{each.text}`" for each in mine[:most])
            more = f"; and {_numbers(mine[most:])}" if mine[most:] else ""
            lines.append(f"{group}: {shown}{more}")
    return lines


def _numbers(mine: list[Dropped]) -> str:
    numbers = sorted({each.line for each in mine})
    spans: list[tuple[int, int]] = []
    for number in numbers:
        if spans and number == spans[-1][1] + 1:
            spans[-1] = (spans[-1][0], number)
        else:
            spans.append((number, number))
    texts = [str(first) if first == last else f"{first} to {last}" for first, last in spans]
    return f"line{'s' if len(numbers) > 1 else ''} {series_of(texts)}"
