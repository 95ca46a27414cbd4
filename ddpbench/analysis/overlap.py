"""Where an instrumented step's time goes: computation, communication exposed or hidden, waiting, data.

A transfer begins when its last rank has started it, and ends for each rank when that rank has its result.
Every instant of a rank's step belongs to the first of these that is under way at that instant, so that the
parts add up to the step:

    own computation (forward, backward, optimizer, other)  >  transfers  >  waiting for ranks  >  data

`synchronize` spans are no part of their own: they hold transfers and waiting.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

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
PARTS = (*_COMPUTE, "exposed_comm", "exposed_wait", "data", "not_attributed")
"""The parts of a step, which add up to it."""


@dataclass(frozen=True, slots=True)
class RankSteps:
    """One rank's instrumented steps and its parts in their transfers."""

    steps: Sequence[StepRecord]
    transfers: Sequence[CommRecord]


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

    @property
    def overlap_fraction(self) -> float | None:
        """1 - exposed/comm, of the means; None without communication."""
        return 1 - self.exposed_s / self.comm_s if self.comm_s > 0 else None


@dataclass(slots=True)
class _Intervals:
    """Columns: whose (group), what (kind), from and to, ns."""

    group: list[int]
    kind: list[int]
    start: list[int]
    end: list[int]

    def add(self, group: int, kind: int, start: int, end: int) -> None:
        if end > start:
            self.group.append(group)
            self.kind.append(kind)
            self.start.append(start)
            self.end.append(end)


def coverage(
    group: Sequence[int], kind: Sequence[int], start: Sequence[int], end: Sequence[int], kinds: int
) -> tuple[NDArray[np.intp], NDArray[np.int64], NDArray[np.bool_]]:
    """Cuts time into segments within which nothing begins or ends, each group on a time axis of its own.

    The four columns have one entry an interval; every `kind` is below `kinds`, and end > start. Returns for
    each segment its group and length, shape (segments,), and which kinds cover it, shape (kinds, segments).
    Segments that nothing covers are among them.
    """
    groups, what = np.asarray(group, np.intp), np.asarray(kind, np.intp)
    starts, ends = np.asarray(start, np.int64), np.asarray(end, np.int64)
    if not len(groups):
        return np.zeros(0, np.intp), np.zeros(0, np.int64), np.zeros((kinds, 0), np.bool_)
    owner = np.concatenate([groups, groups])
    times = np.concatenate([starts, ends])
    order = np.lexsort((times, owner))
    owner, times = owner[order], times[order]
    change = np.zeros((kinds, len(order)), np.int32)
    sign = np.repeat(np.array([1, -1], np.int32), len(groups))
    change[np.concatenate([what, what])[order], np.arange(len(order))] = sign[order]
    covered = np.cumsum(change, axis=1)[:, :-1] > 0
    lengths = np.where(owner[1:] == owner[:-1], np.diff(times), 0)
    return owner[:-1], lengths, covered


def breakdown(launches: Sequence[Mapping[int, RankSteps]], processes: int) -> Breakdown | None:
    """The mean step of a case's launches, each by rank. None where nothing was instrumented.

    `processes` is how many ranks take part in every transfer; one that lacks a rank is left out.
    """
    intervals = _Intervals([], [], [], [])
    launch_of: list[int] = []
    step_ns: list[int] = []
    span_sums: list[dict[str, int]] = []
    span_starts: dict[str, int] = {}
    dropped, has_transfers = 0, False
    for ranks in launches:
        groups: dict[tuple[int, int], int] = {}
        sums: dict[str, int] = defaultdict(int)
        for rank, noted in ranks.items():
            for step in noted.steps:
                group = groups[rank, step.step] = len(launch_of)
                launch_of.append(len(span_sums))
                step_ns.append(step.end_ns - step.start_ns)
                intervals.add(group, _STEP, step.start_ns, step.end_ns)
                for name, start, end in step.spans:
                    sums[name] += end - start
                    span_starts.setdefault(name, len(span_starts))
                    kind = _KIND_OF_SPAN.get(name)
                    if kind is not None:
                        intervals.add(group, kind, start, end)
        if groups:
            transfers, lost = _transfers(ranks, processes)
            dropped += lost
            has_transfers = has_transfers or bool(transfers)
            for key, start, begin, end in transfers:
                whose = groups.get(key)
                if whose is not None:
                    intervals.add(whose, _WAIT, start, min(begin, end))
                    intervals.add(whose, _COMM, begin, end)
            span_sums.append(sums)
    if not launch_of:
        return None
    owner, lengths, covered = coverage(
        intervals.group, intervals.kind, intervals.start, intervals.end, len(_KINDS)
    )
    count = np.bincount(launch_of)
    of_launch = np.asarray(launch_of)[owner]

    def mean_s(which: NDArray[np.bool_]) -> float:
        sums_ns = np.bincount(of_launch, weights=lengths * which, minlength=len(count))
        return float(np.mean(sums_ns / count)) / 1e9

    within = covered[_STEP]
    taken = np.zeros_like(within)
    shares: list[float] = []
    for number in range(_STEP):  # in the order of _KINDS: computation, comm, wait, data
        shares.append(mean_s(covered[number] & within & ~taken))
        taken |= covered[number]
    computing = covered[: len(_COMPUTE)].any(axis=0)
    comm = covered[_COMM]
    step_means = np.bincount(launch_of, weights=step_ns) / count
    spans = {
        name: float(np.mean([sums.get(name, 0) / n for sums, n in zip(span_sums, count, strict=True)])) / 1e9
        for name in span_starts
    }
    return Breakdown(
        parts=dict(zip(PARTS, [*shares, mean_s(within & ~taken)], strict=True)),
        step_s=float(np.mean(step_means)) / 1e9,
        comm_s=mean_s(comm),
        exposed_s=mean_s(comm & ~computing),
        overlapped_s=mean_s(comm & computing),
        wait_s=mean_s(covered[_WAIT]),
        spans=spans,
        launches=len(count),
        has_transfers=has_transfers,
        dropped_transfers=dropped,
    )


def _transfers(
    ranks: Mapping[int, RankSteps], processes: int
) -> tuple[list[tuple[tuple[int, int], int, int, int]], int]:
    """Each rank's part in each whole transfer: ((rank, step), own start, begin, own end), and how many lack a rank.

    Two transfers of one step, bucket and operation are told apart by their order.
    """
    parts: dict[tuple[int, int, str, int], list[tuple[int, CommRecord]]] = defaultdict(list)
    for rank, noted in ranks.items():
        seen: Counter[tuple[int, int, str]] = Counter()
        for transfer in noted.transfers:
            name = (transfer.step, transfer.bucket, transfer.op)
            parts[*name, seen[name]].append((rank, transfer))
            seen[name] += 1
    whole: list[tuple[tuple[int, int], int, int, int]] = []
    lost = 0
    for (step, *_), found in parts.items():
        if len(found) < processes:
            lost += 1
            continue
        begin = max(transfer.start_ns for _, transfer in found)
        whole += [((rank, step), own.start_ns, begin, own.end_ns) for rank, own in found]
    return whole, lost
