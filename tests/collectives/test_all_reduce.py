"""Every algorithm on real ranks: right for any world and length, the same bits everywhere, bytes as in the formula."""

from __future__ import annotations

from functools import cache

import pytest
import torch
import torch.distributed as dist

from ddpbench.collectives import TABLE, load_collective, ring
from ddpbench.formulas import busiest_rank_bytes
from tests.ranks import run_ranks

WORLDS = (1, 2, 3, 4, 5, 8)
LENGTHS = (0, 1, 2, 3, 7, 64, 1000, 100_003)
COUNTED = 120_000  # divisible by all of these worlds, and by the powers of two within them
TYPES = (torch.float64, torch.float32, torch.bfloat16)

pytestmark = pytest.mark.ranks


def contribution(rank: int, length: int, dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1000 * seed + rank)
    return torch.randn(length, generator=generator, dtype=torch.float64).to(dtype)


def reduce_all(rank: int, world: int, ranks_per_node: int) -> dict[str, tuple[list[torch.Tensor], int, int]]:
    """Return by algorithm every sum, and the bytes that this rank sent and received for one of `COUNTED` numbers."""
    from ddpbench.collectives.transport import Transport

    ring.SEGMENT_BYTES = 4096  # hundreds of pieces, many more than are expected at once
    group = dist.new_group()
    found = {}
    for algorithm in TABLE:
        a_node = ranks_per_node if algorithm == "hierarchical" else 1
        collective = load_collective(algorithm)(Transport(group), ranks_per_node=a_node)
        sums = []
        for dtype in TYPES:
            for length in LENGTHS:
                tensor = contribution(rank, length, dtype)
                collective.all_reduce(tensor)
                sums.append(tensor)
        counting = Transport(group)
        load_collective(algorithm)(counting).all_reduce(contribution(rank, COUNTED, torch.float32))
        found[algorithm] = (sums, sum(counting.sent), sum(counting.received))
    return found


@cache
def ran(world: int) -> list[dict[str, tuple[list[torch.Tensor], int, int]]]:
    return run_ranks(reduce_all, world, 2 if world % 2 == 0 else 1)


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("algorithm", TABLE)
def test_sums_are_those_of_one_process_and_have_the_same_bits_on_every_rank(
    algorithm: str, world: int
) -> None:
    of_ranks = [rank[algorithm][0] for rank in ran(world)]
    every = iter(zip(*of_ranks, strict=True))
    for dtype in TYPES:
        for length in LENGTHS:
            sums = next(every)
            for other in sums[1:]:
                assert torch.equal(sums[0], other)
            of_all = torch.stack([contribution(rank, length, dtype).double() for rank in range(world)])
            # Each of n - 1 additions rounds a partial sum: at most that of magnitudes, and what rounding added.
            roundoff = torch.finfo(dtype).eps / 2 + torch.finfo(torch.float64).eps / 2  # the reference's too
            bound = (world - 1) * roundoff * of_all.abs().sum(0) * (1 + roundoff) ** world
            assert bool(((sums[0].double() - of_all.sum(0)).abs() <= bound).all()), (dtype, length)


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("algorithm", TABLE)
def test_the_busiest_rank_sends_exactly_what_the_formula_says(algorithm: str, world: int) -> None:
    counted = [(sent, received) for _, sent, received in (rank[algorithm] for rank in ran(world))]
    assert max(sent for sent, _ in counted) == busiest_rank_bytes(algorithm, world, 4 * COUNTED)
    assert sum(sent for sent, _ in counted) == sum(received for _, received in counted)


ROW = (5, 4000, 17, 300)


def several_in_a_row(rank: int, world: int) -> list[list[torch.Tensor]]:
    from ddpbench.collectives.background import Background
    from ddpbench.collectives.transport import Transport

    found = []
    for algorithm in TABLE:
        background = Background(load_collective(algorithm)(Transport(dist.new_group())))
        tensors = [contribution(rank, length, torch.float64, seed=length) for length in ROW]
        futures = [background.all_reduce(tensor) for tensor in tensors]
        found.append([future.wait() for future in futures])
        background.close()
    return found


def test_in_the_background_one_follows_the_other() -> None:
    for of_rank in run_ranks(several_in_a_row, 3):
        for tensors in of_rank:
            for tensor, length in zip(tensors, ROW, strict=True):
                exact = sum(contribution(rank, length, torch.float64, seed=length) for rank in range(3))
                torch.testing.assert_close(tensor, exact)


def test_hierarchical_needs_full_nodes() -> None:
    class Six:
        rank, size = 0, 6

    with pytest.raises(ValueError, match="6 ranks do not fill nodes of 4 evenly"):
        load_collective("hierarchical")(Six(), ranks_per_node=4)  # type: ignore[arg-type]
