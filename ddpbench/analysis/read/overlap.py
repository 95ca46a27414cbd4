"""Breakdown of an instrumented step into computation, exposed or overlapped communication, waiting, and data loading.

Every instant of a rank's step belongs to one activity, so the parts add up to the step. Of several activities, the
first in this order counts:

    own computation (forward, backward, optimizer, other)  >  transfers  >  waiting for ranks  >  data

A transfer that continues after its step takes its time from the rank's next step. `synchronize` spans are not a part,
because they contain transfers and waiting. `transfers.py` defines when a transfer waits and moves data.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter, itemgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ddpbench.analysis.read.parts import Ints, RankSteps, apart, column
from ddpbench.analysis.read.transfers import Moved, Transfers, transfers_of
from ddpbench.analysis.statistics.interval import Interval
from ddpbench.analysis.statistics.stats import median_launch
from ddpbench.records import COMPUTE_SPANS, StepRecord

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
"""Parts of a step, which add up to it."""
_TOTALS = ("comm", "exposed", "overlapped", "wait", "queue")


@dataclass(frozen=True, kw_only=True, slots=True)
class Breakdown:
    """A case's typical step, in seconds.

    All values are means over the ranks and steps of a launch, and then medians over launches, as for step times
    (`stats.median_launch`). `parts` has the names in `PARTS`. The parts add up to the step in every launch, but their
    medians only approximately.

    `comm_s` is the time in which any transfer was under way, and `overlapped_s` the part of it during own computation.
    `wait_s` is the time in which a transfer's data could not flow after it left the queue. `queue_s` is the time in
    which a transfer was queued behind others. All of these count regardless of other activity. `spans` are the
    durations of the spans by name, in order of their first start.
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
    """Number of transfers left out because a rank's record of them is missing."""
    by_round: Mapping[int, Mapping[str, float]] = field(default_factory=dict)
    """Each launch's parts, by round: means over ranks and steps, seconds."""
    mean_spans: Mapping[str, float] = field(default_factory=dict)
    """`spans` as means over launches."""
    steps_s: Sequence[float] = ()
    """Each launch's step, in the order of rounds: means over ranks and steps, seconds."""
    totals: Mapping[str, Sequence[float]] = field(default_factory=dict)
    """Each launch's `comm`, `exposed`, `overlapped`, `wait` and `queue`, by name, seconds, in the order of rounds."""
    transfers: Mapping[int, Mapping[tuple[str, int], Moved]] = field(default_factory=dict)
    """Number and time of each launch's transfers, by round, then by operation and bytes."""
    network_s: Mapping[int, float] = field(default_factory=dict)
    """Time for which a step's transfers were under way on any rank, mean over steps, by round; empty across hosts.

    It is the union of the times from each transfer's first data to its last rank's end.
    """
    window_s: Mapping[int, float] = field(default_factory=dict)
    """Time per step from the first rank's start of these steps to the last rank's end, on one clock, by round."""
    by_rank: Mapping[int, Mapping[str, float]] = field(default_factory=dict)
    """For each rank, the seconds of each part and of `step`: means over the steps of a launch, then over launches.

    Launches in which a rank has no instrumented steps are not in its means; a rank without any is left out.
    """
    sent_bytes: float | None = None
    """Bytes per step that the busiest rank passed to the network, mean over steps; None if they were not counted."""

    @property
    def overlap_fraction(self) -> float | None:
        """Return the share of communication that is overlapped with computation, in the median launch.

        None if nothing was communicated.
        """
        found = self.overlap_interval()
        return None if found is None else found.value

    def interval(self, *names: str) -> Interval:
        """Return the sum of the named parts or totals in the median launch, in seconds, with its 95 % interval."""
        columns = [self.totals.get(name) or [own[name] for own in self.by_round.values()] for name in names]
        return median_launch([math.fsum(row) for row in zip(*columns, strict=True)])

    def overlap_interval(self) -> Interval | None:
        """Return `overlap_fraction` with its 95 % interval over launches that communicate, or None."""
        totals = zip(self.totals.get("overlapped", ()), self.totals.get("comm", ()), strict=True)
        fractions = [overlapped / comm for overlapped, comm in totals if comm > 0]
        return median_launch(fractions) if fractions else None


def coverage(
    intervals: NDArray[np.int64], kinds: int
) -> tuple[NDArray[np.intp], NDArray[np.int64], NDArray[np.bool_]]:
    """Divide time at the begins and ends of intervals, and return the kinds that cover each segment.

    The rows of `intervals`, shape (n, 4), are group, kind (below `kinds`), start and end. Each group has a separate
    time axis. An interval that does not end after its start is empty. The results are the group and the length of each
    segment, both of shape (segments,), and whether each kind covers it, shape (kinds, segments).
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


@dataclass(frozen=True, kw_only=True, slots=True)
class Instrumented:
    """The instrumented steps of a case's launches, by rank, with defaults for incomplete records of transfers."""

    launches: Sequence[Mapping[int, RankSteps]]
    rounds: Sequence[int]
    processes: int
    """Number of ranks in a transfer, if records do not state it. A transfer that lacks a rank's record is left out."""
    backend: str = ""
    """Name of the backend, which decides how transfers are queued."""


MOST_AT_ONCE = 100_000
"""Largest number of spans and transfers to process together; more would fill memory and save no more calls."""
_LONG_NS = 2**42
"""Spread of a rank's times, ns (over an hour), above which a case is processed alone so as not to blur others' times.
"""


def breakdown(
    launches: Sequence[Mapping[int, RankSteps]],
    processes: int,
    rounds: Sequence[int] | None = None,
    backend: str = "",
) -> Breakdown | None:
    """Return the breakdown of a case's instrumented steps; None if nothing was instrumented.

    The arguments are the fields of `Instrumented`; by default, `rounds` count from 0.
    """
    numbers = range(len(launches)) if rounds is None else rounds
    one = Instrumented(launches=launches, rounds=numbers, processes=processes, backend=backend)
    return _breakdowns([one])[0]


def breakdowns(cases: Iterable[Instrumented]) -> Iterator[Breakdown | None]:
    """Yield the breakdown of each case's instrumented steps, in order; None for a case without these steps.

    Many small cases together are faster than `breakdown` for each case.
    """
    together: list[Instrumented] = []
    count = 0
    for case in cases:
        records = sum(
            len(noted.transfers) + sum(len(step.spans) for step in noted.steps)
            for ranks in case.launches
            for noted in ranks.values()
        )
        if together and count + records > MOST_AT_ONCE:
            yield from _breakdowns(together)
            together, count = [], 0
        together.append(case)
        count += records
    yield from _breakdowns(together)


def _moved_before(noted: _Noted) -> Transfers | None:
    if not len(noted.first_of):
        return None
    earlier = [
        {rank: replace(own, transfers=own.earlier) for rank, own in ranks.items()} for ranks in noted.launches
    ]
    return transfers_of(earlier, noted.processes, noted.backends)


def _breakdowns(cases: Sequence[Instrumented]) -> list[Breakdown | None]:
    noted = _noted(cases)
    if noted is None:
        return [None] * len(cases)
    moved = transfers_of(noted.launches, noted.processes, noted.backends)
    before = _moved_before(noted)
    if (
        len(cases) > 1
        and max([noted.apart_ns, *(one.apart_ns for one in (moved, before) if one is not None)]) > _LONG_NS
    ):
        half = len(cases) // 2
        return [*_breakdowns(cases[:half]), *_breakdowns(cases[half:])]
    transfers = (*_transfer_rows(noted, moved, noted.step_of), *_transfer_rows(noted, before, noted.first_of))
    rows = np.concatenate([_span_rows(noted), noted.steps, *transfers])
    owner, lengths, covered = coverage(rows, len(_KINDS))
    dropped, whole = (
        np.bincount(one, minlength=len(noted.launches))
        for one in ((moved.dropped, moved.launch) if moved is not None else (noted.spans[:0, 0],) * 2)
    )
    parts_ns = noted.rank_sums_ns(lengths * _divided(covered), owner)
    steps_ns = noted.rank_sums_ns(noted.steps[:, 3] - noted.steps[:, 2], noted.steps[:, 0])
    sums = _Sums(
        by_launch=noted.launch_means_s(parts_ns),
        steps_s=noted.launch_means_s(steps_ns),
        ranks_of=noted.ranks_of,
        steps_of=noted.steps_of(),
        by_rank=noted.rank_means_s(np.concatenate([parts_ns[: len(PARTS)], steps_ns[np.newaxis]])),
        windows_s=noted.windows_s().tolist(),
        under_way=moved.under_way_s(noted.steps_of_a_rank()) if moved is not None else {},
        sizes=moved.moved() if moved is not None else {},
        spans=noted.spans_s(),
        dropped=dropped,
        whole=whole,
    )
    return [
        _breakdown(case, own, noted.rounds[own.start : own.stop], sums) if own else None
        for case, own in zip(cases, noted.of_case, strict=True)
    ]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Sums:
    """Sums over each launch's steps, with the launches of all cases in one sequence."""

    by_launch: NDArray[np.float64]
    """Seconds per rank and step, one row for each of `PARTS` and then `_TOTALS`, and one column for each launch."""
    steps_s: NDArray[np.float64]
    ranks_of: Sequence[tuple[int, int]]
    """The launch and the rank that each column of `by_rank` belongs to."""
    steps_of: Ints
    """The number of steps from which each column of `by_rank` is made."""
    by_rank: NDArray[np.float64]
    """Seconds per step. The rows are `PARTS`, followed by the whole step; the columns are the ranks of all launches."""
    windows_s: Sequence[float]
    under_way: Mapping[int, float]
    sizes: Mapping[int, Mapping[tuple[str, int], Moved]]
    spans: Sequence[Mapping[str, float]]
    dropped: NDArray[np.intp]
    """Number of transfers by launch that some rank did not record; `whole` are those that all ranks recorded."""
    whole: NDArray[np.intp]


def _breakdown(case: Instrumented, own: range, numbers: Sequence[int], sums: _Sums) -> Breakdown:
    part = slice(own.start, own.stop)
    by_launch = sums.by_launch
    medians: list[float] = np.median(by_launch[:, part], axis=1).tolist()
    comm_s, exposed_s, overlapped_s, wait_s, queue_s = medians[len(PARTS) :]
    launches = [*zip(own, numbers, strict=True)]
    return Breakdown(
        parts=dict(zip(PARTS, medians, strict=False)),
        step_s=float(np.median(sums.steps_s[part])),
        comm_s=comm_s,
        exposed_s=exposed_s,
        overlapped_s=overlapped_s,
        wait_s=wait_s,
        queue_s=queue_s,
        spans=_spans_over_launches(sums.spans, own, np.median),
        mean_spans=_spans_over_launches(sums.spans, own, np.mean),
        launches=len(own),
        has_transfers=bool(sums.whole[part].any()),
        dropped_transfers=int(sums.dropped[part].sum()),
        by_round={
            number: dict(zip(PARTS, each, strict=False))
            for number, each in zip(numbers, by_launch[:, part].T.tolist(), strict=True)
        },
        steps_s=sums.steps_s[part].tolist(),
        totals=dict(zip(_TOTALS, by_launch[len(PARTS) :, part].tolist(), strict=True)),
        transfers={number: sums.sizes.get(launch, {}) for launch, number in launches},
        network_s={number: sums.under_way[launch] for launch, number in launches if launch in sums.under_way},
        window_s={number: sums.windows_s[launch] for launch, number in launches},
        by_rank=_by_rank(own, sums),
        sent_bytes=_busiest_bytes(case.launches),
    )


def _by_rank(own: range, sums: _Sums) -> dict[int, dict[str, float]]:
    columns: defaultdict[int, list[int]] = defaultdict(list)
    for column_of, (launch, rank) in enumerate(sums.ranks_of):
        if launch in own and sums.steps_of[column_of]:
            columns[rank].append(column_of)
    return {
        rank: dict(
            zip((*PARTS, "step"), np.mean(sums.by_rank[:, columns[rank]], axis=1).tolist(), strict=True)
        )
        for rank in sorted(columns)
    }


def _spans_over_launches(
    spans: Sequence[Mapping[str, float]], launches: range, average: Callable[[list[float]], np.floating[Any]]
) -> dict[str, float]:
    names = dict.fromkeys(name for launch in launches for name in spans[launch])
    return {name: float(average([spans[launch].get(name, 0.0) for launch in launches])) for name in names}


@dataclass(frozen=True, kw_only=True, slots=True)
class _Noted:
    """Records of instrumented steps as tables; each step of a rank is a group."""

    launches: Sequence[Mapping[int, RankSteps]]
    rounds: Sequence[int]
    processes: Sequence[int]
    backends: Sequence[str]
    """Backend of each launch."""
    of_case: Sequence[range]
    """Indices of each case's launches."""
    names: Sequence[str]
    """Names of spans."""
    steps: Ints
    """Steps as rows of group, kind, start and end."""
    spans: Ints
    """Spans as rows of group, index in `names`, start and end."""
    launch_of: Ints
    """Launch of each step."""
    owners: Ints
    """Rank of each step, counted over all ranks of all launches."""
    ranks_of: Sequence[tuple[int, int]]
    """The launch and the rank that each number in `owners` stands for."""
    step_of: Ints
    """Group of each transfer's record; -1 if its step was not recorded."""
    first_of: Ints
    """Group of the rank's first step, for each record of a transfer before that step."""

    @property
    def apart_ns(self) -> int:
        """Return the largest time between any two recorded times of one rank, in nanoseconds."""
        of_spans = self.owners[self.spans[:, 0]]
        owner = np.concatenate([self.owners, of_spans])
        return apart(owner, *(np.concatenate([self.steps[:, end], self.spans[:, end]]) for end in (2, 3)))

    def rank_sums_ns(self, lengths_ns: NDArray[Any], group: NDArray[np.intp]) -> Ints:
        """Sum times over each rank's steps, in the order of `ranks_of`; `group` (ascending) is each time's step."""
        ends = np.searchsorted(self.owners[group], np.arange(1, len(self.ranks_of) + 1))
        before = np.zeros((*lengths_ns.shape[:-1], lengths_ns.shape[-1] + 1), np.int64)
        np.cumsum(lengths_ns, axis=-1, out=before[..., 1:])
        found: Ints = np.diff(np.take(before, ends, axis=-1), axis=-1, prepend=0)
        return found

    def launch_means_s(self, sums_ns: Ints) -> NDArray[np.float64]:
        launches = np.array([launch for launch, _ in self.ranks_of])
        firsts = np.searchsorted(launches, np.arange(len(self.launches)))
        whole = np.add.reduceat(sums_ns, firsts, axis=-1)
        found: NDArray[np.float64] = whole / np.bincount(self.launch_of) / 1e9
        return found

    def rank_means_s(self, sums_ns: Ints) -> NDArray[np.float64]:
        found: NDArray[np.float64] = sums_ns / np.maximum(self.steps_of(), 1) / 1e9
        return found

    def steps_of(self) -> Ints:
        return np.bincount(self.owners, minlength=len(self.ranks_of))

    def windows_s(self) -> NDArray[np.float64]:
        """Return each launch's seconds per step from its first rank's start to its last rank's end."""
        firsts = np.searchsorted(self.launch_of, np.arange(len(self.launches)))
        whole_ns = np.maximum.reduceat(self.steps[:, 3], firsts) - np.minimum.reduceat(
            self.steps[:, 2], firsts
        )
        found: NDArray[np.float64] = whole_ns / self.steps_of_a_rank() / 1e9
        return found

    def steps_of_a_rank(self) -> NDArray[np.float64]:
        ranks = [sum(bool(noted.steps) for noted in launch.values()) for launch in self.launches]
        found: NDArray[np.float64] = np.bincount(self.launch_of, minlength=len(self.launches)) / ranks
        return found

    def spans_s(self) -> list[dict[str, float]]:
        """Return each launch's mean seconds per step by span name, in the order of first start."""
        count = np.bincount(self.launch_of)
        keys = self.launch_of[self.spans[:, 0]] * len(self.names) + self.spans[:, 1]
        kinds, first, place = np.unique(keys, return_index=True, return_inverse=True)
        sums = np.bincount(place, weights=self.spans[:, 3] - self.spans[:, 2], minlength=len(kinds))
        found: list[dict[str, float]] = [{} for _ in self.launches]
        for at in np.argsort(first, kind="stable").tolist():
            launch, name = divmod(int(kinds[at]), len(self.names))
            found[launch][self.names[name]] = float(sums[at] / count[launch] / 1e9)
        return found


def _noted(cases: Sequence[Instrumented]) -> _Noted | None:
    steps: list[StepRecord] = []
    launch_of: list[int] = []
    numbers: list[int] = []
    processes: list[int] = []
    backends: list[str] = []
    of_case: list[range] = []
    found: list[Mapping[int, RankSteps]] = []
    step_of: list[int] = []
    first_of: list[int] = []
    owners: list[int] = []
    ranks_of: list[tuple[int, int]] = []
    for case in cases:
        first = len(found)
        for number, ranks in zip(case.rounds, case.launches, strict=True):
            if not any(noted.steps for noted in ranks.values()):
                continue
            for rank, noted in ranks.items():
                groups = {step.step: group for group, step in enumerate(noted.steps, start=len(steps))}
                steps += noted.steps
                owners += [len(ranks_of)] * len(noted.steps)
                launch_of += [len(found)] * len(noted.steps)
                step_of += [groups.get(transfer.step, -1) for transfer in noted.transfers]
                first_of += [min(groups.values(), default=-1)] * len(noted.earlier)
                ranks_of.append((len(found), rank))
            found.append(ranks)
            numbers.append(number)
            processes.append(case.processes)
            backends.append(case.backend)
        of_case.append(range(first, len(found)))
    if not steps:
        return None
    names, spans = _span_table(steps)
    return _Noted(
        launches=found,
        rounds=numbers,
        processes=processes,
        backends=backends,
        of_case=of_case,
        names=names,
        steps=_table(
            np.arange(len(steps)),
            np.full(len(steps), _STEP),
            column(map(attrgetter("start_ns"), steps)),
            column(map(attrgetter("end_ns"), steps)),
        ),
        spans=spans,
        launch_of=np.array(launch_of, np.int64),
        owners=np.array(owners, np.int64),
        ranks_of=ranks_of,
        step_of=np.array(step_of, np.int64),
        first_of=np.array(first_of, np.int64),
    )


def _span_table(steps: Sequence[StepRecord]) -> tuple[tuple[str, ...], Ints]:
    """Return the span names, and a row per span: group, index of its name, start, end."""
    spans = [span for step in steps for span in step.spans]
    codes: defaultdict[str, int] = defaultdict(itertools.count().__next__)
    place = column(map(codes.__getitem__, map(itemgetter(0), spans)))
    group = np.repeat(np.arange(len(steps)), [len(step.spans) for step in steps])
    return tuple(codes), _table(group, place, *(column(map(itemgetter(end), spans)) for end in (1, 2)))


def _table(*columns: NDArray[np.int64]) -> Ints:
    found: Ints = np.stack(columns, axis=1)
    return found


def _span_rows(noted: _Noted) -> Ints:
    kinds = np.array([_KIND_OF_SPAN.get(name, _NO_KIND) for name in noted.names], np.int64)
    rows = noted.spans.copy()
    rows[:, 1] = kinds[noted.spans[:, 1]] if len(kinds) else _NO_KIND
    known: Ints = rows[rows[:, 1] != _NO_KIND]
    return known


def _transfer_rows(noted: _Noted, moved: Transfers | None, step_of: Ints) -> Iterable[Ints]:
    """Yield rows for `coverage` of each transfer part's queueing, waiting and moving.

    `step_of` is the group of each record. Queueing counts from the start of the group at the earliest.
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
    """Return whether each segment belongs to each of `PARTS` and `_TOTALS`, shape (names, segments).

    The first of `_KINDS` that covers a segment counts.
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


def _within_steps(parts: Ints, steps: Ints, owners: Ints) -> list[Ints]:
    """Split parts of transfers at the ends of steps.

    Both tables have rows of group, kind, start and end; group -1 means none. A rank's steps are in order.
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
    found = [
        sum(sent) / len(noted.steps)
        for ranks in launches
        for noted in ranks.values()
        if (sent := [part.sent_bytes for part in noted.transfers if part.sent_bytes is not None])
        and noted.steps
    ]
    return max(found, default=None)
