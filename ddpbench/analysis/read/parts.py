"""Columns of ranks' parts in transfers (one rank's record each), and the grouping of parts into transfers."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ddpbench.records import CommRecord, StepRecord

Ints = NDArray[np.int64]
NONE = -1
"""Number that stands in a column for a value that the record lacks."""
_EVERY = ("step", "bucket", "bytes", "start_ns", "end_ns")
_SOME = ("message", "ranks", "begun_ns", "root", "sent_bytes")


@dataclass(frozen=True, slots=True)
class RankSteps:
    """A rank's instrumented steps, and what this rank recorded of each transfer in them."""

    steps: Sequence[StepRecord]
    transfers: Sequence[CommRecord]
    host: str = ""
    """Host of the rank; ranks of one host share a clock."""
    earlier: Sequence[CommRecord] = ()
    """Parts in transfers of steps before the first of `steps`, whose data may still flow during that step."""

    @classmethod
    def of(cls, steps: Sequence[StepRecord], transfers: Sequence[CommRecord], host: str = "") -> RankSteps:
        """Return a rank's steps and its transfers, apart from those before the first step."""
        first = min((step.step for step in steps), default=0)
        return cls(
            steps=steps,
            transfers=[transfer for transfer in transfers if transfer.step >= first],
            host=host,
            earlier=[transfer for transfer in transfers if transfer.step < first],
        )


@dataclass(frozen=True, slots=True)
class TransferParts:
    """Records of all launches as columns, ordered by launch, rank and record. Times are nanoseconds.

    `owner` numbers the ranks of all launches, `op` is an index into `ops`, `ranks` is the number of ranks in the
    transfer, and `begun` is when the rank started it.
    """

    ops: tuple[str, ...]
    owner: NDArray[np.intp]
    launch: Ints
    rank: Ints
    step: Ints
    bucket: Ints
    bytes: Ints
    start: Ints
    end: Ints
    op: Ints
    message: Ints
    ranks: Ints
    begun: Ints
    root: Ints
    sent: Ints

    @property
    def between_two(self) -> NDArray[np.bool_]:
        """Return, for each part, whether its transfer is between only two ranks and has a number."""
        found: NDArray[np.bool_] = self.message != NONE
        return found


def parts_of(launches: Sequence[Mapping[int, RankSteps]]) -> TransferParts | None:
    """Return the ranks' records of transfers as columns; None if nothing was transferred."""
    records = [record for ranks in launches for noted in ranks.values() for record in noted.transfers]
    if not records:
        return None
    owners = [(number, rank) for number, ranks in enumerate(launches) for rank in ranks]
    lengths = [len(noted.transfers) for ranks in launches for noted in ranks.values()]
    owner = np.repeat(np.arange(len(owners)), lengths)
    launch, rank = np.array(owners, np.int64)[owner].T
    step, bucket, size, start, end = (column(map(attrgetter(name), records)) for name in _EVERY)
    codes: defaultdict[str, int] = defaultdict(itertools.count().__next__)
    op = column(map(codes.__getitem__, map(attrgetter("op"), records)))
    message, taking_part, begun, root, sent = (_known(map(attrgetter(name), records)) for name in _SOME)
    return TransferParts(
        ops=tuple(codes),
        owner=owner,
        launch=launch,
        rank=rank,
        step=step,
        bucket=bucket,
        bytes=size,
        start=start,
        end=end,
        op=op,
        message=message,
        ranks=taking_part,
        begun=begun,
        root=root,
        sent=sent,
    )


def column(values: Iterable[int]) -> Ints:
    """Return integers as a column. For a million of them, this takes a third of the time of building rows of tuples."""
    return np.fromiter(values, np.int64)


def _known(values: Iterable[int | None]) -> Ints:
    """Return the values as a column with `NONE` for None; fast if all are None, as in most columns."""
    found = list(values)
    if found.count(None) == len(found):
        return np.full(len(found), NONE, np.int64)
    return column(NONE if value is None else value for value in found)


@dataclass(frozen=True, slots=True)
class WholeTransfers:
    """Parts that form complete transfers, in which no rank's part is missing.

    `row` has the indices of the parts, sorted by transfer, and `starts` the first position of each transfer in `row`.
    `transfer` is the number of each part's transfer. `dropped` is the launch of each transfer that lacks a rank's
    record.
    """

    row: NDArray[np.intp]
    starts: NDArray[np.intp]
    transfer: NDArray[np.intp]
    dropped: Ints

    @property
    def head(self) -> NDArray[np.intp]:
        """Return the index of each transfer's first part."""
        return self.row[self.starts]


def whole_transfers(parts: TransferParts, processes: Ints) -> WholeTransfers:
    """Return the complete transfers, which have every rank's part.

    `processes` has, for each launch, the number of ranks in a transfer whose records do not state it. Transfers of one
    step, bucket and operation are numbered in order. Two ranks may identify theirs by a number, as their steps may
    differ.
    """
    between_two = parts.between_two
    name = (np.where(between_two, NONE, parts.step), parts.bucket, parts.op, parts.message)
    keys = (*name, _occurrence((*name, parts.owner)), parts.launch)
    order = np.lexsort(keys)
    starts = np.flatnonzero(changes([key[order] for key in keys]))
    counts = np.diff(starts, append=len(order))
    taking_part = np.where(parts.ranks == NONE, processes[parts.launch], parts.ranks)
    wanted = np.maximum.reduceat(taking_part[order], starts)
    numbered = between_two[order][starts]  # the other rank's part may belong to a step before the first
    whole = counts >= np.where(numbered, 2, wanted)
    kept = counts[whole]
    return WholeTransfers(
        row=order[np.repeat(whole, counts)],
        starts=np.cumsum(kept) - kept,
        transfer=np.repeat(np.arange(len(kept)), kept),
        dropped=parts.launch[order][starts][~whole & ~numbered],
    )


def _occurrence(keys: Sequence[NDArray[Any]]) -> Ints:
    """Return, for each row, the number of earlier rows with the same keys."""
    order = np.lexsort(keys)
    first = changes([key[order] for key in keys])
    index = np.arange(len(first))
    found = np.empty(len(first), np.int64)
    found[order] = index - np.maximum.accumulate(np.where(first, index, 0))
    return found


def changes(columns: Sequence[NDArray[Any]]) -> NDArray[np.bool_]:
    """Return, for each row of sorted columns, whether it differs from the row before; True for the first row."""
    changed = np.ones(len(columns[0]), np.bool_)
    changed[1:] = np.logical_or.reduce([column[1:] != column[:-1] for column in columns])
    return changed


def apart(owner: NDArray[Any], start: Ints, end: Ints) -> int:
    """Return the largest difference between any two times of one owner, in nanoseconds. Owners are numbered from 0."""
    if not len(owner):
        return 0
    first = np.full(int(owner.max()) + 1, np.iinfo(np.int64).max)
    last = np.full(len(first), np.iinfo(np.int64).min)
    np.minimum.at(first, owner, np.minimum(start, end))
    np.maximum.at(last, owner, np.maximum(start, end))
    early: list[int] = first.tolist()  # Python's integers, which never overflow
    late: list[int] = last.tolist()
    return max(end - begin for begin, end in zip(early, late, strict=True))
