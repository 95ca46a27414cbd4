"""When each rank's part in a transfer was queued, waited, and moved data: one definition for all that asks.

A transfer is handed over, leaves its rank's queue, begins when data can flow, and ends. What that means depends on
the operation (`records/operations.py`). A queue is known where a rank noted when it turned to the transfer; elsewhere
it follows from the backend: of k transfers at once, the next begins when fewer than k of those before it are left.

Hosts share no clock. Across them what every rank's result needs of every rank (`together`) takes as long as the
shortest rank's part in it, that of the rank that turned to it last, and ends for each rank when that rank has its
result. Of other transfers nothing tells waiting from communication: all is the latter.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ddpbench.records import CommRecord, StepRecord
from ddpbench.records.operations import Flow, flow_of, slots_of, tree_parent

Ints = NDArray[np.int64]
_NONE = -1
_FAR = np.iinfo(np.int64).max
_FLOWS: tuple[Flow, ...] = ("together", "to_root", "from_root", "through_root", "tree", "pair")
_TOGETHER, _TO_ROOT, _FROM_ROOT, _THROUGH_ROOT, _TREE, _PAIR = range(len(_FLOWS))
_ROOTED = (_TO_ROOT, _FROM_ROOT, _THROUGH_ROOT)
_EVERY = attrgetter("step", "bucket", "bytes", "start_ns", "end_ns")


@dataclass(frozen=True, slots=True)
class RankSteps:
    """One rank's instrumented steps and its parts in their transfers."""

    steps: Sequence[StepRecord]
    transfers: Sequence[CommRecord]
    host: str = ""
    """Ranks of one host share a clock."""


@dataclass(slots=True)
class Moved:
    """Transfers of one operation and size: how many, and how long all of them took, nanoseconds.

    An instant in which several transfers over the same links are under way is divided evenly among them, as they
    share a link, so that the times of all add up to that of their union. One of them that waits for latency and moves
    little is charged too much, and the other too little.
    """

    count: int = 0
    time_ns: float = 0.0


@dataclass(frozen=True, slots=True)
class Transfers:
    """The parts of ranks in whole transfers, and those transfers, as columns; times are nanoseconds.

    Of a part: `row` counts the records of all launches, by launch, rank and record. From `handed` to `served` it is
    queued, until `begin` it waits for another rank, until `end` data flow. `transfer` is its transfer's place.
    Of a transfer: `launch` counts launches, `step` is its first rank's, `begins` and `ends` hold from its first data
    to its last rank's end, `charged` is its share of that time, and `clocked` whether any of this is known.
    """

    row: Ints
    step_of_part: Ints
    rank: Ints
    transfer: Ints
    handed: Ints
    served: Ints
    begin: Ints
    end: Ints
    ops: tuple[str, ...]
    launch: Ints
    step: Ints
    op: Ints
    bytes: Ints
    begins: Ints
    ends: Ints
    charged: NDArray[np.float64]
    clocked: NDArray[np.bool_]
    one_clock: NDArray[np.bool_]
    """Whether a transfer's ranks share a clock."""
    dropped: int
    """Transfers left out because a rank's record of them is missing."""

    def moved(self) -> Mapping[int, Mapping[tuple[str, int], Moved]]:
        """Return what was moved, by launch, then by operation and bytes."""
        found: defaultdict[int, dict[tuple[str, int], Moved]] = defaultdict(dict)
        columns = (self.launch, self.op, self.bytes, self.charged, self.clocked)
        for launch, op, size, charged, clocked in zip(*(each.tolist() for each in columns), strict=True):
            if clocked:
                total = found[launch].setdefault((self.ops[op], size), Moved())
                total.count += 1
                total.time_ns += charged
        return found

    def under_way_s(self) -> dict[int, float]:
        """By launch: the union of all transfers over all ranks, over the number of steps; none across hosts."""
        intervals: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
        steps: defaultdict[int, set[int]] = defaultdict(set)
        columns = (self.launch, self.step, self.begins, self.ends, self.one_clock)
        for launch, step, begin, end, known in zip(*(each.tolist() for each in columns), strict=True):
            if known:
                intervals[launch].append((begin, end))
                steps[launch].add(step)
        found: dict[int, float] = {}
        for launch, every in intervals.items():
            total, reached = 0, min(begin for begin, _ in every)
            for begin, end in sorted(every):
                total += max(0, end - max(begin, reached))
                reached = max(reached, end)
            found[launch] = total / len(steps[launch]) / 1e9
        return found


def transfers_of(
    launches: Sequence[Mapping[int, RankSteps]], processes: int, backend: str = ""
) -> Transfers | None:
    """Return the whole transfers of launches, each by rank; None where nothing was transferred.

    `processes` is how many ranks take part in every transfer that does not say; one that lacks a rank is left out.
    Two transfers of one step, bucket and operation are told apart by their order; what only two ranks exchange may
    have a number, for it may be in steps of different numbers.
    """
    records = [record for ranks in launches for noted in ranks.values() for record in noted.transfers]
    if not records:
        return None
    owners = [(number, rank) for number, ranks in enumerate(launches) for rank in ranks]
    lengths = [len(noted.transfers) for ranks in launches for noted in ranks.values()]
    owner = np.repeat(np.arange(len(owners)), lengths)
    launch, rank = np.array(owners, np.int64)[owner].T
    step, bucket, size, start, end = np.array(list(map(_EVERY, records)), np.int64).T
    codes: defaultdict[str, int] = defaultdict(lambda: len(codes))
    op = np.array([codes[record.op] for record in records], np.int64)
    message, taking_part, begun, root, sent = (
        np.array([_NONE if (value := each(record)) is None else value for record in records], np.int64)
        for each in map(attrgetter, ("message", "ranks", "begun_ns", "root", "sent_bytes"))
    )
    slots = np.array([slots_of(name, backend) or 0 for name in codes])[op]
    served = np.where(begun == _NONE, start, np.maximum(begun, start))
    unknown = begun == _NONE
    # A rank's thread for algorithms of this package is a queue apart from its backend's, with one slot as NCCL's: no
    # rank uses both, for those algorithms need gloo.
    for count in sorted(set(slots[unknown].tolist()) - {0}):
        rows = np.flatnonzero(unknown & (slots == count))
        rows = rows[np.lexsort((start[rows], owner[rows]))]  # stable: in the order of handing over
        freed = _freed(_changes([owner[rows]]), start[rows], end[rows], count)
        served[rows] = np.maximum(start[rows], freed)
    served = np.minimum(served, np.maximum(end, start))
    between_two = message != _NONE

    name = (np.where(between_two, _NONE, step), bucket, op, message)
    order = np.lexsort((*name, owner))
    occurrence = np.empty(len(records), np.int64)
    occurrence[order] = _counted(_changes([key[order] for key in (*name, owner)]))
    keys = (*name, occurrence, launch)
    order = np.lexsort(keys)
    first = _changes([key[order] for key in keys])
    starts = np.flatnonzero(first)
    counts = np.diff(starts, append=len(order))
    wanted = np.maximum.reduceat(np.where(taking_part == _NONE, processes, taking_part)[order], starts)
    numbered = between_two[order][starts]  # the other rank's part may belong to a step before the first
    whole = counts >= np.where(numbered, 2, wanted)
    dropped = int((~whole & ~numbered).sum())
    row = order[np.repeat(whole, counts)]
    if not len(row):
        return _none_whole(tuple(codes), dropped)
    counts = counts[whole]
    starts = np.cumsum(counts) - counts
    transfer = np.repeat(np.arange(len(counts)), counts)
    head = row[starts]
    flow = np.array([_FLOWS.index(flow_of(name)) for name in codes])[op[head]]
    base = np.where(np.array(list(codes))[op[head]] == "broadcast", bucket[head], 0)
    roots = np.maximum.reduceat(root[row], starts)
    roots = np.where(roots == _NONE, base, roots)
    group = _Group(starts, transfer, flow, roots, rank[row], served[row], end[row], sent[row] > 0)
    begin, until, begins = group.intervals()
    ends = np.maximum.reduceat(until, starts)
    hosts = np.array([len({noted.host for noted in ranks.values()}) <= 1 for ranks in launches])
    one_clock = hosts[launch[head]]
    clocked = one_clock | (flow == _TOGETHER)
    if not one_clock.all():
        took = np.minimum.reduceat(end[row] - served[row], starts)
        afar = np.where((flow == _TOGETHER)[transfer], end[row] - took[transfer], served[row])
        here = one_clock[transfer]
        begin, until = np.where(here, begin, afar), np.where(here, until, end[row])
        begins, ends = np.where(one_clock, begins, begin[starts]), np.where(one_clock, ends, until[starts])
    if (gathers := (flow == _TO_ROOT)[transfer]).any():
        # A sender that was done early turns to what comes next, which the root does not do before it has everything.
        order = np.lexsort((start[row], owner[row]))
        over = np.where(gathers, until, start[row])[order]
        left = np.empty(len(row), np.int64)
        left[order] = _freed(_changes([owner[row][order]]), start[row][order], over, 1)
        served[row] = np.minimum(np.maximum(served[row], left), np.maximum(begin, served[row]))
    sender = np.maximum.reduceat(np.where(sent[row] > 0, rank[row], _NONE), starts)
    receiver = np.maximum.reduceat(np.where(sent[row] > 0, _NONE, rank[row]), starts)
    place = np.where(flow == _PAIR, np.where(sender == _NONE, np.arange(len(flow)), receiver), roots)
    place = np.where((flow == _TOGETHER) | (flow == _TREE), 0, place)
    lanes = (launch[head], flow, np.where(flow == _PAIR, sender, _NONE), place)
    return Transfers(
        row=row,
        step_of_part=step[row],
        rank=rank[row],
        transfer=transfer,
        handed=start[row],
        served=served[row],
        begin=np.minimum(begin, until),
        end=until,
        ops=tuple(codes),
        launch=launch[head],
        step=step[head],
        op=op[head],
        bytes=size[head],
        begins=np.minimum(begins, ends),
        ends=ends,
        charged=_shared(lanes, np.minimum(begins, ends), ends),
        clocked=clocked,
        one_clock=one_clock,
        dropped=dropped,
    )


def _none_whole(ops: tuple[str, ...], dropped: int) -> Transfers:
    none, false = np.zeros(0, np.int64), np.zeros(0, np.bool_)
    parts, whole = (none,) * 8, (none,) * 6
    return Transfers(*parts, ops, *whole, np.zeros(0), false, false, dropped)


@dataclass(frozen=True, slots=True)
class _Group:
    """Parts in order of their transfers, which begin at `starts`; `flow` and `roots` are the transfers' own."""

    starts: NDArray[np.intp]
    transfer: NDArray[np.intp]
    flow: NDArray[np.intp]
    roots: Ints
    rank: Ints
    served: Ints
    end: Ints
    sends: NDArray[np.bool_]

    def intervals(self) -> tuple[Ints, Ints, Ints]:
        """Of each part when data begin to flow and end, on one clock; of each transfer when they first do."""
        flow = self.flow[self.transfer]
        latest = np.maximum.reduceat(self.served, self.starts)
        begin, until = latest[self.transfer], self.end.copy()
        last = np.maximum.reduceat(self.end, self.starts)[self.transfer]
        if (rooted := np.isin(flow, _ROOTED)).any():
            at_root = self.rank == self.roots[self.transfer]
            root_served = self._of(self.served, at_root, np.maximum, -_FAR)
            root_end = self._of(self.end, at_root, np.maximum, -_FAR)
            first_other = self._of(self.served, ~at_root, np.minimum, _FAR)
            known = rooted & (root_served > -_FAR)
            earliest = np.where(at_root, np.where(first_other < _FAR, first_other, self.served), root_served)
            begin = np.where(known, np.maximum(self.served, earliest), begin)
            until = np.where(known & (flow == _TO_ROOT), root_end, until)
            until = np.where(known & at_root & (flow != _TO_ROOT), last, until)
        if (pairs := flow == _PAIR).any():
            received = self._of(self.end, ~self.sends, np.maximum, -_FAR)
            until = np.where(pairs, np.where(received > -_FAR, received, last), until)
        for number in np.flatnonzero(self.flow == _TREE).tolist():
            self._along_a_tree(slice(int(self.starts[number]), self._after(number)), begin, until)
        return begin, until, np.minimum.reduceat(begin, self.starts)

    def _of(self, values: Ints, where: NDArray[np.bool_], extreme: Any, without: int) -> Ints:
        """Of the chosen parts of each transfer the largest or least, for each of its parts."""
        found: Ints = extreme.reduceat(np.where(where, values, without), self.starts)[self.transfer]
        return found

    def _after(self, number: int) -> int:
        return int(self.starts[number + 1]) if number + 1 < len(self.starts) else len(self.rank)

    def _along_a_tree(self, parts: slice, begin: Ints, until: Ints) -> None:
        """A rank's part lasts from when it and one of its neighbours have started until its last child has its data."""
        served = dict(zip(self.rank[parts].tolist(), self.served[parts].tolist(), strict=True))
        ends = dict(zip(self.rank[parts].tolist(), self.end[parts].tolist(), strict=True))
        near: dict[int, list[int]] = {rank: [] for rank in served}
        last = dict(ends)
        for rank, at in served.items():
            parent = tree_parent(rank)
            if rank and parent in served:
                near[rank].append(served[parent])
                near[parent].append(at)
                last[parent] = max(last[parent], ends[rank])
        begin[parts] = [max(at, min(near[rank], default=at)) for rank, at in served.items()]
        until[parts] = [last[rank] for rank in served]


def _changes(columns: Sequence[NDArray[Any]]) -> NDArray[np.bool_]:
    """Return where a row of sorted columns differs from the one before; the first one does."""
    changed = np.ones(len(columns[0]), np.bool_)
    changed[1:] = np.logical_or.reduce([column[1:] != column[:-1] for column in columns])
    return changed


def _counted(first: NDArray[np.bool_]) -> Ints:
    """Return the place of each row in its group, from 0."""
    index = np.arange(len(first))
    found: Ints = index - np.maximum.accumulate(np.where(first, index, 0))
    return found


def _freed(first: NDArray[np.bool_], start: Ints, end: Ints, slots: int) -> Ints:
    """When so few of a group's earlier rows were left that one of `slots` was free: the slots-th largest of their ends.

    Groups lie one after the other, each from where `first` is set. One that has not so many rows before gets its start.
    """
    number = np.cumsum(first) - 1
    base = start[first][number]
    room = int((np.maximum(end, start) - base).max()) + 1
    bottom = number * room
    values = np.maximum(end - base, 0) + bottom  # above those of all groups before, for the running maximum
    for _ in range(slots - 1):
        values = np.minimum(values, _largest_before(first, values, bottom))  # what the new one displaces
    freed: Ints = _largest_before(first, values, bottom) - bottom + base
    return freed


def _largest_before(first: NDArray[np.bool_], values: Ints, bottom: Ints) -> Ints:
    reached = np.roll(np.maximum.accumulate(values), 1)
    found: Ints = np.where(first, bottom, reached)
    return found


def _shared(lanes: Sequence[Ints], begin: Ints, end: Ints) -> NDArray[np.float64]:
    """Of each interval its share of the union of those of its lane: an instant is divided evenly among all under way.

    So it is the integral, from begin to end, of one over their number.
    """
    count = len(begin)
    times = np.concatenate([begin, end])
    twice = [np.concatenate([lane, lane]) for lane in lanes]
    order = np.lexsort((times, *twice))
    at = times[order]
    under_way = np.cumsum(np.where(order < count, 1, -1))[:-1]  # after each event; none after a lane's last
    parts = np.where(under_way > 0, np.diff(at) / np.maximum(under_way, 1), 0.0)
    integral = np.empty(2 * count)
    integral[order] = np.concatenate([[0.0], np.cumsum(parts)])
    found: NDArray[np.float64] = integral[count:] - integral[:count]
    return found
