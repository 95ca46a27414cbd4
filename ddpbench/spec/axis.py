"""Declare with a field of `Case` its part in comparisons, its words and its column in `cases.csv`."""

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
    """A field's declaration; `word` and `always_shown` get its value."""

    role: Role
    title: str
    """Heading of its column in a table of the page."""
    meaning: str
    """Description of its column in `cases.csv`."""
    word: Callable[[Any], str]
    """Words for the value in sentences and names of figures; empty where it goes without saying."""
    decides: Collection[Decided]
    """Quantities that are equal only at equal values: the course of the `loss`, the bytes of a model's `state`, a
    rank's own `compute` time."""
    always_shown: Callable[[Any], bool]
    """Says of a value whether each number is shown with it, even where all cases share it."""


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
    """Return a field of a dataclass with this default, which has its `Axis`."""
    declared = Axis(
        role=role, title=title, meaning=meaning, word=word, decides=decides, always_shown=always_shown
    )
    made: Value = field(default=default, metadata={_KEY: declared})
    return made


def axis_of(one: Any) -> Axis | None:
    """Return what a field of a dataclass was declared with; None if that is only its type and default."""
    found: Axis | None = one.metadata.get(_KEY)
    return found
