"""Breakdown of a step's time: timelines worked out by hand, and every instant counted one by one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddpbench.analysis.read import overlap
from ddpbench.analysis.read.overlap import PARTS, Breakdown, Instrumented, breakdown, breakdowns, coverage
from ddpbench.analysis.read.parts import RankSteps
from ddpbench.analysis.shares import share_of_step
from ddpbench.records import COMPUTE_SPANS, CommRecord, StepRecord


def rank(
    spans: Sequence[tuple[str, int, int]],
    transfers: Sequence[tuple[int, int, int]] = (),
    *,
    start: int = 0,
    end: int = 100,
    number: int = 1,
) -> RankSteps:
    """Return a step of one rank; transfers are (bucket, start, end)."""
    step = StepRecord(step=number, start_ns=start, end_ns=end, spans=tuple(spans))
    comms = [
        CommRecord(step=number, bucket=bucket, op="all_reduce", bytes=8, start_ns=begin, end_ns=until)
        for bucket, begin, until in transfers
    ]
    return RankSteps([step], comms)


def ns(seconds: float) -> float:
    return pytest.approx(seconds / 1e9, rel=1e-9, abs=1e-18)


def test_a_step_of_two_ranks_by_hand() -> None:
    # rank 0: data 0-5, forward 5-25, backward 25-60, optimizer 90-100; its bucket 0 leaves at 40, 1 at 60
    # rank 1: the same, but 10 later until its optimizer; bucket 0 leaves at 50, bucket 1 at 70
    # bucket 0 begins at 50 and ends at 65 for both; bucket 1 begins at 70 and ends at 85
    first = rank(
        [
            ("data", 0, 5),
            ("forward", 5, 25),
            ("backward", 25, 60),
            ("synchronize", 60, 90),
            ("optimizer", 90, 100),
        ],
        [(0, 40, 65), (1, 60, 85)],
    )
    second = rank(
        [
            ("data", 0, 15),
            ("forward", 15, 35),
            ("backward", 35, 70),
            ("synchronize", 70, 90),
            ("optimizer", 90, 100),
        ],
        [(0, 50, 65), (1, 70, 85)],
    )
    found = breakdown([{0: first, 1: second}], processes=2)
    assert found is not None
    # means of the two ranks
    assert found.comm_s == ns(30)  # [50,65) and [70,85) for both
    assert found.exposed_s == ns((20 + 15) / 2)  # rank 0: [60,65) and [70,85); rank 1: [70,85)
    assert found.overlapped_s == ns((10 + 15) / 2)
    assert found.overlap_fraction == pytest.approx(1 - 17.5 / 30)
    assert found.wait_s == ns((20 + 0) / 2)  # rank 0: [40,50) and [60,70)
    assert found.parts["exposed_wait"] == ns((5 + 0) / 2)  # rank 0: [65,70) is neither backward nor bucket 0
    assert found.parts["exposed_comm"] == ns(17.5)
    assert found.parts["forward"] == ns(20)
    assert found.parts["backward"] == ns(35)
    assert found.parts["optimizer"] == ns(10)
    assert found.parts["data"] == ns(10)
    assert found.parts["not_attributed"] == ns(5)  # [85,90), in which gradients are copied back
    assert sum(found.parts.values()) == ns(100)
    assert found.has_transfers


def holistic(spans: Sequence[tuple[str, int, int]], transfers: Sequence[tuple[int, int, int]]) -> int:
    """Return exposed communication by Holistic Trace Analysis' definition, for one rank: its transfers from call to
    result, without the time in which it computes. Every nanosecond is checked.
    """

    def within(at: int, parts: Sequence[tuple[Any, int, int]]) -> bool:
        return any(start <= at < end for _, start, end in parts)

    computing = [span for span in spans if span[0] in COMPUTE_SPANS]
    return sum(within(at, transfers) and not within(at, computing) for at in range(100))


@given(
    st.tuples(st.integers(5, 60), st.integers(5, 60)),
    st.tuples(st.integers(0, 30), st.integers(0, 30)),
    st.tuples(st.integers(1, 15), st.integers(1, 15)),
)
def test_exposed_and_waiting_together_are_what_holistic_trace_analysis_calls_exposed(
    computed: tuple[int, int], handed_before: tuple[int, int], moved: tuple[int, int]
) -> None:
    """The conversion that the glossary and docs/method.md give, for two ranks that are late by turns."""
    handed = [max(0, until - before) for until, before in zip(computed, handed_before, strict=True)]
    ends = [max(handed) + took for took in moved]
    spans = [[("backward", 0, until), ("optimizer", 90, 100)] for until in computed]
    transfers = [[(0, start, end)] for start, end in zip(handed, ends, strict=True)]
    ranks = {number: rank(spans[number], transfers[number]) for number in (0, 1)}
    found = breakdown([ranks], processes=2)
    assert found is not None
    theirs = [holistic(spans[number], transfers[number]) for number in (0, 1)]
    assert found.parts["exposed_comm"] + found.parts["exposed_wait"] == ns(sum(theirs) / 2)


@pytest.mark.parametrize("ahead_ns", [0, 10**12, -7])
def test_on_two_hosts_an_all_reduce_takes_as_long_as_its_shortest_part(ahead_ns: int) -> None:
    # With one clock: the bucket leaves at 40 and at 60 and is back at 80 on both, so that it takes 20 and
    # rank 0 waits 20. The other host's clock is ahead by any amount; its steps show the same.
    def on(host: str, leaves: int, ahead: int) -> RankSteps:
        found = rank(
            [("forward", ahead, ahead + 40), ("backward", ahead + 40, ahead + leaves)],
            [(0, ahead + leaves, ahead + 80)],
            start=ahead,
            end=ahead + 100,
        )
        return replace(found, host=host)

    found = breakdown([{0: on("a", 40, 0), 1: on("b", 60, ahead_ns)}], processes=2)
    assert found is not None
    assert found.comm_s == ns(20)
    assert found.wait_s == ns((20 + 0) / 2)
    assert found.parts["exposed_wait"] == ns(10)
    (moved,) = found.transfers[0].values()
    assert (moved.count, moved.time_ns) == (1, 20)


def test_on_two_hosts_waiting_for_a_gather_counts_as_communication() -> None:
    def part(host: str, start: int, end: int) -> RankSteps:
        step = StepRecord(step=1, start_ns=0, end_ns=100, spans=())
        sent = CommRecord(step=1, bucket=0, op="gather", bytes=8, start_ns=start, end_ns=end)
        return RankSteps([step], [sent], host)

    found = breakdown([{0: part("a", 10, 90), 1: part("b", 60, 70)}], processes=2)
    assert found is not None
    assert found.comm_s == ns((80 + 10) / 2)
    assert found.wait_s == 0
    assert found.transfers == {0: {}}  # its duration from the last start on is unknown


def test_what_two_of_three_ranks_exchange_is_told_by_its_number_whatever_the_step() -> None:
    # The server (rank 0) is ready for a push at 0 and has it at 30; it updates until 40 and sends until 45.
    # Worker 1 queues its push at 20, is done at 28 and has its parameters at 50. For the server this is step
    # 1, for worker 1 step 7.
    def part(step: int, op: str, start: int, end: int, message: int, sent: int = 0) -> CommRecord:
        return CommRecord(
            step=step, bucket=0, op=op, bytes=8, start_ns=start, end_ns=end, message=message, sent_bytes=sent
        )

    server = rank([("optimizer", 30, 40)])
    server = replace(server, transfers=[part(1, "push", 0, 30, 4), part(1, "pull", 40, 45, 4, 8)])
    worker = rank([("backward", 0, 20)], number=7)
    early = part(7, "pull", 0, 10, 1)  # its server's part was in a step before the first: unknown duration
    pushed, pulled = part(7, "push", 20, 28, 4, 8), part(7, "pull", 28, 50, 4)
    worker = replace(worker, transfers=[early, pushed, pulled])
    found = breakdown([{0: server, 1: worker, 2: rank([("backward", 0, 100)], number=7)}], processes=3)
    assert found is not None
    assert found.dropped_transfers == 0
    assert found.comm_s == ns(
        (10 + 10 + 10 + 10) / 3
    )  # [20,30) and [40,50), for the server and for the worker
    assert found.exposed_s == found.comm_s
    assert found.wait_s == ns(
        (20 + 12) / 3
    )  # the server until 20; the worker while it updates, and from its push on
    assert {key: (moved.count, moved.time_ns) for key, moved in found.transfers[0].items()} == {
        ("push", 8): (1, 10),
        ("pull", 8): (1, 10),
    }
    assert found.sent_bytes == 8


def test_a_message_between_two_of_three_ranks_is_whole_with_those_two() -> None:
    # rank 1 asks at 20, rank 0 sends at 50, it arrives at 60; rank 2 is not involved
    def part(start: int, end: int) -> RankSteps:
        step = StepRecord(step=1, start_ns=0, end_ns=100, spans=())
        message = CommRecord(step=1, bucket=0, op="send", bytes=8, start_ns=start, end_ns=end, ranks=2)
        return RankSteps([step], [message])

    found = breakdown([{0: part(50, 50), 1: part(20, 60), 2: rank([])}], processes=3)
    assert found is not None
    assert found.dropped_transfers == 0
    assert found.wait_s == ns(30 / 3)
    assert found.comm_s == ns((10 + 10) / 3)  # on its way from rank 0 as long as to rank 1
    (moved,) = found.transfers[0].values()
    assert (moved.count, moved.time_ns) == (1, 10)
    one_lacks = breakdown([{0: part(50, 50), 1: rank([]), 2: rank([])}], processes=3)
    assert one_lacks is not None
    assert one_lacks.dropped_transfers == 1


def test_two_transfers_at_once_count_once() -> None:
    found = breakdown([{0: rank([], [(0, 10, 40), (1, 20, 50)])}], processes=1)
    assert found is not None
    assert found.comm_s == ns(40)
    assert found.overlap_fraction == pytest.approx(0)


def test_a_rank_that_is_done_before_the_last_has_started_waits_no_longer() -> None:
    # a gather's sender may be done before its receiver has begun
    sender, receiver = rank([], [(0, 10, 20)]), rank([], [(0, 50, 80)])
    found = breakdown([{0: sender, 1: receiver}], processes=2)
    assert found is not None
    assert found.wait_s == ns((10 + 0) / 2)
    assert found.comm_s == ns((0 + 30) / 2)


def test_a_transfer_that_lacks_a_rank_is_dropped_and_counted() -> None:
    whole = rank([("forward", 0, 50)], [(0, 60, 70), (1, 70, 90)])
    torn = rank([("forward", 0, 50)], [(0, 60, 70)])
    found = breakdown([{0: whole, 1: torn}], processes=2)
    assert found is not None
    assert found.dropped_transfers == 1
    assert found.comm_s == ns(10)


def test_a_missing_rank_drops_every_transfer() -> None:
    found = breakdown([{0: rank([("forward", 0, 50)], [(0, 60, 70)])}], processes=2)
    assert found is not None
    assert (found.dropped_transfers, found.has_transfers, found.overlap_fraction) == (1, False, None)


def test_the_second_transfer_of_a_bucket_in_a_step_is_not_the_first() -> None:
    first = rank([], [(0, 10, 20), (0, 50, 60)])
    second = rank([], [(0, 12, 20), (0, 55, 60)])
    found = breakdown([{0: first, 1: second}], processes=2)
    assert found is not None
    assert found.comm_s == ns(8 + 5)
    assert found.wait_s == ns((2 + 5) / 2)


def test_means_are_over_ranks_then_launches_so_that_a_longer_launch_weighs_no_more() -> None:
    long = RankSteps([step for n in range(3) for step in rank([("forward", 0, 10)], number=n).steps], [])
    short = rank([("forward", 0, 40)])
    found = breakdown([{0: long}, {0: short}], processes=1)
    assert found is not None
    assert found.parts["forward"] == ns((10 + 40) / 2)
    assert found.launches == 2


def test_parts_and_shares_are_the_median_launch_s_with_the_sign_test_s_interval() -> None:
    """Five launches with different communication after backward, or half overlapped; one of them is slow."""
    lengths = [(10, 30), (20, 40), (30, 50), (40, 60), (80, 85)]
    launches = [
        {0: rank([("backward", 0, back)], [(0, 10, 10 + moved)])} for back, moved in lengths
    ]  # hidden: 0, 10, 20, 30, 70, of a step of 100
    found = breakdown(launches, processes=1)
    assert found is not None
    for names, low, middle, high in (
        (["comm"], 30, 50, 85),
        (["backward"], 10, 30, 80),
        (["backward", "comm"], 40, 80, 165),
    ):
        interval = found.interval(*names)  # of five the least and the largest: 93.75 %
        assert (interval.low, interval.value, interval.high) == (ns(low), ns(middle), ns(high))
    assert found.parts["backward"] == ns(30)
    assert found.comm_s == ns(50)
    overlap = found.overlap_interval()
    assert overlap is not None
    assert (overlap.low, overlap.value) == (0, pytest.approx(0.4))
    assert overlap.high == pytest.approx(70 / 85)
    assert found.overlap_fraction == overlap.value
    exposed = share_of_step(found, "exposed_comm")
    assert (exposed.low, exposed.value, exposed.high) == tuple(map(pytest.approx, (0.15, 0.3, 0.3)))
    four = breakdown(launches[:4], processes=1)
    assert four is not None
    assert (four.interval("comm").low, four.interval("comm").high) == (None, None)
    assert (share_of_step(four, "backward").low, four.overlap_interval().low) == (None, None)  # type: ignore[union-attr]


def test_spans_of_one_name_add_up_and_unknown_ones_are_not_attributed() -> None:
    spans = [
        ("scatter", 0, 10),
        ("forward", 10, 30),
        ("gather", 30, 35),
        ("forward", 35, 40),
        ("odd", 40, 90),
    ]
    found = breakdown([{0: rank(spans)}], processes=1)
    assert found is not None
    assert list(found.spans) == ["scatter", "forward", "gather", "odd"]
    assert found.spans["forward"] == ns(25)
    assert found.parts["forward"] == ns(25)
    assert found.parts["other_compute"] == ns(15)
    assert found.parts["not_attributed"] == ns(60)


def test_without_instrumented_steps_there_is_nothing() -> None:
    assert breakdown([], processes=1) is None
    assert breakdown([{0: RankSteps([], [])}], processes=1) is None


def test_a_launch_in_which_a_rank_has_no_step_is_not_in_its_means() -> None:
    steps = rank([("forward", 0, 40)])
    none = RankSteps([], [])
    found = breakdown([{0: steps, 1: steps}, {0: steps, 1: none}, {0: steps, 1: none}], processes=2)
    assert found is not None
    assert {number: (parts["forward"], parts["step"]) for number, parts in found.by_rank.items()} == {
        0: (ns(40), ns(100)),
        1: (ns(40), ns(100)),
    }
    lacking = breakdown([{0: steps, 1: none}], processes=2)
    assert lacking is not None
    assert set(lacking.by_rank) == {0}


NAMES = sorted(COMPUTE_SPANS | {"data", "synchronize"})
interval = st.tuples(st.integers(0, 60), st.integers(0, 60)).map(sorted)
spans_of = st.lists(st.tuples(st.sampled_from(NAMES), interval), max_size=6)
transfers_of = st.lists(interval, min_size=3, max_size=3)


@given(st.lists(st.tuples(spans_of, transfers_of), min_size=1, max_size=3))
def test_parts_are_those_of_counting_every_nanosecond(
    ranks: list[tuple[list[tuple[str, list[int]]], list[list[int]]]],
) -> None:
    recorded = {
        number: rank(
            [(name, start, end) for name, (start, end) in spans],
            [(bucket, start, end) for bucket, (start, end) in enumerate(transfers)],
            end=60,
        )
        for number, (spans, transfers) in enumerate(ranks)
    }
    found = breakdown([recorded], processes=len(ranks))
    assert found is not None
    expected = dict.fromkeys([*PARTS, "comm", "exposed", "wait"], 0.0)
    begins = [max(transfers[bucket][0] for _, transfers in ranks) for bucket in range(3)]
    for spans, transfers in ranks:
        for now in range(60):
            doing = {name for name, (start, end) in spans if start <= now < end}
            moving = any(begin <= now < end for begin, (_, end) in zip(begins, transfers, strict=True))
            waiting = any(
                start <= now < min(begin, end) for begin, (start, end) in zip(begins, transfers, strict=True)
            )
            computing = doing & COMPUTE_SPANS
            expected["comm"] += moving
            expected["exposed"] += moving and not computing
            expected["wait"] += waiting
            standard = [name for name in ("forward", "backward", "optimizer") if name in doing]
            if standard:
                expected[standard[0]] += 1
            elif computing:
                expected["other_compute"] += 1
            elif moving:
                expected["exposed_comm"] += 1
            elif waiting:
                expected["exposed_wait"] += 1
            elif "data" in doing:
                expected["data"] += 1
            else:
                expected["not_attributed"] += 1
    count = len(ranks)
    for name in PARTS:
        assert found.parts[name] * 1e9 == pytest.approx(expected[name] / count), name
    assert found.comm_s * 1e9 == pytest.approx(expected["comm"] / count)
    assert found.exposed_s * 1e9 == pytest.approx(expected["exposed"] / count)
    assert found.wait_s * 1e9 == pytest.approx(expected["wait"] / count)
    assert sum(found.parts.values()) == pytest.approx(found.step_s)


launch_of = st.lists(st.tuples(spans_of, transfers_of), min_size=1, max_size=3)
case_of = st.tuples(st.lists(launch_of, max_size=2), st.integers(1, 3), st.sampled_from(["", "gloo", "nccl"]))


def instrumented(launches: list[Any], processes: int, backend: str, later_ns: int = 0) -> Instrumented:
    """Return launches of one step, its times after `later_ns`; the last rank's last transfer ends as late again."""

    def noted(spans: list[Any], transfers: list[Any], *, late: bool) -> RankSteps:
        parts = [(bucket, later_ns + start, later_ns + end) for bucket, (start, end) in enumerate(transfers)]
        if late:
            parts[-1] = (*parts[-1][:2], 2 * later_ns + parts[-1][2])
        own = [(name, later_ns + start, later_ns + end) for name, (start, end) in spans]
        return rank(own, parts, start=later_ns, end=later_ns + 60)

    ranks = [
        {n: noted(*each, late=n == len(launch) - 1) for n, each in enumerate(launch)} for launch in launches
    ]
    return Instrumented(launches=ranks, rounds=range(3, 3 + len(ranks)), processes=processes, backend=backend)


def assert_alike(found: Breakdown | None, alone: Breakdown | None) -> None:
    if found is None or alone is None:
        assert found is alone
        return
    assert replace(found, transfers={}) == replace(alone, transfers={})
    assert list(found.spans) == list(alone.spans)
    assert found.transfers.keys() == alone.transfers.keys()
    for number, moved in alone.transfers.items():
        assert found.transfers[number].keys() == moved.keys()
        for key, one in moved.items():
            assert found.transfers[number][key].count == one.count
            assert found.transfers[number][key].time_ns == pytest.approx(one.time_ns, rel=1e-9, abs=1e-6)


@given(st.lists(case_of, max_size=4), st.integers(0, 4))
def test_cases_worked_on_together_are_as_each_alone(cases: list[Any], place: int) -> None:
    every = [instrumented(*case) for case in cases]
    # A damaged number among them puts times a hundred years apart, without other effects.
    every.insert(place, instrumented([[([], [[0, 10], [10, 20], [20, 30]])] * 2], 2, "gloo", later_ns=2**61))
    for most in (1, 10, 10**6):
        with mock.patch.object(overlap, "MOST_AT_ONCE", most):
            found = list(breakdowns(every))
        assert len(found) == len(every)
        for case, one in zip(every, found, strict=True):
            assert_alike(one, breakdown(case.launches, case.processes, case.rounds, case.backend))


rows = st.tuples(st.integers(0, 2), st.integers(0, 1), st.integers(0, 30), st.integers(0, 30))


@given(st.lists(rows, max_size=12))
def test_coverage_is_set_algebra(table: list[tuple[int, int, int, int]]) -> None:
    owner, lengths, covered = coverage(np.array(table, np.int64).reshape(-1, 4), 2)
    for group in range(3):
        sets: list[set[int]] = [set(), set()]
        for whose, kind, start, end in table:
            if whose == group:
                sets[kind] |= set(range(start, end))
        mine = owner == group
        assert lengths[mine & covered[0]].sum() == len(sets[0])
        assert lengths[mine & covered[1]].sum() == len(sets[1])
        assert lengths[mine & covered[0] & ~covered[1]].sum() == len(sets[0] - sets[1])
        assert lengths[mine & covered[0] & covered[1]].sum() == len(sets[0] & sets[1])


def test_what_the_step_before_the_first_sent_is_under_way_in_the_first() -> None:
    """Step 0 follows a barrier and does not count; a scatter queued in it may still flow in step 1.

    Rank 0 scatters from 90 on, which its receiver has at 130: 30 ns of each whole step are behind its forward pass.
    """

    def of(number: int, part: tuple[int, int], op: str = "scatter") -> CommRecord:
        start, end = (100 * number + moment for moment in part)
        return CommRecord(step=number, bucket=0, op=op, bytes=8, start_ns=start, end_ns=end, root=0)

    def noted(part: tuple[int, int], first: int) -> RankSteps:
        steps = [
            StepRecord(
                step=number,
                start_ns=100 * number,
                end_ns=100 * number + 100,
                spans=(("forward", 100 * number, 100 * number + 40),),
            )
            for number in (1, 2)
        ]
        return RankSteps.of(steps, [of(number, part) for number in range(first, 3)])

    root, receiver = (90, 92), (90, 130)
    found = breakdown([{0: noted(root, 0), 1: noted(receiver, 0)}], processes=2)
    without = breakdown([{0: noted(root, 1), 1: noted(receiver, 1)}], processes=2)
    assert found is not None
    assert without is not None
    assert found.overlapped_s == ns(30)
    assert without.overlapped_s == ns(15)  # as in runs that did not record it
    assert found.comm_s == ns(40)
    assert found.transfers == without.transfers  # transferred amounts are those of whole steps
    assert found.network_s == without.network_s
    assert sum(found.parts.values()) == ns(100)
