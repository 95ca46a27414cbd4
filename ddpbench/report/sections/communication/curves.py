"""Curves of transfers by size, one per operation and number of ranks, with texts that say what bounds the transfers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ddpbench.analysis.results import TransferResult
from ddpbench.analysis.statistics.interval import Interval
from ddpbench.report.words import number, percent, ranks
from ddpbench.units import format_bytes

MIB = 2**20
_HALF = 0.5
"""Latency bounds a transfer if it is at least this fraction of the time. Otherwise bandwidth bounds the transfer."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TransferPoint:
    """Measured transfers of one size. `busbw` is in GB/s, and None if nccl-tests has no factor for the operation."""

    bytes: int
    time_ms: Interval
    busbw: Interval | None
    rounds: int
    transfers: int
    call_ms: Interval | None = None
    """The time as nccl-tests measures it, from which `call_busbw` is computed."""
    call_busbw: Interval | None = None
    latency_share: float | None = None
    """Fraction of the time that is latency, by the line fitted to the curve; None if no line fits."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TransferCurve:
    """The transfers of one operation on one number of ranks, by size."""

    op: str
    world_size: int
    variant: int
    points: tuple[TransferPoint, ...]
    latency_ms: Interval | None = None
    """Time at zero bytes, by the line fitted to the points; None if sizes are too few or too close."""
    mib_ms: float = 0.0
    """Time per additional MiB, by the line fitted to the points; NaN if no line was fitted."""
    misfit: float = 0.0

    @property
    def name(self) -> str:
        """Return the curve's label in the figure: its operation and number of ranks."""
        return f"{self.op}, {ranks(self.world_size)}"


def curves_of(results: Sequence[TransferResult]) -> list[TransferCurve]:
    """Return the transfers of one strategy as curves, each in ascending order of size."""
    by_curve: dict[tuple[str, int], list[TransferResult]] = {}
    for one in results:
        by_curve.setdefault((one.op, one.world_size), []).append(one)
    curves = []
    for index, ((op, world_size), sizes) in enumerate(sorted(by_curve.items())):
        line = sizes[-1]  # all sizes of a curve have the same fitted line
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


def _point(one: TransferResult) -> TransferPoint:
    return TransferPoint(
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
    """Return a phrase that says whether latency or bandwidth bounds a curve's transfers; empty for too few sizes."""
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


def bound_by(of: str, curve: TransferCurve) -> str:
    """Say in a sentence which fraction of the time is latency, at the smallest and at the largest size.

    If the fraction is unknown, the sentence gives the reason. It is empty if sizes are too few or too close to fit a
    line. `of` names the strategy.
    """
    latency, first, last = curve.latency_ms, curve.points[0], curve.points[-1]
    if latency is None:
        return ""
    name = f"{of}, {curve.name}"
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
