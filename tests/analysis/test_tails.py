"""A comparison in turn of rounds of which some are far slower: the typical round is not the mean.

What a verdict says of a typical round is said only where the mean of all rounds agrees. Simulated: how often a
slow-down of some rounds is called equivalent, and what the agreement costs where there is none. `python -m
tests.simulations rounds-far-off` prints some of these shares.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
from numpy.typing import NDArray

from ddpbench.analysis.regression.changes import _Told, _told_in_turn, wider_in_turn
from ddpbench.analysis.statistics.sequential import far_off
from ddpbench.analysis.statistics.stats import ALPHA, MARGIN, judged

SERIES = 150
MANY = pytest.mark.parametrize("series", [SERIES, pytest.param(1000, marks=pytest.mark.thorough)])
VERDICTS = ("equivalent", "faster", "slower")
ROUNDS = (6, 8, 12, 20, 40)
QUIET, NOISY = 0.006, 0.02
"""Standard deviations of a round's log ratio: sides are shown to be equivalent in a few rounds, and hardly ever."""
SLOW, SHARE = math.log(1.6), 0.15
"""The planted tail: of the new side's rounds this share takes 60 % longer, and so all of them 7 % in the mean."""

Draw = Callable[[np.random.Generator, int], NDArray[np.float64]]
EQUAL: dict[str, Draw] = {
    "quiet": lambda dice, count: dice.normal(0, QUIET, count),
    "noisy": lambda dice, count: dice.normal(0, NOISY, count),
    "disturbed alike": lambda dice, count: (
        dice.normal(0, QUIET, count) + 0.2 * ((dice.random(count) < 0.05) * 1.0 - (dice.random(count) < 0.05))
    ),
    "heavy-tailed": lambda dice, count: QUIET * dice.standard_t(3, count),
}


def planted(dice: np.random.Generator, count: int) -> NDArray[np.float64]:
    """Rounds of which the new side's are slow at times."""
    return dice.normal(0, QUIET, count) + SLOW * (dice.random(count) < SHARE)


def clean(dice: np.random.Generator, count: int) -> NDArray[np.float64]:
    """Rounds of which the new side's all take 5 % longer."""
    return dice.normal(math.log(1.05), NOISY, count)


@dataclass(frozen=True)
class Shares:
    """How often series got each verdict, and how often the interval of their typical round alone would give it."""

    told: dict[str, float]
    alone: dict[str, float]


def _told(logs: list[float]) -> _Told:
    return _told_in_turn(logs, MARGIN, ALPHA, wider_in_turn([dict(enumerate(logs))]))


def shares(draw: Draw, rounds: int, series: int = SERIES) -> Shares:
    dice = np.random.default_rng(1)
    told: Counter[str] = Counter()
    alone: Counter[str] = Counter()
    for _ in range(series):
        found = _told(draw(dice, rounds).tolist())
        told[found.verdict] += 1
        alone[judged(found.ratio, rounds).verdict] += 1
    return Shares(*({verdict: count[verdict] / series for verdict in VERDICTS} for count in (told, alone)))


@MANY
@pytest.mark.parametrize("rounds", ROUNDS)
def test_a_side_of_which_some_rounds_are_far_slower_is_not_called_equivalent(
    rounds: int, series: int
) -> None:
    unseen = (
        sum(  # series whose rounds take less than the margin more in the mean: none is slow, or one of many
            math.comb(rounds, slow) * SHARE**slow * (1 - SHARE) ** (rounds - slow)
            for slow in range(rounds + 1)
            if slow * SLOW / rounds < math.log1p(MARGIN)
        )
    )
    found = shares(planted, rounds, series).told
    chance = 2 * math.sqrt(unseen * (1 - unseen) / series)
    assert found["equivalent"] + found["faster"] <= unseen + max(chance, 0.02)


@MANY
@pytest.mark.parametrize("rounds", ROUNDS)
@pytest.mark.parametrize("shape", EQUAL)
def test_equal_sides_are_called_equivalent_as_often_as_by_their_typical_rounds(
    shape: str, rounds: int, series: int
) -> None:
    found = shares(EQUAL[shape], rounds, series)
    assert found.told["faster"] + found.told["slower"] <= 0.05
    lost = found.alone["equivalent"] - found.told["equivalent"]
    assert 0 <= lost <= (0.06 if shape == "disturbed alike" else 0.005)


@MANY
@pytest.mark.parametrize("rounds", ROUNDS)
def test_a_clean_change_is_found_as_often_as_by_its_typical_rounds(rounds: int, series: int) -> None:
    found = shares(clean, rounds, series)
    assert found.told["slower"] == found.alone["slower"]


QUIET_ROUNDS = [0.001 * (number % 5 - 2) for number in range(20)]


@pytest.mark.parametrize(
    ("logs", "reason"),
    [
        ([*QUIET_ROUNDS[:18], SLOW, SLOW], "typical rounds are alike, but 2 of 20 are far slower"),
        ([*QUIET_ROUNDS[:18], -SLOW, -SLOW], "typical rounds are alike, but 2 of 20 are far faster"),
        (
            [*(one - 0.04 for one in QUIET_ROUNDS[:18]), SLOW, SLOW],
            "typical rounds are faster, but 2 of 20 are far slower",
        ),
        (
            [*(one + 0.04 for one in QUIET_ROUNDS[:18]), -SLOW, -SLOW],
            "typical rounds are slower, but 2 of 20 are far faster",
        ),
    ],
)
def test_it_is_said_how_many_rounds_are_far_off(logs: list[float], reason: str) -> None:
    dice = np.random.default_rng(3)
    told = _told(dice.permutation(logs).tolist())
    assert (told.verdict, told.tail, told.reason) == ("cannot tell", True, reason)
    assert told.mean == pytest.approx(math.exp(sum(logs) / len(logs)))


def test_rounds_far_off_in_both_directions_leave_a_verdict() -> None:
    told = _told([SLOW, *QUIET_ROUNDS, -SLOW])
    assert (told.verdict, told.tail, told.reason) == ("equivalent", False, "")
    assert far_off([SLOW, *QUIET_ROUNDS, -SLOW]) == (1, 1)
