"""Declare, with a field of `Case`, its role in comparisons, its words and its column in `cases.csv`."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar, get_args

Role = Literal["panel", "variant", "scale", "bookkeeping"]
Decided = Literal["loss", "state", "compute"]
ALL: tuple[Decided, ...] = get_args(Decided)
Value = TypeVar("Value")
_KEY = "axis"


@dataclass(frozen=True, kw_only=True, slots=True)
class Axis:
    """Declaration of a field; `word` and `always_shown` are called with its value."""

    role: Role
    title: str
    """Heading of its column in a table of the page."""
    meaning: str
    """Description of its column in `cases.csv`."""
    word: Callable[[Any], str]
    """Words for the value in sentences and figure names; empty for the usual value, which needs no words."""
    decides: Collection[Decided]
    """Quantities that are equal only at equal values: the course of the `loss`, the bytes of a model's
    `state`, the `compute` time of one rank.
    """
    always_shown: Callable[[Any], bool]
    """Return True for values that accompany every number, even if all cases share them."""


def axis(
    default: Value,
    role: Role,
    title: str,
    meaning: str,
    word: Callable[[Value], str],
    *,
    decides: Collection[Decided] = (),
    always_shown: Callable[[Value], bool] = lambda value: False,
) -> Value:
    """Return a dataclass field with this default and an `Axis` declared from the other arguments."""
    declared = Axis(
        role=role, title=title, meaning=meaning, word=word, decides=decides, always_shown=always_shown
    )
    made: Value = field(default=default, metadata={_KEY: declared})
    return made


def axis_of(one: Any) -> Axis | None:
    """Return the `Axis` that a dataclass field was declared with; None if it has only a type and a default."""
    declared: Axis | None = one.metadata.get(_KEY)
    return declared
