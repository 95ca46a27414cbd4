"""Values that nobody means, and where to put them. Each has a name, so that one that found a defect can be
kept.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

Path_ = tuple[str | int, ...]
"""Keys from the root of a document to one of its values."""


class Raw(str):
    """Text that a document contains unchanged."""

    __slots__ = ()


VALUES: dict[str, Any] = {
    "minus-one": -1,
    "zero": 0,
    "one": 1,
    "two": 2,
    "thousand": 1000,
    "million": 10**6,
    "billion": 10**9,
    "beyond-64-bits": 2**64,
    "401-digits": Raw("1" + "0" * 400),
    "5000-digits": Raw("7" * 5000),
    "half": 0.5,
    "tiny": 1e-9,
    "large": 1e300,
    "nan": math.nan,
    "inf": math.inf,
    "minus-inf": -math.inf,
    "true": True,
    "empty-text": "",
    "blank": " ",
    "text": "x",
    "word": "none",
    "long-text": "x" * 10_000,
    "name-of-300": "n" * 300,
    "escapes": "\x1b[31mred\x1b]0;title\x07",
    "null-byte": "a\0b",
    "newline": "a\nb",
    "right-to-left": "a\u202eb",
    "markup": "<script>alert(1)</script>",
    "up-and-out": "../../../etc/passwd",
    "device": "/dev/zero",
    "percent": "300 %",
    "duration": "-5 s",
    "rate": "1e99 gbit",
    "empty-list": [],
    "list": [1],
    "list-of-nothing": [[]],
    "mixed-list": [1, "x", None, {}],
    "twice": [2, 2],
    "long-list": list(range(1, 20_001)),
    "table": {"a": 1},
    "empty-table": {},
    "nested-50": Raw("[" * 50 + "]" * 50),
    "nested-5000": Raw("[" * 5000 + "]" * 5000),
}
TIMES = {
    "before-the-first-year": "0001-01-01T00:00:00+14:00",
    "after-the-last-year": "9999-12-31T23:59:59-14:00",
    "first-moment": "0001-01-01T00:00:00+00:00",
    "no-time-zone": "2026-03-04T10:00:00",
}
"""Replacements of times alone: at either end of the calendar, another time zone may lack that moment."""


def toml(value: Any) -> str:
    """Return a value as TOML; None, which TOML lacks, as a word that is an error."""
    if isinstance(value, Raw):
        return str(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return repr(value) if math.isfinite(value) else {True: "inf", False: "-inf"}.get(value > 0, "nan")
    if isinstance(value, str):
        return json.dumps(value).replace("\x7f", "\\u007F")
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{json.dumps(str(key))} = {toml(own)}" for key, own in value.items()) + "}"
    if isinstance(value, Sequence):
        return "[" + ", ".join(map(toml, value)) + "]"
    return "null" if value is None else str(value)


def toml_document(document: Mapping[str, Any]) -> str:
    """Return a document of TOML, one key per line."""
    return "".join(f"{json.dumps(str(key))} = {toml(value)}\n" for key, value in document.items())


def as_json(value: Any) -> str:
    """Return a value as JSON, with values that JSON lacks (nan, endless digits) as Python writes and reads
    them.
    """
    if isinstance(value, Raw):
        return str(value)
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{json.dumps(str(key))}: {as_json(own)}" for key, own in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(as_json, value)) + "]"
    return json.dumps(value)


def leaves(value: Any, path: Path_ = ()) -> Iterator[Path_]:
    """Yield the paths of all values in a document, inner ones first and the root last."""
    if isinstance(value, Mapping):
        for key, own in value.items():
            yield from leaves(own, (*path, key))
    elif isinstance(value, list):
        for place, own in enumerate(value[:3]):
            yield from leaves(own, (*path, place))
    yield path


def replaced(value: Any, path: Path_, new: Any) -> Any:
    """Return a document with another value at a path, which need not exist."""
    if not path:
        return new
    key, rest = path[0], path[1:]
    if isinstance(value, list) and isinstance(key, int):
        return [replaced(own, rest, new) if place == key else own for place, own in enumerate(value)]
    table = dict(value) if isinstance(value, Mapping) else {}
    return {**table, key: replaced(table.get(str(key), {}), rest, new)}


def without(value: Any, path: Path_) -> Any:
    """Return a document without the value at a path."""
    key, rest = path[0], path[1:]
    if isinstance(value, list) and isinstance(key, int):
        kept = [without(own, rest) if place == key and rest else own for place, own in enumerate(value)]
        return kept if rest else kept[:key] + kept[key + 1 :]
    return {
        name: without(own, rest) if name == key else own for name, own in value.items() if name != key or rest
    }


def dotted(path: Path_) -> str:
    """Return a path as it is written in names."""
    return ".".join(map(str, path))
