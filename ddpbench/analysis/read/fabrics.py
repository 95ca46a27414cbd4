"""Emulated networks of a run as they were made and checked, from `fabric.json`; fields may be missing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ddpbench.errors import UnreadableError
from ddpbench.records import RunDir
from ddpbench.records.files import MOST_NOTES, parse_json, read_bytes
from ddpbench.units import with_minus


@dataclass(frozen=True, kw_only=True, slots=True)
class FabricRun:
    """An emulated network of a run. Fields that the file lacks are empty or None.

    Rates (bit/s) are those of the actual links, which dilation slows down.
    """

    links: str
    nodes: int | None
    ranks_per_node: int | None
    dilation: float | None
    shrink: float | None
    privileged: bool | None
    """True if made as root, False if made in an unprivileged user namespace."""
    kernel: str
    asked_bit_per_s: tuple[float, ...]
    reached_bit_per_s: tuple[float, ...]
    dropped: int | None

    @property
    def widest_gap(self) -> float | None:
        """Return the largest relative difference between a link's measured and requested rate, with its sign."""
        gaps = [
            reached / asked - 1
            for asked, reached in zip(self.asked_bit_per_s, self.reached_bit_per_s, strict=False)
            if asked > 0
        ]
        return max(gaps, key=abs, default=None)


def fabrics_of(run: RunDir) -> tuple[FabricRun, ...]:
    """Return the run's emulated networks, in the order in which they were first made.

    Empty if the file is missing or damaged.
    """
    try:
        data: Any = parse_json(read_bytes(run.fabrics, MOST_NOTES))
    except (OSError, ValueError, UnreadableError):
        return ()
    entries = data if isinstance(data, list) else []
    return tuple(_fabric(entry) for entry in entries if isinstance(entry, Mapping))


def _fabric(entry: Mapping[str, Any]) -> FabricRun:
    privileged = entry.get("privileged")
    return FabricRun(
        links=str(entry.get("links") or ""),
        nodes=_whole(entry.get("nodes")),
        ranks_per_node=_whole(entry.get("ranks_per_node")),
        dilation=next(iter(_reals([entry.get("dilation")])), None),
        shrink=next(iter(_reals([entry.get("shrink")])), None),
        privileged=privileged if isinstance(privileged, bool) else None,
        kernel=str(entry.get("kernel") or ""),
        asked_bit_per_s=tuple(_reals(entry.get("asked_bit_per_s"))),
        reached_bit_per_s=tuple(_reals(entry.get("reached_bit_per_s"))),
        dropped=_whole(entry.get("dropped")),
    )


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _reals(values: object) -> Iterable[float]:
    for value in values if isinstance(values, list) else []:
        if isinstance(value, int | float) and not isinstance(value, bool):
            yield float(value)


def fabric_sentences(fabrics: Iterable[FabricRun]) -> Iterable[str]:
    """Yield a sentence that says how the networks were made, and how far the worst link was from its requested rate."""
    found = list(fabrics)
    if not found:
        return
    ways = frozenset(one.privileged for one in found if one.privileged is not None)
    how = {
        frozenset({True}): "as root",
        frozenset({False}): "in an unprivileged user namespace",
        frozenset({True, False}): "some as root and some in an unprivileged user namespace",
    }.get(ways, "in a way that was not recorded")
    kernels = ", ".join(dict.fromkeys(one.kernel for one in found if one.kernel))
    gaps = [gap for one in found if (gap := one.widest_gap) is not None]
    text = (
        f"{len(found)} emulated network{'s were' if len(found) != 1 else ' was'} made {how}"
        f"{f' (Linux {kernels})' if kernels else ''}"
    )
    if gaps:
        widest = max(gaps, key=abs)
        signed = with_minus(f"{100 * widest:+.1f} %")
        text += (
            "; before measuring all links carried traffic at once, and the one furthest from its rate was off by "
            f"{signed}"
        )
    dropped = sum(one.dropped or 0 for one in found)
    if dropped:
        text += f"; {dropped:,} packet{'s were' if dropped != 1 else ' was'} dropped meanwhile"
    yield f"{text}."
