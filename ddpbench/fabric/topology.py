"""Draws the wiring for a case's links, and the traffic that proves it. Plain data; nothing is made here."""

from __future__ import annotations

import ipaddress
import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ddpbench.errors import FabricError
from ddpbench.fabric.wiring import SWITCH, Cable, Flow, Phase, Port, Side, Wiring
from ddpbench.spec.fabric import MAX_NODES, Links
from ddpbench.units import format_bit_rate

MAX_SPACES = 256
"""Namespaces of one fabric; each knows all others' link addresses, so that their number grows with its square."""
STORE_PORT = 7007
MIN_RATE = 1e6
"""Bit/s, as made: slower links take seconds to prove."""
_CORE = "core"
_NETWORKS = ("10.0.0.0", "10.1.0.0")
"""Of eth0, and of eth1 where storage has links of its own."""
_STORE_HOST = 255 * 256 + 1


def _address(network: int, host: int) -> str:
    return str(ipaddress.IPv4Address(_NETWORKS[network]) + host)


@dataclass(frozen=True, kw_only=True, slots=True)
class Topology:
    """A fabric's wiring, and where nodes and ranks are in it."""

    wiring: Wiring
    links: Links
    members: tuple[tuple[int, ...], ...]
    """The spaces of each node: its own, or one for each of its ranks."""
    node_cables: tuple[tuple[int, ...], ...]
    """By network: each node's cable."""
    rank_cables: tuple[int, ...]
    """By space of a rank where ranks have links of their own, from the first such space on."""
    rack_cables: tuple[int, ...]

    def address(self, space: int, network: int = 0) -> str:
        """Of a node's or rank's space."""
        return _address(network, space)

    def store_address(self, network: int = 0) -> str:
        """Of the server of input data."""
        return _address(network, _STORE_HOST)

    @property
    def networks(self) -> int:
        """How many there are: storage may have its own."""
        return len(self.node_cables)


def draw(links: Links, *, nodes: int, ranks_per_node: int) -> Topology:
    """The topology of so many nodes.

    Raises:
        FabricError: there are too many, or they fit neither the racks nor the list of rates.
    """
    _check(links, nodes, ranks_per_node)
    local = links.local_bandwidth
    members: list[tuple[int, ...]] = []
    spaces = SWITCH + 1
    for _ in range(nodes):
        count = 1 if local is None else ranks_per_node
        members.append(tuple(range(spaces, spaces + count)))
        spaces += count
    bridges = [_CORE]
    cables: list[Cable] = []

    def lay(cable: Cable) -> int:
        cables.append(cable)
        return len(cables) - 1

    rack_cables: list[int] = []
    if links.racks > 1:
        for rack in range(links.racks):
            bridges.append(f"rack{rack}")
            near = Port(space=SWITCH, name=f"up{rack}", bridge=f"rack{rack}")
            far = Port(space=SWITCH, name=f"down{rack}", bridge=_CORE)
            rack_cables.append(lay(Cable(label=f"rack {rack}", near=near, far=far, rate=links.uplink)))

    rank_cables: list[int] = []
    node_cables: list[tuple[int, ...]] = []
    for network in range(2 if links.storage == "own" else 1):
        kind, trunk = ("n", "") if network == 0 else ("s", "store")
        if trunk:
            bridges.append(trunk)
        of_network: list[int] = []
        for node in range(nodes):
            beyond = trunk or (f"rack{node * links.racks // nodes}" if links.racks > 1 else _CORE)
            suffix = "" if network == 0 else ", storage"
            on_the_way = (links.of_node(node), *((local, links.uplink) if network == 0 else ()))
            narrowest = min(rate for rate in on_the_way if rate is not None)
            far = Port(space=SWITCH, name=f"{kind}{node}", bridge=beyond)
            if local is None:
                near = _host(members[node], members[node][0], network, narrowest)
            else:
                bridge = f"{kind}{node}b"
                bridges.append(bridge)
                near = Port(space=SWITCH, name=f"{kind}{node}u", bridge=bridge)
                for space in members[node]:
                    number = lay(
                        Cable(
                            label=f"rank {space - 1}{suffix}",
                            near=_host(members[node], space, network, narrowest),
                            far=Port(space=SWITCH, name=f"{kind}{node}r{space}", bridge=bridge),
                            rate=local if network == 0 else None,
                        )
                    )
                    rank_cables += [number] if network == 0 else []
            of_network.append(
                lay(
                    Cable(
                        label=f"node {node}{suffix}",
                        near=near,
                        far=far,
                        rate=links.of_node(node),
                        delayed=True,
                    )
                )
            )
        node_cables.append(tuple(of_network))

    store = None
    if links.storage != "none":
        store = spaces
        spaces += 1
        for network in range(len(node_cables)):
            near = Port(space=store, name=f"eth{network}", address=_address(network, _STORE_HOST))
            beyond = _CORE if network == 0 else "store"
            far = Port(space=SWITCH, name=f"store{network}", bridge=beyond)
            lay(Cable(label="store", near=near, far=far, rate=None))
    return Topology(
        wiring=Wiring(
            spaces=spaces,
            bridges=tuple(bridges),
            cables=tuple(cables),
            latency_s=links.latency_s,
            loss=links.loss,
            store=store,
        ),
        links=links,
        members=tuple(members),
        node_cables=tuple(node_cables),
        rank_cables=tuple(rank_cables),
        rack_cables=tuple(rack_cables),
    )


def _host(members: Sequence[int], space: int, network: int, narrowest: float) -> Port:
    return Port(
        space=space,
        name=f"eth{network}",
        address=_address(network, space),
        narrowest=narrowest,
        beside=tuple(_address(network, other) for other in members if other != space) if network == 0 else (),
    )


def _check(links: Links, nodes: int, ranks_per_node: int) -> None:
    if nodes < 1 or ranks_per_node < 1:
        raise FabricError(
            f"a fabric of {nodes} nodes with {ranks_per_node} ranks each: both must be 1 or more"
        )
    if nodes > MAX_NODES:
        raise FabricError(f"a fabric of {nodes} nodes: one machine's has at most {MAX_NODES}")
    if links.local_bandwidth is not None and nodes * ranks_per_node > MAX_SPACES:
        raise FabricError(
            f"{nodes} x {ranks_per_node} ranks with links of their own (local_bandwidth) are {nodes * ranks_per_node} "
            f"network namespaces; one machine's fabric has at most {MAX_SPACES}: leave local_bandwidth out, or "
            "use fewer nodes"
        )
    if len(links.bandwidth) not in (1, nodes):
        raise FabricError(
            f"{len(links.bandwidth)} rates for {nodes} nodes: give one for all, or one for each"
        )
    if nodes % links.racks:
        raise FabricError(f"{nodes} nodes do not divide evenly over {links.racks} racks")
    given = (*links.bandwidth, links.local_bandwidth, links.uplink)
    for rate in given:
        if rate is not None and not (math.isfinite(rate) and rate >= MIN_RATE):
            raise FabricError(
                f"a link of {format_bit_rate(rate)} cannot be made: {format_bit_rate(MIN_RATE)} is the least; "
                "where links are slowed, dilate or shrink by less"
            )


def phases(topology: Topology) -> tuple[Phase, ...]:
    """The traffic that loads each shaped cable to its rate: within nodes, between them, between racks."""
    made = (
        _within_nodes(topology),
        _between_nodes(topology),
        _without_equal(topology),
        _at_the_fastest(topology),
        *_between_racks(topology),
    )
    return tuple(phase for phase in made if phase.flows)


def _within_nodes(topology: Topology) -> Phase:
    """A ring over the ranks of each node."""
    flows: list[Flow] = []
    expected: dict[tuple[int, Side], float] = {}
    local = topology.links.local_bandwidth
    if local is not None:
        for group in topology.members:
            if len(group) > 1:
                flows += _flows(topology, group, (*group[1:], group[0]), 0)
                expected |= _both_ways((topology.rank_cables[space - 1] for space in group), local)
    return Phase(name="within nodes", flows=tuple(flows), expected=expected)


def _capacity(topology: Topology, node: int) -> float:
    """What a node's ranks can put on its link, bit/s."""
    local = topology.links.local_bandwidth
    rate = topology.links.of_node(node)
    return rate if local is None else min(rate, local * len(topology.members[node]))


def _groups(topology: Topology, network: int) -> list[dict[int, float]]:
    """Nodes that no uplink keeps apart, with what each can put on its link of a network, bit/s."""
    nodes = range(len(topology.members))
    apart = network == 0 and topology.links.uplink is not None
    size = len(nodes) // topology.links.racks if apart else len(nodes)
    return [
        {node: _capacity(topology, node) for node in nodes[start : start + size]} for start in nodes[::size]
    ]


def _classes(capacity: dict[int, float]) -> list[list[int]]:
    """Nodes of equal rates, the slowest first."""
    return [[node for node in capacity if capacity[node] == rate] for rate in sorted(set(capacity.values()))]


def _between_nodes(topology: Topology) -> Phase:
    """A ring over the nodes of each rate, all at once.

    Not one ring over all: where a fast node sends to a slow one, what waits there holds up the acknowledgements of
    what the slow one sends, and its link is then not kept busy. Nodes without an equal have phases of their own.
    """
    flows: list[Flow] = []
    expected: dict[tuple[int, Side], float] = {}
    for network, cables in enumerate(topology.node_cables):
        for capacity in _groups(topology, network):
            for ring in _classes(capacity):
                if len(ring) > 1:
                    for node, following in zip(ring, [*ring[1:], ring[0]], strict=True):
                        flows += _flows(
                            topology, topology.members[node], topology.members[following], network
                        )
                    expected |= _both_ways((cables[node] for node in ring), capacity[ring[0]])
    return Phase(name="between nodes", flows=tuple(flows), expected=expected)


def _without_equal(topology: Topology) -> Phase:
    """A node with a rate of its own talks with one of the next rate above."""
    flows: list[Flow] = []
    expected: dict[tuple[int, Side], float] = {}
    for network, cables in enumerate(topology.node_cables):
        for capacity in _groups(topology, network):
            for (node, *equals), (other, *_) in itertools.pairwise(_classes(capacity)):
                if not equals:
                    flows += _flows(topology, topology.members[node], topology.members[other], network)
                    flows += _flows(topology, topology.members[other], topology.members[node], network)
                    expected |= _both_ways([cables[node]], capacity[node])
    return Phase(name="without an equal", flows=tuple(flows), expected=expected)


def _at_the_fastest(topology: Topology) -> Phase:
    """A node that is faster than all others of its group talks with each of them, and with the store."""
    flows: list[Flow] = []
    expected: dict[tuple[int, Side], float] = {}
    for network, cables in enumerate(topology.node_cables):
        store = topology.wiring.store if network or topology.links.uplink is None else None
        for capacity in _groups(topology, network):
            lone, *equals = _classes(capacity)[-1]
            others = [node for node in capacity if node != lone]
            if equals or not (others or store is not None):
                continue
            members = topology.members[lone]
            for other in others:
                flows += _flows(topology, members, topology.members[other], network)
                flows += _flows(topology, topology.members[other], members, network)
            reach = sum(capacity[other] for other in others)
            if store is not None:
                reach = math.inf
                for space in members:
                    flows.append(Flow(source=space, target=store, address=topology.store_address(network)))
                    flows.append(Flow(source=store, target=space, address=topology.address(space, network)))
            expected |= _both_ways([cables[lone]], min(capacity[lone], reach))
    return Phase(name="at the fastest node", flows=tuple(flows), expected=expected)


def _between_racks(topology: Topology) -> tuple[Phase, ...]:
    """Each node of a rack sends to the one of its number in the next rack; no two neighbours at once.

    With traffic both ways an uplink's queue would hold up the other way's acknowledgements.
    """
    uplink, racks = topology.links.uplink, topology.links.racks
    a_rack = len(topology.members) // racks
    if uplink is None:
        return ()
    turns = [range(0, racks - 1, 2), range(1, racks, 2) if racks % 2 == 0 else range(1, racks - 1, 2)]
    if racks % 2:
        turns.append(range(racks - 1, racks))
    found: list[Phase] = []
    for turn in turns:
        flows: list[Flow] = []
        expected: dict[tuple[int, Side], float] = {}
        for rack in turn:
            following = (rack + 1) % racks
            reach = 0.0
            for node in range(a_rack):
                source, target = rack * a_rack + node, following * a_rack + node
                flows += _flows(topology, topology.members[source], topology.members[target], 0)
                reach += min(_capacity(topology, source), _capacity(topology, target))
                if a_rack == 1:  # its link is loaded in no other phase
                    expected[topology.node_cables[0][source], "out"] = min(uplink, reach)
                    expected[topology.node_cables[0][target], "in"] = min(uplink, reach)
            expected[topology.rack_cables[rack], "out"] = min(uplink, reach)
            expected[topology.rack_cables[following], "in"] = min(uplink, reach)
        found.append(Phase(name="between racks", flows=tuple(flows), expected=expected))
    return tuple(found)


def _flows(topology: Topology, sources: Sequence[int], targets: Sequence[int], network: int) -> list[Flow]:
    return [
        Flow(source=source, target=target, address=topology.address(target, network))
        for source, target in zip(sources, targets, strict=True)
    ]


def _both_ways(cables: Iterable[int], rate: float) -> dict[tuple[int, Side], float]:
    sides: tuple[Side, ...] = ("out", "in")
    return {(cable, side): rate for cable in cables for side in sides}
