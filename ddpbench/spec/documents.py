"""Read users' TOML files, and refuse files that are too large or too deeply nested."""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ddpbench.errors import Problem
from ddpbench.text_safety import (
    MOST_TOML_BYTES,
    TOO_LARGE_TOML,
    shortened,
    unprintable,
    whole_number,
    why_not_read,
)

MAX_BYTES = MOST_TOML_BYTES
"""Largest size of an experiment's file, bytes."""
MAX_DEPTH = 12
"""Deepest nesting of tables and arrays; an experiment needs four levels."""
MAX_KEYS = 1_000
"""Most keys of a table, and most entries of an array that has tables or arrays."""
MAX_CHARACTERS = 4_096
"""Most characters of a text, which is the length limit of a path on Linux."""
_LONG_NUMBER = re.compile(r"(?<![\w.+-])[+-]?[0-9][0-9_]{400,}(?![\w.])")
_BITS = 64
"""Bits of an integer in TOML."""


class TooMuchError(ValueError):
    """A document that is too large to be read; the message says why."""


def read_text(path: Path) -> str:
    """Return the text of an experiment's file.

    Raises:
        OSError: the file cannot be read.
        UnicodeDecodeError: the file is not UTF-8 text.
        TooMuchError: the file is too large.
    """
    with path.open("rb") as file:
        content = file.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        raise TooMuchError(TOO_LARGE_TOML)
    return content.decode("utf-8")


def parse(text: str) -> dict[str, Any]:
    """Return the contents of a TOML text, perhaps nested more deeply than `odd_parts` allows.

    An integer with too many digits for Python is replaced by another of about that size, which a later check refuses.

    Raises:
        tomllib.TOMLDecodeError: the text is not valid TOML.
        TooMuchError: the text is too large, has a key of too many parts, or is nested too deeply to be read.
    """
    if why := why_not_read(text):
        raise TooMuchError(why)
    try:
        return _loads(text.removeprefix("\ufeff"))  # a byte order mark, written by some editors
    except RecursionError:
        raise TooMuchError(_too_deep()) from None


def _loads(text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        raise
    except ValueError:  # an integer of more digits than sys.get_int_max_str_digits()
        shorter = _LONG_NUMBER.sub(lambda match: hex(abs(whole_number(match[0]))), text)
    try:
        return tomllib.loads(shorter)
    except tomllib.TOMLDecodeError:
        raise
    except ValueError:
        raise TooMuchError(
            f"contains a number with too many digits: at most {sys.get_int_max_str_digits():,} are accepted"
        ) from None


def _too_deep() -> str:
    return f"is nested too deeply: tables and arrays may have {MAX_DEPTH} levels at most"


def too_deep(data: object) -> bool:
    """Return whether tables and arrays are nested more than `MAX_DEPTH` levels deep."""
    depth, level = 0, [data]
    while level := [value for value in level if isinstance(value, dict | list)]:
        depth += 1
        if depth > MAX_DEPTH:
            return True
        level = [inner for outer in level for inner in (outer.values() if isinstance(outer, dict) else outer)]
    return False


def odd_parts(data: dict[str, Any]) -> list[Problem]:
    """Return problems that can be found without knowing any keys: deep nesting, too many keys, unprintable texts."""
    if too_deep(data):
        return [Problem(path="", message=_too_deep())]
    return list(_odd_parts(data, ""))


def _odd_parts(data: object, path: str) -> Iterator[Problem]:
    if isinstance(data, dict):
        if len(data) > MAX_KEYS:
            yield Problem(path=path, message=f"has {len(data):,} keys; must be {MAX_KEYS:,} at most")
            return
        for key, value in data.items():
            if problem := _odd_text(key):
                yield Problem(path=path, message=f"the key {shortened(key)} {problem}")
            else:
                yield from _odd_parts(value, f"{path}.{key}" if path else key)
    elif isinstance(data, list):
        if len(data) > MAX_KEYS and any(isinstance(value, dict | list) for value in data):
            yield Problem(path=path, message=f"has {len(data):,} entries; must be {MAX_KEYS:,} at most")
            return
        for value in data:
            yield from _odd_parts(value, path)
    elif isinstance(data, str) and (problem := _odd_text(data)):
        yield Problem(path=path, message=f"{shortened(data)} {problem}")


def _odd_text(text: str) -> str:
    if len(text) > MAX_CHARACTERS:
        return f"has {len(text):,} characters; must be {MAX_CHARACTERS:,} at most"
    character = unprintable(text)
    return f"holds the control character {character}; leave it out" if character else ""


def huge_numbers(data: object, path: str = "") -> Iterator[Problem]:
    """Yield problems for integers beyond TOML's range, except under keys whose limits are checked elsewhere."""
    if isinstance(data, dict):
        for key, value in data.items():
            yield from huge_numbers(value, f"{path}.{key}" if path else key)
    elif isinstance(data, list):
        for value in data:
            yield from huge_numbers(value, path)
    elif isinstance(data, int) and data.bit_length() >= _BITS:
        yield Problem(
            path=path, message=f"{shortened(data)} given; must be a whole number of {_BITS} bits at most"
        )


def stated_scope(text: str) -> str:
    """Return the `scope` of an experiment's text; empty if not set, or if the text cannot be read."""
    try:
        scope = parse(text).get("scope")
    except ValueError:
        return ""
    return scope if isinstance(scope, str) else ""
