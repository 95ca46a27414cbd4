"""Runs that are copies of each other, and would count as several sessions: found by their launches' times."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import combinations

from ddpbench.analysis.regression.sides import Side
from ddpbench.errors import RequestError
from ddpbench.texts import on_one_line


def check_no_copies(sides: Sequence[Side]) -> None:
    """Refuse a run and its copy, its export, or what goes on from it.

    Raises:
        RequestError: two sides share half of the launches that the smaller one has.
    """
    every = [(side, set(_launches(side))) for side in sides]
    for (first, before), (second, after) in combinations(every, 2):
        if before and after and 2 * len(before & after) >= min(len(before), len(after)):
            raise RequestError(
                f"{on_one_line(str(second.path))} has the same launches as {on_one_line(str(first.path))}: it is a "
                "copy of that run, or continues it; give one of them"
            )


def _launches(side: Side) -> Iterator[tuple[str, str]]:
    """Yield what no two launches have in common: no clock measures the same time twice.

    Rounds have other numbers in an export whose run had failed launches, and times other last digits.
    """
    for run in side.cases:
        case_id = replace(run.case, experiment="").case_id
        for timing in run.timings:
            yield case_id, f"{timing.step_s:.9e}"
