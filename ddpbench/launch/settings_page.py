"""`docs/settings.md`: every key of an experiment file. Types, limits and sentences come from where keys are declared.

It lives in `launch`, because it reads `spec` as well as the options of strategies and workloads. `make docs` writes
the page.
"""

from __future__ import annotations

import ast
import inspect
import itertools
import sys
import types
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import tomli_w
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from ddpbench.launch.catalog import TableCatalog
from ddpbench.spec.fabric import FabricSettings
from ddpbench.spec.settings import Base, Budget, Experiment
from ddpbench.strategies import TABLE as STRATEGIES
from ddpbench.units import Unit
from ddpbench.workloads import TABLE as WORKLOADS

_TYPES = {str: "string", bool: "boolean", int: "integer", float: "number"}
_INTRODUCTION = """\
# Settings of an experiment file

Each key of [base], [fabric] and [options] may also be an axis: `local_batch`, `"fabric.bandwidth"` and
`"options.ddp.accumulate"` in [axes]. `ddpbench sweep NAME --set base.local_batch=16` overrides a key. An empty
default means that the key is not set. Strategies and workloads without a section here have no options; those of
your own workload are the keyword arguments of its constructor.

A *duration* is a number of seconds or a string such as `"10 min"` (ns, us, ms, s, min, h). A *rate* is a number
of bit/s or a string such as `"10 Gbit/s"`.
"""
_HEAD = "| key | type | default | unit | allowed | meaning |\n|---|---|---|---|---|---|"


@dataclass(frozen=True, kw_only=True, slots=True)
class Key:
    """One key of an experiment file."""

    name: str
    type: str
    default: str
    """As in TOML; empty if the key is not set by default."""
    unit: str
    allowed: str
    meaning: str


def keys(model: type[BaseModel]) -> list[Key]:
    """Return a section's keys in the order of their declaration.

    Raises:
        ValueError: a field has no sentence: no text under its declaration.
    """
    sentences = _sentences(model)
    if missing := [name for name in model.model_fields if not sentences.get(name)]:
        where = f"{model.__module__}.{model.__qualname__}"
        raise ValueError(f"{where} has no sentence for {', '.join(missing)}: write one under the field")
    return [_key(name, field, sentences[name]) for name, field in model.model_fields.items()]


def sections() -> dict[str, list[Key]]:
    """Return the keys of each section by its heading; a strategy or workload without options has no section."""
    found = {
        "Top level": keys(Experiment),
        "[base]": keys(Base),
        "[fabric]": keys(FabricSettings),
        "[budget]": keys(Budget),
    }
    catalog = TableCatalog()
    models = {name: catalog.strategy(name).options for name in STRATEGIES}
    models |= {name: catalog.workload(name).options for name in WORKLOADS}
    return found | {f"[options.{name}]": keys(model) for name, model in models.items() if model.model_fields}


def page() -> str:
    """`docs/settings.md`."""
    catalog = TableCatalog()
    choices = {
        "strategy": list(STRATEGIES),
        "algorithm": [
            "default",
            *dict.fromkeys(a for n in STRATEGIES for a in catalog.strategy(n).algorithms),
        ],
    }
    lines = [_INTRODUCTION.rstrip()]
    for heading, listed in sections().items():
        lines += ["", f"## {heading}", "", _HEAD, *(_row(key, choices) for key in listed)]
    return "\n".join([*lines, ""])


def _row(key: Key, choices: Mapping[str, Sequence[str]]) -> str:
    allowed = _listed(choices.get(key.name, ())) or key.allowed
    default = f"`{key.default}`" if key.default else ""
    cells = (f"`{key.name}`", key.type, default, key.unit, allowed, key.meaning)
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def _sentences(model: type[BaseModel]) -> dict[str, str]:
    """Return the text under each field's declaration, on one line."""
    tree = ast.parse(inspect.getsource(sys.modules[model.__module__]))
    (body,) = (
        node.body for node in ast.walk(tree) if isinstance(node, ast.ClassDef) and node.name == model.__name__
    )
    return {
        field.target.id: " ".join(text.value.value.split())
        for field, text in itertools.pairwise(body)
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
        if isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant) and isinstance(text.value.value, str)
    }  # fmt: skip


def _key(name: str, field: FieldInfo, meaning: str) -> Key:
    found = list(_alternatives(field.annotation, field.metadata))
    units = [unit for _, metadata in found for unit in metadata if isinstance(unit, Unit)]
    unit = units[0] if units else Unit("")
    allowed = [text for kind, metadata in found if (text := _allowed(kind, metadata))]
    told = dict.fromkeys(_type(kind) for kind, _ in found)
    return Key(
        name=name,
        type=unit.type or " or ".join(told),
        default=_default(field),
        unit=unit.name,
        allowed=unit.allowed or "; ".join(allowed),
        meaning=meaning,
    )


def _alternatives(annotation: Any, metadata: Sequence[Any]) -> Iterator[tuple[Any, list[Any]]]:
    """Yield each type that a value may have, with what limits or describes it; `None` is left out."""
    if get_origin(annotation) is Annotated:
        inner, *more = get_args(annotation)
        flat = [one for item in more for one in (item.metadata if isinstance(item, FieldInfo) else [item])]
        yield from _alternatives(inner, [*metadata, *flat])
    elif get_origin(annotation) in (Union, types.UnionType):
        for one in get_args(annotation):
            if one is not type(None):
                yield from _alternatives(one, metadata)
    else:
        yield annotation, list(metadata)


def _type(kind: Any) -> str:
    origin = get_origin(kind)
    if origin is Literal:
        return " or ".join(dict.fromkeys(_TYPES[type(value)] for value in get_args(kind)))
    if origin is list:
        return f"array of {_type(get_args(kind)[0])}s"
    if origin is dict or (isinstance(kind, type) and issubclass(kind, BaseModel)):
        return "table"
    return _TYPES[kind]


def _allowed(kind: Any, metadata: Sequence[Any]) -> str:
    if get_origin(kind) is Literal:
        return _listed(get_args(kind))
    limits = {
        name: getattr(one, name)
        for one in metadata
        for name in ("ge", "gt", "le", "lt", "pattern")
        if getattr(one, name, None) is not None
    }
    if "pattern" in limits:
        return f"`{limits['pattern']}`"
    if kind is int and "gt" in limits:
        limits["ge"] = limits.pop("gt") + 1
    if {"ge", "le"} <= set(limits):
        return f"{limits['ge']:,} to {limits['le']:,}"
    signs = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}
    return ", ".join(f"{signs[name]} {limit:,}" for name, limit in limits.items())


def _default(field: FieldInfo) -> str:
    if field.is_required() or field.default is None or isinstance(field.default, BaseModel):
        return ""
    return "{}" if field.default == {} else _toml(field.default)


def _listed(values: Iterable[Any]) -> str:
    return ", ".join(f"`{_toml(value)}`" for value in values)


def _toml(value: Any) -> str:
    return tomli_w.dumps({"v": value}).strip().removeprefix("v = ")
