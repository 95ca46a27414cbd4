"""Selection of the step that is shown, its lanes, and the reasons to show none."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from ddpbench.analysis import RunSummary, summarize
from ddpbench.analysis.steps.one_step import OneStep, merged, without
from ddpbench.cli import run as run_command
from ddpbench.records import RunDir
from ddpbench.spec import Budget, Case, PlannedCase
from tests.synthetic import (
    MS,
    ORIGIN_NS,
    RankLaunch,
    case_of,
    processes_of,
    write_launch,
    write_plan,
    write_proof,
    write_sessions,
)

SINGLE, DDP = case_of("single", 1), case_of("ddp", 2)


def rank(lengths_ms: Sequence[int], ready_ms: int, *, host: str = "node-1", late_ms: int = 0) -> RankLaunch:
    """Return steps in which a rank computes until its bucket is ready, and then 2 ms of optimizer."""
    at, steps = ORIGIN_NS + 10**9 + late_ms * MS, []
    for length in lengths_ms:
        end = at + length * MS
        spans = [
            ("forward", at, at + 4 * MS),
            ("backward", at + 4 * MS, at + ready_ms * MS),
            ("synchronize", at + ready_ms * MS, end - 2 * MS),
            ("optimizer", end - 2 * MS, end),
        ]
        transfers = [
            (0, "all_reduce", 1024, at + (ready_ms - 3) * MS, at + ready_ms * MS),
            (1, "all_reduce", 2048, at + ready_ms * MS, end - 2 * MS),
        ]
        steps.append((at, end, spans, transfers))
        at = end
    return RankLaunch(blocks=[[20 * MS] * 10], steps=steps, host=host)


def summary_of(
    path: Path, launches: Sequence[Sequence[RankLaunch]], case: Case = DDP, *, crowded: bool = False
) -> RunSummary:
    run = RunDir(path / "run")
    planned = [PlannedCase(case=SINGLE), PlannedCase(case=case, oversubscribed=crowded)]
    write_plan(run, planned, Budget(rounds_min=1, rounds_max=len(launches)))
    for number, ranks in enumerate(launches):
        write_launch(run, SINGLE, number, [RankLaunch(blocks=[[10 * MS] * 10])] * processes_of(SINGLE))
        write_launch(run, case, number, ranks)
    write_proof(run, case)
    write_sessions(run)
    return summarize(run)


def step_of(summary: RunSummary) -> OneStep:
    assert summary.steps.one_step is not None, summary.steps.one_step_absent
    return summary.steps.one_step


def ms(value: float) -> float:
    return pytest.approx(value / 1e3, abs=1e-12)


def test_the_step_nearest_the_median_of_the_median_launch(tmp_path: Path) -> None:
    lengths = [
        (20, 20, 20),
        (18, 22, 29),
        (50, 50, 50),
    ]  # means 20, 23 and 50; the median launch is the second
    shown = step_of(summary_of(tmp_path, [[rank(one, 12), rank(one, 10)] for one in lengths]))
    assert (shown.case_id, shown.round, shown.step, shown.steps, shown.launches) == (DDP.case_id, 1, 2, 3, 3)
    assert shown.median_s == ms(22)
    assert shown.length_s == ms(22)


def test_lanes_by_hand(tmp_path: Path) -> None:
    shown = step_of(summary_of(tmp_path, [[rank((20,), 12), rank((20,), 10)]]))
    first, second = shown.lanes
    assert [lane.rank for lane in shown.lanes] == [0, 1]
    assert not shown.omitted
    assert [(name, start, end) for name, start, end in first.spans][1] == ("backward", ms(4), ms(12))
    # bucket 0: ready at 9 on rank 0 and at 7 on rank 1, under way from 9, back at 12 and at 10
    zero, one = second.transfers
    assert (zero.ready_s, zero.begin_s, zero.end_s) == (ms(7), ms(9), ms(10))
    # bucket 1: ready at 12 and at 10, under way from 12, back at 18 on both
    assert (one.ready_s, one.begin_s, one.end_s, one.bytes) == (ms(10), ms(12), ms(18), 2048)
    assert first.exposed == ((ms(12), ms(18)),)
    assert second.exposed == ((ms(12), ms(18)),)
    assert (shown.backward_end_s, shown.backward_rank, shown.comm_end_s) == (ms(12), 0, ms(18))
    assert first.computed_s == ms(14)


def test_what_a_server_exchanges_with_one_worker_is_found_in_whichever_step_it_is_to_the_other(
    tmp_path: Path,
) -> None:
    at = ORIGIN_NS + 10**9

    def lane(*pushes: tuple[int, int, int], lengths: tuple[int, ...] = (20, 20)) -> RankLaunch:
        """Steps of 20 ms; pushes are (number, start, end) in ms from the first, each in the step in which it ends."""
        steps = []
        for number, length in enumerate(lengths):
            start, end = at + number * length * MS, at + (number + 1) * length * MS
            own = [(0, "push", 64, at + a * MS, at + b * MS, m) for m, a, b in pushes if a // 20 == number]
            steps.append((start, end, [("forward", start, start + MS)], own))
        return RankLaunch(blocks=[[20 * MS] * 10], steps=steps)

    # The server has push 4 of worker 1 in its first step and push 7 in its second, 5 of worker 2 in its
    # first; it was ready for 7 at 21 and for 5 at 12. It had push 8 in a step that was not kept. For worker 1
    # number 7 is in step 1.
    server = lane((4, 2, 8), (5, 12, 18), (7, 21, 39))
    first, second = lane((4, 3, 7), (7, 15, 38)), lane((5, 5, 17), (8, 30, 39))
    case = case_of("async_server", 3, algorithm="async_server", schedule="after_backward", backend="gloo")
    shown = step_of(summary_of(tmp_path, [[server, first, second]], case))
    assert shown.step == 1
    found = {
        one.rank: [(part.ready_s, part.begin_s, part.end_s) for part in one.transfers] for one in shown.lanes
    }
    assert found == {
        0: [(ms(2), ms(3), ms(8)), (ms(12), ms(12), ms(18))],
        1: [(ms(3), ms(3), ms(8)), (ms(15), ms(21), ms(39))],
        2: [(ms(5), ms(12), ms(18))],
    }


def test_of_many_ranks_the_last_to_end_its_backward_is_told(tmp_path: Path) -> None:
    """Rank 5 computes no longer than others, but starts last: the figure marks its end, and draws it."""
    ready = [11, 10, 15, 8, 12, 9, 14, 13, 16]
    ranks = [rank((20,), at, late_ms=9 if number == 5 else 0) for number, at in enumerate(ready)]
    shown = step_of(summary_of(tmp_path, [ranks], case_of("ddp", 9)))
    assert shown.backward_rank == 5
    assert {lane.rank: lane.role for lane in shown.lanes} == {
        0: "",
        3: "least computation",
        4: "median computation",
        5: "backward ends last",
        8: "most computation",
    }
    assert shown.omitted == (1, 2, 6, 7)
    assert shown.length_s == max(lane.length_s for lane in shown.lanes)
    assert shown.slowest in [lane.rank for lane in shown.lanes if lane.length_s == shown.length_s]


def test_of_many_ranks_those_that_tell_most(tmp_path: Path) -> None:
    case = case_of("ddp", 9)
    ready = [
        11,
        10,
        15,
        8,
        12,
        9,
        14,
        13,
        16,
    ]  # rank 3 computes least, rank 8 most, rank 0 is the fourth of nine
    shown = step_of(summary_of(tmp_path, [[rank((20,), at) for at in ready]], case))
    assert {lane.rank: lane.role for lane in shown.lanes} == {
        0: "",
        3: "least computation",
        4: "median computation",
        8: "most computation",
    }
    assert shown.omitted == (1, 2, 5, 6, 7)
    assert shown.backward_rank == 8


def test_a_message_is_told_of_the_two_ranks_that_exchange_it(tmp_path: Path) -> None:
    def stage(messages: Sequence[tuple[int, int, int]]) -> RankLaunch:
        """Return a step of 20 ms with messages of (bucket, start, end) in ms."""
        at = ORIGIN_NS + 10**9
        sent = [(bucket, "send", 64, at + start * MS, at + end * MS) for bucket, start, end in messages]
        return RankLaunch(blocks=[[20 * MS] * 10], steps=[(at, at + 20 * MS, [], sent)])

    # the first stage sends at 5 what the second has awaited since 2; nothing of bucket 1 came from the third
    ranks = [stage([(0, 5, 5)]), stage([(0, 2, 7), (1, 8, 9)]), stage([])]
    shown = step_of(summary_of(tmp_path, [ranks], case_of("ddp", 3)))
    assert [len(lane.transfers) for lane in shown.lanes] == [1, 1, 0]
    (message,) = shown.lanes[1].transfers
    assert (message.ready_s, message.begin_s, message.end_s) == (ms(2), ms(5), ms(7))


def test_hosts_without_a_common_clock_are_not_drawn(tmp_path: Path) -> None:
    summary = summary_of(tmp_path, [[rank((20,), 12, host="a"), rank((20,), 10, host="b")]])
    assert summary.steps.one_step is None
    assert "2 hosts (a, b), whose clocks are not aligned" in summary.steps.one_step_absent


def test_without_transfers_or_cores_there_is_no_step(tmp_path: Path) -> None:
    bare = [RankLaunch(blocks=[[20 * MS] * 10])] * 2
    assert "no step can be drawn" in summary_of(tmp_path / "1", [bare]).steps.one_step_absent
    crowded = summary_of(tmp_path / "2", [[rank((20,), 12), rank((20,), 10)]], crowded=True)
    assert "separate cores" in crowded.steps.one_step_absent


def test_a_step_that_took_no_time_is_not_drawn(tmp_path: Path) -> None:
    """Foreign records may contain such a step."""
    at = ORIGIN_NS + 10**9
    none = (at, at, [("backward", at, at)], [(0, "all_reduce", 1024, at, at)])
    summary = summary_of(tmp_path, [[RankLaunch(blocks=[[20 * MS] * 10], steps=[none])] * 2])
    assert summary.steps.one_step is None
    assert "took no time, as its records have it" in summary.steps.one_step_absent
    assert run_command(["report", str(tmp_path / "run")]) == 0


def test_unions_and_what_is_left_of_them() -> None:
    assert merged([(3, 4), (1, 2), (2, 3), (6, 6), (8, 9)]) == [(1, 4), (8, 9)]
    assert without([(0, 10), (20, 30)], [(2, 3), (5, 22), (29, 40)]) == [(0, 2), (3, 5), (22, 29)]
    assert without([(0, 1)], []) == [(0, 1)]
