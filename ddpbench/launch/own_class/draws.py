"""Find expressions that may give a different value if computed again, such as random draws, clocks and user input."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ddpbench.launch.own_class.script import MODULES, FunctionNode, Script, here, last_name
from ddpbench.launch.own_class.trees import walk

_DRAWS = frozenset(
    {"rand", "randn", "randint", "randperm", "rand_like", "randn_like", "randint_like", "normal", "bernoulli"}
    | {
        "multinomial",
        "poisson",
        "uniform",
        "gauss",
        "normalvariate",
        "choice",
        "choices",
        "sample",
        "shuffle",
    }
    | {"randrange", "random", "triangular", "betavariate", "gammavariate", "lognormvariate", "expovariate"}
    | {"standard_normal", "permutation", "permuted", "integers", "random_sample", "binomial", "exponential"}
    | {"gumbel", "laplace", "beta", "gamma", "getrandbits", "randbytes", "rsample", "dropout"}
    | {"random_split", "train_test_split", "uuid1", "uuid4", "urandom", "token_hex", "token_bytes"}
    | {"orthogonal_", "trunc_normal_", "normal_", "uniform_", "random_", "exponential_", "bernoulli_"}
    | {"kaiming_normal_", "kaiming_uniform_", "xavier_normal_", "xavier_uniform_", "cauchy_", "geometric_"}
)
_CLOCKS = frozenset(
    {
        "time",
        "time_ns",
        "perf_counter",
        "perf_counter_ns",
        "monotonic",
        "process_time",
        "now",
        "utcnow",
        "today",
    }
)
_READERS = frozenset(
    {"input", "open", "read", "readline", "readlines", "read_text", "read_bytes"}
    | {"load", "safe_load", "full_load", "load_all", "reader", "DictReader"}
)
_KEEPERS = frozenset(
    {"Generator", "default_rng", "RandomState", "Random", "SystemRandom", "SeedSequence", "next", "iter"}
    | {"Parameter", "cycle", "pop", "popleft", "popitem"}
)
"""Calls that return an object with state, or that change the state of their object."""
_GENERATORS = frozenset({"Generator", "default_rng", "RandomState", "Random"})
_ANOTHER = _DRAWS | _CLOCKS | _READERS | _KEEPERS
_DEEPEST = 8


def is_another(node: ast.AST, script: Script) -> bool:
    """Return whether an expression may give a different value or object if it is computed again."""
    return _is_another(node, script, frozenset(), 0)


def reads_file(node: ast.AST) -> bool:
    """Return whether an expression reads a file, such as `json.load(f)`, which may fail or differ the second time."""
    return any(isinstance(each, ast.Call) and last_name(each) in _READERS for each in walk(node))


def is_generator(node: ast.AST) -> bool:
    """Return whether an expression makes a random number generator, such as `torch.Generator().manual_seed(3)`."""
    while isinstance(node, ast.Call | ast.Attribute):
        if isinstance(node, ast.Call) and last_name(node) in _GENERATORS:
            return True
        node = node.func if isinstance(node, ast.Call) else node.value
    return False


def is_layer(node: ast.AST, script: Script) -> bool:
    """Return whether an expression constructs a layer of `torch.nn`, or a module class of the script."""
    if not isinstance(node, ast.Call):
        return False
    name, of_torch = last_name(node), ast.unparse(node.func).startswith(("nn.", "torch.nn."))
    return (of_torch and name[:1].isupper() and name != "Parameter") or script.derives(name, MODULES)


def _is_another(node: ast.AST, script: Script, seen: frozenset[str], depth: int) -> bool:
    for call in (each for each in walk(node) if isinstance(each, ast.Call)):
        name = last_name(call)
        plain = isinstance(call.func, ast.Name)
        function = script.functions.get(name) if plain else None
        own = script.classes.get(name) if plain else None
        if function is None and own is None:
            if name in _ANOTHER or is_layer(call, script):
                return True
            continue
        if name in seen or depth >= _DEEPEST:
            continue
        if own is not None and (script.derives(name, MODULES) or _keeps(own)):
            return True
        if any(_is_another(each, script, seen | {name}, depth + 1) for each in _run_by(function, own)):
            return True
    return False


def _run_by(function: FunctionNode | None, own: ast.ClassDef | None) -> Iterator[ast.AST]:
    if function is not None:
        yield from function.body
    for each in own.body if own is not None else ():
        if isinstance(each, ast.FunctionDef) and each.name in ("__init__", "__new__", "__post_init__"):
            yield from each.body
        made = each.value if isinstance(each, ast.Assign | ast.AnnAssign) else None
        for word in (
            made.keywords if isinstance(made, ast.Call) else ()
        ):  # a dataclass's `field(default_factory=...)`
            if word.arg == "default_factory":
                yield ast.Call(word.value, [], [])


def _keeps(own: ast.ClassDef) -> bool:
    for each in own.body:
        if not isinstance(each, ast.FunctionDef) or each.name in ("__init__", "__new__", "__post_init__"):
            continue
        first = next(iter([*each.args.posonlyargs, *each.args.args]), None)
        for node in here(each.body) if first is not None else ():
            if not isinstance(node, ast.Attribute | ast.Subscript) or not isinstance(node.ctx, ast.Store):
                continue
            of: ast.expr = node
            while isinstance(of, ast.Attribute | ast.Subscript):
                of = of.value
            if isinstance(of, ast.Name) and first is not None and of.id == first.arg:
                return True
    return False
