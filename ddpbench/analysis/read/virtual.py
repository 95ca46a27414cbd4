"""Convert records of a dilated or shrunk run to the job that they represent.

With a dilation of k, the run's spans are k times the job's. With a shrinking of m, its parameters, gradients and bytes
are one m-th of the job's. All records pass through this module, so later numbers are the job's, and times are virtual.
Processor time, memory, a launch's wall time and checkpoints stay the machine's own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from ddpbench.records import (
    Block,
    Buckets,
    CommRecord,
    Held,
    Pace,
    RankRecords,
    RankStart,
    Record,
    StepRecord,
    Traffic,
    Warmup,
)
from ddpbench.spec import Case


def nominal(ranks: Iterable[RankRecords], case: Case) -> tuple[RankRecords, ...]:
    """Return the ranks' records with times divided by the case's dilation, and sizes multiplied by its shrinking."""
    if case.dilation == 1 and case.shrink == 1:
        return tuple(ranks)
    return tuple(
        replace(rank, records=tuple(_nominal(record, case.dilation, case.shrink) for record in rank.records))
        for rank in ranks
    )


_TIMES: dict[type[Record], tuple[str, ...]] = {
    Block: ("start_ns", "end_ns", "step_ns"),
    StepRecord: ("start_ns", "end_ns", "spans"),
    CommRecord: ("start_ns", "end_ns", "begun_ns"),
    Warmup: ("start_ns", "end_ns", "step_ns", "blocks_ns"),
    Pace: ("lateness_ns",),
}
"""Fields of each kind of record that are times on the rank's clock."""
_SIZES: dict[type[Record], tuple[str, ...]] = {
    CommRecord: ("bytes", "sent_bytes"),
    RankStart: ("parameters", "gradient_bytes", "largest_gradient_bytes"),
    Held: ("parameter_bytes", "gradient_bytes", "optimizer_bytes"),
    Buckets: ("bytes",),
    Traffic: ("sent_bytes", "received_bytes"),
}
"""Fields of each kind of record that are proportional to the size of the gradients."""


def _nominal(record: Record, k: float, m: int) -> Record:
    kind = type(record)
    changes = {
        name: _each_number(getattr(record, name), lambda ns: round(ns / k)) for name in _TIMES.get(kind, ())
    }
    changes |= {
        name: _each_number(getattr(record, name), lambda size: size * m) for name in _SIZES.get(kind, ())
    }
    return replace(record, **changes) if changes else record


def _each_number(value: Any, change: Callable[[int], int]) -> Any:
    if isinstance(value, tuple):
        return tuple(_each_number(each, change) for each in value)
    return change(value) if isinstance(value, int) else value
