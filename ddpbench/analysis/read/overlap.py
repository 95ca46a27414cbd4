"""Where an instrumented step's time goes: computation, communication exposed or hidden, waiting, data.

When a transfer is queued, waits and moves data is what `transfers.py` says. Every instant of a rank's step
belongs to the first of these that is under way at that instant, so that the parts add up to the step:

    own computation (forward, backward, optimizer, other)  >  transfers  >  waiting for ranks  >  data

A transfer that goes on after its step, as what a rank has sent may, takes its time from the rank's next step.
`synchronize` spans are no part of their own: they hold transfers and waiting.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ddpbench.analysis.read.parts import Ints, RankSteps
from ddpbench.analysis.read.transfers import Moved, Transfers, transfers_of
from ddpbench.analysis.statistics.stats import Interval, half_width, share
from ddpbench.records import COMPUTE_SPANS

STANDARD_SPANS = frozenset({"data", "forward", "backward", "optimizer", "synchronize"})
_COMPUTE = ("forward", "backward", "optimizer", "other_compute")
_KINDS = (*_COMPUTE, "comm", "wait", "data", "step", "queue")
_STEP = _KINDS.index("step")
_QUEUE = _KINDS.index("queue")
_OTHER, _COMM, _WAIT, _DATA = (_KINDS.index(name) for name in ("other_compute", "comm", "wait", "data"))
_KIND_OF_SPAN = {"data": _DATA} | {
    name: _KINDS.index(name) if name in _COMPUTE else _OTHER for name in COMPUTE_SPANS
}
_NO_KIND = -1
PARTS = (*_COMPUTE, "exposed_comm", "exposed_wait", "data", "not_attributed")
"""The parts of a step, which add up to it."""
_TOTALS = ("comm", "exposed", "overlapped", "wait", "queue")


@dataclass(frozen=True, kw_only=True, slots=True)
class Breakdown:
    """A case's mean step, seconds: means over ranks, then steps, then launches.

    `parts` has the names in `PARTS` and adds up to `step_s`. `comm_s` is the length of the union of the
    transfers' intervals, `overlapped_s` its part behind own computation, `wait_s` the union of the times in
    which a transfer had left the rank's queue and no data of it could flow, `queue_s` the union of those in which
    one was queued behind others; each whatever else went on meanwhile.
    `spans` are the mean durations of the spans by name, in order of their first start.
    """

    parts: Mapping[str, float]
    step_s: float
    comm_s: float
    exposed_s: float
    overlapped_s: float
    wait_s: float
    queue_s: float
    spans: Mapping[str, float]
    launches: int
    has_transfers: bool
    dropped_transfers: int
    """Transfers left out because a rank's record of them is missing."""
    by_round: Mapping[int, Mapping[str, float]] = field(default_factory=dict)
    """Each launch's own parts, by round: means over ranks and steps, seconds."""
    totals: Mapping[str, Sequence[float]] = field(default_factory=dict)
    """By name each launch's `comm`, `exposed`, `overlapped`, `wait` and `queue`, seconds, in the order of rounds."""
    transfers: Mapping[int, Mapping[tuple[str, int], Moved]] = field(default_factory=dict)
    """What each launch moved, by round, then by operation and bytes."""
    network_s: Mapping[int, float] = field(default_factory=dict)
    """By round: how long a step's transfers were under way on any rank, mean over steps; none across hosts.

    The union of the times from a transfer's first data to its last rank's end."""
    sent_bytes: float | None = None
    """What the rank that sent most handed to the network a step, mean over steps; None where it was not counted."""

    @property
    def overlap_fraction(self) -> float | None:
        """1 - exposed/comm, of the means; None without communication."""
        return 1 - self.exposed_s / self.comm_s if self.comm_s > 0 else None

    def interval(self, *names: str) -> Interval:
        """Return the sum of these parts or totals, seconds, with its 95 % t-interval over launches, cut off at 0.

        Launches weigh alike and a part may be 0 in one of them: no logarithms are taken.
        """
        columns = [self.totals.get(name) or [own[name] for own in self.by_round.values()] for name in names]
        return _around([math.fsum(row) for row in zip(*columns, strict=True)])

    def overlap_interval(self) -> Interval | None:
        """`overlap_fraction` with Fieller's 95 % interval over launches, within 0 and 1; None without communication."""
        value = self.overlap_fraction
        if value is None:
            return None
        found = share(self.totals["overlapped"], self.totals["comm"])
        if found.low is None or found.high is None:
            return Interval(value=value)
        return Interval(value=value, low=max(0.0, found.low), high=min(1.0, found.high))


def _around(values: Sequence[float]) -> Interval:
    mean, half = math.fsum(values) / len(values), half_width(values)
    return (
        Interval(value=mean)
        if half is None
        else Interval(value=mean, low=max(0.0, mean - half), high=mean + half)
    )


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
    launches: Sequence[Mapping[int, RankSteps]],
    processes: int,
    rounds: Sequence[int] | None = None,
    backend: str = "",
) -> Breakdown | None:
    """Return the mean step of a case's launches, each by rank. None where nothing was instrumented.

    `processes` is how many ranks take part in every transfer that does not say; one that lacks a rank is left out.
    `rounds` are the launches' own; without them they count from 0. `backend` tells how transfers are queued.
    """
    noted = _noted(launches, range(len(launches)) if rounds is None else rounds)
    if noted is None:
        return None
    moved = transfers_of(noted.launches, processes, backend)
    before = None
    if len(noted.first_of):
        earlier = [
            {rank: replace(own, transfers=own.earlier) for rank, own in ranks.items()}
            for ranks in noted.launches
        ]
        before = transfers_of(earlier, processes, backend)
    transfers = (*_transfer_rows(noted, moved, noted.step_of), *_transfer_rows(noted, before, noted.first_of))
    rows = np.concatenate([_span_rows(noted), noted.steps, *transfers])
    owner, lengths, covered = coverage(rows, len(_KINDS))
    by_launch = noted.means_s(_divided(covered) * lengths, owner)
    means: list[float] = by_launch.mean(axis=1).tolist()
    comm_s, exposed_s, overlapped_s, wait_s, queue_s = means[len(PARTS) :]
    under_way = moved.under_way_s() if moved is not None else {}
    sizes = moved.moved() if moved is not None else {}
    return Breakdown(
        parts=dict(zip(PARTS, means, strict=False)),
        step_s=_step_s(noted),
        comm_s=comm_s,
        exposed_s=exposed_s,
        overlapped_s=overlapped_s,
        wait_s=wait_s,
        queue_s=queue_s,
        spans=_spans_s(noted),
        launches=len(noted.rounds),
        has_transfers=moved is not None and len(moved.row) > 0,
        dropped_transfers=0 if moved is None else moved.dropped,
        by_round={
            number: dict(zip(PARTS, own, strict=False))
            for number, own in zip(noted.rounds, by_launch.T.tolist(), strict=True)
        },
        totals=dict(zip(_TOTALS, by_launch[len(PARTS) :].tolist(), strict=True)),
        transfers={number: sizes.get(launch, {}) for launch, number in enumerate(noted.rounds)},
        network_s={noted.rounds[launch]: seconds for launch, seconds in under_way.items()},
        sent_bytes=_busiest_bytes(launches),
    )


@dataclass(frozen=True, slots=True)
class _Noted:
    """What ranks noted of instrumented steps, in those launches that have any. A group is one rank's step."""

    launches: Sequence[Mapping[int, RankSteps]]
    rounds: Sequence[int]
    names: Sequence[str]
    """Of spans, in order of their first start."""
    steps: Ints
    """Rows of group, kind, from and to."""
    spans: Ints
    """Rows of group, place in `names`, from and to."""
    launch_of: Ints
    """Of each step its launch."""
    owners: Ints
    """Of each step which of all ranks of all launches it is of."""
    step_of: Ints
    """Of each transfer's record the group, -1 without one."""
    first_of: Ints
    """Of each earlier transfer's record the group of its rank's first step."""

    def means_s(self, lengths_ns: NDArray[Any], group: NDArray[np.intp]) -> NDArray[np.float64]:
        """For each row of lengths, shape (rows, n), its sum per rank and step in each launch, seconds.

        `group` names each column's group.
        """
        count = np.bincount(self.launch_of)
        belongs = self.launch_of[group][:, np.newaxis] == np.arange(len(count))
        found: NDArray[np.float64] = (lengths_ns @ belongs) / count / 1e9
        return found


def _noted(launches: Sequence[Mapping[int, RankSteps]], rounds: Iterable[int]) -> _Noted | None:
    """Return what ranks noted, one row each; None where no launch was instrumented."""
    names: defaultdict[str, int] = defaultdict(itertools.count().__next__)
    spans: list[tuple[int, int, int, int]] = []
    steps: list[tuple[int, int, int, int]] = []
    launch_of: list[int] = []
    numbers: list[int] = []
    found: list[Mapping[int, RankSteps]] = []
    step_of: list[int] = []
    first_of: list[int] = []
    owners: list[int] = []
    ranks_before = 0
    for number, ranks in zip(rounds, launches, strict=True):
        if not any(noted.steps for noted in ranks.values()):
            continue
        for noted in ranks.values():
            groups: dict[int, int] = {}
            for step in noted.steps:
                group = groups[step.step] = len(steps)
                steps.append((group, _STEP, step.start_ns, step.end_ns))
                owners.append(ranks_before)
                spans += [(group, names[name], start, end) for name, start, end in step.spans]
            launch_of += [len(found)] * len(noted.steps)
            step_of += [groups.get(transfer.step, -1) for transfer in noted.transfers]
            first_of += [min(groups.values(), default=-1)] * len(noted.earlier)
            ranks_before += 1
        found.append(ranks)
        numbers.append(number)
    if not steps:
        return None
    return _Noted(
        launches=found,
        rounds=numbers,
        names=tuple(names),
        steps=np.array(steps, np.int64),
        spans=np.array(spans, np.int64).reshape(-1, 4),
        launch_of=np.array(launch_of, np.int64),
        owners=np.array(owners, np.int64),
        step_of=np.array(step_of, np.int64),
        first_of=np.array(first_of, np.int64),
    )


def _span_rows(noted: _Noted) -> Ints:
    """Return the spans of known kinds as rows for `coverage`."""
    kinds = np.array([_KIND_OF_SPAN.get(name, _NO_KIND) for name in noted.names], np.int64)
    rows = noted.spans.copy()
    rows[:, 1] = kinds[noted.spans[:, 1]] if len(kinds) else _NO_KIND
    known: Ints = rows[rows[:, 1] != _NO_KIND]
    return known


def _transfer_rows(noted: _Noted, moved: Transfers | None, step_of: Ints) -> Iterable[Ints]:
    """Yield rows for `coverage` of when parts in transfers were queued, waited and moved data.

    `step_of` names the group of each record; what was handed over before it began counts from its beginning.
    """
    if moved is None or not len(moved.row):
        return
    group_of = step_of[moved.row]
    begins = np.where(group_of >= 0, noted.steps[group_of, 2], 0)
    ends = ((_QUEUE, moved.handed, moved.served), (_WAIT, moved.served, moved.begin))
    for kind, start, end in (*ends, (_COMM, moved.begin, moved.end)):
        parts = np.stack([group_of, np.full(len(start), kind), np.maximum(start, begins), end], axis=1)
        yield from _within_steps(parts, noted.steps, noted.owners)


def _divided(covered: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return which segments belong to each of `PARTS` and then of `_TOTALS`, shape (names, segments).

    Of the parts a segment belongs to the first of `_KINDS` that covers it: computation, comm, wait, data.
    """
    taken = np.zeros(covered.shape[1], np.bool_)
    shares: list[NDArray[np.bool_]] = []
    within = covered[_STEP]
    for number in range(_STEP):
        shares.append(covered[number] & within & ~taken)
        taken |= covered[number]
    computing = covered[: len(_COMPUTE)].any(axis=0)
    comm = covered[_COMM]
    shares += [within & ~taken, comm, comm & ~computing, comm & computing, covered[_WAIT], covered[_QUEUE]]
    return np.array(shares)


def _step_s(noted: _Noted) -> float:
    """Return the mean length of a step: over ranks and steps, then over launches."""
    lengths = noted.steps[:, 3] - noted.steps[:, 2]
    means = np.bincount(noted.launch_of, weights=lengths) / np.bincount(noted.launch_of)
    return float(np.mean(means)) / 1e9


def _spans_s(noted: _Noted) -> dict[str, float]:
    """Return the mean time of a step in the spans of each name."""
    spans = noted.spans
    lengths = np.zeros((len(noted.names), len(spans)))
    lengths[spans[:, 1], np.arange(len(spans))] = spans[:, 3] - spans[:, 2]
    means = noted.means_s(lengths, spans[:, 0]).mean(axis=1)
    return dict(zip(noted.names, means.tolist(), strict=True))


def _within_steps(parts: Ints, steps: Ints, owners: Ints) -> list[Ints]:
    """Cuts parts in transfers into rows for `coverage`: one in its own step, and one in each it goes on into.

    Both tables are rows of group, kind, start and end, a group of -1 being none. Steps of one rank are in order, with
    the same number in `owners`.
    """
    rows: list[Ints] = []
    left = parts[(parts[:, 0] >= 0) & (parts[:, 3] > parts[:, 2])]
    while len(left):
        own = steps[left[:, 0]]
        within = left.copy()
        within[:, 3] = np.minimum(left[:, 3], own[:, 3])
        rows.append(within)
        following = np.minimum(left[:, 0] + 1, len(steps) - 1)
        goes_on = (
            (left[:, 3] > own[:, 3]) & (following > left[:, 0]) & (owners[following] == owners[left[:, 0]])
        )
        left, following = left[goes_on], following[goes_on]
        left[:, 0] = following
        left[:, 2] = np.maximum(left[:, 2], steps[following, 2])
    return rows


def _busiest_bytes(launches: Sequence[Mapping[int, RankSteps]]) -> float | None:
    """Return bytes a step that the busiest rank of any launch sent."""
    found = [
        sum(sent) / len(noted.steps)
        for ranks in launches
        for noted in ranks.values()
        if (sent := [part.sent_bytes for part in noted.transfers if part.sent_bytes is not None])
        and noted.steps
    ]
    return max(found, default=None)
