"""Rates from the kernel's byte counts, calculated by hand."""

from __future__ import annotations

import pytest

from ddpbench.errors import FabricError
from ddpbench.fabric.proof import TRIES, LinkProof, carried, held, measured, off, refusal
from ddpbench.fabric.topology import draw, phases
from ddpbench.spec import Links


def link(node: int, side: str, asked: float, reached: float, phase: str = "between nodes") -> LinkProof:
    return LinkProof(
        label=f"node {node}",
        side=side,  # type: ignore[arg-type]
        phase=phase,
        asked_bit_per_s=asked,
        reached_bit_per_s=reached,
        dropped=0,
    )


def both(count: int, asked: float, reached: float) -> list[LinkProof]:
    return [link(node, side, asked, reached) for node in range(count) for side in ("out", "in")]


def test_rates_are_the_bytes_between_two_readings_over_the_time_between_them() -> None:
    topology = draw(Links.parse("1 Gbit/s"), nodes=2, ranks_per_node=1)
    (phase,) = phases(topology)
    ports = [(1, "eth0"), (0, "n0"), (2, "eth0"), (0, "n1")]
    start = dict.fromkeys(ports, (1_000, 0, 10**9))
    # Half a second later; node 0's end was read 100 ms after the others, with 12.5 MB more.
    disturbed = dict.fromkeys(ports, (31_251_000, 0, 15 * 10**8))
    quiet = dict.fromkeys(ports, (93_751_000, 3, 20 * 10**8)) | {(1, "eth0"): (106_251_000, 3, 21 * 10**8)}
    found = measured(topology.wiring, phase, [start, disturbed, quiet])
    assert [(proof.label, proof.side) for proof in found] == [
        ("node 0", "in"),
        ("node 0", "out"),
        ("node 1", "in"),
        ("node 1", "out"),
    ]
    # 62.5 MB in 0.5 s, 75 MB in 0.6 s: 1 Gbit/s. The window before it, 31.25 MB in 0.5 s, is not the best one.
    assert [proof.reached_bit_per_s for proof in found] == pytest.approx([1e9] * 4)
    assert [proof.dropped for proof in found] == [3] * 4
    assert off(found) == ()


def test_a_link_may_miss_its_rate_by_a_twentieth() -> None:
    assert off(both(2, 1e9, 0.951e9)) == ()
    assert len(off(both(2, 1e9, 0.949e9))) == 4
    assert len(off(both(2, 1e9, 1.051e9))) == 4


def test_each_transfer_is_carried_once() -> None:
    assert carried(both(8, 1e9, 1e9)) == 8e9


def test_too_much_for_the_machine_is_refused_with_what_it_carried() -> None:
    assert str(refusal(both(8, 1e10, 23e9 / 8))) == (
        "8 links of 10 Gbit/s need 80 Gbit/s at once; this machine carried only 23 Gbit/s: lower the bandwidth, use "
        "fewer nodes, or dilate time (replay) by 4"
    )


def test_links_of_several_rates_are_summed() -> None:
    links = [*both(2, 1e10, 5e9), link(2, "out", 2e10, 1e10), link(2, "in", 2e10, 1e10)]
    assert str(refusal(links)).startswith(
        "3 links need 40 Gbit/s at once; this machine carried only 20 Gbit/s: "
    )
    assert str(refusal(links)).endswith("by 2")


def test_one_link_that_lags_is_named() -> None:
    links = both(4, 1e9, 1e9)
    links[3] = link(1, "in", 1e9, 0.9e9)
    assert str(refusal(links)).startswith(
        "the link to node 1 carried 900 Mbit/s of 1 Gbit/s while all 4 were busy: "
    )


def test_a_link_that_is_not_held_back_is_named() -> None:
    links = both(2, 1e9, 1e9)
    links[0] = link(0, "out", 1e9, 4e9)
    assert str(refusal(links)) == (
        "the link of node 0 carried 4 Gbit/s instead of 1 Gbit/s: this kernel (tbf) does not limit the rate"
    )


def tried(
    *reached: float, shared_cores: bool = False
) -> tuple[int, list[float], tuple[LinkProof, ...] | str]:
    """Return the tries, the pauses and the result for two links of 1 Gbit/s that reach these rates, one per try."""
    rates = iter(reached)
    asked: list[int] = []
    paused: list[float] = []

    def carry(windows: int) -> tuple[LinkProof, ...]:
        asked.append(windows)
        return tuple(both(2, 1e9, next(rates)))

    try:
        found: tuple[LinkProof, ...] | str = held(carry, paused.append, shared_cores=shared_cores)
    except FabricError as error:
        found = str(error)
    assert tuple(asked) == TRIES[: len(asked)]
    return len(asked), paused, found


def test_a_moment_of_other_work_is_waited_for() -> None:
    assert tried(1e9) == (1, [], tuple(both(2, 1e9, 1e9)))
    assert tried(0.5e9, 0.7e9, 0.9e9, 0.99e9) == (4, [1.0, 1.0], tuple(both(2, 1e9, 0.99e9)))


def test_links_that_never_hold_are_refused_with_their_best() -> None:
    count, _, said = tried(0.5e9, 0.7e9, 0.9e9, 0.8e9, 0.6e9, 0.7e9)
    assert count == len(TRIES)
    assert "this machine carried only 1.8 Gbit/s" in str(said)


def test_on_shared_cores_slower_links_will_do_and_faster_ones_do_not() -> None:
    slow = (0.6e9, 0.8e9, 0.7e9)
    assert tried(*slow, shared_cores=True) == (3, [1.0], tuple(both(2, 1e9, 0.8e9)))
    assert tried(0.99e9, shared_cores=True)[0] == 1
    assert "this machine carried only 1.3 Gbit/s" in str(tried(0.6e9, 0.65e9, 0.6e9, shared_cores=True)[2])
    assert tried(0.8e9, 1.06e9, shared_cores=True)[2] == tuple(both(2, 1e9, 0.8e9))
    assert "carried 1.1 Gbit/s instead of 1 Gbit/s" in str(tried(1.1e9, 1.1e9, shared_cores=True)[2])


def test_what_is_far_too_much_is_refused_soon() -> None:
    count, _, said = tried(0.1e9, 0.2e9)
    assert count == 2
    assert "this machine carried only 400 Mbit/s" in str(said)
    assert tried(0.1e9, 0.9e9, 1e9)[0] == 3


def test_links_that_let_too_much_pass_and_slow_windows_are_not_tried_for_ever() -> None:
    assert tried(1.5e9, 1.4e9)[0] == 2
    tries: list[int] = []

    def carry(windows: int) -> tuple[LinkProof, ...]:
        tries.append(windows)
        return tuple(both(2, 1e9, 0.9e9))

    with pytest.raises(FabricError):
        held(carry, lambda _: None, clock=lambda: 20.0 * len(tries))
    assert tuple(tries) == TRIES[:2]
