"""An emulated network as data: its spaces (network namespaces), bridges and cables, and the flows that test it.

Space 0 is the switch, which contains all bridges.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from typing import Any, Literal

SWITCH = 0
PREFIX = 16
"""Length of a network's address prefix (bits)."""

FRAME_BYTES = 1514
"""Length of an interface's longest frame (bytes), with its Ethernet header, as the kernel counts."""

CableSide = Literal["out", "in"]
"""Direction of a cable: `out` from its near end to its far end, or `in` back. The sending end limits the rate."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Route:
    """A route from an interface to other addresses."""

    to: str
    """Destination network, such as `10.0.0.0/16`."""
    window: int | None = None
    """Initial window that a connection offers its sender (bytes); None for the kernel's default."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Port:
    """An end of a cable: an interface with an address, or a port of one of the switch's bridges."""

    space: int
    name: str
    bridge: str = ""
    address: str = ""
    routes: tuple[Route, ...] = ()
    segments: int | None = None
    """Maximum number of frames that TCP may hand to the interface at once; None for the kernel's default."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Cable:
    """A pair of connected interfaces: `near` at the cable's owner (node, rank or rack), `far` at the other end."""

    label: str
    """Name of the cable's owner, such as `node 3`."""
    near: Port
    far: Port
    rate: float | None
    """Rate in each direction (bit/s); None if it is not limited."""
    burst: int = 0
    """Number of bytes that may pass at once after a pause."""
    delayed: bool = False
    """True if the wiring's latency and loss apply to this cable."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Wiring:
    """All parts of an emulated network."""

    spaces: int
    """Number of spaces, including the switch."""
    bridges: tuple[str, ...]
    cables: tuple[Cable, ...]
    latency_s: float = 0.0
    loss: float = 0.0
    store: int | None = None
    """Space of the server of input data; None if the fabric has no server."""

    def to_json(self) -> str:
        """Return the wiring as JSON text, to send to the process that makes the fabric."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Wiring:
        """Return the wiring from the JSON text of `to_json()`."""
        found = json.loads(text)

        def port(fields: dict[str, Any]) -> Port:
            return Port(**{**fields, "routes": tuple(Route(**route) for route in fields["routes"])})

        cables = tuple(
            Cable(**{**cable, "near": port(cable["near"]), "far": port(cable["far"])})
            for cable in found["cables"]
        )
        return cls(**{**found, "bridges": tuple(found["bridges"]), "cables": cables})


@dataclass(frozen=True, kw_only=True, slots=True)
class TcpFlow:
    """A TCP connection that sends as fast as it can."""

    source: int
    target: int
    """`source` and `target` are spaces."""
    address: str
    """IP address of the target."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FlowPhase:
    """Flows that run at the same time, and the rate that each direction of a cable must reach meanwhile."""

    name: str
    flows: tuple[TcpFlow, ...]
    expected: dict[tuple[int, CableSide], float]
    """Rates on the wire (bit/s), by a cable's index in `Wiring.cables` and the direction."""
