"""Transfers by size, one curve an operation and number of ranks, and what bounds them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from ddpbench.report.rows import Row
from ddpbench.report.words import Estimate, number, percent, ranks
from ddpbench.units import format_bytes

MIB = 2**20
_HALF = 0.5
"""What takes more of a transfer's time than this bounds it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Point:
    """Transfers of one size: time in milliseconds, busbw in GB/s (None where no factor is known)."""

    bytes: int
    time_ms: Estimate
    busbw: Estimate | None
    rounds: int
    transfers: int
    call_ms: Estimate | None = None
    """The time by nccl-tests' clock, and busbw by that."""
    call_busbw: Estimate | None = None
    latency_share: float | None = None
    """How much of its time is latency, by the line through its curve; None where there is none that fits."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TransferCurve:
    """One operation on one number of ranks, by size."""

    op: str
    world_size: int
    variant: int
    points: tuple[Point, ...]
    latency_ms: Estimate | None = None
    """Where the line through its points is at no bytes; None where sizes are too few or too near."""
    mib_ms: float = 0.0
    """What a MiB more takes, by that line."""
    misfit: float = 0.0

    @property
    def name(self) -> str:
        """As the figure labels it."""
        return f"{self.op}, {ranks(self.world_size)}"


def curves_of(records: Sequence[Mapping[Any, Any]]) -> list[TransferCurve]:
    """Return the transfers of one strategy as curves, their sizes ascending."""
    points: dict[tuple[str, int], list[Point]] = {}
    line_of: dict[tuple[str, int], Mapping[Any, Any]] = {}
    for record in records:
        busbw = _estimate(record, "busbw", "busbw_ci_low", "busbw_ci_high")
        time = _estimate(record, "time_s", "time_ci_low_s", "time_ci_high_s")
        called = _estimate(record, "call_time_s", "call_time_ci_low_s", "call_time_ci_high_s")
        call_busbw = _estimate(record, "call_busbw", "call_busbw_ci_low", "call_busbw_ci_high")
        assert time is not None
        points.setdefault((str(record["op"]), int(record["world_size"])), []).append(
            Point(
                bytes=int(record["bytes"]),
                time_ms=time.scaled(1e3),
                busbw=None if busbw is None else busbw.scaled(1e-9),
                call_ms=None if called is None else called.scaled(1e3),
                call_busbw=None if call_busbw is None else call_busbw.scaled(1e-9),
                rounds=int(record["rounds"]),
                transfers=int(record["transfers"]),
                latency_share=None if pd.isna(record["latency_share"]) else float(record["latency_share"]),
            )
        )
        line_of[str(record["op"]), int(record["world_size"])] = record
    curves = []
    for index, (key, found) in enumerate(sorted(points.items())):
        latency = _estimate(line_of[key], "latency_s", "latency_ci_low_s", "latency_ci_high_s")
        per_byte, misfit = (
            math.nan if pd.isna(line_of[key][name]) else float(line_of[key][name])
            for name in ("byte_s", "misfit")
        )
        curves.append(
            TransferCurve(
                op=key[0],
                world_size=key[1],
                variant=index,
                points=tuple(sorted(found, key=lambda one: one.bytes)),
                latency_ms=None if latency is None else latency.scaled(1e3),
                mib_ms=1e3 * MIB * per_byte,
                misfit=misfit,
            )
        )
    return curves


def _estimate(record: Mapping[Any, Any], value: str, low: str, high: str) -> Estimate | None:
    found = [None if pd.isna(record[name]) else float(record[name]) for name in (value, low, high)]
    return None if found[0] is None else Estimate(found[0], found[1], found[2])


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
