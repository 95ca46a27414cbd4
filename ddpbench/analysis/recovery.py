"""Cost of a failure, from the moment of the failure until the training has recovered from a snapshot.

All moments are on one host's clock. A part of the cost ends with the last rank (or torchrun agent), so the parts add up
to the cost. A killed agent has no times for noticing the failure and stopping ranks. A gang is the ranks that train
together between two restarts; of each gang, the steps up to the next gang's snapshot count as trained.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from ddpbench.analysis.statistics.interval import Interval
from ddpbench.analysis.statistics.stats import median_launch
from ddpbench.records import Failure, Gang, Snapshot, Trained
from ddpbench.spec import Case
from ddpbench.spec.recoveries import KEPT_SNAPSHOTS, WINDOW_STEPS, window_of
from ddpbench.spec.target_loss import mean_losses

PARTS = (
    "detection_s",
    "stopping_s",
    "rendezvous_s",
    "starting_s",
    "meeting_s",
    "restoring_s",
    "recomputing_s",
)
AT_PACE = 1.02
"""Steps are back at the steady pace if they take at most this multiple of the steady time."""


@dataclass(frozen=True, slots=True)
class RankRecovery:
    """A rank's records of training with snapshots and of recovery, over all its starts."""

    gangs: Sequence[Gang]
    snapshots: Sequence[Snapshot]
    trained: Sequence[Trained]
    failures: Sequence[Failure]


@dataclass(frozen=True, kw_only=True, slots=True)
class GangPace:
    """The pace of a gang, which is the group of ranks that train together between two restarts.

    `samples_per_s` is the rate of the job. The time spent on snapshots is left out.
    """

    ranks: int
    step_s: float
    samples_per_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Recovered:
    """A launch's training with snapshots, and its recovery from a planned failure.

    A step is kept if no later gang repeated it. `parts` is None without a failure or without a recovery.
    """

    round: int
    failed: bool
    parts: Mapping[str, float] | None
    """Seconds from the failure until the interrupted step is made again, divided into `PARTS`."""
    built_s: float | None
    """Seconds of restoring spent on making the model and the replica, before the snapshot is loaded.

    None for older records.
    """
    recomputed_steps: int | None
    regained_s: float | None
    """Seconds from the failure until training is back at its pace; None if it never is.

    Training is back at its pace at the start of a step if this step and all later ones are fast enough on average. They
    may take at most `AT_PACE` times as long as steps before the failure.
    """
    joined_s: float | None
    """Seconds that training paused for a returning node, from the last step without the node to the first with it."""
    joined_recomputed_steps: int | None
    snapshot_s: float | None
    """Mean time of a snapshot, seconds, without the first few, which have no old snapshot to delete."""
    snapshot_bytes: int
    lost: int
    """Number of skipped samples: kept steps used later samples in the job's order, but not these."""
    repeated: int
    """Number of times that kept steps used a sample again."""
    unreadable: tuple[str, ...]
    paces: tuple[GangPace, ...]
    """Paces of the gangs, in order."""
    losses: tuple[float, ...]
    """The job's loss in each kept step."""

    @property
    def total_s(self) -> float | None:
        """Return the sum of all parts, in seconds; None if the launch has not recovered."""
        return None if self.parts is None else math.fsum(self.parts.values())

    @property
    def restored_s(self) -> float | None:
        """Return the seconds from the failure until training continues, before lost steps are computed again.

        None if the launch has not recovered.
        """
        if self.parts is None:
            return None
        return math.fsum(value for name, value in self.parts.items() if name != "recomputing_s")


def recovered_of(number: int, ranks: Sequence[RankRecovery], case: Case) -> Recovered | None:
    """Return how a launch recovered; None if it trained without snapshots. The records of rank 0 are `ranks[0]`."""
    if case.recovery == "off" or not ranks or not ranks[0].gangs:
        return None
    gangs = _gangs(ranks)
    lead = ranks[0]
    failure = next((each for rank in ranks for each in rank.failures), None)
    kept = _kept(gangs)
    places, distinct, highest = _places(ranks, kept, case.local_batch)
    ends = _ends(lead, kept)
    usual = [_length_s(group) for group in _snapshots(ranks)[KEPT_SNAPSHOTS:]]
    found = Recovered(
        round=number,
        failed=failure is not None,
        parts=None,
        built_s=None,
        recomputed_steps=None,
        regained_s=None,
        joined_s=None,
        joined_recomputed_steps=None,
        snapshot_s=math.fsum(usual) / len(usual) if usual else None,
        snapshot_bytes=max((each.bytes for rank in ranks for each in rank.snapshots), default=0),
        lost=highest + 1 - distinct,
        repeated=places - distinct,
        unreadable=tuple(
            dict.fromkeys(words for group in gangs.values() for each in group for words in each.unreadable)
        ),
        paces=tuple(_pace(lead, group[0], case) for group in gangs.values()),
        losses=tuple(_losses(ranks, kept)),
    )
    if failure is None:
        return found
    made_again = {n: _again_ns(failure.step, group, ends.get(n, {})) for n, group in gangs.items()}
    final = next((n for n in gangs if n > failure.gang and made_again[n] is not None), None)
    if final is None:
        return found
    found = replace(
        found,
        parts=_parts(failure, gangs, final, made_again[final] or 0),
        built_s=_built_s(gangs[final]),
        recomputed_steps=failure.step - gangs[final][0].step,
        regained_s=_regained_s(failure, lead, final, found.paces[list(gangs).index(failure.gang)], case),
    )
    back = (
        n
        for n, group in gangs.items()
        if n > final and group[0].world_size == case.world_size and ends.get(n)
    )
    joined = next(back, None)
    if case.recovery != "leave" or joined is None:
        return found
    made = ends[max(n for n in ends if n < joined and ends[n])]
    again = gangs[joined][0].step
    return replace(
        found,
        joined_s=(min(ends[joined].values()) - max(made.values())) / 1e9,
        joined_recomputed_steps=max(made) + 1 - again,
    )


def _again_ns(step: int, group: Sequence[Gang], ends: Mapping[int, int]) -> int | None:
    """Return when (ns) a gang had repeated the lost steps, or was ready if no step was lost."""
    if group[0].step == step:
        return max(each.ready_ns for each in group) if ends else None
    return ends.get(step - 1)


def _gangs(ranks: Sequence[RankRecovery]) -> dict[int, list[Gang]]:
    found: dict[int, list[Gang]] = {}
    for gang in sorted((gang for rank in ranks for gang in rank.gangs), key=lambda gang: gang.number):
        found.setdefault(gang.number, []).append(gang)
    return found


def _kept(gangs: Mapping[int, Sequence[Gang]]) -> dict[int, tuple[int, float]]:
    firsts = [(number, group[0].step) for number, group in gangs.items()]
    nexts = [step for _, step in firsts[1:]] + [math.inf]
    return {number: (step, until) for (number, step), until in zip(firsts, nexts, strict=True)}


def _ends(rank: RankRecovery, gangs: Iterable[int]) -> dict[int, dict[int, int]]:
    found: dict[int, dict[int, int]] = {number: {} for number in gangs}
    for each in rank.trained:
        if each.gang in found:
            found[each.gang].update(zip(itertools.count(each.first), each.ends_ns, strict=False))
    return found


def _places(
    ranks: Sequence[RankRecovery], kept: Mapping[int, tuple[int, float]], local_batch: int
) -> tuple[int, int, int]:
    places = distinct = end = 0
    for first, until in sorted(_runs(ranks, kept, local_batch)):
        places += until - first
        distinct += max(0, until - max(first, end))
        end = max(end, until)
    return places, distinct, end - 1


def _runs(
    ranks: Sequence[RankRecovery], kept: Mapping[int, tuple[int, float]], local_batch: int
) -> Iterator[tuple[int, int]]:
    for each in (each for rank in ranks for each in rank.trained):
        _, until = kept.get(each.gang, (0, 0))
        left = int(min(len(each.ends_ns), max(0, until - each.first))) * local_batch
        for first, count in each.samples:
            taken = min(count, left)
            if taken:
                yield first, first + taken
            left -= taken


def _snapshots(ranks: Sequence[RankRecovery]) -> list[list[Snapshot]]:
    groups: dict[tuple[int, int], list[Snapshot]] = {}
    for each in (each for rank in ranks for each in rank.snapshots):
        groups.setdefault((each.gang, each.step), []).append(each)
    return [groups[key] for key in sorted(groups)]


def _length_s(group: Sequence[Snapshot]) -> float:
    return (max(each.end_ns for each in group) - min(each.start_ns for each in group)) / 1e9


def _durations(rank: RankRecovery, gang: int) -> list[tuple[int, int, float]]:
    """Return number, begin (ns) and duration (s) of each of a gang's steps, without snapshot time."""
    found: list[tuple[int, int, float]] = []
    for each in rank.trained:
        if each.gang != gang:
            continue
        begins = (each.start_ns, *each.ends_ns[:-1])
        found += [
            (each.first + index, begin, (end - begin) / 1e9)
            for index, (begin, end) in enumerate(zip(begins, each.ends_ns, strict=True))
        ]
    return found


def _pace(rank: RankRecovery, gang: Gang, case: Case) -> GangPace:
    """Return a gang's pace, if possible without the steps up to its first snapshot."""
    steps = [length for _, _, length in _durations(rank, gang.number)]
    counted = steps[case.snapshot_every :] if len(steps) >= case.snapshot_every + WINDOW_STEPS[0] else steps
    step_s = math.fsum(counted) / len(counted) if counted else math.nan
    return GangPace(
        ranks=gang.world_size,
        step_s=step_s,
        samples_per_s=gang.world_size * case.local_batch / step_s if counted else math.nan,
    )


def _losses(ranks: Sequence[RankRecovery], kept: Mapping[int, tuple[int, float]]) -> list[float]:
    found: list[float] = []
    for number, (first, until) in kept.items():
        by_rank: list[list[float]] = []
        for rank in ranks:
            own = [each for each in rank.trained if each.gang == number]
            if own:
                losses = [loss for each in own for loss in each.losses]
                by_rank.append(losses if math.isinf(until) else losses[: int(until) - first])
        shortest = min((len(each) for each in by_rank), default=0)
        found += mean_losses([each[:shortest] for each in by_rank])
    return found


def _parts(
    failure: Failure, gangs: Mapping[int, Sequence[Gang]], final: int, again_ns: int
) -> dict[str, float]:
    """Return the seconds of each of `PARTS`; a part ends when its last rank or agent ends it."""
    group = gangs[final]
    first = gangs[min(number for number in gangs if number > failure.gang)]
    noticed = [
        each.noticed_ns for each in first if each.noticed_ns is not None and each.noticed_ns >= failure.at_ns
    ]
    moments = [
        max(noticed, default=failure.at_ns),
        max((each.stopped_ns for each in group if each.stopped_ns is not None), default=failure.at_ns),
        max((each.placed_ns for each in group if each.placed_ns is not None), default=failure.at_ns),
        max(each.meeting_ns for each in group),
        max(each.met_ns for each in group),
        max(each.ready_ns for each in group),
        again_ns,
    ]
    latest = list(itertools.accumulate(moments, max, initial=failure.at_ns))
    return {
        name: (after - before) / 1e9
        for name, (before, after) in zip(PARTS, itertools.pairwise(latest), strict=True)
    }


def _built_s(group: Sequence[Gang]) -> float | None:
    known = [each.built_ns for each in group if each.built_ns is not None]
    return max(known) / 1e9 if len(known) == len(group) else None


def _regained_s(
    failure: Failure, rank: RankRecovery, gang: int, before: GangPace, case: Case
) -> float | None:
    steps = _durations(rank, gang)
    rest = list(itertools.accumulate(length for _, _, length in reversed(steps)))[::-1]
    for index in range(len(steps) - window_of(before.step_s) + 1):
        if rest[index] / (len(steps) - index) <= AT_PACE * before.step_s:
            return (steps[index][1] - failure.at_ns) / 1e9
    return None


def loss_difference(curve: Sequence[float], reference: Sequence[float]) -> tuple[float, int] | None:
    """Return the largest relative difference of two loss curves over their common steps, and the number of these steps.

    None if they have no common step.
    """
    pairs = list(zip(curve, reference, strict=False))
    if not pairs:
        return None
    return max(abs(a - b) / max(abs(b), 1e-12) for a, b in pairs), len(pairs)


@dataclass(frozen=True, kw_only=True, slots=True)
class SampleRates:
    """A job's samples per second before a failure, while a node is away, and after the last restart, or None."""

    before: Interval | None = None
    """Rate before the failure."""
    away: Interval | None = None
    """Rate while a node is away."""
    after: Interval | None = None
    """Rate after the last restart."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RecoveryCost:
    """Costs of a case's failures, over its launches. Intervals are 95 % intervals of medians over launches."""

    failures: int
    recoveries: int
    total: Interval | None
    """Time from the failure until the interrupted step is made again, seconds."""
    restored: Interval | None
    """Time from the failure until training continues, seconds."""
    restored_mean_s: float | None
    """Mean time from the failure until training continues, seconds, for `goodput.ettr`."""
    parts: Mapping[str, float]
    """Median of each part, seconds."""
    built_s: float | None
    """Median time to make model and replica, a part of restoring, seconds; None if a launch did not record it."""
    recomputed_steps: float | None
    regained: Interval | None
    """Median time until training is back at its pace, seconds.

    None if training did not get back to its pace in at least one recovery. The median of the others would hide this.
    """
    regained_launches: int
    snapshot: Interval | None
    snapshot_mean_s: float | None
    """Mean over launches of the time of a snapshot, seconds."""
    snapshot_bytes: int
    lost: int
    repeated: int
    joined: Interval | None
    unreadable: tuple[str, ...]
    """Snapshots that could not be used, with the reason; the previous one was used instead."""
    rates: SampleRates


def recovery_cost(recovered: Sequence[Recovered], failed: Sequence[Recovered] = ()) -> RecoveryCost | None:
    """Return the cost of a case's failures; None if no launch trained with snapshots.

    `recovered` are the successful launches, and `failed` those in which something failed.
    """
    if not recovered and not failed:
        return None
    done = [each for each in recovered if each.parts is not None]
    steps = [each.recomputed_steps for each in done if each.recomputed_steps is not None]
    return RecoveryCost(
        failures=sum(each.failed for each in (*recovered, *failed)),
        recoveries=len(done),
        total=_median(each.total_s for each in done),
        restored=_median(each.restored_s for each in done),
        restored_mean_s=_mean(each.restored_s for each in done),
        parts={
            name: statistics.median(each.parts[name] for each in done if each.parts) for name in PARTS if done
        },
        built_s=_median_of_all([each.built_s for each in done]),
        recomputed_steps=sum(steps) / len(steps) if steps else None,
        regained=_median(each.regained_s for each in done)
        if all(each.regained_s is not None for each in done)
        else None,
        regained_launches=sum(each.regained_s is not None for each in done),
        snapshot=_median(each.snapshot_s for each in recovered),
        snapshot_mean_s=_mean(each.snapshot_s for each in recovered),
        snapshot_bytes=max(each.snapshot_bytes for each in (*recovered, *failed)),
        lost=sum(each.lost for each in recovered),
        repeated=sum(each.repeated for each in recovered),
        joined=_median(each.joined_s for each in done),
        unreadable=tuple(dict.fromkeys(words for each in recovered for words in each.unreadable)),
        rates=_rates(done),
    )


def _rates(recovered: Sequence[Recovered]) -> SampleRates:
    rates: dict[str, list[float]] = {}
    for each in recovered:
        first, *later = each.paces
        paces = {"before": first, "after": later[-1]} if later else {"before": first}
        if each.joined_s is not None:
            paces["away"] = [pace for pace in later if pace.ranks < first.ranks][-1]
        for name, pace in paces.items():
            if math.isfinite(pace.samples_per_s):
                rates.setdefault(name, []).append(pace.samples_per_s)
    return SampleRates(**{name: median_launch(values) for name, values in rates.items()})


def _median_of_all(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known and len(known) == len(values) else None


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return math.fsum(known) / len(known) if known else None


def _median(values: Iterable[float | None]) -> Interval | None:
    known = [value for value in values if value is not None]
    return median_launch(known) if known else None
