"""The groups of cases that get a figure: one rule for all sections that draw one figure per group."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")

MOST_FIGURES = 2
"""Most figures of one kind, unless a section says otherwise."""
MANY = 20
"""Most groups for which several figures are drawn. With more groups one figure serves as an example, because the
figures take most of the time to make and load a large page.
"""


def split(groups: Sequence[T], most: int = MOST_FIGURES) -> tuple[Sequence[T], Sequence[T]]:
    """Return the first groups, which are drawn, and the remaining ones, which are not."""
    number = most if len(groups) <= MANY else 1
    return groups[:number], groups[number:]
