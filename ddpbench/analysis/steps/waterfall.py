"""Losses of efficiency, from the ideal of 1 down to the measured value, which add up exactly.

On n ranks, let one part of a case's instrumented step take p, and let all parts together take T. Let q be the time that
the base case needs in this part for as many samples as one rank has. It is the base case's time per sample, multiplied
by the case's global batch and divided by n. A part's loss is

    (p - q) / T        and all parts' losses add up to 1 - F, F = sum(q) / T,

the efficiency of instrumented steps. Forward and backward are divided further if independent ranks, which compute at
once and exchange nothing, ran at the same n. If their computation takes r, the two losses are

    contention:  (r - q) / T        the strategy's own:  (p - r) / T.

This is only valid if independent ranks are faster than the case. If they took longer than the case itself, the two
losses would be large, of opposite signs, and both wrong. They are then not separated (`outrun`).

The efficiency E is that of timed steps. The difference between the two kinds of steps, F - E, is a separate loss,
`timed`. It contains the cost of instrumenting both cases, the effect of ranks that are not in step, and chance.

All of this is computed round by round, in the rounds that have every launch it needs. A loss is the median over rounds,
with the interval of a median (`stats.median_launch`), because no interval around the mean of a few rounds is valid. The
efficiency is the one that the entire report uses, a geometric mean. Medians do not add up exactly, so the remainder of
1 - E is listed separately as `rest`. It includes effects that make a few rounds much slower.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

from ddpbench.analysis.bound import bounds_of, outrun
from ddpbench.analysis.findings.groups import compared_panels, grouped, reference_of
from ddpbench.analysis.judging import speedup_over
from ddpbench.analysis.read.launches import CaseRun
from ddpbench.analysis.read.overlap import PARTS
from ddpbench.analysis.results import EfficiencyLoss
from ddpbench.analysis.statistics.interval import Interval
from ddpbench.analysis.statistics.stats import MIN_ROUNDS, median_launch
from ddpbench.analysis.statistics.timings import Timing
from ddpbench.spec import grouping
from ddpbench.spec.grouping import cap_order
from ddpbench.strategies.traits import traits_of

LOSSES = (
    *("contention", "own_computation", "computation"),
    *("exposed_comm", "waiting", "optimizer", "data", "not_attributed", "timed", "rest"),
)
"""Names of losses in order; `computation` replaces `contention` and `own_computation` if these cannot be separated."""
_COMPUTED = ("forward", "backward", "other_compute")
_SIMPLE = {
    "exposed_comm": "exposed_comm",
    "exposed_wait": "waiting",
    "optimizer": "optimizer",
    "data": "data",
    "not_attributed": "not_attributed",
}
"""Names of losses by the part of a step, for parts that have a separate loss."""


def losses(
    parts: Mapping[str, float],
    base: Mapping[str, float],
    efficiency: float,
    independent: Mapping[str, float] | None = None,
) -> dict[str, float]:
    """Return each loss of a round as a share of the step, by the names in `LOSSES`. They add up to 1 - efficiency.

    `parts` are the case's parts of an instrumented step. `base` are the base case's parts for as many samples as a rank
    has, in the same unit. `efficiency` is that of timed steps. `independent` are the parts of as many independent
    ranks. If they are missing, `computation` includes contention.
    """
    whole = sum(parts[name] for name in PARTS)
    found = {loss: (parts[part] - base[part]) / whole for part, loss in _SIMPLE.items()}
    computed, needed = _computed(parts), _computed(base)
    if independent is None:
        found["computation"] = (computed - needed) / whole
    else:
        crowded = _computed(independent)
        found |= {"contention": (crowded - needed) / whole, "own_computation": (computed - crowded) / whole}
    found["timed"] = sum(base[name] for name in PARTS) / whole - efficiency
    return {name: found[name] for name in LOSSES if name in found}


def of_rounds(rounds: Sequence[Mapping[str, float]], efficiency: float) -> dict[str, Interval]:
    """Return the median of each loss over the rounds, and as `rest` the remainder of 1 - efficiency.

    `rest` has no interval.
    """
    found = {name: median_launch([one[name] for one in rounds]) for name in LOSSES if name in rounds[0]}
    left = 1 - efficiency - math.fsum(loss.value for loss in found.values())
    return {**found, "rest": Interval(value=left)}


def _computed(parts: Mapping[str, float]) -> float:
    return sum(parts[name] for name in _COMPUTED)


def _times(factor: float, parts: Mapping[str, float]) -> dict[str, float]:
    return {name: factor * parts[name] for name in PARTS}


def _batch(timings: Iterable[Timing]) -> float:
    known = list(timings)
    return sum(one.samples for one in known) / sum(one.steps for one in known)


def waterfall_of(cases: Sequence[CaseRun]) -> Iterator[EfficiencyLoss]:
    """Yield the losses and the efficiency of strategies in the largest groups of comparable cases.

    The reference comes first (see `reference_of`), then other strategies that exchange gradients at the same number of
    ranks, at DDP's default bucket cap (or the smallest that was run). Each case and its base case need instrumented
    steps, a common round and the same framework.
    """
    by_id = {run.case_id: run for run in cases}
    for members in compared_panels(cases):
        reference, bounds = reference_of(members), bounds_of(members)
        world = reference.case.world_size
        able = [
            r
            for r in members
            if r.case.world_size == world
            and traits_of(r.case).exchanges
            and traits_of(r.case).engine == "torch"
        ]
        variants = grouped(able, lambda run: grouping.variant(run.case))
        chosen = [
            reference,
            *(
                min(group, key=lambda run: cap_order(run.case.bucket_cap_mb))
                for key, group in variants.items()
                if key != grouping.variant(reference.case)
            ),
        ]
        for run in chosen:
            yield from _losses(
                run, by_id.get(run.baseline_id), bounds.get(grouping.deciding("compute", run.case))
            )


def _losses(run: CaseRun, base: CaseRun | None, alone: CaseRun | None) -> Iterator[EfficiencyLoss]:
    if base is None or base.status != "ok" or run.parts is None or base.parts is None:
        return
    found = speedup_over(run, base)
    if found is None:
        return
    reached, shared = found[0].scaled(1 / run.case.world_size), found[1]
    rounds = _by_round(run, base, None)
    faster = alone is not None and bool(alone.timings) and outrun(run, alone)
    able = alone is not None and alone.parts is not None and not faster
    apart = _by_round(run, base, alone) if able else []
    split = len(apart) >= min(len(rounds), MIN_ROUNDS) > 0
    rounds = apart if split else rounds
    if not rounds:
        return
    items = {**of_rounds(rounds, reached.value), "efficiency": reached}
    for name, share in items.items():
        count = shared if name == "efficiency" else len(rounds)
        yield EfficiencyLoss(
            case_id=run.case_id, item=name, share=share, rounds=count, split=split, outrun=faster
        )


def _by_round(run: CaseRun, base: CaseRun, alone: CaseRun | None) -> list[dict[str, float]]:
    found = (_of_round(mine, run, base, alone) for mine in run.timings)
    return [one for one in found if one is not None]


def _of_round(own: Timing, run: CaseRun, base: CaseRun, alone: CaseRun | None) -> dict[str, float] | None:
    """Return the losses of one round; None if a launch is missing or was not instrumented."""
    mine, ideal = _launch(run, own), _launch(base, own)
    if mine is None or ideal is None:
        return None
    world, batch = run.case.world_size, _batch([mine[1]])
    independent = None
    if alone is not None:
        other = _launch(alone, own)
        if other is None:
            return None
        independent = _times(batch / _batch([other[1]]), other[0])
    needed = _times(batch / world / _batch([ideal[1]]), ideal[0])
    return losses(mine[0], needed, ideal[1].compared_s / mine[1].compared_s / world, independent)


def _launch(run: CaseRun, own: Timing) -> tuple[Mapping[str, float], Timing] | None:
    """Return the parts and the timing of the launch of the same round and session, as compared with other launches."""
    for launch in run.good:
        if launch.timing is not None and launch.timing.pair == own.pair:
            parts = run.parts.by_round.get(own.round) if run.parts is not None else None
            return None if parts is None else (_times(launch.late_correction, parts), launch.timing)
    return None
