"""Topologies and the traffic that proves them, compared with drawings made by hand."""

from __future__ import annotations

from collections import Counter

import pytest

from ddpbench.errors import FabricError
from ddpbench.fabric.topology import Topology, draw, phases
from ddpbench.fabric.wiring import SWITCH, Cable, Wiring
from ddpbench.spec import Links

TEXTS = {
    "plain": ("1 Gbit/s", 4, 1),
    "one node": ("1 Gbit/s; shared storage", 1, 2),
    "two ranks per node": ("1 Gbit/s", 2, 2),
    "one slow": ("1 Gbit/s, 1 Gbit/s, 1 Gbit/s, 100 Mbit/s", 4, 1),
    "one fast": ("100 Mbit/s, 100 Mbit/s, 1 Gbit/s", 3, 1),
    "all different": ("100 Mbit/s, 200 Mbit/s, 300 Mbit/s, 400 Mbit/s", 4, 1),
    "local": ("100 Mbit/s; local 1 Gbit/s", 3, 2),
    "slow local": ("1 Gbit/s; local 100 Mbit/s", 2, 2),
    "racks": ("1 Gbit/s; 2 racks, uplink 1.5 Gbit/s", 4, 1),
    "racks of one": ("1 Gbit/s; 3 racks, uplink 400 Mbit/s", 3, 1),
    "three racks": ("1 Gbit/s; 3 racks, uplink 400 Mbit/s", 6, 1),
    "open racks": ("1 Gbit/s; 2 racks", 4, 1),
    "own storage": ("1 Gbit/s; own storage", 2, 1),
    "everything": ("1 Gbit/s; local 2 Gbit/s; 2 racks, uplink 1 Gbit/s; latency 100 µs; own storage", 4, 2),
}


def drawn(name: str) -> Topology:
    text, nodes, ranks = TEXTS[name]
    return draw(Links.parse(text), nodes=nodes, ranks_per_node=ranks)


def ends(cable: Cable) -> tuple[str, str, float | None]:
    """Return both ends of a cable, such as `1:eth0 10.0.0.1 - n0@core`."""
    near = f"{cable.near.space}:{cable.near.name} {cable.near.address or '@' + cable.near.bridge}"
    return near, f"{cable.far.name}@{cable.far.bridge}", cable.rate


def test_a_node_is_a_space_on_the_core() -> None:
    wiring = drawn("plain").wiring
    assert wiring.spaces == 5
    assert wiring.bridges == ("core",)
    assert [ends(cable) for cable in wiring.cables] == [
        (f"{n + 1}:eth0 10.0.0.{n + 1}", f"n{n}@core", 1e9) for n in range(4)
    ]
    assert [cable.label for cable in wiring.cables] == ["node 0", "node 1", "node 2", "node 3"]


def test_ranks_with_links_of_their_own_share_their_nodes_uplink() -> None:
    topology = drawn("local")
    assert topology.members == ((1, 2), (3, 4), (5, 6))
    first = [ends(cable) for cable in topology.wiring.cables[:3]]
    assert first == [
        ("1:eth0 10.0.0.1", "n0r1@n0b", 1e9),
        ("2:eth0 10.0.0.2", "n0r2@n0b", 1e9),
        ("0:n0u @n0b", "n0@core", 1e8),
    ]
    near = topology.wiring.cables[0].near
    # 12 ms are 150 kB at 100 Mbit/s, which its node shares, and 1.5 MB at 1 Gbit/s to its neighbour.
    assert [(route.to, route.window) for route in near.routes] == [
        ("10.0.0.0/16", 131_072),
        ("10.0.0.2/32", 1_048_576),
    ]
    assert near.segments == 12
    assert [cable.burst for cable in topology.wiring.cables[:3]] == [250_000, 250_000, 25_000]


def test_racks_are_dealt_in_order_and_joined_at_the_core() -> None:
    wiring = drawn("racks").wiring
    assert [ends(cable) for cable in wiring.cables] == [
        ("0:up0 @rack0", "down0@core", 1.5e9),
        ("0:up1 @rack1", "down1@core", 1.5e9),
        ("1:eth0 10.0.0.1", "n0@rack0", 1e9),
        ("2:eth0 10.0.0.2", "n1@rack0", 1e9),
        ("3:eth0 10.0.0.3", "n2@rack1", 1e9),
        ("4:eth0 10.0.0.4", "n3@rack1", 1e9),
    ]


def test_storage_of_its_own_is_a_second_network() -> None:
    topology = drawn("own storage")
    assert topology.wiring.store == 3
    assert topology.store_address() == "10.0.255.1"
    assert topology.store_address(1) == "10.1.255.1"
    assert [ends(cable) for cable in topology.wiring.cables] == [
        ("1:eth0 10.0.0.1", "n0@core", 1e9),
        ("2:eth0 10.0.0.2", "n1@core", 1e9),
        ("1:eth1 10.1.0.1", "s0@store", 1e9),
        ("2:eth1 10.1.0.2", "s1@store", 1e9),
        ("3:eth0 10.0.255.1", "store0@core", None),
        ("3:eth1 10.1.255.1", "store1@store", None),
    ]


@pytest.mark.parametrize("name", TEXTS)
def test_every_wiring_can_be_made(name: str) -> None:
    topology = drawn(name)
    wiring = topology.wiring
    ports = [port for cable in wiring.cables for port in (cable.near, cable.far)]
    assert max(Counter((port.space, port.name) for port in ports).values()) == 1
    assert all(len(port.name) <= 15 for port in ports)  # IFNAMSIZ
    assert all((port.bridge in wiring.bridges) == (port.space == SWITCH) for port in ports)
    addresses = [port.address for port in ports if port.address]
    assert len(set(addresses)) == len(addresses)
    assert {port.space for port in ports} == set(range(wiring.spaces))
    assert Wiring.from_json(wiring.to_json()) == wiring


@pytest.mark.parametrize("name", TEXTS)
def test_every_shaped_link_is_proved_both_ways(name: str) -> None:
    topology = drawn(name)
    cables = topology.wiring.cables
    proved = {key for phase in phases(topology) for key in phase.expected}
    shaped = {(n, side) for n, cable in enumerate(cables) if cable.rate for side in ("out", "in")}
    if name == "everything":  # the store's network has links of a single rate: rings over its nodes
        assert len(shaped) == 2 * (8 + 4 + 4 + 2)
    assert proved == shaped


@pytest.mark.parametrize("name", TEXTS)
def test_what_is_expected_of_links_can_flow(name: str) -> None:
    """By hand: spread each phase's flows evenly, and check what each link then carries."""
    topology = drawn(name)
    for phase in phases(topology):
        limits, paths = _paths(topology, phase.flows)
        carried = _max_min(limits, paths)
        for (number, side), expected in phase.expected.items():
            reached = sum(rate for rate, path in zip(carried, paths, strict=True) if (number, side) in path)
            assert reached == pytest.approx(expected), (
                phase.name,
                topology.wiring.cables[number].label,
                side,
            )
            rate = topology.wiring.cables[number].rate
            assert rate is not None
            assert expected <= rate


def _paths(
    topology: Topology, flows: object
) -> tuple[dict[tuple[int, str], float], list[set[tuple[int, str]]]]:
    """Return the directions of cables that each flow passes: up from its source until its target is reached."""
    cables = topology.wiring.cables
    up: dict[object, tuple[int, object]] = {}
    for number, cable in enumerate(cables):
        start = (cable.near.space, cable.near.address) if cable.near.address else cable.near.bridge
        up[start] = (number, cable.far.bridge)
    limits = {
        (number, side): cable.rate
        for number, cable in enumerate(cables)
        for side in ("out", "in")
        if cable.rate
    }

    def upward(start: object) -> list[int]:
        found = []
        while start in up:
            number, start = up[start]
            found.append(number)
        return found

    paths = []
    for flow in flows:  # type: ignore[attr-defined]
        network = flow.address.split(".")[1]
        source = next(
            key
            for key in up
            if isinstance(key, tuple) and key[0] == flow.source and key[1].split(".")[1] == network
        )
        there, here = upward((flow.target, flow.address)), upward(source)
        common = set(there) & set(here)
        paths.append(
            {(n, "out") for n in here if n not in common} | {(n, "in") for n in there if n not in common}
        )
    return limits, [{key for key in path if key in limits} for path in paths]


def _max_min(limits: dict[tuple[int, str], float], paths: list[set[tuple[int, str]]]) -> list[float]:
    """Return max-min fair rates by progressive filling: all grow equally until a link is full and its flows stop."""
    rates = [0.0] * len(paths)
    growing = {n for n, path in enumerate(paths) if path}
    left = dict(limits)
    while growing:
        users = {key: sum(key in paths[n] for n in growing) for key in left}
        step = min(left[key] / count for key, count in users.items() if count)
        for n in growing:
            rates[n] += step
        for key, count in users.items():
            left[key] -= step * count
        full = {key for key, room in left.items() if room < 1e-6 * limits[key]}
        growing = {n for n in growing if not paths[n] & full}
    return rates


def test_a_ring_loads_all_nodes_at_once() -> None:
    (phase,) = phases(drawn("plain"))
    assert [(flow.source, flow.target, flow.address) for flow in phase.flows] == [
        (1, 2, "10.0.0.2"),
        (2, 3, "10.0.0.3"),
        (3, 4, "10.0.0.4"),
        (4, 1, "10.0.0.1"),
    ]


def test_one_node_without_a_store_has_nothing_to_prove() -> None:
    assert phases(draw(Links.parse("1 Gbit/s"), nodes=1, ranks_per_node=4)) == ()


@pytest.mark.parametrize(
    ("text", "nodes", "ranks", "said"),
    [
        ("1 Gbit/s", 300, 1, "a fabric of 300 nodes: one machine can emulate 128 at most"),
        ("1 Gbit/s", 0, 1, "a fabric of 0 nodes with 1 ranks each: both must be 1 or more"),
        ("1 Gbit/s, 2 Gbit/s", 3, 1, "2 rates for 3 nodes: give one rate for all nodes, or one per node"),
        ("1 Gbit/s; 2 racks", 3, 1, "3 nodes do not divide evenly over 2 racks"),
        ("1 Gbit/s", 128, 64, "a fabric of 128 nodes with 64 ranks each: no job has more than 4,096 ranks"),
        (
            "1 Gbit/s; latency 20 s",
            2,
            1,
            "a delay of 20 s cannot be made: the longest possible delay is 10 s. If dilation",
        ),
        ("10 kbit/s", 2, 1, "a link of 10 kbit/s cannot be made: the slowest possible rate is 1 Mbit/s"),
        (
            "1 Gbit/s; local 1 Gbit/s",
            100,
            8,
            "100 x 8 ranks with separate links (local_bandwidth) need 800",
        ),
    ],
)
def test_what_cannot_be_drawn_is_said(text: str, nodes: int, ranks: int, said: str) -> None:
    with pytest.raises(FabricError) as caught:
        draw(Links.parse(text), nodes=nodes, ranks_per_node=ranks)
    assert str(caught.value).startswith(said)
