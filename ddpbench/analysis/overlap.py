"""Where an instrumented step's time goes: computation, communication exposed or hidden, waiting, data.

A transfer begins when its last rank has started it, and ends for each rank when that rank has its result; what only
two ranks exchange ends for both when both have done their part, within their step. Every instant of a rank's step
belongs to the first of these that is under way at that instant, so that the parts add up to the step:

    own computation (forward, backward, optimizer, other)  >  transfers  >  waiting for ranks  >  data

Hosts share no clock. Across them a transfer in which every rank has its result when all have (`TOGETHER`)
takes as long as the shortest rank's part in it, that of the rank that started last, and ends for each rank
when that rank has its result. Of other transfers nothing tells waiting from communication: all is the latter.

`synchronize` spans are no part of their own: they hold transfers and waiting.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ddpbench.records import COMPUTE_SPANS, CommRecord, StepRecord

STANDARD_SPANS = frozenset({"data", "forward", "backward", "optimizer", "synchronize"})
_COMPUTE = ("forward", "backward", "optimizer", "other_compute")
_KINDS = (*_COMPUTE, "comm", "wait", "data", "step")
_STEP = _KINDS.index("step")
_OTHER, _COMM, _WAIT, _DATA = (_KINDS.index(name) for name in ("other_compute", "comm", "wait", "data"))
_KIND_OF_SPAN = {"data": _DATA} | {
    name: _KINDS.index(name) if name in _COMPUTE else _OTHER for name in COMPUTE_SPANS
}
_NO_KIND = -1
_ANY_STEP = -1
TOGETHER = frozenset({"all_reduce", "all_gather", "reduce_scatter"})
"""Operations that end on all ranks at about the same time."""
PARTS = (*_COMPUTE, "exposed_comm", "exposed_wait", "data", "not_attributed")
"""The parts of a step, which add up to it."""


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

    A transfer takes from its last rank's start until the last rank has its result.
    """

    count: int = 0
    time_ns: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Breakdown:
    """A case's mean step, seconds: means over ranks, then steps, then launches.

    `parts` has the names in `PARTS` and adds up to `step_s`. `comm_s` is the length of the union of the
    transfers' intervals, `overlapped_s` its part behind own computation, `wait_s` the union of the times
    from a rank's own start of a transfer until its last rank's start, whatever else went on meanwhile.
    `spans` are the mean durations of the spans by name, in order of their first start.
    """

    parts: Mapping[str, float]
    step_s: float
    comm_s: float
    exposed_s: float
    overlapped_s: float
    wait_s: float
    spans: Mapping[str, float]
    launches: int
    has_transfers: bool
    dropped_transfers: int
    """Transfers left out because a rank's record of them is missing."""
    by_round: Mapping[int, Mapping[str, float]] = field(default_factory=dict)
    """Each launch's own parts, by round: means over ranks and steps, seconds."""
    transfers: Mapping[int, Mapping[tuple[str, int], Moved]] = field(default_factory=dict)
    """What each launch moved, by round, then by operation and bytes."""
    network_s: Mapping[int, float] = field(default_factory=dict)
    """By round: how long a step's transfers were under way on any rank, mean over steps; none across hosts.

    The union of the times from a transfer's last start to its last end. A rank's own part in a gather is shorter."""
    sent_bytes: float | None = None
    """What the rank that sent most handed to the network a step, mean over steps; None where it was not counted."""

    @property
    def overlap_fraction(self) -> float | None:
        """1 - exposed/comm, of the means; None without communication."""
        return 1 - self.exposed_s / self.comm_s if self.comm_s > 0 else None


def coverage(
    intervals: NDArray[np.int64], kinds: int
) -> tuple[NDArray[np.intp], NDArray[np.int64], NDArray[np.bool_]]:
    """Cuts time into segments within which nothing begins or ends, each group on a time axis of its own.

    The rows of `intervals`, shape (n, 4), are group, kind, start and end, `kind` being below `kinds`; one that
    does not end after its start is empty. Returns for each segment its group and length, shape (segments,),
    and which kinds cover it, shape (kinds, segments). Segments that nothing covers are among them.
    """
    table = intervals[intervals[:, 3] > intervals[:, 2]]
    if not len(table):
        return np.zeros(0, np.intp), np.zeros(0, np.int64), np.zeros((kinds, 0), np.bool_)
    owner = np.concatenate([table[:, 0], table[:, 0]])
    times = np.concatenate([table[:, 2], table[:, 3]])
    order = np.lexsort((times, owner))
    owner, times = owner[order], times[order]
    change = np.zeros((kinds, len(order)), np.int32)
    sign = np.repeat(np.array([1, -1], np.int32), len(table))
    change[np.concatenate([table[:, 1], table[:, 1]])[order], np.arange(len(order))] = sign[order]
    covered = np.cumsum(change, axis=1)[:, :-1] > 0
    lengths = np.where(owner[1:] == owner[:-1], np.diff(times), 0)
    return owner[:-1], lengths, covered


def breakdown(
    launches: Sequence[Mapping[int, RankSteps]], processes: int, rounds: Sequence[int] | None = None
) -> Breakdown | None:
    """The mean step of a case's launches, each by rank. None where nothing was instrumented.

    `processes` is how many ranks take part in every transfer that does not say; one that lacks a rank is left out.
    `rounds` are the launches' own; without them they count from 0.
    """
    names: defaultdict[str, int] = defaultdict(itertools.count().__next__)
    named: list[tuple[int, int, int, int]] = []  # spans: whose (group), which name, from and to
    steps: list[tuple[int, int, int, int]] = []
    moved: list[tuple[int, int, int, int]] = []
    launch_of: list[int] = []
    numbers: list[int] = []
    sizes: dict[int, dict[tuple[str, int], Moved]] = {}
    network: dict[int, float] = {}
    dropped = found = 0
    for number, ranks in zip(range(len(launches)) if rounds is None else rounds, launches, strict=True):
        groups: dict[tuple[int, int], int] = {}
        for rank, noted in ranks.items():
            for step in noted.steps:
                group = groups[rank, step.step] = len(steps)
                steps.append((group, _STEP, step.start_ns, step.end_ns))
                named += [(group, names[name], start, end) for name, start, end in step.spans]
        if not groups:
            continue
        launch_of += [found] * len(groups)
        found += 1
        numbers.append(number)
        transfers, sizes[number], lost, under_way = _transfers(ranks, processes)
        if under_way:
            network[number] = _network_s(under_way)
        dropped += lost
        for key, start, begin, end in transfers:
            whose = groups.get(key)
            if whose is not None:
                last = min(end, steps[whose][3])
                moved += ((whose, _WAIT, start, min(begin, last)), (whose, _COMM, begin, last))
    if not steps:
        return None
    spans = np.array(named, np.int64).reshape(-1, 4)
    kinds = np.array([_KIND_OF_SPAN.get(name, _NO_KIND) for name in names], np.int64)
    known = spans.copy()
    known[:, 1] = kinds[spans[:, 1]] if len(kinds) else _NO_KIND
    table = np.concatenate([known[known[:, 1] != _NO_KIND], np.array(steps + moved, np.int64).reshape(-1, 4)])
    owner, lengths, covered = coverage(table, len(_KINDS))
    count = np.bincount(launch_of)
    taken = np.zeros(len(lengths), np.bool_)
    shares: list[NDArray[np.bool_]] = []
    within = covered[_STEP]
    for number in range(_STEP):  # in the order of _KINDS: computation, comm, wait, data
        shares.append(covered[number] & within & ~taken)
        taken |= covered[number]
    computing = covered[: len(_COMPUTE)].any(axis=0)
    comm = covered[_COMM]
    shares += [within & ~taken, comm, comm & ~computing, comm & computing, covered[_WAIT]]
    by_launch = _by_launch_s(np.array(shares) * lengths, np.asarray(launch_of)[owner], count)
    means: list[float] = by_launch.mean(axis=1).tolist()
    step_means = np.bincount(launch_of, weights=[end - start for _, _, start, end in steps]) / count
    span_lengths = np.zeros((len(names), len(spans)))
    span_lengths[spans[:, 1], np.arange(len(spans))] = spans[:, 3] - spans[:, 2]
    span_means = _by_launch_s(span_lengths, np.asarray(launch_of)[spans[:, 0]], count).mean(axis=1)
    return Breakdown(
        parts=dict(zip(PARTS, means, strict=False)),
        step_s=float(np.mean(step_means)) / 1e9,
        comm_s=means[-4],
        exposed_s=means[-3],
        overlapped_s=means[-2],
        wait_s=means[-1],
        spans=dict(zip(names, span_means.tolist(), strict=True)),
        launches=len(count),
        has_transfers=bool(moved),
        dropped_transfers=dropped,
        by_round={
            number: dict(zip(PARTS, own, strict=False))
            for number, own in zip(numbers, by_launch.T.tolist(), strict=True)
        },
        transfers=sizes,
        network_s=network,
        sent_bytes=_busiest_bytes(launches),
    )


def _busiest_bytes(launches: Sequence[Mapping[int, RankSteps]]) -> float | None:
    """Bytes a step that the busiest rank of any launch sent."""
    found = [
        sum(sent) / len(noted.steps)
        for ranks in launches
        for noted in ranks.values()
        if (sent := [part.sent_bytes for part in noted.transfers if part.sent_bytes is not None])
        and noted.steps
    ]
    return max(found, default=None)


def _by_launch_s(
    lengths_ns: NDArray[Any], launch_of: NDArray[np.intp], count: NDArray[np.intp]
) -> NDArray[np.float64]:
    """For each row of lengths, shape (rows, n), its sum per rank and step in each launch, seconds.

    `launch_of` names each column's launch, `count` how many pairs of rank and step a launch has.
    """
    belongs = launch_of[:, np.newaxis] == np.arange(len(count))
    found: NDArray[np.float64] = (lengths_ns @ belongs) / count / 1e9
    return found


def _transfers(
    ranks: Mapping[int, RankSteps], processes: int
) -> tuple[
    list[tuple[tuple[int, int], int, int, int]],
    dict[tuple[str, int], Moved],
    int,
    dict[int, list[tuple[int, int]]],
]:
    """Each rank's part in each whole transfer: ((rank, step), own start, begin, own end).

    Beside them what was moved by operation and bytes, how many transfers lack a rank, and by step each transfer's
    begin and its last rank's end, on one host. Two transfers of one step, bucket and operation are told apart by
    their order; what only two ranks exchange has a number, for it may be in steps of different numbers.
    """
    under_way: dict[int, list[tuple[int, int]]] = {}
    parts: dict[tuple[int, int, str, int], list[tuple[tuple[int, int], int, int]]] = {}
    bytes_of: dict[tuple[int, int, str, int], int] = {}
    wanted: dict[tuple[int, int, str, int], int] = {}
    for rank, noted in ranks.items():
        seen: set[tuple[int, int, str, int]] = set()
        for transfer in noted.transfers:
            step = transfer.step
            name = (step, transfer.bucket, transfer.op, 0)
            if transfer.message is not None:
                name = (_ANY_STEP, transfer.bucket, transfer.op, transfer.message)
            while name in seen:
                name = (*name[:3], name[3] + 1)
            seen.add(name)
            parts.setdefault(name, []).append(((rank, step), transfer.start_ns, transfer.end_ns))
            bytes_of[name] = transfer.bytes
            wanted[name] = transfer.ranks or processes
    whole: list[tuple[tuple[int, int], int, int, int]] = []
    sizes: dict[tuple[str, int], Moved] = {}
    lost = 0
    one_clock = len({noted.host for noted in ranks.values()}) <= 1
    for name, found in parts.items():
        if name[0] == _ANY_STEP:
            if len(found) < 2:  # the other rank's part belongs to a step before the first
                continue
        elif len(found) < wanted[name]:
            lost += 1
            continue
        if one_clock:
            begin = max([start for _, start, _ in found])
            until = max([end for _, _, end in found])
            between_two = name[0] == _ANY_STEP  # what the sender has handed over is still on its way
            whole += [(key, start, begin, until if between_two else end) for key, start, end in found]
            under_way.setdefault(found[0][0][1], []).append((begin, until))
            took = until - begin
        elif name[2] in TOGETHER:
            took = min([end - start for _, start, end in found])
            whole += [(key, start, end - took, end) for key, start, end in found]
        else:
            whole += [(key, start, start, end) for key, start, end in found]
            continue
        moved = sizes.setdefault((name[2], bytes_of[name]), Moved())
        moved.count += 1
        moved.time_ns += took
    return whole, sizes, lost, under_way


def _network_s(under_way: Mapping[int, Sequence[tuple[int, int]]]) -> float:
    """The length of the union of each step's transfers, mean over steps."""
    total = 0
    for transfers in under_way.values():
        reached = -1
        for begin, end in sorted(transfers):
            total += max(0, end - max(begin, reached))
            reached = max(reached, end)
    return total / len(under_way) / 1e9
