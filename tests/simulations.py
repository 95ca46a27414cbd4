"""Simulated error rates: `python -m tests.simulations NAME` prints those of one simulation, seeds fixed.

`reports/claims.toml` has what each prints, and tests/test_simulations.py checks that it still does. `--page` writes
them into reports/README.md.
"""

from __future__ import annotations

import functools
import math
import sys
import textwrap
from collections.abc import Callable, Iterable, Mapping
from unittest import mock

import numpy as np
from numpy.typing import NDArray

from ddpbench.analysis.regression.apart import across
from ddpbench.analysis.regression.changes import wider_in_turn
from ddpbench.analysis.statistics import changepoints
from ddpbench.analysis.statistics.best import half_widths
from ddpbench.analysis.statistics.changepoints import change_points, level_each, shifts
from ddpbench.analysis.statistics.correlation import TOLD_FROM, estimated, widening
from ddpbench.analysis.statistics.resolution import DRIFT, resolved_in_one_sweep
from ddpbench.analysis.statistics.sequential import anytime_interval, evidence, middle_of
from ddpbench.analysis.statistics.stats import ALPHA, POWER, half_width, median_launch, t_quantile
from ddpbench.analysis.statistics.timings import Timing
from ddpbench.units import counted
from tests.analysis import (
    test_changepoints,
    test_correlation,
    test_recorded_rounds,
    test_resolution,
    test_robustness,
    test_tails,
)
from tests.claims import Simulated, read_claims
from tests.kept import REPORTS

Printed = dict[str, str]
"""Figures by what they count."""


def _per_cent(hits: float, of: int, digits: int = 0) -> str:
    return f"{100 * hits / of:.{digits}f} %"


def equal_sides() -> Printed:
    """Recorded rounds of equal programs, split into two sides at random: how often a case is called different."""
    splits = test_recorded_rounds.of_splits()
    in_turn = test_recorded_rounds.sequential(splits)
    looked = test_recorded_rounds.students(splits, looks=True)
    runs = test_recorded_rounds.dealt(1, None)
    return {
        "interleaved": _per_cent(in_turn.wrong, in_turn.splits, 1),
        "Student's interval, looked at after every round": _per_cent(looked.wrong, looked.splits),
        "two runs of one session": _per_cent(runs.wrong, runs.splits),
    }


def drift_of_6_per_cent() -> Printed:
    """Sessions of equal programs, one per side, ten launches with little scatter, a machine that drifts by 6 %."""
    dice, count = np.random.default_rng(1), 4000

    def side() -> list[Timing]:
        return _session(dice.normal(0, 0.06) + dice.normal(0, 0.005, 10))

    wrong = sum((across(side(), side()).p_value or 1.0) < ALPHA for _ in range(count))
    return {"called different": _per_cent(wrong, count)}


def two_runs_of_alike_launches() -> Printed:
    """Two runs of equal programs, five launches per side that scatter by 2 %, each correlated with the previous one.

    The drift allowed for between the runs is 4 %, as without `--drift`, or 1 %, as if given.
    """
    printed, count = {}, 5000
    for drift, given in ((DRIFT, None), (0.01, 0.01)):
        for correlation in (0.35, 0.5):
            dice = np.random.default_rng(1)
            sides = [
                dice.normal(0, drift, (count, 1)) + 0.02 * _alike(dice.normal(0, 1, (count, 5)), correlation)
                for _ in "ab"
            ]
            found = (across(_session(a), _session(b), given) for a, b in zip(*sides, strict=True))
            name = f"drift of {100 * drift:.0f} %, correlation of {correlation:g}"
            printed[name] = _per_cent(sum((one.p_value or 1.0) < ALPHA for one in found), count)
    return printed


def _session(logs: NDArray[np.float64]) -> list[Timing]:
    return [
        Timing(round=number, time_s=math.exp(log), steps=1, samples=1, session="one")
        for number, log in enumerate(logs.tolist())
    ]


def alike_rounds() -> Printed:
    """Interleaved comparisons of equal cases, 178 rounds, each correlated with the previous one; tested repeatedly.

    Uses the intervals of `ddpbench compare --interleave`, and those for independent rounds.
    """
    printed, count = {}, 1500
    for cases in (4, 1):
        for correlation in (0.2, 0.35, 0.5):
            dice = np.random.default_rng(1)
            every = [_alike(dice.normal(0, 0.04, (cases, 178)), correlation) for _ in range(count)]
            name = f"{counted(cases, 'case')}, correlation of {correlation:g}"
            called = sum(_is_called_different(logs) for logs in every)
            printed[f"{name}, called different"] = _per_cent(called, count)
            called = sum(bool(_leaving_out_0(logs)[:, 4:].any()) for logs in every)
            printed[f"{name}, as if independent"] = _per_cent(called, count)
    return printed


def _is_called_different(logs: NDArray[np.float64]) -> bool:
    """Return whether a case of equal sides, shape (cases, rounds), is called different after some of the rounds."""
    cases, most = logs.shape
    out = _leaving_out_0(logs)
    for count in (*range(5, 41), *range(44, most, 4), most):
        if not out[:, count - 1].any():  # then a wider interval does not exclude 0 either
            continue
        wider = wider_in_turn([dict(enumerate(row[:count].tolist())) for row in logs])
        for row in logs[out[:, count - 1], :count]:
            # where the wider interval excludes 0, the other one excludes this as well
            nearest = float(middle_of(row)) * (1 - 1 / wider)
            if evidence(row, nearest)[-1] < math.log(cases / ALPHA):
                continue
            found = anytime_interval(row.tolist(), ALPHA / cases, wider=wider)
            if found.low is not None and found.high is not None and not found.low <= 0 <= found.high:
                return True
    return False


def _leaving_out_0(logs: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Return after which rounds a case's interval excludes 0 if rounds are taken as independent."""
    found: NDArray[np.bool_] = evidence(logs) >= math.log(len(logs) / ALPHA)
    return found


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
    """Interleaved comparisons that end once they can decide, or after 30 rounds; some of the new side's are far slower.

    Counts how often these are called equivalent, and after how many rounds equal sides are; by all criteria, and by the
    typical round alone.
    """
    printed, most, count = {}, 30, 2000
    for share, slower in ((0.15, 0.6), (0.2, 0.6), (0.1, 0.6), (0.15, 0.3), (0.15, 0.2)):
        draw = functools.partial(test_tails.planted, share=share, slow=math.log1p(slower))
        name = f"{100 * share:.0f} % of rounds {100 * slower:.0f} % slower"
        said = test_tails.stopped(draw, most, count)
        printed[f"{name}, called equivalent"] = _per_cent(count * said.verdicts["equivalent"], count)
        if (share, slower) == (test_tails.SHARE, 0.6):
            alone = test_tails.stopped(draw, most, count, alone=True)
            printed[f"{name}, by the typical round alone"] = _per_cent(
                count * alone.verdicts["equivalent"], count
            )
    for name in ("quiet", "disturbed alike"):
        said, alone = (
            test_tails.stopped(test_tails.EQUAL[name], most, count, alone=alone) for alone in (False, True)
        )
        digits = 1 if name == "quiet" else 0
        printed[f"equal, {name}, called equivalent"] = _per_cent(
            count * said.verdicts["equivalent"], count, digits
        )
        printed[f"equal, {name}, after rounds"] = f"{said.rounds:.0f}"
        printed[f"equal, {name}, after rounds by the typical round alone"] = f"{alone.rounds:.0f}"
    found = test_tails.stopped(test_tails.clean, most, count)
    printed["5 % slower in all rounds, called slower"] = _per_cent(count * found.verdicts["slower"], count)
    return printed


def parts_of_a_step() -> Printed:
    """Parts and shares of a step, with launches of five shapes: how often their intervals contain the median launch's.

    The minimum over all numbers of launches from 5 to 20: two modes have it at 13 and at 18.
    """
    printed, rounds, count = {}, range(5, 21), 2000
    for what, parts in test_robustness.PARTS_AND_SHARES.items():
        least = min(
            test_robustness.covered(parts, shape, many, count)
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


def alike_launches() -> Printed:
    """Step times whose launches are correlated: how often the median's interval contains what it estimates.

    The minimum over 5 to 20 launches; for an AR(1), and a wave of 40 launches' length with noise of a tenth of it.
    """
    dice, count, numbers = np.random.default_rng(1), 20_000, (5, 6, 7, 8, 10, 12, 20)
    printed = {}
    for correlation in (0.2, 0.35, 0.5, 0.8):
        held = [_held(_alike(dice.normal(0, 1, (count, many)), correlation)) for many in numbers]
        printed[f"correlation of {correlation:g}"] = _per_cent(min(held), count)
    waves = []
    for many in numbers:
        phases = dice.random((count, 1)) + np.arange(many) / 40
        waves.append(_held(np.sin(2 * math.pi * phases) + dice.normal(0, 0.1, (count, many))))
    printed["slow wave"] = _per_cent(min(waves), count)
    return printed


def seen_correlation() -> Printed:
    """Runs of one case: how often *Validity* reports correlated step times, without and with a correlation."""
    numbers, count = (5, 8, 12, 20, 40), 5000
    said = {one: [_said_to_be_correlated(one, launches, count) for launches in numbers] for one in (0.0, 0.5)}
    printed = {"independent, the most": _per_cent(max(said[0.0]), count)}
    for launches, found in zip(numbers, said[0.5], strict=True):
        printed[f"correlation of 0.5, {launches} launches"] = _per_cent(found, count)
    return printed


def _said_to_be_correlated(correlation: float, launches: int, count: int) -> int:
    rounds = test_correlation.rounds_of(launches)
    logs = test_correlation.noise((count, 1, launches), correlation)
    return sum(estimated(run, rounds, ratios=True).shown >= TOLD_FROM for run in logs)


def _held(logs: NDArray[np.float64]) -> int:
    """Count the rows, each of one case's launches around 0, in which the median launch's interval contains 1."""
    found = (median_launch(row) for row in np.exp(0.05 * logs).tolist())
    return sum(one.low is not None and one.high is not None and one.low <= 1 <= one.high for one in found)


def rarely_slow() -> Printed:
    """Sweeps of two alike cases, of which one takes 60 % longer in a tenth of its launches."""
    printed, count = {}, 5000
    for rounds in (5, 20):
        good, seen = test_tails.sweeps(2, rounds, 0.1, count)
        printed[f"{rounds} rounds, called best or as good"] = _per_cent(int(good.sum()), count)
        printed[f"{rounds} rounds, no launch was slow"] = _per_cent(int((~seen).sum()), count)
        printed[f"{rounds} rounds, called so though one was"] = _per_cent(int((good & seen).sum()), count)
    return printed


def correlated_cases() -> Printed:
    """The cost of allowing for correlated rounds without correlation, and the correlation that is not allowed for."""
    printed, count = {}, 5000
    for cases, rounds in ((2, 5), (7, 5), (2, 20)):
        logs = test_correlation.noise((count, cases, rounds), 0.0)
        wider = test_correlation.factors(logs)
        name = f"{cases} cases, {rounds} rounds"
        printed[f"{name}, times as wide"] = f"{wider.mean():.2f}"
        half = half_widths(logs)[:, 0, 1]
        apart = logs[:, 0].mean(axis=-1) - logs[:, 1].mean(axis=-1)
        change = float(
            np.quantile(half - apart, POWER)
        )  # seen 4 times in 5 by intervals that are not widened
        printed[f"{name}, seen of what 80 % would"] = _per_cent(
            int((apart + change > wider * half).sum()), count
        )
    logs = test_correlation.noise((count, 7, 8), 0.0)
    logs[:, 0] = test_correlation.noise((count, 8), 0.5, seed=2)
    found = test_correlation.wrong(logs, test_correlation.factors(logs))
    printed["one case of 7 alone correlated by 0.5"] = _per_cent(count * found, count)
    for moved in (0.5, 1.0):
        found = _wrong_of_moving(moved, count)
        printed[f"a level that moves by {moved:g} deviations"] = _per_cent(count * found, count)
    return printed


def _wrong_of_moving(moved: float, count: int) -> float:
    """Return how often 7 equal cases in two sessions of 5 rounds are called different, if a level moves in between."""
    logs = test_correlation.noise((count, 7, 10), 0.0)
    logs[:, 0] += moved * np.repeat(np.random.default_rng(2).standard_normal((count, 2)), 5, axis=1)
    rounds = test_correlation.rounds_of(10, session=5)
    wider = np.array([widening(rounds, round(estimated(run, rounds).reckoned, 3)) for run in logs])
    return test_correlation.wrong(logs, wider)


def resolved_in_a_sweep() -> Printed:
    """Sweeps of two cases that differ by what, for `ddpbench noise`, the rounds resolve, without correlation."""
    printed = {}
    for rounds in (5, 20):
        ratios = test_correlation.noise((5000, rounds), 0.0, seed=3)
        change = resolved_in_one_sweep(0.01, rounds)
        assert change is not None
        for name, each in (
            ("seen", math.log1p(change)),
            ("seen of what is resolved where none is allowed for", 0.01 * _known_to_be_independent(rounds)),
        ):
            seen = test_resolution.shown_by_sweeps(each + 0.01 * ratios)
            printed[f"{rounds} rounds, {name}"] = _per_cent(5000 * seen, 5000)
    return printed


def _known_to_be_independent(rounds: int) -> float:
    """Return the change, in deviations, that a t-test of that many rounds resolves."""
    return (t_quantile(1 - ALPHA / 2, rounds - 1) + t_quantile(POWER, rounds - 1)) / math.sqrt(rounds)


def _alike(logs: NDArray[np.float64], correlation: float) -> NDArray[np.float64]:
    """Return rows whose values have this correlation with the previous one, all of one variance."""
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
    "two-runs-of-alike-launches": two_runs_of_alike_launches,
    "alike-rounds": alike_rounds,
    "rounds-far-off": rounds_far_off,
    "alike-launches": alike_launches,
    "seen-correlation": seen_correlation,
    "rarely-slow": rarely_slow,
    "correlated-cases": correlated_cases,
    "resolved-in-a-sweep": resolved_in_a_sweep,
    "alike-runs": alike_runs,
    "small-steps": small_steps,
    "intervals-of-steps": intervals_of_steps,
    "parts-of-a-step": parts_of_a_step,
}


EVIDENCE = REPORTS / "README.md"
"""The page with all simulated figures, in its last section."""
HEADING = "## Error rates, simulated\n"


def section(simulated: Iterable[Simulated]) -> str:
    """Return the last section of `EVIDENCE`."""
    parts = [
        "\n".join(
            [
                *textwrap.wrap(one.about, 120),
                f"`{one.command}` prints:",
                "",
                "| case | figure |",
                "|---|---|",
                *(f"| {case} | {figure} |" for case, figure in one.prints.items()),
            ]
        )
        for one in simulated
    ]
    return "\n\n".join([HEADING.rstrip(), *parts]) + "\n"


def write_section() -> None:
    """Replace the last section of `EVIDENCE`."""
    text = EVIDENCE.read_text(encoding="utf-8").partition(HEADING)[0].rstrip()
    EVIDENCE.write_text(f"{text}\n\n{section(read_claims().simulated)}", encoding="utf-8")


def main(arguments: list[str]) -> int:
    """Print the figures of the named simulations, or of all; `--page` writes the page."""
    if arguments == ["--page"]:
        write_section()
        return 0
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
