"""Which groups of cases get a figure of their own: the rule of all sections that draw one a group."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")

MOST_FIGURES = 2
"""Of one kind, unless its section says otherwise."""
MANY = 20
"""Groups. Of more, one figure is shown as an example: a second would stand for no more of them, and the figures of all
sections are most of what a large page takes to make and to load."""


def split(groups: Sequence[T], most: int = MOST_FIGURES) -> tuple[Sequence[T], Sequence[T]]:
    """Return the groups that are drawn, which are the first, and those that are not."""
    number = most if len(groups) <= MANY else 1
    return groups[:number], groups[number:]
