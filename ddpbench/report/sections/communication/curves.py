"""Transfers by size, one curve an operation and number of ranks, and what bounds them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ddpbench.analysis.results import TransferResult
from ddpbench.analysis.statistics.interval import Interval
from ddpbench.report.rows import Row
from ddpbench.report.words import number, percent, ranks
from ddpbench.units import format_bytes

MIB = 2**20
_HALF = 0.5
"""What takes more of a transfer's time than this bounds it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Point:
    """Transfers of one size: time in milliseconds, busbw in GB/s (None where no factor is known)."""

    bytes: int
    time_ms: Interval
    busbw: Interval | None
    rounds: int
    transfers: int
    call_ms: Interval | None = None
    """The time by nccl-tests' clock, and busbw by that."""
    call_busbw: Interval | None = None
    latency_share: float | None = None
    """How much of its time is latency, by the line through its curve; None where there is none that fits."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TransferCurve:
    """One operation on one number of ranks, by size."""

    op: str
    world_size: int
    variant: int
    points: tuple[Point, ...]
    latency_ms: Interval | None = None
    """Where the line through its points is at no bytes; None where sizes are too few or too near."""
    mib_ms: float = 0.0
    """What a MiB more takes, by that line."""
    misfit: float = 0.0

    @property
    def name(self) -> str:
        """As the figure labels it."""
        return f"{self.op}, {ranks(self.world_size)}"


def curves_of(results: Sequence[TransferResult]) -> list[TransferCurve]:
    """Return the transfers of one strategy as curves, their sizes ascending."""
    found: dict[tuple[str, int], list[TransferResult]] = {}
    for one in results:
        found.setdefault((one.op, one.world_size), []).append(one)
    curves = []
    for index, ((op, world_size), sizes) in enumerate(sorted(found.items())):
        line = sizes[-1]  # the same of each
        curves.append(
            TransferCurve(
                op=op,
                world_size=world_size,
                variant=index,
                points=tuple(map(_point, sorted(sizes, key=lambda one: one.bytes))),
                latency_ms=None if line.latency_s is None else line.latency_s.scaled(1e3),
                mib_ms=math.nan if line.byte_s is None else 1e3 * MIB * line.byte_s,
                misfit=math.nan if line.misfit is None else line.misfit,
            )
        )
    return curves


def _point(one: TransferResult) -> Point:
    return Point(
        bytes=one.bytes,
        time_ms=one.time_s.scaled(1e3),
        busbw=None if one.busbw is None else one.busbw.scaled(1e-9),
        call_ms=one.call_time_s.scaled(1e3),
        call_busbw=None if one.call_busbw is None else one.call_busbw.scaled(1e-9),
        rounds=one.rounds,
        transfers=one.transfers,
        latency_share=one.latency_share,
    )


def answer_of(curve: TransferCurve) -> str:
    """Whether latency or bandwidth bounds a curve's transfers, in a few words; empty where sizes are too few."""
    latency, first, last = curve.latency_ms, curve.points[0], curve.points[-1]
    if latency is None:
        return ""
    if first.latency_share is None or last.latency_share is None:
        return "latency cannot be told from bandwidth"
    if latency.value <= 0 or (latency.low is not None and latency.low <= 0) or first.latency_share < _HALF:
        return "bound by bandwidth"
    if last.latency_share >= _HALF:
        return "bound by latency"
    return "small transfers are bound by latency, large ones by bandwidth"


def bound_by(row: Row, curve: TransferCurve) -> str:
    """Whether latency or bandwidth takes a transfer's time, at the smallest and the largest size; or why none can tell.

    Empty where sizes are too few or too near for a line.
    """
    latency, first, last = curve.latency_ms, curve.points[0], curve.points[-1]
    if latency is None:
        return ""
    name = f"{row.strategy_name}, {curve.name}"
    if first.latency_share is None or last.latency_share is None:
        return (
            f"{name}: the best straight line of time over size misses some size by {percent(curve.misfit)}, so "
            "latency cannot be told from bandwidth."
        )
    line = f"time grows by {number(curve.mib_ms)} ms per MiB, within {percent(curve.misfit)} at every size"
    if latency.value <= 0 or (latency.low is not None and latency.low <= 0):
        most = "" if latency.high is None else f" (at most {number(max(latency.high, 0.0))} ms)"
        return f"{name}: {line}, and no latency can be told from 0{most}: bandwidth takes the time."
    return (
        f"{name}: {line}, on top of a latency of {latency} ms. It is {percent(first.latency_share)} of the time of "
        f"{format_bytes(first.bytes)} and {percent(last.latency_share)} of that of {format_bytes(last.bytes)}; the "
        "rest is bandwidth."
    )
