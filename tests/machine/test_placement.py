"""The cores that ranks and their loader workers get."""

from __future__ import annotations

import pytest

from ddpbench.launch.plan import _nearby
from ddpbench.machine.hardware import Hardware
from ddpbench.machine.placement import Stand, deal

EIGHT = tuple(range(8))


def test_loader_workers_get_cores_of_their_own_while_there_are_some() -> None:
    assert deal(EIGHT, 2, threads=1, loader_workers=2) == [
        Stand(cores=(0,), loader_cores=(2, 3)),
        Stand(cores=(1,), loader_cores=(4, 5)),
    ]
    assert deal(EIGHT, 8, threads=1, loader_workers=2) == [Stand(cores=(core,)) for core in EIGHT]


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_beside_gpus_they_share_the_ranks_cores_at_every_number_of_ranks(ranks: int) -> None:
    """Otherwise one rank's would be on the other socket, and those of all GPUs' ranks next to them."""
    near = [(0, 1, 2, 3), (0, 1, 2, 3), (4, 5, 6, 7), (4, 5, 6, 7)][:ranks]
    found = deal(EIGHT, ranks, threads=1, loader_workers=2, nearby=near)
    assert found == [Stand(cores=own) for own in near]


def test_a_rank_whose_gpu_nobody_knows_may_use_all_cores() -> None:
    hardware = Hardware(cores=EIGHT, physical=8, quota=None, gpu_addresses=(), cpu_model="x")
    assert _nearby(hardware, 2, ()) == [EIGHT, EIGHT]
