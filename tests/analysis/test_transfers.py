"""Times at which a transfer is queued, waits and moves data, per kind of operation: intervals worked out by hand."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddpbench.analysis.read.overlap import breakdown
from ddpbench.analysis.read.parts import RankSteps
from ddpbench.analysis.read.transfers import Transfers, transfers_of
from ddpbench.collectives import TABLE as COLLECTIVES
from ddpbench.records import CommRecord, StepRecord
from ddpbench.records.operations import OPERATIONS, slots_of
from tests.failures.conftest import ROOT

Part = tuple[int, int]
"""Times at which a part is queued and ends."""


def launch(
    op: str, parts: Mapping[int, Sequence[Part]], *, length: int = 1000, **settings: Any
) -> dict[int, RankSteps]:
    """Return ranks with one step each from 0, and transfers of one operation, one bucket each."""
    return {
        rank: RankSteps(
            [StepRecord(step=1, start_ns=0, end_ns=length, spans=())],
            [
                CommRecord(step=1, bucket=n, op=op, bytes=8, start_ns=start, end_ns=end, **settings)
                for n, (start, end) in enumerate(own)
            ],
        )
        for rank, own in parts.items()
    }


def found(launches: Mapping[int, RankSteps], backend: str = "") -> Transfers:
    moved = transfers_of([launches], len(launches), backend)
    assert moved is not None
    return moved


def intervals(moved: Transfers) -> dict[int, list[tuple[int, int, int, int]]]:
    """Return by rank queueing, service, begin and end of each part, in the order of queueing."""
    result: dict[int, list[tuple[int, int, int, int]]] = {}
    columns = (moved.rank, moved.handed, moved.served, moved.begin, moved.end)
    for rank, *times in zip(*(each.tolist() for each in columns), strict=True):
        result.setdefault(rank, []).append(tuple(times))
    return {rank: sorted(of) for rank, of in sorted(result.items())}


# Ranks out of phase: 0 starts at 30, 1 at 10, 2 at 50, 3 at 20; each one's recorded end is next to it.
LATE_ROOT = {0: [(30, 200)], 1: [(10, 40)], 2: [(50, 90)], 3: [(20, 180)]}


@pytest.mark.parametrize(
    ("op", "expected", "whole"),
    [
        # from the last start, 50, until each has its result; rank 1 claims an earlier end: nothing of its
        # part is left
        ("all_reduce", {0: (50, 200), 1: (40, 40), 2: (50, 90), 3: (50, 180)}, (50, 200)),
        # the root's start, 30, holds 1 and 3 up, and 1 lets it begin at once; all end when the root has everything
        ("gather", {0: (30, 200), 1: (30, 200), 2: (50, 200), 3: (30, 200)}, (30, 200)),
        # likewise, but each receiver ends by itself, and the root with the last of them
        ("scatter", {0: (30, 200), 1: (30, 40), 2: (50, 90), 3: (30, 180)}, (30, 200)),
        ("master", {0: (30, 200), 1: (30, 40), 2: (50, 90), 3: (30, 180)}, (30, 200)),
        # 0 has the children 1 and 2, and 2 has the child 3: 1 waits for 0, 3 for 2, 2 for nobody
        ("tree", {0: (30, 200), 1: (30, 40), 2: (50, 180), 3: (50, 180)}, (30, 200)),
    ],
)
def test_when_data_flow_depends_on_the_operation(op: str, expected: Mapping[int, Part], whole: Part) -> None:
    moved = found(launch(op, LATE_ROOT))
    assert {rank: of[0][2:] for rank, of in intervals(moved).items()} == expected
    assert (moved.begins.tolist(), moved.ends.tolist()) == ([whole[0]], [whole[1]])


def test_an_operation_from_another_root() -> None:
    moved = found(launch("broadcast", LATE_ROOT, root=2))
    assert {rank: of[0][2:] for rank, of in intervals(moved).items()} == {
        0: (50, 200),
        1: (40, 40),
        2: (50, 200),
        3: (50, 180),
    }
    # A record without a root: the bucket's number names the rank, here 0 and then 1.
    moved = found(
        launch("broadcast", {0: [(10, 60), (12, 70)], 1: [(20, 60), (30, 70)], 2: [(5, 60), (6, 70)]})
    )
    assert {rank: [one[2] for one in of] for rank, of in intervals(moved).items()} == {
        0: [10, 30],
        1: [20, 30],
        2: [10, 30],
    }


def test_a_root_begins_with_its_first_other() -> None:
    moved = found(launch("gather", {0: [(0, 100)], 1: [(40, 60)], 2: [(70, 100)]}))
    assert {rank: of[0][2:] for rank, of in intervals(moved).items()} == {
        0: (40, 100),
        1: (40, 100),
        2: (70, 100),
    }
    step = breakdown([launch("gather", {0: [(0, 100)], 1: [(40, 60)], 2: [(70, 100)]})], 3)
    assert step is not None
    assert step.wait_s == pytest.approx(40e-9 / 3)  # the root's, while nothing moves
    assert step.comm_s == pytest.approx((60 + 60 + 30) * 1e-9 / 3)
    assert step.network_s == {0: pytest.approx(60e-9)}


def test_network_time_is_that_of_all_steps_where_few_transfer() -> None:
    ranks = {
        rank: RankSteps(
            [StepRecord(step=n, start_ns=100 * n, end_ns=100 * n + 100, spans=()) for n in range(8)],
            [
                CommRecord(step=n, bucket=0, op="all_reduce", bytes=8, start_ns=100 * n, end_ns=100 * n + 90)
                for n in (3, 7)
            ],
        )
        for rank in range(2)
    }
    step = breakdown([ranks], 2)
    assert step is not None
    assert step.comm_s == pytest.approx(22.5e-9)
    assert step.network_s == {0: pytest.approx(22.5e-9)}
    assert step.window_s == {0: pytest.approx(100e-9)}


def test_a_gather_whose_messages_are_buffered_is_no_waiting() -> None:
    # Sixteen nodes: workers queue at 100 and are done at 438 by their own record; the root drains its link
    # until 1594. Their scatter, queued at 438, begins when the root turns to it.
    gather = {0: [(100, 1594)]} | {rank: [(100, 438)] for rank in range(1, 16)}
    scatter = {0: [(1600, 3000)]} | {rank: [(438, 3094)] for rank in range(1, 16)}
    ranks = {
        rank: RankSteps(
            [StepRecord(step=1, start_ns=0, end_ns=3100, spans=())],
            [
                CommRecord(
                    step=1,
                    bucket=0,
                    op="gather",
                    bytes=8,
                    start_ns=gather[rank][0][0],
                    end_ns=gather[rank][0][1],
                ),
                CommRecord(
                    step=1,
                    bucket=1,
                    op="scatter",
                    bytes=8,
                    start_ns=scatter[rank][0][0],
                    end_ns=scatter[rank][0][1],
                ),
            ],
        )
        for rank in range(16)
    }
    step = breakdown([ranks], 16, backend="gloo")
    assert step is not None
    assert step.comm_s == pytest.approx((1494 + 1494) * 1e-9)
    assert step.parts["exposed_wait"] == pytest.approx(15 / 16 * 6e-9)  # while the root adds up
    assert step.wait_s == step.parts["exposed_wait"]
    assert step.queue_s == pytest.approx(15 / 16 * 1156e-9)  # the scatter, behind the gather
    assert step.network_s == {0: pytest.approx(2988e-9)}


@pytest.mark.parametrize("receiver_ends", [60, 75])
def test_a_message_ends_for_both_when_its_receiver_has_it(receiver_ends: int) -> None:
    def part(start: int, end: int, sent: int | None) -> RankSteps:
        step = StepRecord(step=1, start_ns=0, end_ns=100, spans=())
        own = CommRecord(
            step=1, bucket=0, op="send", bytes=8, start_ns=start, end_ns=end, ranks=2, sent_bytes=sent
        )
        return RankSteps([step], [own])

    moved = found(
        {0: part(20, 65, 8), 1: part(50, receiver_ends, None)}
    )  # the sender learns of its end at 65
    assert intervals(moved) == {0: [(20, 20, 50, receiver_ends)], 1: [(50, 50, 50, receiver_ends)]}


FIVE = {0: [(0, 10 * (n + 1)) for n in range(5)], 1: [(0, 10 * (n + 1)) for n in range(5)]}
"""Five transfers of 10 each, one after the other, all queued at 0."""
PAIRED = {rank: [(0, 20), (0, 20), (0, 40), (0, 40), (0, 50)] for rank in (0, 1)}
"""Five transfers where two share the links, and the last has them alone."""


@pytest.mark.parametrize(("backend", "parts"), [("nccl", FIVE), ("gloo", FIVE), ("gloo", PAIRED), ("", FIVE)])
def test_time_in_a_queue_is_not_time_on_the_wire(backend: str, parts: Mapping[int, Sequence[Part]]) -> None:
    moved = found(launch("all_reduce", parts), backend)
    (sizes,) = moved.moved().values()
    (total,) = sizes.values()
    assert (total.count, total.time_ns) == (
        5,
        pytest.approx(50),
    )  # 10 each, in any order of queueing
    if parts is PAIRED or backend == "nccl":
        assert moved.charged.tolist() == pytest.approx([10] * 5)


def test_one_stream_serves_one_after_the_other_and_two_threads_two() -> None:
    one = intervals(found(launch("all_reduce", FIVE), "nccl"))
    assert one[0] == [(0, max(0, end - 10), end - 10, end) for end in (10, 20, 30, 40, 50)]
    two = intervals(found(launch("all_reduce", PAIRED), "gloo"))
    assert two[1] == [(0, 0, 0, 20), (0, 0, 0, 20), (0, 20, 20, 40), (0, 20, 20, 40), (0, 40, 40, 50)]
    assert all(part[0] == part[1] for part in intervals(found(launch("all_reduce", FIVE), "ucc"))[0])


def test_a_queue_is_neither_communication_nor_waiting() -> None:
    # Rank 1 queues everything 7 later: rank 0 waits for the first, and has the others in its queue.
    parts = {0: FIVE[0], 1: [(7, end) for _, end in FIVE[1]]}
    step = breakdown([launch("all_reduce", parts)], 2, backend="nccl")
    assert step is not None
    assert step.comm_s == pytest.approx(43e-9)
    assert step.wait_s == pytest.approx(7e-9 / 2)
    assert step.queue_s == pytest.approx((40 + 33) * 1e-9 / 2)


def test_a_rank_that_notes_when_it_turned_to_a_transfer_needs_no_inference() -> None:
    ranks = launch("ring", {0: [(0, 30)], 1: [(10, 30)]}, begun_ns=12)
    assert intervals(found(ranks, "gloo"))[0] == [(0, 12, 12, 30)]
    older = launch(
        "ring", {0: [(0, 30), (0, 50)], 1: [(0, 30), (0, 50)]}
    )  # one thread, which works them off in turn
    assert [part[1] for part in intervals(found(older, "gloo"))[0]] == [0, 30]


def test_messages_are_not_queued() -> None:
    assert slots_of("send", "gloo") is None
    assert slots_of("something else", "gloo") is None


@given(st.integers(0, 10_000), st.integers(1, 2), st.integers(1, 3))
def test_a_queue_is_that_of_so_many_servers(seed: int, slots: int, ranks: int) -> None:
    """A simulation: `slots` servers take transfers in their order, each of some length, on every rank at once."""
    random_of = random.Random(seed)
    handed = sorted(random_of.randrange(100) for _ in range(8))
    free, parts, begins = [0] * slots, [], []
    for at in handed:
        server = min(range(slots), key=free.__getitem__)
        begins.append(max(at, free[server]))
        free[server] = begins[-1] + random_of.randrange(1, 30)
        parts.append((at, free[server]))
    moved = found(launch("all_reduce", dict.fromkeys(range(ranks), parts)), {1: "nccl", 2: "gloo"}[slots])
    for rank in range(ranks):
        of = moved.rank == rank
        assert moved.served[of].tolist() == begins
    union = len({now for begin, (_, end) in zip(begins, parts, strict=True) for now in range(begin, end)})
    assert moved.charged.sum() == pytest.approx(union)
    # On a link that serves one unit of data per unit of time, no transfer appears faster than the link.
    for charged, begin, (_, end) in zip(moved.charged, begins, parts, strict=True):
        assert (end - begin) / slots - 1e-6 <= charged <= end - begin + 1e-6


def test_what_goes_on_after_its_step_belongs_to_the_next() -> None:
    def rank(start: int, end: int, sent: int) -> RankSteps:
        steps = [
            StepRecord(
                step=n, start_ns=100 * n, end_ns=100 * n + 100, spans=(("forward", 100 * n, 100 * n + 20),)
            )
            for n in (0, 1)
        ]
        own = CommRecord(
            step=0, bucket=0, op="send", bytes=8, start_ns=start, end_ns=end, ranks=2, sent_bytes=sent
        )
        return RankSteps(steps, [own])

    step = breakdown([{0: rank(60, 60, 8), 1: rank(70, 150, 0)}], 2)
    assert step is not None
    assert step.comm_s == pytest.approx(80e-9 / 2)  # 70 to 150, over two steps
    assert step.overlapped_s == pytest.approx(20e-9 / 2)
    assert step.exposed_s == pytest.approx(60e-9 / 2)


def test_every_operation_has_an_entry() -> None:
    """Each operation that a strategy records, and each algorithm."""
    noted = {
        line.split('op="')[1].split('"')[0]
        for path in sorted((ROOT / "ddpbench" / "strategies").rglob("*.py"))
        for line in path.read_text(encoding="utf-8").splitlines()
        if 'op="' in line
    }
    assert len(noted) > 5
    assert noted | set(COLLECTIVES) <= OPERATIONS.keys()


def test_groups_of_ranks_share_no_link_and_are_transfers_of_their_own() -> None:
    """Ranks 0 and 1, and 2 and 3, gather at the same time, each group by itself; a transfer of all ranks follows."""

    def noted(bucket: int, start: int, end: int, ranks: int | None) -> CommRecord:
        op = "all_gather" if ranks else "all_reduce"
        return CommRecord(step=1, bucket=bucket, op=op, bytes=8, start_ns=start, end_ns=end, ranks=ranks)

    step = StepRecord(step=1, start_ns=0, end_ns=1000, spans=())
    launches = {
        rank: RankSteps([step], [noted(rank // 2, 100, 200, 2), noted(0, 300, 400, None)])
        for rank in range(4)
    }
    moved = found(launches)
    assert sorted(zip(moved.begins.tolist(), moved.ends.tolist(), strict=True)) == [
        (100, 200),
        (100, 200),
        (300, 400),
    ]
    (sizes,) = moved.moved().values()
    amounts = {op: (one.count, one.time_ns, one.ranks) for (op, _), one in sizes.items()}
    assert amounts == {"all_gather": (2, 200.0, 2), "all_reduce": (1, 100.0, 4)}
