"""Records as those of the job they stand for: dilation and shrinking undone, here and nowhere else.

With a dilation of k a run's computation and links are k times slower, so that its spans are k times those of the
job; with a shrinking of m its parameters, gradients and what its links carried are one m-th. What is read from a
run's records passes through here, and whatever is computed from it afterwards is the job's: times are virtual.

A machine's own facts stay as they are: processor time, memory, the wall time of a
launch, and checkpoints, for a disk is not dilated.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

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
    """Return the ranks' records with times divided by the case's dilation, and sizes times its shrinking."""
    if case.dilation == 1 and case.shrink == 1:
        return tuple(ranks)
    return tuple(
        replace(rank, records=tuple(_nominal(record, case.dilation, case.shrink) for record in rank.records))
        for rank in ranks
    )


def _nominal(record: Record, k: float, m: int) -> Record:
    def at(ns: int) -> int:
        return round(ns / k)

    match record:
        case Block():
            return replace(
                record,
                start_ns=at(record.start_ns),
                end_ns=at(record.end_ns),
                step_ns=tuple(at(ns) for ns in record.step_ns),
            )
        case StepRecord():
            return replace(
                record,
                start_ns=at(record.start_ns),
                end_ns=at(record.end_ns),
                spans=tuple((name, at(start), at(end)) for name, start, end in record.spans),
            )
        case CommRecord():
            return replace(
                record,
                start_ns=at(record.start_ns),
                end_ns=at(record.end_ns),
                begun_ns=None if record.begun_ns is None else at(record.begun_ns),
                bytes=record.bytes * m,
                sent_bytes=None if record.sent_bytes is None else record.sent_bytes * m,
            )
        case Warmup():
            return replace(
                record,
                start_ns=at(record.start_ns),
                end_ns=at(record.end_ns),
                step_ns=at(record.step_ns),
                blocks_ns=tuple(tuple(at(ns) for ns in block) for block in record.blocks_ns),
            )
        case Pace():
            return replace(record, lateness_ns=tuple(at(ns) for ns in record.lateness_ns))
        case RankStart():
            largest = record.largest_gradient_bytes
            return replace(
                record,
                parameters=record.parameters * m,
                gradient_bytes=record.gradient_bytes * m,
                largest_gradient_bytes=None if largest is None else largest * m,
            )
        case Held():
            return replace(
                record,
                parameter_bytes=record.parameter_bytes * m,
                gradient_bytes=record.gradient_bytes * m,
                optimizer_bytes=record.optimizer_bytes * m,
            )
        case Buckets():
            return replace(record, bytes=tuple(size * m for size in record.bytes))
        case Traffic():
            return replace(record, sent_bytes=record.sent_bytes * m, received_bytes=record.received_bytes * m)
        case _:
            return record
