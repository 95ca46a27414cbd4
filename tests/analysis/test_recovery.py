"""Cost of a failure, from records by hand, and the detection of faulty records."""

from __future__ import annotations

import json
import math
import random
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from ddpbench.analysis import load
from ddpbench.analysis.recovery import (
    PARTS,
    RankRecovery,
    _places,
    loss_difference,
    recovered_of,
    recovery_cost,
)
from ddpbench.records import Trained
from ddpbench.records.schema import as_json, record_from_json
from tests.recoveries import KILLED, UNINTERRUPTED, FailingLaunch, ended, ranks_of, write
from tests.synthetic import MS, Outcome, write_launch


def test_the_parts_follow_one_another_and_add_up() -> None:
    found = recovered_of(0, ranks_of(FailingLaunch()), KILLED)
    assert found is not None
    assert found.parts == pytest.approx(
        {
            "detection_s": 0.6,  # the last agent
            "stopping_s": 0.4,
            "rendezvous_s": 1.0,
            "starting_s": 1.5,
            "meeting_s": 0.25,
            "restoring_s": 0.25,
            "recomputing_s": 0.5,  # ten steps of 50 ms
        }
    )
    assert list(found.parts or ()) == list(PARTS)
    assert found.total_s == pytest.approx(4.5)
    assert found.restored_s == pytest.approx(4.0)
    assert found.recomputed_steps == 10
    assert found.snapshot_s == pytest.approx(0.02)
    assert (found.lost, found.repeated) == (0, 0)
    assert len(found.losses) == 150  # each step once, though ten were made twice


def test_of_restoring_what_the_slowest_rank_took_to_build_is_known_unless_the_records_are_older() -> None:
    found = [
        recovered_of(number, ranks_of(FailingLaunch(built_s=built)), KILLED)
        for number, built in enumerate((0.1, 0.2))
    ]
    assert [each.built_s for each in found if each] == pytest.approx([0.1, 0.2])
    cost = recovery_cost([each for each in found if each])
    assert cost is not None
    assert cost.built_s == pytest.approx(0.15)
    older = recovered_of(2, ranks_of(FailingLaunch(built_s=None)), KILLED)
    assert older is not None
    assert older.built_s is None
    mixed = recovery_cost([*(each for each in found if each), older])
    assert mixed is not None
    assert mixed.built_s is None


def test_formulas_of_how_often_to_save_have_means_of_launches() -> None:
    """Lost time adds up over failures: one recovery in three that takes 7 s more costs 7/3 s each in the long run."""
    found = [recovered_of(number, ranks_of(FailingLaunch(built_s=0.1)), KILLED) for number in range(3)]
    each = [one for one in found if one is not None and one.parts is not None]
    assert len(each) == 3
    slow = replace(each[2], parts={**(each[2].parts or {}), "detection_s": 8.0}, snapshot_s=0.08)
    cost = recovery_cost([*each[:2], slow])
    assert cost is not None
    assert cost.restored is not None
    assert cost.snapshot is not None
    usual, detection = each[0].restored_s, (each[2].parts or {})["detection_s"]
    assert usual is not None
    assert cost.restored.value == pytest.approx(usual)
    assert cost.restored_mean_s == pytest.approx(usual + (8.0 - detection) / 3)
    assert (cost.snapshot.value, cost.snapshot_mean_s) == (pytest.approx(0.02), pytest.approx(0.04))


def test_a_part_that_ends_before_the_one_before_has_ended_took_no_time() -> None:
    """An agent makes a rendezvous before the other has noticed."""
    found = recovered_of(0, ranks_of(FailingLaunch(noticed_s=1.5)), KILLED)
    assert found is not None
    assert found.parts is not None
    assert found.parts["detection_s"] == pytest.approx(1.6)
    assert found.parts["stopping_s"] == 0.0
    assert found.parts["rendezvous_s"] == pytest.approx(0.4)
    assert found.total_s == pytest.approx(4.5)


@pytest.mark.parametrize(
    ("failure", "expected"), [(FailingLaunch(lost=3), (3, 0)), (FailingLaunch(repeated=1), (1, 1))]
)
def test_samples_that_are_lost_or_come_twice_are_seen(
    failure: FailingLaunch, expected: tuple[int, int]
) -> None:
    found = recovered_of(0, ranks_of(failure), KILLED)
    assert found is not None
    lost, repeated = expected
    if failure.lost:
        assert found.lost == lost
    else:
        assert found.repeated == repeated


def test_samples_of_a_rank_whose_records_are_gone_are_lost() -> None:
    first, second = ranks_of(FailingLaunch())
    kept = [each for each in second.trained if each.gang == 0 or each.first >= 60]
    found = recovered_of(
        0, [first, RankRecovery(second.gangs, second.snapshots, kept, second.failures)], KILLED
    )
    assert found is not None
    assert found.lost == 20 * 4  # steps 40 to 60


def test_steps_that_were_made_twice_count_once() -> None:
    """Training after the last snapshot is lost: its samples are in the history once."""
    found = recovered_of(0, ranks_of(FailingLaunch(fails=59)), KILLED)
    assert found is not None
    assert found.recomputed_steps == 19
    assert (found.lost, found.repeated) == (0, 0)


def test_a_pace_is_regained_where_it_is_and_not_before() -> None:
    steady = recovered_of(0, ranks_of(FailingLaunch()), KILLED)
    slow = recovered_of(0, ranks_of(FailingLaunch(again_ms=52)), KILLED)
    close = recovered_of(0, ranks_of(FailingLaunch(step_ms=100, again_ms=101)), KILLED)
    assert steady is not None and slow is not None and close is not None  # noqa: PT018
    assert steady.regained_s == pytest.approx(4.0)
    assert slow.regained_s is None  # 4 % longer
    assert close.regained_s is not None  # 1 %


def test_one_window_that_happens_to_be_quick_is_no_pace_regained() -> None:
    """Steps are 10 % longer except in the first second."""
    ranks = []
    for rank in ranks_of(FailingLaunch(step_ms=100, again_ms=110, last=200)):
        trained = [*rank.trained]
        first = next(index for index, each in enumerate(trained) if each.gang == 1)
        quick = trained[first]
        ends = tuple(quick.start_ns + 95 * MS * (number + 1) for number in range(len(quick.ends_ns)))
        trained[first] = replace(quick, ends_ns=ends)
        ranks.append(RankRecovery(rank.gangs, rank.snapshots, trained, rank.failures))
    found = recovered_of(0, ranks, KILLED)
    assert found is not None
    assert found.regained_s is None
    cost = recovery_cost([found, found])
    assert cost is not None
    assert (cost.recoveries, cost.regained_launches, cost.regained) == (2, 0, None)


def test_a_failure_right_after_a_snapshot_is_recovered_from_with_nothing_to_make_again() -> None:
    found = recovered_of(0, ranks_of(FailingLaunch(fails=60)), KILLED)
    assert found is not None
    assert found.parts is not None
    assert found.recomputed_steps == 0
    assert found.parts["recomputing_s"] == 0.0
    assert found.total_s == pytest.approx(4.0) == found.restored_s
    assert (found.lost, found.repeated) == (0, 0)


def test_launches_that_did_not_recover_count_as_failures(tmp_path: Path) -> None:
    run = write(tmp_path / "run", {UNINTERRUPTED: [FailingLaunch()] * 5, KILLED: [FailingLaunch()] * 4})
    outcome = Outcome(status="failed", error="restarts are used up")
    write_launch(run, KILLED, 4, ended(FailingLaunch()), outcome=outcome)
    row = load(run).set_index("recovery").loc["SIGKILL"]
    assert (row["failures"], row["recoveries"]) == (5, 4)


def test_an_uninterrupted_training_has_no_parts_and_its_samples() -> None:
    found = recovered_of(0, ranks_of(FailingLaunch(), UNINTERRUPTED), UNINTERRUPTED)
    assert found is not None
    assert found.parts is None
    assert not found.failed
    assert (found.lost, found.repeated) == (0, 0)
    assert recovered_of(0, ranks_of(FailingLaunch()), replace(KILLED, recovery="off")) is None


def test_a_failure_without_a_later_gang_is_none_recovered_from() -> None:
    ranks = [
        RankRecovery(
            [rank.gangs[0]], rank.snapshots, [each for each in rank.trained if not each.gang], rank.failures
        )
        for rank in ranks_of(FailingLaunch())
    ]
    found = recovered_of(0, ranks, KILLED)
    assert found is not None
    assert found.failed
    cost = recovery_cost([found])
    assert cost is not None
    assert (cost.failures, cost.recoveries, cost.total) == (1, 0, None)


def test_losses_that_differ_are_seen() -> None:
    one = recovered_of(0, ranks_of(FailingLaunch()), KILLED)
    whole = recovered_of(0, ranks_of(FailingLaunch(), UNINTERRUPTED), UNINTERRUPTED)
    other = recovered_of(0, ranks_of(FailingLaunch(wrong_loss=1e-3)), KILLED)
    assert one is not None and whole is not None and other is not None  # noqa: PT018
    assert loss_difference(one.losses, whole.losses) == (0.0, 150)
    found = loss_difference(other.losses, whole.losses)
    assert found is not None
    assert 1e-3 / 3 < found[0] < 1e-3
    assert loss_difference([], whole.losses) is None


def test_a_cases_row_has_the_median_launch_with_its_interval(tmp_path: Path) -> None:
    ready = (4.0, 4.2, 4.1, 3.9, 9.3)
    run = write(
        tmp_path / "run",
        {UNINTERRUPTED: [FailingLaunch()] * 5, KILLED: [FailingLaunch(ready_s=seconds) for seconds in ready]},
    )
    frame = load(run).set_index("recovery")
    killed, whole = frame.loc["SIGKILL"], frame.loc["uninterrupted"]
    assert (killed["failures"], killed["recoveries"], killed["recoveries_at_pace"]) == (5, 5, 5)
    assert killed["restored_s"] == pytest.approx(4.1)
    assert killed["recovery_s"] == pytest.approx(4.6)
    ends = killed[["restored_ci_low_s", "restored_ci_high_s"]]
    assert list(ends) == pytest.approx([3.9, 9.3]), "of five the least and the largest"
    assert killed["recovery_loss_difference"] == 0.0
    assert killed["recovery_loss_steps"] == 150
    assert killed["recovery_building_s"] == pytest.approx(0.15)
    assert killed["recovery_restoring_s"] > killed["recovery_building_s"]
    assert (killed["samples_lost"], killed["samples_repeated"]) == (0, 0)
    assert pd.isna(whole["failures"])
    assert whole["recovery_snapshot_s"] == pytest.approx(0.02)


def test_samples_are_counted_by_their_runs_as_one_by_one() -> None:
    """At random, and where a record claims more of them than any memory holds."""
    dice = random.Random(0)
    kept = {0: (0, 6), 1: (4, math.inf)}
    for _ in range(300):
        ranks, places = [], list[int]()
        for _ in range(2):
            trained = []
            for gang in kept:
                first, steps = dice.randrange(6), dice.randrange(1, 4)
                runs = [(dice.randrange(30), dice.randrange(6)) for _ in range(3)]
                trained.append(_trained(gang, first, steps, runs))
                counted = min(steps, max(0, kept[gang][1] - first))
                places += [place for start, count in runs for place in range(start, start + count)][
                    : int(counted) * 3
                ]
            ranks.append(RankRecovery((), (), trained, ()))
        expected = (len(places), len(set(places)), max(places, default=-1))
        assert _places(ranks, kept, 3) == expected
    vast = RankRecovery((), (), [_trained(1, 4, 1, [(0, 2**53)])], ())
    assert _places([vast], kept, 8) == (8, 8, 7)
    assert _places([vast], kept, 10**6) == (10**6, 10**6, 10**6 - 1)


def _trained(gang: int, first: int, steps: int, runs: list[tuple[int, int]]) -> Trained:
    return Trained(
        gang=gang,
        first=first,
        start_ns=0,
        ends_ns=tuple(range(1, steps + 1)),
        losses=(),
        samples=tuple(runs),
    )


def test_a_record_of_more_samples_than_any_job_has_is_none() -> None:
    line = json.dumps(as_json(_trained(0, 0, 1, [(0, 2**53)])))
    assert record_from_json(line.encode())
    for pair in ("[0, 9007199254740993]", "[4611686018427387904, 1]"):
        with pytest.raises(ValueError, match="less than or equal to 9007199254740992"):
            record_from_json(line.replace("[0, 9007199254740992]", pair).encode())
