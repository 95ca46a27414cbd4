"""Design an emulated network for a case's links, and the traffic that measures them, as data."""

from __future__ import annotations

import ipaddress
import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ddpbench.errors import FabricError
from ddpbench.fabric.wiring import (
    FRAME_BYTES,
    PREFIX,
    SWITCH,
    Cable,
    CableSide,
    FlowPhase,
    Port,
    Route,
    TcpFlow,
    Wiring,
)
from ddpbench.spec.fabric import BURST_S, Links
from ddpbench.spec.limits import MAX_NODES, MAX_RANKS
from ddpbench.units import format_bit_rate, format_seconds

MAX_SPACES = 256
"""Maximum number of namespaces in a fabric. Each stores the link addresses of all others, so the number of stored
addresses grows with the square of the number of namespaces.
"""
STORE_PORT = 7007
MIN_RATE = 1e6
"""Lowest rate of an emulated link (bit/s). Measuring slower links would take seconds."""
MAX_LATENCY_S = 10.0
"""Longest latency of an emulated link (s)."""
WINDOW_S = 12e-3
"""Amount of data that a connection may have under way, as time at the link's rate (s). It is enough to keep a link busy
while a process waits for a core. With more, seconds of data would queue at a link that several connections share.
"""
SEGMENT_SHARE = 0.75
"""Largest fraction of a link's token bucket that TCP may send as one segment. Smaller segments cost more processor
time. If a segment filled the bucket, some of the rate would be lost whenever the kernel's timer is late.
"""
MAX_SEGMENTS = 43
"""Maximum number of frames, of 1,448 bytes each, in the 64 KiB that TCP can send at once."""
_CORE, _STORAGE = "core", "store"
"""Names of the central bridges of the two networks."""
_NETWORKS = ("10.0.0.0", "10.1.0.0")
"""Network addresses of eth0, and of eth1, which exists if storage has separate links."""
_STORE_HOST = 255 * 256 + 1


def burst_bytes(rate: float) -> int:
    """Return the size of a link's token bucket (bytes): 2 ms of its rate (bit/s), but at least one frame."""
    return max(int(rate / 8 * BURST_S), FRAME_BYTES)


def segments(rate: float) -> int:
    """Return how many frames TCP may send at once over a path whose slowest link has this rate (bit/s)."""
    return max(1, min(MAX_SEGMENTS, int(burst_bytes(rate) * SEGMENT_SHARE / FRAME_BYTES)))


def window_bytes(rate: float, latency_s: float = 0.0) -> int:
    """Return the initial window (bytes) that a connection offers its sender, a power of two.

    TCP lets it grow to once or twice what this rate (bit/s) carries in `WINDOW_S` and a round trip (four `latency_s`).
    """
    wanted = rate / 8 * (WINDOW_S + 4 * latency_s)
    return int(2 ** (max(16, math.ceil(math.log2(wanted))) - 1))


def _address(network: int, host: int) -> str:
    return str(ipaddress.IPv4Address(_NETWORKS[network]) + host)


def _everyone(network: int) -> str:
    return f"{_NETWORKS[network]}/{PREFIX}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Topology:
    """A fabric's wiring, with the namespaces and cables of its nodes, ranks and racks."""

    wiring: Wiring
    links: Links
    members: tuple[tuple[int, ...], ...]
    """For each node, its network namespaces (indices): a single one, or one per rank."""
    node_cables: tuple[tuple[int, ...], ...]
    """Indices in the wiring of the nodes' cables, by network and node."""
    rank_cables: tuple[int, ...]
    """Indices in the wiring of the ranks' cables: the cable of namespace s is item s - 1. Empty unless ranks have
    separate links.
    """
    rack_cables: tuple[int, ...]

    def address(self, space: int, network: int = 0) -> str:
        """Return the IP address that the namespace of a node or rank has on a network."""
        return _address(network, space)

    def store_address(self, network: int = 0) -> str:
        """Return the IP address that the server of input data has on a network."""
        return _address(network, _STORE_HOST)

    @property
    def networks(self) -> int:
        """Return the number of networks: two if storage has a separate network, otherwise one."""
        return len(self.node_cables)


def draw(links: Links, *, nodes: int, ranks_per_node: int) -> Topology:
    """Return the topology of a fabric with these links and nodes.

    Raises:
        FabricError: there are too many nodes or ranks, their number does not fit the racks or the list of rates, or a
            rate or latency is out of range.
    """
    _check(links, nodes, ranks_per_node)
    drawing = _Drawing(links, nodes, 1 if links.local_bandwidth is None else ranks_per_node)
    rack_cables = drawing.lay_racks() if links.racks > 1 else ()
    laid = [drawing.lay_network(network) for network in range(2 if links.storage == "own" else 1)]
    store = drawing.lay_store(len(laid)) if links.storage != "none" else None
    return Topology(
        wiring=Wiring(
            spaces=drawing.spaces,
            bridges=tuple(drawing.bridges),
            cables=tuple(drawing.cables),
            latency_s=links.latency_s,
            loss=links.loss,
            store=store,
        ),
        links=links,
        members=tuple(drawing.members),
        node_cables=tuple(node_cables for node_cables, _ in laid),
        rank_cables=laid[0][1],
        rack_cables=rack_cables,
    )


class _Drawing:
    def __init__(self, links: Links, nodes: int, spaces_per_node: int) -> None:
        self.links = links
        firsts = range(SWITCH + 1, SWITCH + 1 + nodes * spaces_per_node, spaces_per_node)
        self.members = [tuple(range(first, first + spaces_per_node)) for first in firsts]
        self.spaces = SWITCH + 1 + nodes * spaces_per_node
        self.bridges = [_CORE]
        self.cables: list[Cable] = []

    def lay(self, label: str, near: Port, far: Port, rate: float | None, *, delayed: bool = False) -> int:
        burst = 0 if rate is None else burst_bytes(rate)
        cable = Cable(label=label, near=near, far=far, rate=rate, burst=burst, delayed=delayed)
        self.cables.append(cable)
        return len(self.cables) - 1

    def lay_racks(self) -> tuple[int, ...]:
        """Add a bridge and a cable to the core for each rack; return the cables' indices."""
        found: list[int] = []
        for rack in range(self.links.racks):
            self.bridges.append(f"rack{rack}")
            near = Port(space=SWITCH, name=f"up{rack}", bridge=f"rack{rack}")
            far = Port(space=SWITCH, name=f"down{rack}", bridge=_CORE)
            found.append(self.lay(f"rack {rack}", near, far, self.links.uplink))
        return tuple(found)

    def lay_network(self, network: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Add a network's cables; return the indices of the nodes' and of the ranks' cables."""
        links = self.links
        kind, suffix = ("n", "") if network == 0 else ("s", ", storage")
        if network:
            self.bridges.append(_STORAGE)
        of_nodes: list[int] = []
        of_ranks: list[int] = []
        for node, members in enumerate(self.members):
            rack = f"rack{node * links.racks // len(self.members)}" if links.racks > 1 else _CORE
            far = Port(space=SWITCH, name=f"{kind}{node}", bridge=_STORAGE if network else rack)
            rate = links.of_node(node)
            if links.local_bandwidth is None:
                near = self._host(members[0], members, network, rate)
            else:
                bridge = f"{kind}{node}b"
                self.bridges.append(bridge)
                near = Port(space=SWITCH, name=f"{kind}{node}u", bridge=bridge)
                for space in members:
                    end = self._host(space, members, network, rate)
                    port = Port(space=SWITCH, name=f"{kind}{node}r{space}", bridge=bridge)
                    local = None if network else links.local_bandwidth
                    of_ranks.append(self.lay(f"rank {space - 1}{suffix}", end, port, local))
            of_nodes.append(self.lay(f"node {node}{suffix}", near, far, rate, delayed=True))
        return tuple(of_nodes), tuple(of_ranks)

    def _host(self, space: int, members: Sequence[int], network: int, node_rate: float) -> Port:
        """Return the port by which a node or rank joins a network, with address and routes."""
        links = self.links
        local, uplink = (links.local_bandwidth, links.uplink) if network == 0 else (None, None)
        narrowest = min(rate for rate in (node_rate, local, uplink) if rate is not None)
        routes = [Route(to=_everyone(network), window=window_bytes(narrowest, links.latency_s))]
        if local is not None:
            neighbours = [_address(network, other) for other in members if other != space]
            routes += [Route(to=f"{address}/32", window=window_bytes(local)) for address in neighbours]
        return Port(
            space=space,
            name=f"eth{network}",
            address=_address(network, space),
            routes=tuple(routes),
            # netem drops a segment as a whole, as if it were one frame.
            segments=1 if links.loss else segments(narrowest),
        )

    def lay_store(self, networks: int) -> int:
        """Add the server of input data on each network; return its namespace's index."""
        store = self.spaces
        self.spaces += 1
        for network in range(networks):
            near = Port(
                space=store,
                name=f"eth{network}",
                address=_address(network, _STORE_HOST),
                routes=(Route(to=_everyone(network)),),
            )
            far = Port(space=SWITCH, name=f"store{network}", bridge=_STORAGE if network else _CORE)
            self.lay("store", near, far, None)
        return store


def _check(links: Links, nodes: int, ranks_per_node: int) -> None:
    if nodes < 1 or ranks_per_node < 1:
        raise FabricError(
            f"a fabric of {nodes} nodes with {ranks_per_node} ranks each: both must be 1 or more"
        )
    if nodes > MAX_NODES:
        raise FabricError(f"a fabric of {nodes} nodes: one machine can emulate {MAX_NODES} at most")
    if links.local_bandwidth is not None and nodes * ranks_per_node > MAX_SPACES:
        raise FabricError(
            f"{nodes} x {ranks_per_node} ranks with separate links (local_bandwidth) need {nodes * ranks_per_node} "
            f"network namespaces; a machine's fabric has at most {MAX_SPACES}: leave local_bandwidth out, or "
            "use fewer nodes"
        )
    if nodes * ranks_per_node > MAX_RANKS:
        raise FabricError(
            f"a fabric of {nodes} nodes with {ranks_per_node} ranks each: no job has more than {MAX_RANKS:,} ranks"
        )
    if len(links.bandwidth) not in (1, nodes):
        raise FabricError(
            f"{len(links.bandwidth)} rates for {nodes} nodes: give one rate for all nodes, or one per node"
        )
    if nodes % links.racks:
        raise FabricError(f"{nodes} nodes do not divide evenly over {links.racks} racks")
    given = (*links.bandwidth, links.local_bandwidth, links.uplink)
    for rate in given:
        if rate is not None and not (math.isfinite(rate) and rate >= MIN_RATE):
            raise FabricError(
                f"a link of {format_bit_rate(rate)} cannot be made: the slowest possible rate is "
                f"{format_bit_rate(MIN_RATE)}. If dilation or shrink slows the links, use a smaller factor"
            )
    if not 0 <= links.latency_s <= MAX_LATENCY_S:
        raise FabricError(
            f"a delay of {format_seconds(links.latency_s)} cannot be made: the longest possible delay is "
            f"{format_seconds(MAX_LATENCY_S)}. If dilation lengthens the delay, use a smaller factor"
        )


def phases(topology: Topology) -> tuple[FlowPhase, ...]:
    """Return phases of traffic that together load every rate-limited cable at its full rate.

    The first phases load cables within nodes, later phases cables between nodes, and the last ones cables between
    racks.
    """
    made = (
        _within_nodes(topology),
        _between_nodes(topology),
        _without_equal(topology),
        _at_the_fastest(topology),
        *_between_racks(topology),
    )
    return tuple(phase for phase in made if phase.flows)


def _within_nodes(topology: Topology) -> FlowPhase:
    """Return traffic in a ring over each node's ranks; none if ranks share their node's links."""
    flows: list[TcpFlow] = []
    expected: dict[tuple[int, CableSide], float] = {}
    local = topology.links.local_bandwidth
    if local is not None:
        for group in topology.members:
            if len(group) > 1:
                flows += _flows(topology, group, (*group[1:], group[0]), 0)
                expected |= _both_ways((topology.rank_cables[space - 1] for space in group), local)
    return FlowPhase(name="within nodes", flows=tuple(flows), expected=expected)


def _capacity(topology: Topology, node: int) -> float:
    """Return the rate at which a node's ranks can load its link (bit/s)."""
    local = topology.links.local_bandwidth
    rate = topology.links.of_node(node)
    return rate if local is None else min(rate, local * len(topology.members[node]))


def _groups(topology: Topology, network: int) -> list[dict[int, float]]:
    """Return groups of nodes that reach each other without an uplink, with each node's `_capacity` (bit/s)."""
    nodes = range(len(topology.members))
    apart = network == 0 and topology.links.uplink is not None
    size = len(nodes) // topology.links.racks if apart else len(nodes)
    return [
        {node: _capacity(topology, node) for node in nodes[start : start + size]} for start in nodes[::size]
    ]


def _classes(capacity: dict[int, float]) -> list[list[int]]:
    return [[node for node in capacity if capacity[node] == rate] for rate in sorted(set(capacity.values()))]


def _between_nodes(topology: Topology) -> FlowPhase:
    """Return traffic in concurrent rings, one per set of nodes with equal rates.

    In a single ring, a fast node's data would queue at a slow node, delay acknowledgements and leave its link idle. A
    node whose rate is unique gets other phases.
    """
    flows: list[TcpFlow] = []
    expected: dict[tuple[int, CableSide], float] = {}
    for network, cables in enumerate(topology.node_cables):
        for capacity in _groups(topology, network):
            for ring in _classes(capacity):
                if len(ring) > 1:
                    for node, following in zip(ring, [*ring[1:], ring[0]], strict=True):
                        flows += _flows(
                            topology, topology.members[node], topology.members[following], network
                        )
                    expected |= _both_ways((cables[node] for node in ring), capacity[ring[0]])
    return FlowPhase(name="between nodes", flows=tuple(flows), expected=expected)


def _without_equal(topology: Topology) -> FlowPhase:
    """Return traffic between each node whose rate is unique and a node with the next higher rate."""
    flows: list[TcpFlow] = []
    expected: dict[tuple[int, CableSide], float] = {}
    for network, cables in enumerate(topology.node_cables):
        for capacity in _groups(topology, network):
            for (node, *equals), (other, *_) in itertools.pairwise(_classes(capacity)):
                if not equals:
                    flows += _flows(topology, topology.members[node], topology.members[other], network)
                    flows += _flows(topology, topology.members[other], topology.members[node], network)
                    expected |= _both_ways([cables[node]], capacity[node])
    return FlowPhase(name="without an equal", flows=tuple(flows), expected=expected)


def _at_the_fastest(topology: Topology) -> FlowPhase:
    """Return traffic between each group's only fastest node and the other nodes and the data server."""
    flows: list[TcpFlow] = []
    expected: dict[tuple[int, CableSide], float] = {}
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
                    flows.append(TcpFlow(source=space, target=store, address=topology.store_address(network)))
                    flows.append(
                        TcpFlow(source=store, target=space, address=topology.address(space, network))
                    )
            expected |= _both_ways([cables[lone]], min(capacity[lone], reach))
    return FlowPhase(name="at the fastest node", flows=tuple(flows), expected=expected)


def _between_racks(topology: Topology) -> tuple[FlowPhase, ...]:
    """Return traffic from each node to its counterpart in the next rack, in several phases.

    Neighbouring racks take turns: traffic both ways on an uplink would queue and delay acknowledgements.
    """
    uplink, racks = topology.links.uplink, topology.links.racks
    a_rack = len(topology.members) // racks
    if uplink is None:
        return ()
    turns = [range(0, racks - 1, 2), range(1, racks, 2) if racks % 2 == 0 else range(1, racks - 1, 2)]
    if racks % 2:
        turns.append(range(racks - 1, racks))
    found: list[FlowPhase] = []
    for turn in turns:
        flows: list[TcpFlow] = []
        expected: dict[tuple[int, CableSide], float] = {}
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
        found.append(FlowPhase(name="between racks", flows=tuple(flows), expected=expected))
    return tuple(found)


def _flows(topology: Topology, sources: Sequence[int], targets: Sequence[int], network: int) -> list[TcpFlow]:
    return [
        TcpFlow(source=source, target=target, address=topology.address(target, network))
        for source, target in zip(sources, targets, strict=True)
    ]


def _both_ways(cables: Iterable[int], rate: float) -> dict[tuple[int, CableSide], float]:
    sides: tuple[CableSide, ...] = ("out", "in")
    return {(cable, side): rate for cable in cables for side in sides}
