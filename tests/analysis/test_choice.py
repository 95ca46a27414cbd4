"""Choices for step times given launch by launch: each rule of `findings/choice.py` decides a case."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from ddpbench.analysis.findings.choice import Choice, choices_of, planned_panels
from ddpbench.analysis.read.cases import read_cases
from ddpbench.records import RunDir
from ddpbench.records.plan import read_plan
from ddpbench.spec import Budget, Case, PlannedCase
from tests.synthetic import (
    MS,
    Outcome,
    RankLaunch,
    case_of,
    processes_of,
    write_launch,
    write_plan,
    write_proof,
)

SINGLE, DDP, MASTER = case_of("single", 1), case_of("ddp", 2), case_of("master", 2)
CAP = case_of("ddp", 2, bucket_cap_mb=25.0)
EVEN = (0.98, 1.01, 1.0, 1.02, 0.99, 1.0)
ODD = (1.02, 0.99, 1.0, 0.98, 1.01, 1.0)
"""Factors of a case's step time by launch, with the same product."""

Times = Mapping[Case, Sequence[float]]


def times(mean_ms: float, factors: Sequence[float] = (1.0,) * 6, spread: float = 1.0) -> list[float]:
    return [mean_ms * factor**spread for factor in factors]


def choices(
    path: Path, step_ms: Times, *, oversubscribed: Sequence[Case] = (), failed: Sequence[Case] = ()
) -> list[Choice]:
    """Return the choices in a run with these step times in milliseconds, round by round."""
    run = RunDir(path / "run")
    planned = [PlannedCase(case=case, oversubscribed=case in oversubscribed) for case in (*step_ms, *failed)]
    write_plan(run, planned, Budget(rounds_min=1, rounds_max=6))
    for case in failed:
        write_proof(run, case, Outcome(status="failed", error="no"))
    for case, rounds in step_ms.items():
        for number, step in enumerate(rounds):
            blocks = [[round(step * MS)] * 10]
            write_launch(run, case, number, [RankLaunch(blocks=blocks)] * processes_of(case))
    return choices_of(read_cases(run, read_plan(run)))


def test_of_cases_that_cannot_be_told_apart_the_fastest_is_not_the_choice(tmp_path: Path) -> None:
    (found,) = choices(tmp_path, {SINGLE: times(10), DDP: times(12, EVEN), MASTER: times(11.99, ODD)})
    assert found.chosen.case == DDP
    assert [run.case for run in found.tied] == [MASTER]
    assert not found.best
    assert found.standing is not None
    assert 0.0 < found.standing.longer < 0.1
    assert re.fullmatch(r"\d\.\d %", found.standing.apart)


def test_a_reference_that_is_slower_is_not_chosen(tmp_path: Path) -> None:
    (found,) = choices(tmp_path, {SINGLE: times(10), DDP: times(13, EVEN), MASTER: times(12, EVEN)})
    assert found.chosen.case == MASTER
    assert found.best
    assert [(run.case, round(ratio.value, 3)) for run, ratio in found.behind] == [(DDP, 1.083)]
    assert found.standing is None


def test_four_launches_rank_nothing(tmp_path: Path) -> None:
    """They still show that a case was run: it is listed as not ranked."""
    steps = {SINGLE: times(10), DDP: times(12), MASTER: times(15), CAP: times(6)[:4]}
    (found,) = choices(tmp_path, steps)
    assert found.chosen.case == DDP
    assert [(run.case, why) for run, why in found.unranked] == [(CAP, "too few rounds")]
    assert choices(tmp_path / "all", {SINGLE: times(10)[:4], DDP: times(12)[:4], MASTER: times(15)[:4]}) == []
    assert choices(tmp_path / "alone", {SINGLE: times(10)[:4], DDP: times(12)[:4]}) == []


def test_a_case_alone_is_not_the_best(tmp_path: Path) -> None:
    (found,) = choices(tmp_path, {SINGLE: times(10), DDP: times(12)})
    assert (found.chosen.case, found.best, found.gains) == (DDP, False, True)
    assert [run.case for run in found.ranked] == [DDP]


def test_a_number_of_ranks_with_one_case_does_not_decide_where_another_has_several(tmp_path: Path) -> None:
    """At four ranks there is nothing to choose from."""
    four = case_of("ddp", 4)
    (found,) = choices(tmp_path, {SINGLE: times(10), DDP: times(12), MASTER: times(15), four: times(11)})
    assert (found.chosen.case, found.best) == (DDP, True)
    assert [run.case for run in found.alone] == [four]
    (found,) = choices(tmp_path / "alone", {SINGLE: times(10), DDP: times(12), four: times(11)})
    assert (found.chosen.case, found.alone) == (four, ())


def test_numbers_of_ranks_share_the_error_in_all_panels(tmp_path: Path) -> None:
    """At 5 % two ranks are shown to train more than four, but not where three comparisons share the 5 %."""
    fewer = {DDP: times(5.8, EVEN), MASTER: times(15)}
    more = {case_of("ddp", 4): times(12, ODD), case_of("master", 4): times(15)}
    steps = {SINGLE: times(3.5)} | fewer | more
    (found,) = choices(tmp_path, steps)
    assert (found.world, found.slower_worlds) == (2, (4,))
    mlp = {"workload": "mlp:small"}
    other = {case_of("single", 1, **mlp): times(3.5)}
    for world in (2, 4, 8):
        other |= {case_of("ddp", world, **mlp): times(12 * world)}
        other |= {case_of("master", world, **mlp): times(15 * world)}
    both = choices(tmp_path / "both", steps | other)
    assert {(one.chosen.case.workload, one.world) for one in both} >= {(DDP.workload, 4)}


def test_a_gain_needs_five_rounds_of_both(tmp_path: Path) -> None:
    steps = {SINGLE: times(10), DDP: times(12), MASTER: times(15)}
    assert choices(tmp_path, steps)[0].gain is not None
    (found,) = choices(tmp_path / "few", steps | {SINGLE: times(10)[:4]})
    assert found.gain is None
    assert (found.gains, found.loses) == (False, False)


@pytest.mark.parametrize(
    ("base_ms", "gains", "loses"), [(10, True, False), (6, False, False), (4, False, True)]
)
def test_a_gain_or_a_loss_is_shown_or_neither_is(
    base_ms: float, gains: bool, loses: bool, tmp_path: Path
) -> None:
    (found,) = choices(tmp_path, {SINGLE: times(base_ms, ODD), DDP: times(12, EVEN), MASTER: times(15, EVEN)})
    assert (found.gains, found.loses) == (gains, loses)


def test_panels_share_the_error(tmp_path: Path) -> None:
    """A difference that one family shows at 5 % is not shown at the 2.5 % of each of two."""
    mlp = {"workload": "mlp:small"}
    other = [case_of("single", 1, **mlp), case_of("ddp", 2, **mlp), case_of("master", 2, **mlp)]
    family = {SINGLE: times(10), DDP: times(12, EVEN), MASTER: times(12.42, ODD)}
    (alone,) = choices(tmp_path, family)
    assert alone.best
    second = dict(zip(other, (times(10), times(12), times(15)), strict=True))
    first, _ = choices(tmp_path / "two", family | second)
    assert first.chosen.case == DDP
    assert [run.case for run in first.tied] == [MASTER]


def test_why_a_case_is_not_ranked(tmp_path: Path) -> None:
    """Cases of other sizes or settings do not count as missing there."""
    elsewhere = case_of("master", 2, workload="mlp:small")
    steps = {SINGLE: times(10), DDP: times(12), MASTER: times(6), case_of("ddp", 4): times(13)}
    (found,) = choices(tmp_path, steps, oversubscribed=[MASTER], failed=[CAP, elsewhere])
    assert found.chosen.case.world_size == 4
    assert found.unranked == ()
    del steps[case_of("ddp", 4)]
    (found,) = choices(tmp_path / "two", steps, oversubscribed=[MASTER], failed=[CAP, elsewhere])
    assert found.chosen.case == DDP
    assert [(run.case, why) for run, why in found.unranked] == [
        (MASTER, "more threads than cores"),
        (CAP, "failed"),
    ]


def test_a_panel_that_was_never_to_run_is_not_missed(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "run")
    skipped = case_of("ddp", 2, workload="mlp:small")
    planned = [
        PlannedCase(case=DDP),
        PlannedCase(case=SINGLE),
        PlannedCase(case=skipped, skip_reason="no such library"),
    ]
    write_plan(run, planned, Budget())
    assert planned_panels(read_cases(run, read_plan(run))) == [DDP]
