"""What a failure costs: a launch's training with snapshots, from the moment at which it fails until it has recovered.

All moments are on one host's clock. A part ends when the last rank, or agent, has come as far, so that the parts follow
one another and add up; an agent that was killed itself has nothing to notice or to stop. What counts as trained is the
history that the final parameters come from: of each gang the steps up to the snapshot that the next one has gone on
from.
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
"""A pace is the steady one again where steps take at most so many times as long."""


@dataclass(frozen=True, slots=True)
class RankTold:
    """What one rank recorded of it, over all its starts."""

    gangs: Sequence[Gang]
    snapshots: Sequence[Snapshot]
    trained: Sequence[Trained]
    failures: Sequence[Failure]


@dataclass(frozen=True, kw_only=True, slots=True)
class Pace:
    """What a gang made of time: samples a second of the job, and how many ranks it had. Snapshots are not in it."""

    ranks: int
    step_s: float
    samples_per_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Recovered:
    """One launch's training with snapshots. Without a planned failure, or before one, the parts are None."""

    round: int
    failed: bool
    parts: Mapping[str, float] | None
    """Seconds from the failure until the step is made again before which it came, by `PARTS`."""
    built_s: float | None
    """Making the model and the replica, the part of restoring before what was saved is loaded; None: older records."""
    recomputed_steps: int | None
    regained_s: float | None
    """Seconds from the failure until steps take at most `AT_PACE` of what they took before, from there to the end on
    average; None: they never did."""
    joined_s: float | None
    """Seconds that training paused for a node that came back: from the last step without it to the first with it."""
    joined_recomputed_steps: int | None
    snapshot_s: float | None
    """A snapshot, mean of those that let go of an old one as all later ones do, seconds."""
    snapshot_bytes: int
    lost: int
    """Samples that the job's order has, up to the last that was trained on, and no step that counts was made with."""
    repeated: int
    """Samples that more than one such step was made with."""
    unreadable: tuple[str, ...]
    paces: tuple[Pace, ...]
    """Of each gang, in their order."""
    losses: tuple[float, ...]
    """The job's, of each step that counts."""

    @property
    def total_s(self) -> float | None:
        """All parts together, seconds."""
        return None if self.parts is None else math.fsum(self.parts.values())

    @property
    def restored_s(self) -> float | None:
        """Seconds from the failure until training goes on; what is computed again is not in it."""
        if self.parts is None:
            return None
        return math.fsum(value for name, value in self.parts.items() if name != "recomputing_s")


def recovered_of(number: int, ranks: Sequence[RankTold], case: Case) -> Recovered | None:
    """Return what the ranks of launch `number` tell, rank 0 first; None where there was no such training."""
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
    """Return when a gang had made again what there was before the failure; None where it never came so far.

    With a snapshot at the failure itself there is nothing to make again: it is ready to go on then.
    """
    if group[0].step == step:
        return max(each.ready_ns for each in group) if ends else None
    return ends.get(step - 1)


def _gangs(ranks: Sequence[RankTold]) -> dict[int, list[Gang]]:
    """Return the gangs by number, each as its ranks told of it."""
    found: dict[int, list[Gang]] = {}
    for gang in sorted((gang for rank in ranks for gang in rank.gangs), key=lambda gang: gang.number):
        found.setdefault(gang.number, []).append(gang)
    return found


def _kept(gangs: Mapping[int, Sequence[Gang]]) -> dict[int, tuple[int, float]]:
    """Return from which step on and up to which the steps of each gang count."""
    firsts = [(number, group[0].step) for number, group in gangs.items()]
    nexts = [step for _, step in firsts[1:]] + [math.inf]
    return {number: (step, until) for (number, step), until in zip(firsts, nexts, strict=True)}


def _ends(rank: RankTold, gangs: Iterable[int]) -> dict[int, dict[int, int]]:
    """Return the end of each step of each gang, ns, by the step's number."""
    found: dict[int, dict[int, int]] = {number: {} for number in gangs}
    for each in rank.trained:
        if each.gang in found:
            found[each.gang].update(zip(itertools.count(each.first), each.ends_ns, strict=False))
    return found


def _places(
    ranks: Sequence[RankTold], kept: Mapping[int, tuple[int, float]], local_batch: int
) -> tuple[int, int, int]:
    """Return how many samples the steps that count were made with, how many different ones, and the last's place."""
    places = distinct = end = 0
    for first, until in sorted(_runs(ranks, kept, local_batch)):
        places += until - first
        distinct += max(0, until - max(first, end))
        end = max(end, until)
    return places, distinct, end - 1


def _runs(
    ranks: Sequence[RankTold], kept: Mapping[int, tuple[int, float]], local_batch: int
) -> Iterator[tuple[int, int]]:
    """Yield the runs of samples, from the first to before the last, that the steps that count were made with."""
    for each in (each for rank in ranks for each in rank.trained):
        _, until = kept.get(each.gang, (0, 0))
        left = int(min(len(each.ends_ns), max(0, until - each.first))) * local_batch
        for first, count in each.samples:
            taken = min(count, left)
            if taken:
                yield first, first + taken
            left -= taken


def _snapshots(ranks: Sequence[RankTold]) -> list[list[Snapshot]]:
    """Return the snapshots, each as its ranks told of it, in the order of gangs and steps."""
    groups: dict[tuple[int, int], list[Snapshot]] = {}
    for each in (each for rank in ranks for each in rank.snapshots):
        groups.setdefault((each.gang, each.step), []).append(each)
    return [groups[key] for key in sorted(groups)]


def _length_s(group: Sequence[Snapshot]) -> float:
    return (max(each.end_ns for each in group) - min(each.start_ns for each in group)) / 1e9


def _durations(rank: RankTold, gang: int) -> list[tuple[int, int, float]]:
    """Return number, begin (ns) and length (s) of each step of a gang; what is between them is no step's."""
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


def _pace(rank: RankTold, gang: Gang, case: Case) -> Pace:
    """Return a gang's pace, from its first snapshot on where it made enough steps after that."""
    steps = [length for _, _, length in _durations(rank, gang.number)]
    counted = steps[case.snapshot_every :] if len(steps) >= case.snapshot_every + WINDOW_STEPS[0] else steps
    step_s = math.fsum(counted) / len(counted) if counted else math.nan
    return Pace(
        ranks=gang.world_size,
        step_s=step_s,
        samples_per_s=gang.world_size * case.local_batch / step_s if counted else math.nan,
    )


def _losses(ranks: Sequence[RankTold], kept: Mapping[int, tuple[int, float]]) -> list[float]:
    """Return the job's loss of each step that counts."""
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
    """Return what passed between the moments at which the last has come as far."""
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
    """Return how long a gang's slowest rank took to make the model and the replica, seconds."""
    known = [each.built_ns for each in group if each.built_ns is not None]
    return max(known) / 1e9 if len(known) == len(group) else None


def _regained_s(failure: Failure, rank: RankTold, gang: int, before: Pace, case: Case) -> float | None:
    """Return when steps began to take as long as before again, seconds after the failure."""
    steps = _durations(rank, gang)
    rest = list(itertools.accumulate(length for _, _, length in reversed(steps)))[::-1]
    for index in range(len(steps) - window_of(before.step_s) + 1):
        if rest[index] / (len(steps) - index) <= AT_PACE * before.step_s:
            return (steps[index][1] - failure.at_ns) / 1e9
    return None


def loss_difference(found: Sequence[float], wanted: Sequence[float]) -> tuple[float, int] | None:
    """Return the largest relative difference of two curves as far as both go, and over how many steps; None of none."""
    pairs = list(zip(found, wanted, strict=False))
    if not pairs:
        return None
    return max(abs(a - b) / max(abs(b), 1e-12) for a, b in pairs), len(pairs)


@dataclass(frozen=True, kw_only=True, slots=True)
class Rates:
    """Samples per second of a job's steps."""

    before: Interval | None = None
    """The failure."""
    away: Interval | None = None
    """While a node is."""
    after: Interval | None = None
    """The last restart."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RecoveryCost:
    """A case's failures over its launches."""

    failures: int
    recoveries: int
    total: Interval | None
    """From the failure until the step that it came before is made again, seconds."""
    restored: Interval | None
    """Until training goes on, seconds."""
    restored_mean_s: float | None
    """Mean over launches of `restored`: what failures cost in the long run, as `goodput.ettr` has it."""
    parts: Mapping[str, float]
    """Their medians, seconds."""
    built_s: float | None
    """Median time of restoring that makes model and replica, seconds; None where a launch does not tell it."""
    recomputed_steps: float | None
    regained: Interval | None
    """Median of all recoveries; None where one never came to its pace again, which that of the others would hide."""
    regained_launches: int
    snapshot: Interval | None
    snapshot_mean_s: float | None
    """Mean over launches, likewise."""
    snapshot_bytes: int
    lost: int
    repeated: int
    joined: Interval | None
    unreadable: tuple[str, ...]
    """Snapshots that could not be used, and why; the one before was."""
    rates: Rates


def recovery_cost(found: Sequence[Recovered], failed: Sequence[Recovered] = ()) -> RecoveryCost | None:
    """Return what launches' trainings with snapshots tell together; None without any.

    `found` are of launches that ended well. `failed` are of others, in which something failed and nothing came of it.
    """
    if not found and not failed:
        return None
    done = [each for each in found if each.parts is not None]
    steps = [each.recomputed_steps for each in done if each.recomputed_steps is not None]
    return RecoveryCost(
        failures=sum(each.failed for each in (*found, *failed)),
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
        snapshot=_median(each.snapshot_s for each in found),
        snapshot_mean_s=_mean(each.snapshot_s for each in found),
        snapshot_bytes=max(each.snapshot_bytes for each in (*found, *failed)),
        lost=sum(each.lost for each in found),
        repeated=sum(each.repeated for each in found),
        joined=_median(each.joined_s for each in done),
        unreadable=tuple(dict.fromkeys(words for each in found for words in each.unreadable)),
        rates=_rates(done),
    )


def _rates(found: Sequence[Recovered]) -> Rates:
    rates: dict[str, list[float]] = {}
    for each in found:
        first, *later = each.paces
        told = {"before": first, "after": later[-1]} if later else {"before": first}
        if each.joined_s is not None:
            told["away"] = [pace for pace in later if pace.ranks < first.ranks][-1]
        for name, pace in told.items():
            if math.isfinite(pace.samples_per_s):
                rates.setdefault(name, []).append(pace.samples_per_s)
    return Rates(**{name: median_launch(values) for name, values in rates.items()})


def _median_of_all(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known and len(known) == len(values) else None


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return math.fsum(known) / len(known) if known else None


def _median(values: Iterable[float | None]) -> Interval | None:
    """Return the median launch with its 95 % interval; None without any."""
    known = [value for value in values if value is not None]
    return median_launch(known) if known else None
