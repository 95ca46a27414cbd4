"""Any algorithm, world, length and type: the float64 sum within rounding, the same bits, the formula's bytes."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ddpbench.collectives import TABLE, load_collective, ring
from ddpbench.formulas import busiest_rank_bytes
from tests.collectives.threads import Network, ThreadTransport, run_threads

TYPES = (torch.float64, torch.float32, torch.bfloat16)


def layouts() -> st.SearchStrategy[tuple[int, int]]:
    """Draw a world size and a number of ranks per node that divides it."""
    return st.integers(1, 9).flatmap(
        lambda n: st.tuples(st.just(n), st.sampled_from([r for r in range(1, n + 1) if n % r == 0]))
    )


@pytest.mark.parametrize("algorithm", TABLE)
@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    layout=layouts(),
    length=st.one_of(st.integers(0, 12), st.integers(0, 3000)),
    dtype=st.sampled_from(TYPES),
    early=st.booleans(),
    least=st.sampled_from([1, 64, 16 << 10]),
    seed=st.integers(0, 2**31),
)
def test_all_reduce(
    algorithm: str,
    layout: tuple[int, int],
    length: int,
    dtype: torch.dtype,
    early: bool,
    least: int,
    seed: int,
) -> None:
    world, ranks_per_node = layout
    generator = torch.Generator().manual_seed(seed)
    given_ = torch.randn(world, length, generator=generator, dtype=torch.float64).to(dtype)
    results = given_.clone()
    network = Network(world, early=early)
    transports: list[ThreadTransport] = []

    def work(transport: ThreadTransport) -> None:
        transports.append(transport)
        collective = load_collective(algorithm)(transport, ranks_per_node=ranks_per_node)  # type: ignore[arg-type]
        collective.all_reduce(results[transport.rank])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ring, "LEAST_BYTES", least)  # many pieces of few numbers, or one of all
        run_threads(network, work)
    for other in results[1:]:
        assert torch.equal(results[0], other)
    exact = given_.double()
    # Each of n - 1 additions rounds a partial sum, which is at most the sum of magnitudes and what rounding added.
    roundoff = torch.finfo(dtype).eps / 2 + torch.finfo(torch.float64).eps / 2  # the reference's too
    bound = (world - 1) * roundoff * exact.abs().sum(0) * (1 + roundoff) ** world
    assert bool(((results[0].double() - exact.sum(0)).abs() <= bound + 1e-300).all())
    assert not any(wire.sends or wire.receives for wire in network.wires.values())
    if length % (world * 8 if algorithm == "halving_doubling" else world) == 0 and ranks_per_node == 1:
        size = length * given_.element_size()
        assert max(sum(one.sent) for one in transports) == busiest_rank_bytes(algorithm, world, size)
