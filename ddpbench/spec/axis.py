"""Declare a field of `Case` with its role in comparisons, its wording in texts and its column in `cases.csv`."""

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
    """The declaration of a field of `Case`. The functions `word` and `always_shown` take the field's value."""

    role: Role
    title: str
    """Heading of the field's column in tables of the report."""
    meaning: str
    """Description of the field's column in `cases.csv`."""
    word: Callable[[Any], str]
    """Return words for a value in sentences and names in figures; empty for the usual value."""
    decides: Collection[Decided]
    """Quantities that can be compared only between cases with equal values of the field.

    A quantity is `loss` (the course of the loss), `state` (the bytes of a model's state) or `compute` (the computing
    time of one rank).
    """
    always_shown: Callable[[Any], bool]
    """Return whether to mention a value with every number, even if all cases share the value."""


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
    """Return a dataclass field with this default. Its metadata has an `Axis` made from the other arguments."""
    declared = Axis(
        role=role, title=title, meaning=meaning, word=word, decides=decides, always_shown=always_shown
    )
    made: Value = field(default=default, metadata={_KEY: declared})
    return made


def axis_of(one: Any) -> Axis | None:
    """Return the `Axis` with which a dataclass field was declared; None if the field was declared without an axis."""
    declared: Axis | None = one.metadata.get(_KEY)
    return declared
