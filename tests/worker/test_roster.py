"""Participants, the leading slot, and the places of ranks: by hand for a few nodes."""

from __future__ import annotations

from typing import Any

import pytest

from ddpbench.errors import MachineError, OutputError, RequestError
from ddpbench.machine.placement import Stand
from ddpbench.spec import Case, PlannedCase
from ddpbench.worker.slot.roster import (
    Card,
    Seat,
    check,
    check_places,
    leading,
    members_of,
    oversubscribed,
    seat,
    stands,
)


def card(rank: int, node: str = "0", local_rank: int = 0, **changes: Any) -> Card:
    values: dict[str, Any] = {
        "host": f"host{node}",
        "boot_id": f"boot{node}",
        "run_dir": "/runs/x",
        "cores": (0, 1, 2, 3),
        "physical": 4,
        "torch": "2.13",
        "python": "3.11",
        "code": "c0de",
        "plan": "9",
        "experiment": "e",
    }
    return Card(rank=rank, node=node, local_rank=local_rank, **{**values, **changes})


def two_by_two(**changes: Any) -> list[Card]:
    return [card(2 * node + local, str(node), local, **changes) for node in (0, 1) for local in (0, 1)]


def case(world: int, nodes: int = 1, **changes: Any) -> Case:
    return Case(
        workload="mlp:small",
        strategy="ddp",
        world_size=world,
        nodes=nodes,
        ranks_per_node=world // nodes,
        **changes,
    )


def test_equal_slots_may_take_part() -> None:
    check(two_by_two())


def test_every_difference_is_named_once_with_both_nodes_and_values() -> None:
    cards = [
        *two_by_two()[:2],
        card(2, "1", 0, torch="2.9", plan="8"),
        card(3, "1", 1, torch="2.9", plan="8"),
    ]
    with pytest.raises(MachineError) as caught:
        check(cards)
    lines = str(caught.value).splitlines()
    assert "install the same versions" in lines[0]
    assert lines[1:] == [
        "  torch: 2.13 on host0 (node 0, /runs/x), 2.9 on host1 (node 1, /runs/x)",
        "  plan.json, digest: 9 on host0 (node 0, /runs/x), 8 on host1 (node 1, /runs/x)",
    ]
    with pytest.raises(MachineError, match="same copy of the run directory"):
        check([card(0), card(1, "1", experiment="f")])


def test_a_slot_with_a_problem_speaks_before_all_comparisons() -> None:
    with pytest.raises(OutputError, match=r"host1 \(node 1, /runs/x\): no plan here"):
        check([card(0), card(1, "1", problem="no plan here", torch="")])


def test_who_has_most_leads_and_fills_first() -> None:
    cards = [card(0), card(1, local_rank=1, finished=7), card(2, "1", finished=5), card(3, "1", 1)]
    # Only a node's first slot leads: every case has a rank there.
    assert leading(cards) == 2
    seats = seat(cards, 2)
    assert [(one.rank, one.node, one.host) for one in seats] == [
        (2, 0, "host1"),
        (3, 0, "host1"),
        (0, 1, "host0"),
        (1, 1, "host0"),
    ]
    assert leading(two_by_two()) == 0


def test_two_hosts_of_one_name_share_no_clock() -> None:
    cards = [card(0, host="localhost"), card(1, "1", host="localhost")]
    assert [one.host for one in seat(cards, 0)] == ["localhost", "localhost#2"]
    assert len({one.host for one in seat([card(0), card(1, "1", host="host0", boot_id="boot0")], 0)}) == 1


def test_without_the_launchers_word_a_node_is_a_host() -> None:
    cards = [card(0, "", host="a"), card(1, "", host="b"), card(2, "", 1, host="a"), card(3, "", 1, host="b")]
    assert [(one.rank, one.node) for one in seat(cards, 0)] == [(0, 0), (2, 0), (1, 1), (3, 1)]


def test_ranks_fill_nodes_as_the_case_is_laid_out() -> None:
    seats = seat(two_by_two(), 0)

    def chosen(one: Case, processes: int) -> list[int] | None:
        members = members_of(one, processes, seats)
        return None if members is None else [member.rank for member in members]

    assert chosen(case(4, 2), 4) == [0, 1, 2, 3]
    assert chosen(case(2, 2), 2) == [0, 2]
    assert chosen(case(2, 1), 2) == [0, 1]
    assert chosen(case(2, 1), 1) == [0]  # all replicas in one process
    assert chosen(case(4, 1), 4) is None
    # A node with too few places is passed over.
    uneven = seat([card(0), card(1, "1"), card(2, "1", 1), card(3, "2"), card(4, "2", 1)], 0)
    members = members_of(case(4, 2), 4, uneven)
    assert members is not None
    assert [member.rank for member in members] == [1, 2, 3, 4]


def test_too_few_places_are_told_with_what_came_and_what_is_needed() -> None:
    wide = PlannedCase(case=case(8, 2))
    with pytest.raises(RequestError) as caught:
        check_places([(wide, 8), (PlannedCase(case=case(2)), 2)], seat(two_by_two(), 0))
    assert "2 nodes with 2 slots each joined" in str(caught.value)
    assert f"{wide.case.case_id} needs 2 x 4 (nodes x ranks)" in str(caught.value)
    on_gpus = PlannedCase(case=case(2, 1, device="cuda", backend="nccl"))
    three = [card(rank, "0", rank, gpus=("A", "A")) for rank in range(3)]
    with pytest.raises(RequestError, match="needs 3 GPUs on host0, where torch sees 2"):
        check_places([(PlannedCase(case=case(3, device="cuda")), 3)], seat(three, 0))
    check_places([(on_gpus, 2)], seat(two_by_two(gpus=("A", "A")), 0))
    # A launcher may show each slot its own GPU only.
    check_places([(on_gpus, 2)], seat(two_by_two(gpus=("A",)), 0))


def test_each_hosts_cores_are_dealt_to_its_ranks() -> None:
    seats = seat(two_by_two(), 0)
    assert stands(case(4, 2), seats) == [Stand(cores=(0,)), Stand(cores=(1,))] * 2
    one_host = seat(two_by_two(host="h", boot_id="b"), 0)
    # Two agents on one host: four ranks on it, a core each.
    assert [stand.cores for stand in stands(case(4, 2), one_host)] == [(0,), (1,), (2,), (3,)]
    threaded = stands(case(4, 2, threads_per_rank=2), seats)
    assert [stand.cores for stand in threaded] == [(0, 1), (2, 3)] * 2
    assert stands(case(4), seats[:1])[0].cores == (0, 1, 2, 3)  # one process with four replicas


def test_cores_a_launcher_has_bound_are_kept() -> None:
    bound = seat([card(0, cores=(4, 5)), card(1, local_rank=1, cores=(6, 7))], 0)
    assert [stand.cores for stand in stands(case(2), bound)] == [(4,), (6,)]
    assert not oversubscribed(case(2), bound)


def test_ranks_that_a_launcher_bound_to_the_same_cores_share_them() -> None:
    """For example by sockets: two ranks of each may use four cores, and each gets two of them."""
    masks = ((0, 1, 2, 3), (4, 5, 6, 7), (0, 1, 2, 3), (4, 5, 6, 7))
    bound = seat([card(rank, local_rank=rank, cores=masks[rank]) for rank in range(4)], 0)
    dealt = stands(case(4, threads_per_rank=2), bound)
    assert [stand.cores for stand in dealt] == [(0, 1), (4, 5), (2, 3), (6, 7)]
    assert not oversubscribed(case(4, threads_per_rank=2), bound)
    assert oversubscribed(case(4, threads_per_rank=3), bound)


def test_a_gpus_rank_stays_within_the_cores_it_is_bound_to() -> None:
    job = case(2, device="cuda", backend="nccl")
    cards = [
        card(rank, local_rank=rank, cores=own, gpus=("A",), gpu_cores=(0, 1, 2, 3))
        for rank, own in enumerate([(2, 3, 4, 5), (6, 7)])
    ]
    assert [stand.cores for stand in stands(job, seat(cards, 0))] == [(2, 3), (6, 7)]
    free = [card(rank, local_rank=rank, gpus=("A",) * 2, gpu_cores=(rank, rank + 2)) for rank in range(2)]
    assert [stand.cores for stand in stands(job, seat(free, 0))] == [(0, 2), (1, 3)]


def test_ranks_that_would_share_a_gpu_are_refused() -> None:
    on_gpus = PlannedCase(case=case(2, 1, device="cuda", backend="nccl"))
    one = [card(rank, local_rank=rank, gpus=("A",), gpu="GPU-1") for rank in range(2)]
    with pytest.raises(
        RequestError, match="a GPU for each rank, and 2 slots of host0 would use the same one"
    ):
        check_places([(on_gpus, 2)], seat(one, 0))
    own = [card(rank, local_rank=rank, gpus=("A",), gpu=f"GPU-{rank}") for rank in range(2)]
    check_places([(on_gpus, 2)], seat(own, 0))
    apart = [card(rank, str(rank), gpus=("A",), gpu="GPU-1") for rank in range(2)]
    check_places([(PlannedCase(case=case(2, 2, device="cuda")), 2)], seat(apart, 0))


def test_loader_workers_get_the_cores_left_over_on_their_host() -> None:
    placed = stands(case(4, 2, loader_workers=1), seat(two_by_two(), 0))
    assert [stand.loader_cores for stand in placed] == [(2,), (3,)] * 2


def test_oversubscribed_is_a_hosts_matter() -> None:
    four_cores_each = seat(two_by_two(), 0)
    assert not oversubscribed(case(4, 2), four_cores_each)
    one_core_each: list[Seat] = seat(two_by_two(physical=1), 0)
    assert oversubscribed(case(4, 2), one_core_each)
    assert not oversubscribed(case(2, 2), one_core_each[::2])
    assert oversubscribed(case(4, 2, threads_per_rank=3), four_cores_each)


def test_a_card_survives_the_store() -> None:
    whole = card(3, "1", 1, gpus=("A",), cpu_quota=1.5)
    assert Card.from_json({**whole.to_json(), "cores": [0, 1, 2, 3], "gpus": ["A"], "later": 1}) == whole
