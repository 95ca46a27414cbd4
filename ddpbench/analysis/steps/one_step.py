"""A single instrumented step as it happened, with every rank's spans, transfers and waits on one clock.

It is the reference case's step closest to the median, of its median launch. A step's length is that of its slowest
rank.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from ddpbench.analysis.findings.groups import compared_panels, reference_of
from ddpbench.analysis.read.launches import CaseRun
from ddpbench.analysis.read.parts import RankSteps
from ddpbench.analysis.read.transfers import transfers_of
from ddpbench.analysis.read.virtual import nominal
from ddpbench.naming import Namer
from ddpbench.records import COMPUTE_SPANS, CommRecord, RankStart, RunDir, StepRecord, read_launch

MOST_LANES = 8
"""Number of ranks up to which all are shown.

If there are more, only these are shown: rank 0, the slowest rank, the rank whose backward ends last, and the ranks with
the least, median and most computation.
"""
LAST = "backward ends last"


@dataclass(frozen=True, kw_only=True, slots=True)
class Transfer:
    """A rank's part in one transfer. Its moments are seconds from the step's start.

    The part is queued at `ready_s` and leaves the queue at `left_s`. Data flow from `begin_s` to `end_s`.
    """

    bucket: int
    op: str
    bytes: int
    ready_s: float
    left_s: float
    begin_s: float
    end_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Lane:
    """A rank's activity in the step. `spans` are (name, start, end), seconds from the step's start."""

    rank: int
    role: str
    """Reason for which the rank is shown if not all are, such as `most computation` or `LAST`; empty if all are."""
    length_s: float
    spans: tuple[tuple[str, float, float], ...]
    transfers: tuple[Transfer, ...]
    exposed: tuple[tuple[float, float], ...]
    """Intervals in which a transfer was under way and the rank did not compute."""
    computed_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class OneStep:
    """A single step of a launch. Times are seconds from the moment at which the first rank began the step."""

    case_id: str
    round: int
    step: int
    steps: int
    """Number of instrumented steps of the launch."""
    launches: int
    median_s: float
    length_s: float
    slowest: int
    """Rank that determines the step's length."""
    lanes: tuple[Lane, ...]
    omitted: tuple[int, ...]
    """Ranks that are not shown."""
    backward_end_s: float | None
    """End of the last backward pass to end, which is the one of `backward_rank`."""
    backward_rank: int | None
    comm_end_s: float | None
    """End of the last transfer on its last rank."""
    events: bool
    """True if times are from CUDA events aligned with the clock, instead of readings of the clock."""


def _first_exchanging(cases: Sequence[CaseRun]) -> CaseRun | None:
    for members in compared_panels(cases):
        reference = reference_of(members)
        if reference.parts is not None and reference.parts.has_transfers:
            return reference
    return None


def one_step(run: RunDir, cases: Sequence[CaseRun]) -> tuple[OneStep | None, str]:
    """Return the step to show and an empty text, or None and a sentence that says why no step can be shown."""
    case = _first_exchanging(cases)
    if case is None or case.parts is None:
        return None, (
            "No case of several ranks on separate cores has instrumented transfers, so no step can be drawn."
        )
    lengths = {number: sum(parts.values()) for number, parts in case.parts.by_round.items()}
    number = statistics.median_low((length, number) for number, length in lengths.items())[1]
    ranks = nominal(read_launch(run.launch(case.case_id, "measure", number)).ranks, case.case)
    label = Namer(run.case for run in cases).full(case.case)
    hosts = sorted({start.host for rank in ranks for start in rank.of(RankStart)})
    if len(hosts) > 1:
        return None, (
            f"The ranks of {label} ran on {len(hosts)} hosts ({', '.join(hosts[:4])}), whose clocks are "
            "not aligned: their spans cannot be drawn on one clock."
        )
    steps = {rank.rank: {step.step: step for step in rank.of(StepRecord)} for rank in ranks}
    launch = {
        rank.rank: RankSteps.of(rank.of(StepRecord), rank.of(CommRecord))
        for rank in sorted(ranks, key=lambda one: one.rank)
    }
    whole = sorted(set.intersection(*(set(found) for found in steps.values())))
    if not whole or len(ranks) < max(launch.processes for launch in case.launches):
        return None, f"No instrumented step of {label} was recorded by all of its ranks."
    length = {
        step: max(noted[step].end_ns - noted[step].start_ns for noted in steps.values()) for step in whole
    }
    median = statistics.median(length.values())
    step = min(whole, key=lambda one: (abs(length[one] - median), one))
    if length[step] <= 0:
        return None, f"The median instrumented step of {label} took no time, as its records have it."
    chosen = {rank: noted[step] for rank, noted in steps.items()}
    origin = min(one.start_ns for one in chosen.values())
    transfers = _transfers(launch, step, origin, case.case.backend)
    lanes = [_lane(rank, one, transfers[rank], origin) for rank, one in sorted(chosen.items())]
    ends = [(end, lane.rank) for lane in lanes for name, _, end in lane.spans if name == "backward"]
    backward_end, backward_rank = max(ends, default=(None, None))
    slowest = max(lanes, key=lambda lane: (lane.length_s, -lane.rank)).rank
    kept = _kept(lanes, backward_rank, slowest)
    found = OneStep(
        case_id=case.case_id,
        round=number,
        step=step,
        steps=len(whole),
        launches=len(lengths),
        median_s=median / 1e9,
        length_s=length[step] / 1e9,
        slowest=slowest,
        lanes=tuple(kept),
        omitted=tuple(lane.rank for lane in lanes if lane.rank not in {one.rank for one in kept}),
        backward_end_s=backward_end,
        backward_rank=backward_rank,
        comm_end_s=max((one.end_s for lane in lanes for one in lane.transfers), default=None),
        events=case.case.device == "cuda",
    )
    return found, ""


def _transfers(
    launch: Mapping[int, RankSteps], step: int, origin: int, backend: str
) -> dict[int, list[Transfer]]:
    """Return each rank's parts in a step's transfers. A transfer that lacks a rank's record is left out."""
    result: dict[int, list[Transfer]] = {rank: [] for rank in launch}
    found = transfers_of([launch], len(launch), backend)
    if found is None:
        return result
    records = [record for noted in launch.values() for record in noted.transfers]
    columns = (found.row, found.rank, found.handed, found.served, found.begin, found.end)
    for row, rank, *times in zip(*(each.tolist() for each in columns), strict=True):
        record = records[row]
        if record.step == step:
            ready, left, begin, end = ((at - origin) / 1e9 for at in times)
            result[rank].append(
                Transfer(
                    bucket=record.bucket,
                    op=record.op,
                    bytes=record.bytes,
                    ready_s=ready,
                    left_s=left,
                    begin_s=begin,
                    end_s=end,
                )
            )
    for transfers in result.values():
        transfers.sort(key=lambda one: (one.ready_s, one.bucket))
    return result


def _lane(rank: int, step: StepRecord, transfers: Sequence[Transfer], origin: int) -> Lane:
    spans = tuple((name, (start - origin) / 1e9, (end - origin) / 1e9) for name, start, end in step.spans)
    computing = merged((start, end) for name, start, end in spans if name in COMPUTE_SPANS)
    return Lane(
        rank=rank,
        role="",
        length_s=(step.end_ns - step.start_ns) / 1e9,
        spans=spans,
        transfers=tuple(transfers),
        exposed=tuple(without(merged((one.begin_s, one.end_s) for one in transfers), computing)),
        computed_s=sum(end - start for start, end in computing),
    )


def _kept(lanes: Sequence[Lane], last: int | None, slowest: int) -> list[Lane]:
    """Return the most informative lanes. The figure marks the rank whose backward ends last, so it is included."""
    if len(lanes) <= MOST_LANES:
        return list(lanes)
    ordered = sorted(lanes, key=lambda lane: (lane.computed_s, lane.rank))
    roles = {
        ordered[(len(ordered) - 1) // 2].rank: "median computation",
        ordered[0].rank: "least computation",
        ordered[-1].rank: "most computation",
    }
    if last:  # rank 0 is shown anyway
        roles.setdefault(last, LAST)
    return [
        replace(lane, role=roles.get(lane.rank, ""))
        for lane in lanes
        if lane.rank in roles or lane.rank in (0, slowest)
    ]


def merged(intervals: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the union of the intervals, as intervals that do not touch, in order.

    An interval that does not end after its start is empty.
    """
    result: list[tuple[float, float]] = []
    for start, end in sorted(one for one in intervals if one[1] > one[0]):
        if result and start <= result[-1][1]:
            result[-1] = (result[-1][0], max(end, result[-1][1]))
        else:
            result.append((start, end))
    return result


def without(
    whole: Iterable[tuple[float, float]], taken: Sequence[tuple[float, float]]
) -> list[tuple[float, float]]:
    """Return the parts of the intervals `whole` that are outside `taken`.

    Both must be unions as `merged` returns them.
    """
    result: list[tuple[float, float]] = []
    for start, end in whole:
        at = start
        for begin, until in taken:
            if until <= at or begin >= end:
                continue
            if begin > at:
                result.append((at, begin))
            at = until
        if at < end:
            result.append((at, end))
    return result
