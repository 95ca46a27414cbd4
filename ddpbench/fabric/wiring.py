"""The parts of a fabric as data: spaces (network namespaces), bridges and cables, and the flows of a proof.

Space 0 is the switch, which contains all bridges. The data can be converted to JSON and back, because a separate
process makes the fabric.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from typing import Any, Literal

SWITCH = 0
PREFIX = 16
"""Length of a network's address prefix, bits."""

FRAME_BYTES = 1514
"""The longest frame of an interface, as the kernel counts: with its Ethernet header."""

CableSide = Literal["out", "in"]
"""A cable's direction: `out` from its near end to its far end, `in` back. Each is shaped at the end that sends."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Route:
    """A route by which an interface reaches others."""

    to: str
    """Destination, such as `10.0.0.0/16`."""
    window: int | None = None
    """The initial window that a connection offers its sender, bytes; None: the kernel's default."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Port:
    """An end of a cable: an interface with an address, or a port of one of the switch's bridges."""

    space: int
    name: str
    bridge: str = ""
    address: str = ""
    routes: tuple[Route, ...] = ()
    segments: int | None = None
    """Most frames that TCP may hand to the interface at once; None: the kernel's default."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Cable:
    """A pair of interfaces: `near` at the node, rank or rack that the cable belongs to, and `far` at the other end."""

    label: str
    """Such as `node 3`."""
    near: Port
    far: Port
    rate: float | None
    """Rate in either direction, bit/s; None: unshaped."""
    burst: int = 0
    """Bytes that may pass at once after a pause."""
    delayed: bool = False
    """True if the wiring's latency and loss apply to this cable."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Wiring:
    """All parts of a fabric."""

    spaces: int
    """Number of spaces, including the switch."""
    bridges: tuple[str, ...]
    cables: tuple[Cable, ...]
    latency_s: float = 0.0
    loss: float = 0.0
    store: int | None = None
    """The space of the server of input data, if there is one."""

    def to_json(self) -> str:
        """Return the wiring as JSON, for the process that makes it."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Wiring:
        """Return the wiring from the text of `to_json()`."""
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
    """The spaces of source and target."""
    address: str
    """The target's address."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FlowPhase:
    """Flows that run at once, and the rate that each direction of a cable must show meanwhile."""

    name: str
    flows: tuple[TcpFlow, ...]
    expected: dict[tuple[int, CableSide], float]
    """Rates by a cable's index in `Wiring.cables` and its direction, bit/s on the wire."""
