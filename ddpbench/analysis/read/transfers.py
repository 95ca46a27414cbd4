"""Times at which each rank's part in a transfer is queued, waits, and moves data.

The moments depend on the operation (`records/operations.py`): leaving the queue (`queues.py`), and the flow of data
(`flows.py`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ddpbench.analysis.read.flows import TO_ROOT, TOGETHER, Group
from ddpbench.analysis.read.parts import Ints, RankSteps, apart, parts_of, whole_transfers
from ddpbench.analysis.read.queues import after_gathers, served_at


@dataclass(slots=True)
class Moved:
    """Number and total time (ns) of a launch's transfers of one operation and size.

    Concurrent transfers over the same links divide each instant evenly. This charges too much to a transfer that waits
    for latency and moves little.
    """

    count: int = 0
    time_ns: float = 0.0
    called_ns: float = 0.0
    """Time as nccl-tests measures it, from leaving a rank's queue to that rank's result, mean over ranks.
    It includes waiting for late ranks and is not divided between transfers.
    """
    ranks: int = 0
    """Number of ranks in each transfer; the largest if they differ."""


@dataclass(frozen=True, slots=True)
class Transfers:
    """Complete transfers, and ranks' parts in them, as columns. Times are nanoseconds.

    Columns with one value per part: `row` numbers the records of all launches, by launch, rank and record. From
    `handed` to `served` the part is queued, until `begin` it waits for a different rank, and until `end` data flow.
    `transfer` is the index of its transfer.

    Columns with one value per transfer: `launch` numbers launches, and `step` is the step of the transfer's first rank.
    At `begins` its first data flow, and at `ends` its last rank ends. `charged` is its share of the time in between.
    `clocked` says whether the duration is known.
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
    """True for each transfer whose ranks have a common clock."""
    dropped: Ints
    """Launch of each transfer that was left out because a rank's record of it is missing."""
    apart_ns: int
    """Largest difference between two times of one rank's parts, including parts left out."""

    def moved(self) -> Mapping[int, Mapping[tuple[str, int], Moved]]:
        """Return the number and time of transfers, by launch, then by operation and bytes."""
        found: defaultdict[int, dict[tuple[str, int], Moved]] = defaultdict(dict)
        ranks = np.bincount(self.transfer, minlength=len(self.launch))
        called = (
            np.bincount(self.transfer, weights=self.end - self.served, minlength=len(self.launch)) / ranks
        )
        columns = (self.launch, self.op, self.bytes, self.charged, called, self.clocked, ranks)
        for launch, op, size, charged, called_ns, clocked, taking_part in zip(
            *(each.tolist() for each in columns), strict=True
        ):
            if clocked:
                total = found[launch].setdefault((self.ops[op], size), Moved())
                total.count += 1
                total.time_ns += charged
                total.called_ns += called_ns
                total.ranks = max(total.ranks, taking_part)
        return found

    def under_way_s(self, steps: NDArray[np.float64]) -> dict[int, float]:
        """Return the seconds per step in which any transfer was under way on any rank, by launch.

        Only transfers whose ranks have a common clock count. Launches without such transfers are left out.
        """
        intervals: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
        columns = (self.launch, self.begins, self.ends, self.one_clock)
        for launch, begin, end, known in zip(*(each.tolist() for each in columns), strict=True):
            if known:
                intervals[launch].append((begin, end))
        found: dict[int, float] = {}
        for launch, every in intervals.items():
            total, reached = 0, min(begin for begin, _ in every)
            for begin, end in sorted(every):
                total += max(0, end - max(begin, reached))
                reached = max(reached, end)
            found[launch] = total / float(steps[launch]) / 1e9
        return found


def transfers_of(
    launches: Sequence[Mapping[int, RankSteps]],
    processes: int | Sequence[int],
    backend: str | Sequence[str] = "",
) -> Transfers | None:
    """Return the complete transfers in the launches' records; None if nothing was transferred.

    Each launch is a mapping by rank. `processes` is the number of ranks in a transfer whose records do not state it. A
    transfer that lacks a rank is left out. `processes` and `backend` apply to all launches, or have a value for each.
    """
    parts = parts_of(launches)
    if parts is None:
        return None
    whole = whole_transfers(parts, np.broadcast_to(np.array(processes, np.int64), len(launches)))
    apart_ns = apart(parts.owner, parts.start, parts.end)
    if not len(whole.row):
        return _none_whole(parts.ops, whole.dropped, apart_ns)
    row, head = whole.row, whole.head
    backends = [backend] * len(launches) if isinstance(backend, str) else backend
    group = Group.of(parts, whole, served_at(parts, backends))
    one_clock = _share_a_clock(launches)[parts.launch[head]]
    times = group.times(one_clock)
    gathers = (group.flow == TO_ROOT)[group.transfer]
    handed = parts.start[row]
    served = after_gathers(
        group.served,
        owner=parts.owner[row],
        start=handed,
        begin=times.begin,
        until=times.until,
        gathers=gathers,
    )
    begins = np.minimum(times.begins, times.ends)
    return Transfers(
        row=row,
        step_of_part=parts.step[row],
        rank=group.rank,
        transfer=group.transfer,
        handed=handed,
        served=served,
        begin=np.minimum(times.begin, times.until),
        end=times.until,
        ops=parts.ops,
        launch=parts.launch[head],
        step=parts.step[head],
        op=parts.op[head],
        bytes=parts.bytes[head],
        begins=begins,
        ends=times.ends,
        charged=_shared((parts.launch[head], *group.lanes()), begins, times.ends),
        clocked=one_clock | (group.flow == TOGETHER),
        one_clock=one_clock,
        dropped=whole.dropped,
        apart_ns=apart_ns,
    )


def _share_a_clock(launches: Sequence[Mapping[int, RankSteps]]) -> NDArray[np.bool_]:
    return np.array([len({noted.host for noted in ranks.values()}) <= 1 for ranks in launches])


def _none_whole(ops: tuple[str, ...], dropped: Ints, apart_ns: int) -> Transfers:
    none, false = np.zeros(0, np.int64), np.zeros(0, np.bool_)
    parts, whole = (none,) * 8, (none,) * 6
    return Transfers(*parts, ops, *whole, np.zeros(0), false, false, dropped, apart_ns)


def _shared(lanes: Sequence[NDArray[Any]], begin: Ints, end: Ints) -> NDArray[np.float64]:
    """Return each interval's share of its lane's busy time; concurrent intervals divide each instant evenly."""
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
