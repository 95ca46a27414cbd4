"""An emulated network: the settings in an experiment's `[fabric]`, and the links of a case."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, model_validator

from ddpbench.errors import RequestError
from ddpbench.spec import limits
from ddpbench.spec.limits import MAX_NODES
from ddpbench.text_safety import shortened
from ddpbench.units import Unit, format_bit_rate, parse_bit_rate, parse_seconds

BURST_S = 2e-3
"""A link's token bucket holds at most this many seconds of its rate."""


def _rates(value: object) -> object:
    if not isinstance(value, list):
        return limits.RATE.checked(value)
    if not 0 < len(value) <= MAX_NODES:
        raise ValueError(f"{len(value):,} rates; must be 1 to {MAX_NODES}: one for each node")
    return [limits.RATE.checked(rate) for rate in value]


Rate = Annotated[float, limits.RATE, Unit("bit/s", type="rate")]
Rates = Annotated[
    float | list[float],
    BeforeValidator(_rates),
    Unit("bit/s", type="rate or array of rates", allowed=limits.RATE.words),
]
Storage = Literal["none", "shared", "own"]


class FabricSettings(BaseModel, extra="forbid", frozen=True):
    """The `[fabric]` section; each of its fields may be an axis, as `"fabric.bandwidth" = [...]`."""

    nodes: Annotated[int, limits.FABRIC_NODES, Unit("nodes")] | None = None
    """Number of emulated nodes. Unset: what the world size and `ranks_per_node` need."""
    ranks_per_node: Annotated[int, limits.RANKS_PER_NODE, Unit("ranks")] | None = None
    """Ranks per node. Unset: the world size divided by `nodes`, or 1 without `nodes`."""
    bandwidth: Rates | None = None
    """Rate of each node's link in each direction; an array has one rate per node. Required, here or as an axis."""
    local_bandwidth: Rate | None = None
    """Rate of each rank's link to other ranks of its node. Unset: a loopback without a limit."""
    racks: Annotated[int, limits.RACKS, Unit("racks")] = 1
    """Number of racks. Nodes are assigned in order, equally many to each."""
    uplink: Rate | None = None
    """Rate of the link from a rack to the others, shared by its nodes. Needs 2 or more racks."""
    latency: Annotated[float, limits.LATENCY_S, Unit("s", type="duration")] = 0.0
    """Delay added to each node's link in each direction. Needs netem in the kernel."""
    loss: Annotated[float, limits.LOSS, Unit("1", type="number or percentage")] = 0.0
    """Fraction of packets that each node's link drops. Needs netem in the kernel."""
    storage: Storage = "none"
    """Source of input data: memory (`none`), a server over the gradients' link (`shared`), or a server over a second
    link of equal rate (`own`)."""

    @model_validator(mode="after")
    def _consistent(self) -> FabricSettings:
        if self.uplink is not None and self.racks == 1:
            raise ValueError("an uplink joins racks: set racks to 2 or more")
        return self


@dataclass(frozen=True, kw_only=True, slots=True)
class Links:
    """The links of a case's fabric, from `Case.fabric`. Rates are in bit/s, before dilation and shrink."""

    bandwidth: tuple[float, ...]
    """A single rate for all nodes, or one for each node."""
    local_bandwidth: float | None = None
    racks: int = 1
    uplink: float | None = None
    latency_s: float = 0.0
    loss: float = 0.0
    storage: Storage = "none"

    @classmethod
    def from_settings(cls, settings: FabricSettings) -> Links:
        """Return the links of a case from its validated settings, which must have a bandwidth."""
        given = settings.bandwidth
        assert given is not None
        rates = tuple(given) if isinstance(given, list) else (given,)
        return cls(
            bandwidth=rates[:1] if len(set(rates)) == 1 else rates,
            local_bandwidth=settings.local_bandwidth,
            racks=settings.racks,
            uplink=settings.uplink,
            latency_s=settings.latency,
            loss=settings.loss,
            storage=settings.storage,
        )

    @property
    def rates_alone(self) -> bool:
        """Return whether nothing but link rates slows gradients down.

        Latency, losses and input data on the gradients' link would also slow them down.
        """
        return not self.latency_s and not self.loss and self.storage != "shared"

    def of_node(self, node: int) -> float:
        """Return the rate of a node's link, bit/s."""
        return self.bandwidth[node] if len(self.bandwidth) > 1 else self.bandwidth[0]

    def slowest(self, nodes: int) -> float:
        """Return the rate of the slowest link, uplinks included, bit/s."""
        rate = min(self.of_node(node) for node in range(nodes))
        return rate if self.uplink is None else min(rate, self.uplink)

    def limiting(self, algorithm: str, nodes: int) -> float:
        """Return the effective rate of the link that limits an algorithm with one rank per node, bit/s.

        A ring runs at its slowest link's rate. A master's link carries the gradients of all other nodes, its rack's
        uplink those of other racks, and any other link one node's. The effective rate is a link's rate divided by its
        share of the bytes on the master's link.
        """
        if algorithm != "master" or nodes == 1:
            return self.slowest(nodes)
        rate = min(self.of_node(0), *((nodes - 1) * self.of_node(node) for node in range(1, nodes)))
        if self.uplink is not None and self.racks > 1:
            beyond = (nodes - nodes / self.racks) / (nodes - 1)  # relative to what the master's link carries
            rate = min(rate, self.uplink / beyond)
        return rate

    def slowed(self, *, dilation: float = 1.0, shrink: float = 1.0) -> Links:
        """Return the links with the rates and the latency that are actually emulated.

        Dilation and shrink both divide the rates; only dilation multiplies the latency.
        """
        by = dilation * shrink
        return Links(
            bandwidth=tuple(rate / by for rate in self.bandwidth),
            local_bandwidth=None if self.local_bandwidth is None else self.local_bandwidth / by,
            racks=self.racks,
            uplink=None if self.uplink is None else self.uplink / by,
            latency_s=self.latency_s * dilation,
            loss=self.loss,
            storage=self.storage,
        )

    def text(self) -> str:
        """Return the links as a text that `parse` can read, such as `1 Gbit/s; 2 racks, uplink 4 Gbit/s`."""
        parts = [", ".join(format_bit_rate(rate) for rate in self.bandwidth)]
        if self.local_bandwidth is not None:
            parts.append(f"local {format_bit_rate(self.local_bandwidth)}")
        if self.racks > 1:
            uplink = f", uplink {format_bit_rate(self.uplink)}" if self.uplink is not None else ""
            parts.append(f"{self.racks} racks{uplink}")
        if self.latency_s:
            parts.append(f"latency {1e6 * self.latency_s:.12g} µs")
        if self.loss:
            parts.append(f"loss {100 * self.loss:.6g} %")
        if self.storage != "none":
            parts.append(f"{self.storage} storage")
        return "; ".join(parts)

    @classmethod
    def parse(cls, text: str) -> Links:
        """Return the links that a text describes in the form of `Links.text`.

        Raises:
            ValueError: the text cannot be parsed.
        """
        first, *rest = text.split("; ")
        values: dict[str, Any] = {"bandwidth": tuple(parse_bit_rate(part) for part in first.split(", "))}
        for part in rest:
            if match := re.fullmatch(r"local (.+)", part):
                values["local_bandwidth"] = parse_bit_rate(match[1])
            elif match := re.fullmatch(r"(\d+) racks(?:, uplink (.+))?", part):
                values["racks"] = int(match[1])
                values["uplink"] = parse_bit_rate(match[2]) if match[2] else None
            elif match := re.fullmatch(r"latency (.+)", part):
                values["latency_s"] = parse_seconds(match[1])
            elif match := re.fullmatch(r"loss (.+) %", part):
                values["loss"] = float(match[1]) / 100
            elif match := re.fullmatch(r"(shared|own) storage", part):
                values["storage"] = match[1]
            else:
                raise ValueError(f"{part!r} does not describe links")
        return cls(**values)


def fabric_overrides(text: str) -> list[str]:
    """Return overrides for the value of `--fabric`: `8 x 1gbit` is 8 nodes, `2 x 4 x 10gbit` is 2 nodes of 4 ranks.

    Raises:
        RequestError: the text cannot be parsed, or a number is out of range.
    """
    *counts, rate = (part.strip() for part in re.split("[x×]", text))
    try:
        speed = parse_bit_rate(rate)
        if not 1 <= len(counts) <= 2 or not all(count.isascii() and count.isdecimal() for count in counts):
            raise ValueError
    except ValueError:
        raise RequestError(
            f"--fabric {shortened(text)}: write nodes x rate, such as '8 x 1gbit', or nodes x ranks per node x rate, "
            "such as '2 x 4 x 10gbit'; an experiment's [fabric] has more settings"
        ) from None
    named = {"nodes": limits.FABRIC_NODES, "ranks per node": limits.RANKS_PER_NODE}
    try:
        with _named("rate"):
            limits.RATE.checked(speed)
        given = []
        for (what, limit), count in zip(named.items(), counts, strict=False):
            with _named(what):
                given.append(limit.parsed(count))
    except ValueError as error:
        raise RequestError(f"--fabric {shortened(text)}: {error}") from None
    nodes, *a_node = given
    ranks = [f"fabric.ranks_per_node={a_node[0]}"] if a_node else []
    return [f"fabric.nodes={nodes}", *ranks, f"fabric.bandwidth={json.dumps(format_bit_rate(speed))}"]


@contextlib.contextmanager
def _named(what: str) -> Iterator[None]:
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{what}: {error}") from None
