"""The verdicts on cases within their groups, taken from the comparisons."""

from __future__ import annotations

from collections.abc import Iterable

from ddpbench.analysis.results import Compared
from ddpbench.analysis.statistics.judgement import MARGIN_WORDS, Standing

METHOD = (
    f"Best: every other is shown to be slower (Tukey's all pairs). As good as best: shown to be within {MARGIN_WORDS} "
    "of it. Intervals hold for all cases at one number of ranks at once, with 95 % confidence."
)
"""Explanation of the verdicts, for captions."""


def stands(comparisons: Iterable[Compared], topic: str) -> dict[str, Standing]:
    """Return each case's standing in the comparisons of one topic, by case id."""
    return {one.case_id: one.standing for one in comparisons if one.topic == topic}
