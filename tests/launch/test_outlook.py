"""A sweep's outlook after a round, by a clock that stands still: what its time and its rounds will resolve."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from scipy import stats as scipy_stats

from ddpbench.analysis.rounds import SoFar
from ddpbench.launch.listener import Listener
from ddpbench.launch.outlook import Outlook, outlook
from ddpbench.launch.sweep.stopping import StoppingRule
from ddpbench.records import RunDir
from ddpbench.spec import Budget, PlannedCase
from ddpbench.spec.settings import MOST_ROUNDS
from tests.synthetic import MS, RankLaunch, case_of, write_launch, write_plan

SINGLE, DDP = case_of("single", 1), case_of("ddp", 2)
ROUND_S = 10.0


def half(rounds: int, scatter: float) -> float:
    return float(scipy_stats.t.ppf(0.975, rounds - 1)) * scatter / math.sqrt(rounds)


def found(rounds: int, scatter: float) -> SoFar:
    keys = frozenset((number, "x") for number in range(rounds))
    return SoFar(
        widths={"base": 0.0, "ddp": half(rounds, scatter)},
        rounds={"base": keys, "ddp": keys},
        bases={"ddp": "base"},
    )


def seen(budget: Budget, *, rounds: int = 6, scatter: float = 0.05, left_s: float) -> Outlook:
    given = outlook(
        found(rounds, scatter), ["base", "ddp"], budget, rounds=rounds, round_s=ROUND_S, left_s=left_s
    )
    assert given is not None
    return given


def test_the_time_ends_the_sweep() -> None:
    budget = Budget(total=240, target_half_width=0.02, rounds_max=100)
    one = seen(budget, left_s=175)
    assert (one.end_rounds, one.ends_by_time, one.reaches_target) == (6 + 17, True, False)
    assert one.at_end == pytest.approx(half(23, 0.05))
    needed = next(n for n in range(6, 100) if half(n, 0.05) <= 0.02)
    assert one.target_s == pytest.approx(240 - 175 + (needed - 6) * ROUND_S)


def test_the_rounds_end_the_sweep() -> None:
    one = seen(Budget(total=240, target_half_width=0.02, rounds_max=20), left_s=175)
    assert (one.end_rounds, one.ends_by_time, one.reaches_target) == (20, False, False)
    assert one.at_end == pytest.approx(half(20, 0.05))


def test_the_target_is_reached_within_the_budget_only_if_its_rounds_fit() -> None:
    needed = next(n for n in range(6, 100) if half(n, 0.05) <= 0.03)
    just = (needed - 6) * ROUND_S
    budget = Budget(total=1000, target_half_width=0.03, rounds_max=100)
    assert seen(budget, left_s=just).reaches_target
    assert not seen(budget, left_s=just - 1).reaches_target
    fewer = budget.model_copy(update={"rounds_max": needed - 1})
    assert not seen(fewer, left_s=900).reaches_target


def test_a_target_that_no_sweep_reaches_has_no_time() -> None:
    assert half(MOST_ROUNDS, 2.0) > 0.02
    assert seen(Budget(), scatter=2.0, left_s=100).target_s is None


def test_nothing_is_foreseen_without_intervals() -> None:
    none = SoFar(widths={"base": None}, rounds={"base": frozenset()})
    assert outlook(none, ["base"], Budget(), rounds=6, round_s=10, left_s=100) is None


def test_a_target_that_is_reached_is_not_foreseen() -> None:
    budget = Budget(total=240, target_half_width=0.06, rounds_max=100)
    assert half(6, 0.05) < 0.06
    assert outlook(found(6, 0.05), ["base", "ddp"], budget, rounds=6, round_s=10, left_s=100) is None


def test_time_that_is_spent_leaves_no_round() -> None:
    assert seen(Budget(), left_s=-5).end_rounds == 6


class Heard(Listener):
    """Keeps the ends of rounds."""

    def __init__(self) -> None:
        self.ends: list[tuple[int, str, Outlook | None]] = []

    def round_ended(
        self,
        number: int,
        half_widths: dict[str, float | None],
        stop_reason: str,
        outlook: Outlook | None = None,
    ) -> None:
        self.ends.append((number, stop_reason, outlook))


def rule(run: RunDir, budget: Budget, heard: Heard, *, now: float) -> StoppingRule:
    """Return a rule at clock time `now`, for rounds that take `ROUND_S`; the next round has no finished launch."""
    entries = [PlannedCase(case=case) for case in (SINGLE, DDP)]
    done: Any = SimpleNamespace(
        worthwhile=entries, finished=lambda *_: False, left_of_round=lambda _: entries
    )
    expected: Any = SimpleNamespace(round_s=lambda _: ROUND_S)
    return StoppingRule(run, done, expected, budget, heard, clock=lambda: now)


@pytest.fixture
def measured(tmp_path: Path) -> RunDir:
    """Six rounds, in which the log ratio is 0.05 above or below its mean."""
    run = RunDir(tmp_path / "run")
    write_plan(run, [SINGLE, DDP], Budget(rounds_max=100))
    for number in range(6):
        write_launch(run, SINGLE, number, [RankLaunch(blocks=[[10 * MS] * 10])])
        step = round(12 * MS * math.exp(0.05 * (-1) ** number))
        write_launch(run, DDP, number, [RankLaunch(blocks=[[step] * 10])] * 2)
    return run


SCATTER = 0.05 * math.sqrt(6 / 5)


@pytest.mark.parametrize(("now", "reason"), [(60.0, ""), (231.0, "budget")])
def test_the_stopping_rule_gives_its_outlook(now: float, reason: str, measured: RunDir) -> None:
    heard = Heard()
    budget = Budget(total=240, target_half_width=0.03, rounds_max=100)
    assert rule(measured, budget, heard, now=now).reason(6, 0.0) == reason
    ((number, said, given),) = heard.ends
    assert (number, said) == (5, reason)
    assert given is not None
    assert given.end_rounds == 6 + int((240 - now) / ROUND_S)
    assert given.at_end == pytest.approx(half(given.end_rounds, SCATTER), rel=1e-4)
    needed = next(n for n in range(6, 100) if half(n, SCATTER) <= 0.03)
    assert given.target_s == pytest.approx(now + (needed - 6) * ROUND_S)
    assert given.reaches_target == (needed <= given.end_rounds)


def test_a_sweep_goes_on_if_its_target_is_out_of_reach(measured: RunDir) -> None:
    heard = Heard()
    assert not rule(measured, Budget(target_half_width=1e-4), heard, now=0.0).reason(6, 0.0)
    wide = Budget(target_half_width=0.2)
    assert rule(measured, wide, heard, now=0.0).reason(6, 0.0) == "target reached"
