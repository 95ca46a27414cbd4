"""What a fabric is made of, as data: spaces (network namespaces), bridges, cables; and who sends to whom in a proof.

Space 0 is the switch: all bridges are in it. JSON in and out, since another process makes it.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from typing import Any, Literal

SWITCH = 0
PREFIX = 16
"""Bits of an address that all addresses of a network share."""

FRAME_BYTES = 1514
"""The longest frame of an interface, as the kernel counts: with its Ethernet header."""

Side = Literal["out", "in"]
"""`out` is shaped where a cable leaves its near end, `in` where it leaves the far end for the near one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Route:
    """How an interface reaches others."""

    to: str
    """Such as `10.0.0.0/16`."""
    window: int | None = None
    """What a connection offers its sender at first, bytes; None: the kernel's default."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Port:
    """One end of a cable: an interface in a space, with an address, or as a port of a bridge of the switch."""

    space: int
    name: str
    bridge: str = ""
    address: str = ""
    routes: tuple[Route, ...] = ()
    segments: int | None = None
    """As many frames as TCP may hand it at once; None: the kernel's default."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Cable:
    """A pair of interfaces. `near` is the end at the node, rank or rack it belongs to, `far` the one beyond."""

    label: str
    """Such as `node 3`."""
    near: Port
    far: Port
    rate: float | None
    """Either way, bit/s; None: unshaped."""
    burst: int = 0
    """Bytes that may pass at once after a rest."""
    delayed: bool = False
    """Whether the wiring's latency and loss are this cable's."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Wiring:
    """All of a fabric."""

    spaces: int
    """The switch included."""
    bridges: tuple[str, ...]
    cables: tuple[Cable, ...]
    latency_s: float = 0.0
    loss: float = 0.0
    store: int | None = None
    """The space of the server of input data."""

    def to_json(self) -> str:
        """For the process that makes it."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Wiring:
        """Return the wiring back from `to_json()`."""
        found = json.loads(text)

        def port(fields: dict[str, Any]) -> Port:
            return Port(**{**fields, "routes": tuple(Route(**route) for route in fields["routes"])})

        cables = tuple(
            Cable(**{**cable, "near": port(cable["near"]), "far": port(cable["far"])})
            for cable in found["cables"]
        )
        return cls(**{**found, "bridges": tuple(found["bridges"]), "cables": cables})


@dataclass(frozen=True, kw_only=True, slots=True)
class Flow:
    """One TCP connection that sends as fast as it can."""

    source: int
    target: int
    """Spaces."""
    address: str
    """The target's."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Phase:
    """Flows that run at once, and the rate each direction of a cable must then show."""

    name: str
    flows: tuple[Flow, ...]
    expected: dict[tuple[int, Side], float]
    """By a cable's place in `Wiring.cables`, bit/s on the wire."""
