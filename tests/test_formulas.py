"""The textbook's formulas at values worked out by hand."""

from __future__ import annotations

import pytest

from ddpbench import formulas

MB = 1e6
GBIT = 1e9 / 8
"""A link of 1 Gbit/s, bytes/s."""


@pytest.mark.parametrize(
    ("n", "size", "rate", "ms"), [(4, 8 * MB, GBIT, 96), (8, 8 * MB, GBIT, 112), (16, 4 * MB, GBIT / 5, 300)]
)
def test_ideal_rings_of_the_measured_prototype(n: int, size: float, rate: float, ms: float) -> None:
    assert formulas.ring_s(n, size, rate) == pytest.approx(ms / 1e3, rel=1e-12)
    assert formulas.lower_bound_s(n, size, rate) == pytest.approx(ms / 1e3, rel=1e-12)


def test_every_scheme_at_eight_ranks() -> None:
    """8 MB at 1 Gbit/s pass in 64 ms; a message costs 1 ms."""
    given = (8, 8 * MB, GBIT, 1e-3)
    assert formulas.ring_s(*given) == pytest.approx(0.014 + 0.112)
    assert formulas.naive_ring_s(*given) == pytest.approx(7 * 0.065)
    assert formulas.master_s(*given) == pytest.approx(0.002 + 14 * 0.064)
    assert formulas.tree_s(*given) == pytest.approx(6 * 0.065)
    assert formulas.halving_doubling_s(*given) == pytest.approx(0.006 + 0.112)
    assert formulas.sharded_master_s(*given) == pytest.approx(0.002 + 0.112)


def test_halving_of_six_folds_two_into_four() -> None:
    """Four halve and double 8 MB (96 ms, 4 messages); two gave theirs away before and get the result after."""
    assert formulas.halving_doubling_s(6, 8 * MB, GBIT, 1e-3) == pytest.approx(0.130 + 0.100)


def test_a_tree_of_five_needs_three_levels() -> None:
    assert formulas.tree_s(5, 8 * MB, GBIT) == pytest.approx(6 * 0.064)


@pytest.mark.parametrize("name", sorted(formulas.TIMES))
def test_one_rank_aggregates_in_no_time_and_no_algorithm_beats_the_bound(name: str) -> None:
    _, seconds = formulas.TIMES[name]
    assert seconds(1, 8 * MB, GBIT, 1e-3) == 0
    for n in (2, 4, 8, 16):
        bound = 2 * (n - 1) / n * 0.064
        assert seconds(n, 8 * MB, GBIT, 0.0) >= bound * (1 - 1e-12)


def test_bytes_of_the_busiest_node() -> None:
    # a ring over 8 ranks passes 14/8 of the gradient over each edge, however many ranks per node has
    assert formulas.busiest_node_bytes("all_reduce", 8, 1, 8000) == pytest.approx(14_000)
    assert formulas.busiest_node_bytes("all_reduce", 2, 4, 8000) == pytest.approx(14_000)
    # the master's node sends one copy to every rank of the others
    assert formulas.busiest_node_bytes("master", 8, 1, 8000) == 56_000
    assert formulas.busiest_node_bytes("master", 2, 4, 8000) == 32_000
    assert formulas.busiest_node_bytes("naive_ring", 2, 4, 8000) == 56_000
    # each of the node's 4 ranks carries a quarter round a ring of 2 nodes
    assert formulas.busiest_node_bytes("hierarchical", 2, 4, 8000) == 8000
    assert formulas.busiest_node_bytes("tree", 8, 1, 8000) == 24_000
    assert formulas.busiest_node_bytes("tree", 2, 4, 8000) is None
    assert formulas.busiest_node_bytes("all_reduce", 1, 8, 8000) is None
    assert formulas.busiest_node_bytes("", 4, 1, 8000) is None
