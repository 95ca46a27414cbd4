"""Launches that alternated with others of their round: ratios across groups, busy waiting, and a sentence on them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ddpbench.analysis.read.steptime import BlockTimes, time_blocks
from ddpbench.analysis.statistics.timings import Timing, TimingKey
from ddpbench.units import counted, series_of

if TYPE_CHECKING:
    from ddpbench.analysis.names import Names
    from ddpbench.analysis.read.launches import CaseRun, Launch
    from ddpbench.records import Block

Alternated = tuple[tuple[str, ...], ...]
"""The groups of launches with which a launch alternated, each as the other launches' case ids."""
SPINS = 0.05
"""Least processor time of a waiting rank, divided by the time waited, from which a report names the case."""
_LEAST_WAITED_NS = 500_000_000
_MOST_NAMED = 4


def anchor_corrections(
    alternated: Alternated, timing: Timing, ranks: Sequence[Mapping[int, BlockTimes]]
) -> dict[str, float]:
    """Return the factor by which each other launch's time is multiplied in comparisons, by case id.

    The launch with these blocks (by rank and index) is the anchor of several groups, between which the machine may have
    changed. The factor is the anchor's time per sample over all its blocks, divided by that in the other launch's
    group. Ratios within a group are unchanged, and others go through the anchor. Empty for fewer than two groups.
    """
    if len(alternated) < 2 or not ranks:
        return {}
    found: dict[str, float] = {}
    for number, others in enumerate(alternated):
        among = {index for index, block in ranks[0].items() if block.group == number}
        own = time_blocks(
            timing.round, [{at: block for at, block in of.items() if at in among} for of in ranks]
        )
        if own is not None:
            found |= dict.fromkeys(others, timing.sample_s / own.sample_s)
    return found


Factors = Mapping[tuple[str, TimingKey], float]
"""Corrections of launches that alternated with an anchor, by case id and `Timing.pair`."""


def corrected(timings: Iterable[Timing], case_id: str, factors: Factors) -> list[Timing]:
    """Return a case's timings with their corrections."""
    return [replace(one, correction=factors.get((case_id, one.pair), 1.0)) for one in timings]


def with_corrections(cases: Sequence[CaseRun]) -> list[CaseRun]:
    """Return the cases with corrected timings of launches that alternated with an anchor.

    A launch that was repeated alone in the anchor's round is not corrected.
    """
    timed = [
        (case.case_id, launch, launch.timing)
        for case in cases
        for launch in case.launches
        if launch.timing is not None
    ]
    alternated = {(case_id, timing.pair) for case_id, launch, timing in timed if launch.alternated}
    factors: Factors = {
        (other, timing.pair): factor
        for _, launch, timing in timed
        for other, factor in launch.corrections.items()
        if (other, timing.pair) in alternated
    }
    return [replace(case, launches=_corrected(case, factors)) for case in cases] if factors else list(cases)


def _corrected(case: CaseRun, factors: Factors) -> tuple[Launch, ...]:
    return tuple(
        launch
        if launch.timing is None
        else _with_timing(launch, corrected([launch.timing], case.case_id, factors)[0])
        for launch in case.launches
    )


def _with_timing(launch: Launch, timing: Timing) -> Launch:
    launch, curve = replace(launch, timing=timing), launch.loss_curve
    if curve is None:
        return launch
    return replace(launch, loss_curve=replace(curve, correction=launch.late_correction))


def busy_while_waiting(ranks: Mapping[int, Mapping[int, Block]]) -> float | None:
    """Return the largest of the ranks' processor time while waiting for the turn, divided by the time waited.

    `ranks` has each rank's timed blocks by index. None if the launch hardly waited.
    """
    waited_ns = {index: block.waited_ns for index, block in ranks.get(0, {}).items()}
    total_ns = sum(waited_ns.values())
    if total_ns < _LEAST_WAITED_NS:
        return None
    return (
        max(sum(block.waiting_cpu_ns for at, block in of.items() if at in waited_ns) for of in ranks.values())
        / total_ns
    )


def spinning_sentences(cases: Sequence[CaseRun], names: Names) -> Iterable[str]:
    """Yield a sentence on cases whose ranks used cores while they waited for the turn, so others had to share them."""
    shares = {
        case.case_id: max(
            (one.busy_waiting for one in case.good if one.busy_waiting is not None), default=0.0
        )
        for case in cases
    }
    spinning = [case for case in cases if shares[case.case_id] >= SPINS]
    if spinning:
        most = max(shares[case.case_id] for case in spinning)
        yield (
            f"{names.count(spinning)} used cores while waiting for {'its' if len(spinning) == 1 else 'their'} turn "
            f"(up to {most:.2f} cores per rank), so launches that alternate with them were slowed: threads that spin "
            f"must sleep (OMP_WAIT_POLICY=passive, KMP_BLOCKTIME=0){names.listed(spinning)}."
        )


def alternation_sentence(cases: Sequence[CaseRun], names: Names) -> str:
    """Return sentences on which launches alternated with others of their round; empty if none did."""
    launches = [(case, launch) for case in cases for launch in case.good]
    alone = [(case, launch) for case, launch in launches if not launch.alternates]
    if len(alone) == len(launches):
        return ""
    most = max((1 + len(group) for _, launch in launches for group in launch.alternated), default=0)
    upto = f", up to {most} at a time" if most else ""
    text = (
        f"Launches of a round ran at once{upto}: one computes while the others wait, and their blocks of steps "
        "alternate in a random order."
    )
    anchors = {case.case_id: case for case, launch in launches if len(launch.alternated) > 1}
    if anchors:
        text += (
            f" Groups of launches have {series_of([names.of(case) for case in anchors.values()])} in common, through "
            "which ratios across groups are taken."
        )
    return f"{text} {alone_sentence(cases, names)}".strip()


def alone_sentence(cases: Sequence[CaseRun], names: Names) -> str:
    """Return a sentence on cases with launches that ran alone while others alternated; empty if there are none."""
    if not any(launch.alternates for case in cases for launch in case.good):
        return ""
    found = [
        (case, len(single), len(case.good))
        for case in cases
        if (single := [launch for launch in case.good if not launch.alternates])
    ]
    words = [
        names.of(case) + ("" if few == every else f" in {counted(few, 'round')}")
        for case, few, every in found
    ]
    return f"Ran alone, without alternating blocks: {series_of(words, most=_MOST_NAMED)}." if words else ""
