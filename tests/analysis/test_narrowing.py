"""The forecast of an interval's width: that of the table after the same rounds, if they scatter alike."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats as scipy_stats

from ddpbench.analysis import load, so_far
from ddpbench.analysis.statistics.correlation import Correlation, estimated, widening_of
from ddpbench.analysis.statistics.narrowing import first_narrow, half_width_after, median_half_width_after
from ddpbench.analysis.statistics.stats import half_width, median_launch
from ddpbench.records import RunDir
from ddpbench.spec import Budget
from tests.synthetic import MS, RankLaunch, case_of, write_launch, write_plan, write_proof

SINGLE, DDP, MASTER = case_of("single", 1), case_of("ddp", 2), case_of("master", 2)
IDS = [case.case_id for case in (SINGLE, DDP, MASTER)]
SCATTER = {DDP: 0.05, MASTER: 0.02}


def write_rounds(run: RunDir, numbers: range, relative: float) -> None:
    """Write rounds whose log ratios are alternately this multiple of the case's scatter above and below the mean."""
    for number in numbers:
        write_launch(run, SINGLE, number, [RankLaunch(blocks=[[10 * MS] * 10])])
        for case, scatter in SCATTER.items():
            step = round(12 * MS * math.exp((-1) ** number * relative * scatter))
            write_launch(run, case, number, [RankLaunch(blocks=[[step] * 10])] * 2)


@pytest.mark.parametrize(("early", "late"), [(6, 24), (8, 40)])
def test_the_forecast_is_what_the_table_shows_after_that_many_rounds(
    early: int, late: int, tmp_path: Path
) -> None:
    run = RunDir(tmp_path / "run")
    write_plan(run, [SINGLE, DDP, MASTER], Budget(rounds_min=5, rounds_max=50))
    for case in (SINGLE, DDP, MASTER):
        write_proof(run, case)
    write_rounds(run, range(early), math.sqrt((early - 1) / early))  # so that s is the scatter
    before = so_far(run)
    forecast = {case: before.widest_at(late, [case.case_id]) for case in SCATTER}
    write_rounds(run, range(early, late), 1.0)  # s is still the scatter
    after = so_far(run)
    assert (before.made, after.made) == (early, late)
    table = load(run).set_index("case_id")
    for case, scatter in SCATTER.items():
        low, high = (float(table[f"speedup_ci_{end}"].to_dict()[case.case_id]) for end in ("low", "high"))
        shown = math.log(high / low) / 2
        assert forecast[case] == pytest.approx(shown, rel=1e-4)
        by_hand = scipy_stats.t.ppf(0.975, late - 1) * scatter / math.sqrt(late)
        assert shown == pytest.approx(by_hand, rel=1e-4)
    assert before.widest_at(late, IDS) == forecast[DDP]
    assert before.widest_at(early, IDS) == pytest.approx(before.widths[DDP.case_id])  # now
    needed = before.rounds_to(shown_at(late), IDS, early, 1000)
    assert needed == late
    assert before.rounds_to(1e-4, IDS, early, 1000) is None


def shown_at(rounds: int) -> float:
    """Return a half-width just above that of the widest interval after this many rounds."""
    return float(scipy_stats.t.ppf(0.975, rounds - 1)) * SCATTER[DDP] / math.sqrt(rounds) * 1.0001


def test_nothing_is_forecast_while_a_case_has_no_interval(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "run")
    write_plan(run, [SINGLE, DDP, MASTER])
    assert so_far(run).widest_at(20, IDS) is None
    write_rounds(run, range(4), 1.0)
    found = so_far(run)
    assert found.widths[DDP.case_id] is not None
    assert found.widest_at(20, [DDP.case_id]) is not None
    assert found.widest_at(2, [DDP.case_id]) is None
    assert found.widths[SINGLE.case_id] is None  # its own median needs five launches
    assert found.widest_at(20, IDS) is None
    assert found.rounds_to(0.5, IDS, 4, 1000) is None
    assert found.widest_at(20, []) is None


def test_a_case_on_its_own_is_forecast_by_its_median() -> None:
    """Values at the normal distribution's quantiles scatter alike, however many they are."""

    def half(count: int) -> float:
        values = 1 + 0.01 * scipy_stats.norm.ppf((np.arange(1, count + 1) - 0.375) / (count + 0.25))
        found = median_launch(values.tolist())
        assert found.low is not None
        assert found.high is not None
        return (found.high - found.low) / 2

    for early, late in ((5, 20), (8, 30), (20, 60)):
        assert median_half_width_after(half(early), early, late) == pytest.approx(half(late), rel=1e-6)
    assert median_half_width_after(0.1, 4, 20) is None
    assert median_half_width_after(0.1, 20, 4) is None


def ar1(rng: np.random.Generator, rounds: int, correlation: float) -> NDArray[np.float64]:
    drawn = rng.standard_normal(rounds)
    for at in range(1, rounds):
        drawn[at] = correlation * drawn[at - 1] + math.sqrt(1 - correlation**2) * drawn[at]
    return drawn


@pytest.mark.parametrize("correlation", [0.0, 0.4])
def test_the_forecast_is_right_on_average_for_alike_rounds(correlation: float) -> None:
    early, late, rng = 8, 32, np.random.default_rng(5)
    forecast, shown = [], []
    for _ in range(300):
        log_times = np.array([ar1(rng, late, correlation) for _ in range(4)])
        ratios = (log_times[1] - log_times[0]).tolist()
        halves = []
        for count in (early, late):
            found = estimated(log_times[:, :count], [(number, "a") for number in range(count)])
            plain = half_width(ratios[:count])
            assert plain is not None
            halves.append((plain * widening_of(count, found.reckoned), found))
        expected = half_width_after(halves[0][0], early, late, halves[0][1])
        assert expected is not None
        forecast.append(expected)
        shown.append(halves[1][0])
    assert float(np.mean(forecast)) == pytest.approx(float(np.mean(shown)), rel=0.12)


def test_what_a_correlation_is_widened_by_for_its_uncertainty_decreases() -> None:
    certain, doubtful = Correlation(0.3, 0.3), Correlation(0.0, 0.3)
    plain = half_width_after(1.0, 8, 32)
    assert plain is not None
    assert half_width_after(1.0, 8, 32, certain) == pytest.approx(
        plain * widening_of(32, 0.3) / widening_of(8, 0.3)
    )
    assert half_width_after(1.0, 8, 32, doubtful) == pytest.approx(
        plain * widening_of(32, 0.15) / widening_of(8, 0.3)
    )
    assert half_width_after(1.0, 8, 8, doubtful) == pytest.approx(1.0)
    assert half_width_after(1.0, 2, 8) is None


def test_the_first_number_of_rounds_is_found_among_those_allowed() -> None:
    def half(count: int) -> float | None:
        return None if count < 5 else 1 / count

    assert first_narrow(half, 0.1, 5, 1000) == 10
    assert first_narrow(half, 0.1, 30, 1000) == 30
    assert first_narrow(half, 0.1, 0, 10) == 10
    assert first_narrow(half, 0.1, 0, 9) is None
    assert first_narrow(half, 0.1, 30, 20) is None
