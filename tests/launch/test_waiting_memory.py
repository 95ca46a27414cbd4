"""The memory of launches that wait for their turn is estimated, and groups are split where it is short."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ddpbench.launch.memory import OWN_COPIES, RANK_BYTES, SERVER_BYTES, STEP_COPIES, step_bytes
from ddpbench.launch.sweep.waiting_memory import WaitingMemory, waiting_memory
from ddpbench.runtime.estimate import gradient_bytes, replay_of
from ddpbench.spec import Case, PlannedCase

GIB = 2**30


def planned(count: int, **settings: Any) -> list[PlannedCase]:
    """Return cases of one panel: bucket caps at two ranks, and their base case."""
    cases = [
        PlannedCase(
            case=Case(workload="mlp:small", strategy="ddp", world_size=2, bucket_cap_mb=n, **settings)
        )
        for n in range(1, count)
    ]
    return [*cases, PlannedCase(case=cases[0].case.baseline(), added_as_baseline=True)]


def per_rank(case: Case) -> int:
    return case.world_size * GIB


def found_for(free: int, count: int = 8, **settings: Any) -> WaitingMemory:
    found = waiting_memory(planned(count, **settings), "blocks", per_rank, free)
    assert found is not None
    return found


def test_what_waits_is_all_but_the_smallest_launch() -> None:
    found = found_for(20 * GIB)
    assert (found.ranks, found.needed_bytes, found.most, found.split) == (
        14,
        14 * GIB + SERVER_BYTES,
        8,
        False,
    )
    assert str(found) == "14 ranks wait with about 14.3 GiB of 20 GiB free"


def test_groups_are_split_above_four_fifths_of_what_is_free() -> None:
    needed = 15 * GIB + SERVER_BYTES  # of seven launches at two ranks and one at one
    assert not found_for(-(-needed * 10 // 8)).split
    found = found_for(needed * 10 // 8 - 10)
    assert (found.split, found.most) == (True, 7)
    found = found_for(8 * GIB)
    assert found.most == 3
    assert (found.ranks, found.needed_bytes) == (4, 4 * GIB + SERVER_BYTES), "the base case, and two others"
    assert str(found) == (
        "4 ranks wait with about 4.29 GiB of 8 GiB free; at most 3 launches alternate, to stay under 80 % of "
        "the free memory"
    )


def test_a_single_launch_is_always_allowed() -> None:
    found = found_for(GIB)
    assert (found.most, found.split) == (1, True)
    assert str(found).startswith(
        "launches run one after another, to stay under 80 % of the free memory: if two "
    )


def test_each_environment_needs_a_fork_server() -> None:
    cases = planned(3)
    passive = [
        replace(one, case=replace(one.case, env_json='{"OMP_WAIT_POLICY": "PASSIVE"}')) for one in cases
    ]
    found = waiting_memory([*cases, *passive], "blocks", per_rank, 100 * GIB)
    assert found is not None
    assert found.needed_bytes == 9 * GIB + 2 * SERVER_BYTES


def test_where_nothing_alternates_or_memory_is_unknown_there_is_no_estimate() -> None:
    assert waiting_memory(planned(4), "launches", per_rank, GIB) is None
    assert waiting_memory(planned(4, loader_workers=1), "blocks", per_rank, GIB) is None
    assert waiting_memory(planned(4), "blocks", lambda _: None, GIB) is None


@pytest.mark.parametrize("strategy", ["ddp", "data_parallel"])
def test_a_launch_holds_processes_and_copies_of_its_model(strategy: str) -> None:
    case = Case(workload="mlp:large", strategy=strategy, world_size=4)
    processes = 4 if strategy == "ddp" else 1
    # parameters, gradients, momentum and buckets
    assert step_bytes(case) == processes * RANK_BYTES + 4 * 4 * 4 * 9_050_368
    own = replace(case, workload="train.py:Mine")
    assert step_bytes(own) is None
    assert step_bytes(own, 1000) == processes * RANK_BYTES + 4 * OWN_COPIES * 1000


def test_a_replay_holds_copies_of_its_gradients() -> None:
    case = Case(workload="replay:resnet50-v100", strategy="ddp", world_size=2)
    replay = replay_of(case)
    assert replay is not None
    assert step_bytes(case) == 2 * RANK_BYTES + 2 * STEP_COPIES * gradient_bytes(case, replay)
