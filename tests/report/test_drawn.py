"""The number of groups of cases that get a figure."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ddpbench.report.drawn import MANY, MOST_FIGURES, split


@given(st.lists(st.integers(), max_size=2 * MANY), st.integers(1, 3))
def test_the_first_are_drawn_and_none_is_lost(groups: list[int], most: int) -> None:
    drawn, rest = split(groups, most)
    assert [*drawn, *rest] == groups
    assert bool(drawn) == bool(groups)
    assert len(drawn) <= most


def test_of_many_one_is_an_example() -> None:
    assert len(split(range(MANY))[0]) == MOST_FIGURES
    assert split(range(MANY + 1)) == (range(1), range(1, MANY + 1))
