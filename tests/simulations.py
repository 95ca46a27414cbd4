"""The simulated figures of docs/: `python -m tests.simulations NAME` prints those of one simulation, seeds fixed.

`reports/claims.toml` has what each prints, and tests/test_simulations.py that it still does.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping
from unittest import mock

import numpy as np
from numpy.typing import NDArray

from ddpbench.analysis.regression.apart import across
from ddpbench.analysis.regression.changes import wider_in_turn
from ddpbench.analysis.statistics import changepoints
from ddpbench.analysis.statistics.changepoints import change_points, level_each, shifts
from ddpbench.analysis.statistics.resolution import DRIFT
from ddpbench.analysis.statistics.sequential import anytime_interval
from ddpbench.analysis.statistics.stats import ALPHA, Timing, half_width
from tests.analysis import test_changepoints, test_recorded_rounds, test_robustness, test_tails

Printed = dict[str, str]
"""Figures by what they are of."""


def _per_cent(hits: float, of: int, digits: int = 0) -> str:
    return f"{100 * hits / of:.{digits}f} %"


def equal_sides() -> Printed:
    """Recorded rounds of equal programs, split into two sides at random: how often a case is called different."""
    splits = test_recorded_rounds.of_splits()
    in_turn = test_recorded_rounds.sequential(splits)
    looked = test_recorded_rounds.students(splits, looks=True)
    runs = test_recorded_rounds.dealt(1, None)
    return {
        "in turn": _per_cent(in_turn.wrong, in_turn.splits, 1),
        "Student's interval, looked at after every round": _per_cent(looked.wrong, looked.splits),
        "two runs of one session": _per_cent(runs.wrong, runs.splits),
    }


def drift_of_6_per_cent() -> Printed:
    """One session a side of equal programs, ten launches that hardly scatter, a machine that drifts by 6 %."""
    dice, count = np.random.default_rng(1), 4000

    def side() -> list[Timing]:
        logs = dice.normal(0, 0.06) + dice.normal(0, 0.005, 10)
        return [
            Timing(round=number, time_s=math.exp(log), steps=1, samples=1, session="one")
            for number, log in enumerate(logs)
        ]

    wrong = sum((across(side(), side()).p_value or 1.0) < ALPHA for _ in range(count))
    return {"called different": _per_cent(wrong, count)}


def alike_rounds() -> Printed:
    """Comparisons in turn of four equal cases, 178 rounds, each correlated with the one before; looked at now and then.

    By the intervals that `ddpbench compare --interleave` has, and as if rounds were independent.
    """
    printed = {}
    for correlation, count in ((0.2, 200), (0.35, 200)):
        dice = np.random.default_rng(1)
        wrong = {"told different": 0, "as if independent": 0}
        for _ in range(count):
            logs = _alike(dice.normal(0, 0.04, (4, 178)), correlation)
            for name, found in wrong.items():
                wrong[name] = found + _is_told_apart(logs, widened=name == "told different")
        for name, found in wrong.items():
            printed[f"correlation of {correlation:g}, {name}"] = _per_cent(found, count)
    return printed


def _is_told_apart(logs: NDArray[np.float64], *, widened: bool) -> bool:
    """Whether a case of equal sides, shape (cases, rounds), is called different after some of the rounds."""
    cases, most = logs.shape
    for count in (*range(5, 20), *range(20, most, 12), most):
        seen = [dict(enumerate(row[:count].tolist())) for row in logs]
        wider = wider_in_turn(seen) if widened else 1.0
        for row in seen:
            found = anytime_interval(list(row.values()), ALPHA / cases, wider=wider)
            if found.low is not None and found.high is not None and not found.low <= 0 <= found.high:
                return True
    return False


def alike_runs() -> Printed:
    """Histories of one case and 20 runs without a change, each run's drift with a correlation of 0.3 with the last."""
    dice, count = np.random.default_rng(1), 1500
    series = _alike(dice.normal(0, DRIFT, (count, 20)), 0.3)
    asked = sum(bool(change_points(one, ALPHA)) for one in series)
    with _correlation_ignored():
        ignored = sum(bool(change_points(one, ALPHA)) for one in series)
    return {"a change": _per_cent(asked, count), "correlation ignored": _per_cent(ignored, count)}


def small_steps() -> Printed:
    """A step of 10 % in one of six cases, ten runs on either side: in how many histories it is found."""
    series = _steps(0.10, 1500)
    level = level_each([20] * 6, ALPHA)
    asked = sum(bool(change_points(one, level)) for one in series)
    with _correlation_ignored():
        ignored = sum(bool(change_points(one, level)) for one in series)
    return {"found": _per_cent(asked, len(series)), "correlation ignored": _per_cent(ignored, len(series))}


def intervals_of_steps() -> Printed:
    """Steps in one of six cases, ten runs on either side: how often found, and with the true ratio in the interval."""
    level, printed = level_each([20] * 6, ALPHA), {}
    for step, count in ((0.07, 3000), (0.15, 1500)):
        held = found = seen = near = 0
        for series in _steps(step, count):
            cuts = change_points(series, level)
            seen += bool(cuts)
            near += any(abs(cut - 10) <= 1 for cut in cuts)
            if len(cuts) != 1:
                continue
            (shift,) = shifts(series, cuts)
            half = shift.half_width()
            assert half is not None
            found += 1
            held += abs(shift.log - math.log(1 + step)) <= half
        name = f"{100 * step:.0f} %"
        printed[f"step of {name}, interval holds it"] = _per_cent(held, found)
    return {
        **printed,
        f"step of {name}, found": _per_cent(seen, count),
        "within a run": _per_cent(near, count),
    }


def rounds_far_off() -> Printed:
    """Comparisons in turn of which some rounds are far slower: how often these are called equivalent."""
    printed, count = {}, 2000
    for name, draw, rounds in (
        ("15 % of rounds 60 % slower", test_tails.planted, 20),
        ("15 % of rounds 60 % slower", test_tails.planted, 40),
        ("equal, disturbed alike", test_tails.EQUAL["disturbed alike"], 40),
        ("equal, quiet", test_tails.EQUAL["quiet"], 8),
    ):
        found = test_tails.shares(draw, rounds, count)
        for whose, each in (("said", found.told), ("by the typical round alone", found.alone)):
            printed[f"{name}, {rounds} rounds, {whose}"] = _per_cent(count * each["equivalent"], count)
    return printed


def parts_of_a_step() -> Printed:
    """Parts and shares of a step, with launches of five shapes: how often their intervals hold the median launch's."""
    printed, rounds, count = {}, (5, 6, 8, 10, 12, 20), 2000
    for what, told in test_robustness.PARTS_AND_SHARES.items():
        least = min(
            test_robustness.covered(told, shape, many, count)
            for shape in test_robustness.SHAPES
            for many in rounds
        )
        printed[f"{what}, least of five shapes"] = _per_cent(count * least, count)
    dice, shape = np.random.default_rng(1), test_robustness.SHAPES["disturbed now and then"]
    for many in (5, 20):
        drawn = [shape(dice, many).tolist() for _ in range(count)]
        held = sum(abs(math.fsum(one) / many) <= (half_width(one) or 0.0) for one in drawn)
        printed[f"around a mean, one launch in ten slow, {many} rounds"] = _per_cent(held, count)
    return printed


def _alike(logs: NDArray[np.float64], correlation: float) -> NDArray[np.float64]:
    """Return rows of which each value has this correlation with the one before, all of one variance."""
    for place in range(1, logs.shape[1]):
        logs[:, place] = correlation * logs[:, place - 1] + math.sqrt(1 - correlation**2) * logs[:, place]
    return logs


def _steps(step: float, count: int) -> NDArray[np.float64]:
    series = test_changepoints.drifting(np.random.default_rng(1), count, 20)
    series[:, 10:] += math.log(1 + step)
    return series


def _correlation_ignored() -> mock._patch[mock.MagicMock | mock.AsyncMock]:
    return mock.patch.object(changepoints, "variance_inflation", return_value=1.0)


SIMULATIONS: Mapping[str, Callable[[], Printed]] = {
    "equal-sides": equal_sides,
    "drift-of-6-per-cent": drift_of_6_per_cent,
    "alike-rounds": alike_rounds,
    "rounds-far-off": rounds_far_off,
    "alike-runs": alike_runs,
    "small-steps": small_steps,
    "intervals-of-steps": intervals_of_steps,
    "parts-of-a-step": parts_of_a_step,
}


def main(arguments: list[str]) -> int:
    """Print the figures of the simulations that are named, of all without a name."""
    if unknown := set(arguments) - set(SIMULATIONS):
        print(
            f"no simulation {', '.join(sorted(unknown))}; there are {', '.join(SIMULATIONS)}", file=sys.stderr
        )
        return 2
    for name in arguments or SIMULATIONS:
        for what, figure in SIMULATIONS[name]().items():
            print(f"{name}, {what}: {figure}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
