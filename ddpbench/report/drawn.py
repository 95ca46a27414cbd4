"""The rule that decides which groups of cases get a figure, for all sections that draw one figure per group."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")

MOST_FIGURES = 2
"""Maximum number of figures of one kind, unless a section passes a different number to `split`."""
MANY = 20
"""Maximum number of groups for which several figures are drawn. With more groups, one figure serves as an example,
because figures take most of the time to make and load a large page.
"""


def split(groups: Sequence[T], most: int = MOST_FIGURES) -> tuple[Sequence[T], Sequence[T]]:
    """Return the first groups, which get a figure, and the others.

    There are at most `most` figures, and only one for more than MANY groups.
    """
    number = most if len(groups) <= MANY else 1
    return groups[:number], groups[number:]
