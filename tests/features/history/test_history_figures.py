"""The figures of a history, wide and on a phone: no words overlap, at any place of a change."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path

import pytest

from ddpbench.analysis.regression import Side
from ddpbench.analysis.statistics.interval import Interval
from ddpbench.features.history.analysis import CaseHistory, ChangePoint, History, SeriesLevel, SeriesPoint
from ddpbench.features.history.report.page import history_page
from ddpbench.features.history.report.picture import case_picture
from tests.report.reading import read
from tests.report.test_on_a_phone import collisions
from tests.synthetic import case_of

BEGUN = datetime(2026, 10, 1, 2, tzinfo=UTC)


def around(value: float, share: float) -> Interval:
    """Return the value with an interval of this share of it on either side."""
    return Interval(value=value, low=(1 - share) * value, high=(1 + share) * value)


def handmade(
    runs: int, places: list[int], *, step_s: float, every: timedelta, gaps: tuple[int, ...] = ()
) -> History:
    """Return one case over `runs` runs, whose step time changes before each of these places, up and down by a fifth."""
    sides = tuple(
        Side(
            name=f"run-{number}",
            path=Path(f"run-{number}"),
            cases=(),
            machine={"context": {"started_utc": (BEGUN + number * every).isoformat()}},
        )
        for number in range(runs)
    )
    edges = [0, *places, runs]
    parts = list(pairwise(edges))
    sizes = [step_s * (1.2 if number % 2 else 1.0) for number in range(len(parts))]
    points = [
        SeriesPoint(
            run=run,
            step=None if run in gaps else around(size, 0.03),
            status="failed" if run in gaps else "ok",
        )
        for (begin, end), size in zip(parts, sizes, strict=True)
        for run in range(begin, end)
    ]
    case = case_of("single", 1)
    varying = CaseHistory(
        label=case.label,
        key=case.label,
        case=case,
        points=tuple(points),
        levels=tuple(
            SeriesLevel(first=begin, last=end - 1, runs=end - begin, step_s=size)
            for (begin, end), size in zip(parts, sizes, strict=True)
        ),
        changes=tuple(
            ChangePoint(before=place - 1, after=place, ratio=around(after / before, 0.05))
            for place, (before, after) in zip(places, pairwise(sizes), strict=True)
        ),
        enough=True,
    )
    return History(sides=sides, cases=(varying,), fewest=8, alone=0, unlike=())


DAY, MINUTES = timedelta(days=1), timedelta(minutes=7)


@pytest.mark.parametrize("narrow", [False, True], ids=["wide", "phone"])
@pytest.mark.parametrize(
    "history",
    [
        handmade(2, [], step_s=0.04, every=DAY),
        handmade(8, [4], step_s=4.0, every=DAY, gaps=(1, 6)),
        handmade(20, [3, 17], step_s=0.04, every=DAY),
        handmade(20, [3, 6, 9], step_s=0.0004, every=MINUTES),
        handmade(60, [4, 8, 12, 16, 20, 24], step_s=120.0, every=DAY),
        handmade(200, [*range(10, 190, 20)], step_s=0.04, every=MINUTES),
    ],
    ids=["two runs", "gaps", "at the ends", "close", "many at the beginning", "very many"],
)
def test_no_word_lies_on_another(history: History, narrow: bool) -> None:
    picture = case_picture(history, history.cases[0])
    assert not list(collisions(picture, narrow=narrow))


def test_many_changes_have_their_ratio_alone() -> None:
    history = handmade(60, [4, 8, 12, 16, 20, 24], step_s=0.04, every=DAY)
    heading = case_picture(history, history.cases[0]).heading
    assert (
        heading == "single · 1 rank: 6 changes, the latest faster 0.83 [0.79, 0.88] since run-24 (2026-10-25)"
    )


@pytest.mark.usefixtures("painted")
def test_figures_of_a_page_share_no_id() -> None:
    history = handmade(8, [4], step_s=0.04, every=DAY)
    others = [replace(history.cases[0], label=label, key=label) for label in ("ddp at 2", "ddp at 4")]
    page = read(history_page(replace(history, cases=(*history.cases, *others))))
    assert len(page.figures) == 3
    assert len(page.all("svg")) == 6
    assert len(page.ids) == len(set(page.ids)) > 20
