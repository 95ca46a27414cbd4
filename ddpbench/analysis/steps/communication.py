"""Time and bus bandwidth of transfers during training, by their size in bytes.

A transfer lasts from when its data can flow until its last rank has its result (`read/transfers.py`). Transfers over
the same links divide each instant evenly (`Moved`), so no busbw exceeds a link's capacity. Busbw is bytes divided by
time, times nccl-tests' factor for the operation and number of ranks (its doc/PERFORMANCE.md). Times as nccl-tests
measures them (`OTHER_CLOCK`) are in `call_time_s` and `call_busbw`. Each round gives the mean time of a size; the
result is the median over rounds with its interval.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ddpbench.analysis.findings.groups import grouped, layouts_of
from ddpbench.analysis.read.launches import CaseRun
from ddpbench.analysis.read.transfers import Moved
from ddpbench.analysis.results import TransferResult
from ddpbench.analysis.statistics.interval import Interval
from ddpbench.analysis.statistics.stats import median_launch
from ddpbench.formulas import TIMES
from ddpbench.records.operations import flow_of
from ddpbench.spec import grouping
from ddpbench.strategies.traits import traits_of

MIN_SIZES = 3
"""Smallest number of sizes, of one operation on one number of ranks, that show latency or bandwidth."""
OTHER_CLOCK = (
    "nccl-tests takes the mean over ranks of the time from a rank's call to its result, which includes waiting for "
    "late ranks"
)
"""Sentence that accompanies every definition of busbw.

In nccl-tests, each rank measures the time of 20 calls back to back after a barrier. This time is divided by 20 and
averaged over ranks (the default, `-a 1`). Source: src/common.cu, BenchTime, and README, -a, at commit 01d6761.
"""
MIN_SPREAD = 4.0
"""Smallest ratio of the largest size to the smallest with which a line through sizes gives a latency."""
MOST_MISFIT = 0.25
"""Largest relative error at any size with which a line gives a latency."""
FACTORS: Mapping[str, tuple[str, Callable[[int], float]]] = {
    **dict.fromkeys(TIMES, ("2(n-1)/n", lambda n: 2 * (n - 1) / n)),  # every way to reduce to all
    "reduce_scatter": ("(n-1)/n", lambda n: (n - 1) / n),
    "all_gather": ("(n-1)/n", lambda n: (n - 1) / n),
    "broadcast": ("1", lambda n: 1.0),
    "reduce": ("1", lambda n: 1.0),
    "gather": ("n-1, of one rank's bytes", lambda n: n - 1.0),
    "scatter": ("n-1, of one rank's bytes", lambda n: n - 1.0),
    "send": ("1", lambda n: 1.0),  # from one rank to another, for any number of ranks
}
"""Factors on bytes divided by time, in words and as a function of the number of ranks.

For a gather or a scatter, nccl-tests counts the whole buffer, n times one rank's, and multiplies by (n-1)/n, which
gives the same bandwidth.
"""


def transfer_results(cases: Sequence[CaseRun]) -> list[TransferResult]:
    """Return a result for each strategy, operation, number of ranks and size of transfers.

    Oversubscribed cases, operations of a single size, and strategies with fewer than `MIN_SIZES` sizes are left out.
    `world_size` is that of the case or, for collectives within groups, of the group. `group` numbers the strategies,
    the most sizes first. `case_id` is a case with these transfers.
    """
    able = [
        run
        for run in cases
        if run.status == "ok"
        and run.parts is not None
        and run.case.world_size > 1
        and traits_of(run.case).exchanges
        and not run.oversubscribed
    ]
    found: list[list[TransferResult]] = []
    nodes = layouts_of(able)
    for members in grouped(
        able, lambda run: (grouping.panel(run.case), grouping.variant(run.case), nodes[run.case_id])
    ).values():
        rows = [
            row
            for world, at in grouped(members, lambda run: (run.case.world_size,)).items()
            for row in _rows(world[0], at)
        ]
        if any(_sizes(rows, row) >= MIN_SIZES for row in rows):
            found.append([row for row in rows if _sizes(rows, row) >= 2])
    found.sort(key=lambda rows: -len({row.bytes for row in rows}))
    return [replace(row, group=number) for number, rows in enumerate(found) for row in rows]


@dataclass(frozen=True, kw_only=True, slots=True)
class FittedLine:
    """A line of time over size, `latency` + bytes * `byte_s` in seconds, by least squares of relative errors.

    Latency and `byte_s` are medians over the lines of single rounds. The 95 % interval is the interval of the median
    latency. `misfit` is the largest relative error at any size.
    """

    latency: Interval
    byte_s: float
    misfit: float

    def share(self, size: float) -> float | None:
        """Return latency's share of the time for `size` bytes.

        None if the fitted line does not describe the times well.
        """
        whole = self.latency.value + self.byte_s * size
        if self.misfit > MOST_MISFIT or self.byte_s <= 0 or whole <= 0:
            return None
        return min(1.0, max(0.0, self.latency.value / whole))


def line_of(times: Mapping[float, float], rounds: Sequence[Mapping[float, float]] = ()) -> FittedLine | None:
    """Return the line through the rounds that have all sizes, or else through `times`.

    Times are by size. None for too few or too similar sizes.
    """
    if len(times) < MIN_SIZES or max(times) < MIN_SPREAD * min(times):
        return None
    lines = [_least_squares(one) for one in rounds if one.keys() == times.keys()] or [_least_squares(times)]
    latency = median_launch([latency for latency, _ in lines])
    byte_s = statistics.median(byte_s for _, byte_s in lines)
    misfit = max(abs((latency.value + byte_s * size) / seconds - 1) for size, seconds in times.items())
    return FittedLine(latency=latency, byte_s=byte_s, misfit=misfit)


def _least_squares(times: Mapping[float, float]) -> tuple[float, float]:
    """Return the latency and the time per byte, with errors relative to each size's time."""
    sizes, seconds = np.array(list(times)), np.array(list(times.values()))
    scale = float(sizes.max())  # scaled to similar magnitudes, for precision
    table = np.stack([1 / seconds, sizes / scale / seconds], axis=1)
    (latency, slope), *_ = np.linalg.lstsq(table, np.ones(len(sizes)), rcond=None)
    return float(latency), float(slope) / scale


def _sizes(rows: Sequence[TransferResult], of: TransferResult) -> int:
    return sum((row.op, row.world_size) == (of.op, of.world_size) for row in rows)


def _rows(world: int, members: Sequence[CaseRun]) -> list[TransferResult]:
    moved: dict[tuple[str, int], dict[int, Moved]] = {}
    case_of: dict[tuple[str, int], str] = {}
    for run in members:
        assert run.parts is not None
        for number, sizes in run.parts.transfers.items():
            for key, part in sizes.items():
                total = moved.setdefault(key, {}).setdefault(number, Moved())
                total.count += part.count
                total.time_ns += part.time_ns
                total.called_ns += part.called_ns
                total.ranks = max(total.ranks, part.ranks)
                case_of.setdefault(key, run.case_id)
    medians: dict[str, dict[float, float]] = {}
    by_round: dict[str, dict[int, dict[float, float]]] = {}
    for (op, size), found in sorted(moved.items()):
        timed = {number: one for number, one in found.items() if one.time_ns > 0}
        if timed and size:
            for number, one in timed.items():
                by_round.setdefault(op, {}).setdefault(number, {})[size] = one.time_ns / one.count / 1e9
            own = (one.time_ns / one.count / 1e9 for one in timed.values())
            medians.setdefault(op, {})[size] = statistics.median(own)
    lines = {op: line_of(times, list(by_round[op].values())) for op, times in medians.items()}
    rows = []
    for op, size in sorted(moved):
        if size not in medians.get(op, {}):
            continue
        times = [own[size] for own in by_round[op].values() if size in own]
        count = sum(one.count for one in moved[op, size].values() if one.time_ns > 0)
        time = median_launch(times)
        group = world if flow_of(op) == "pair" else max(one.ranks for one in moved[op, size].values())
        factor = FACTORS[op][1](group) if op in FACTORS else None
        called = _called([one for one in moved[op, size].values() if one.time_ns > 0])
        line = lines[op]
        rows.append(
            TransferResult(
                group=0,
                case_id=case_of[op, size],
                op=op,
                world_size=group,
                bytes=size,
                time_s=time,
                busbw=_rate(factor, size, time),
                call_time_s=called,
                call_busbw=_rate(factor, size, called),
                factor=factor,
                rounds=len(times),
                transfers=count,
                latency_s=None if line is None else line.latency,
                byte_s=None if line is None else line.byte_s,
                misfit=None if line is None else line.misfit,
                latency_share=None if line is None else line.share(size),
            )
        )
    return rows


def _called(rounds: Sequence[Moved]) -> Interval:
    """Return the time of a call (seconds) as nccl-tests measures it."""
    return median_launch([one.called_ns / one.count / 1e9 for one in rounds])


def _rate(factor: float | None, size: float, time: Interval) -> Interval | None:
    if factor is None:
        return None
    low, high = (None if end is None else factor * size / end for end in (time.high, time.low))
    return Interval(value=factor * size / time.value, low=low, high=high)
