"""Training to a loss: each launch's loss curve, the time to the target, and the difference from one device's curve.

Every launch trains on the same data in the same order, so intervals express how times scatter between rounds, not how
training would differ with another seed.

Times are the job's. The time between groups of steps, in which ranks agree whether to continue, is left out. Within a
group, times last from the earliest rank's start to the latest rank's end of a step, so offsets between ranks are
included (unlike in `read/steptime.py`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ddpbench.analysis.read.loss_curves import LossCurveRun
from ddpbench.analysis.results import LossPoint, TrainedToLoss
from ddpbench.analysis.statistics.interval import Interval
from ddpbench.analysis.statistics.stats import Comparison, compare, step_time
from ddpbench.analysis.statistics.timings import Timing
from ddpbench.spec import grouping
from ddpbench.spec.grouping import GroupKey
from ddpbench.spec.target_loss import smoothed
from ddpbench.strategies.traits import traits_of

if TYPE_CHECKING:
    from ddpbench.analysis.read.launches import CaseRun

FIRST_STEPS = 20
"""Number of steps over which a curve is compared with one device's; later, rounding makes the paths diverge."""
MOST_POINTS = 200
"""Largest number of points of a curve for drawing."""


def loss_curves_of(run: CaseRun) -> list[LossCurveRun]:
    """Return the loss curves of a case's launches that have the same target as the first.

    Curves with other targets come from merged runs.
    """
    found = [launch.loss_curve for launch in run.good if launch.loss_curve is not None]
    return [curve for curve in found if curve.target == found[0].target]


def to_loss(run: CaseRun) -> list[Timing]:
    """Return the time to the loss of every launch; an empty list if any launch did not reach the loss.

    A launch that did not reach the loss would have taken longer. The times of the other launches alone would be too
    short.
    """
    timings = [curve.timing for curve in loss_curves_of(run)]
    known = [timing for timing in timings if timing is not None]
    return known if len(known) == len(timings) else []


def against_base(run: CaseRun, baseline: CaseRun) -> Comparison | None:
    """Compare the times of a case and its base case to the target loss, by round.

    None without a common round in which both reached it.
    """
    mine, theirs = loss_curves_of(run), loss_curves_of(baseline)
    if not mine or not theirs or mine[0].target != theirs[0].target:
        return None
    found = compare(to_loss(run), to_loss(baseline))
    return found if found is not None and found.paired and found.rounds else None


@dataclass(frozen=True, kw_only=True, slots=True)
class Cost:
    """Cost of reaching the loss for a case: the median time over launches, and the mean steps and samples.

    All three are None unless all launches reached the loss.
    """

    target: float
    time_s: Interval | None
    steps: float | None
    samples: float | None
    lowest: float | None
    """Lowest smoothed loss of any launch."""


def cost_of(run: CaseRun) -> Cost | None:
    """Return the time, steps and samples to the loss; None if the case was not trained to a loss."""
    curves = loss_curves_of(run)
    if not curves:
        return None
    timings = to_loss(run)
    steps = samples = None
    if timings:
        steps = _mean([curve.steps or 0 for curve in curves])
        samples = _mean([(curve.steps or 0) * curve.batch for curve in curves])
    lows = [low for curve in curves if (low := curve.lowest) is not None]
    return Cost(
        target=curves[0].target,
        time_s=step_time(timings) if timings else None,
        steps=steps,
        samples=samples,
        lowest=min(lows, default=None),
    )


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def loss_points(cases: Sequence[CaseRun]) -> Iterator[LossPoint]:
    """Yield the points of each case's loss curve, averaged over its launches.

    The curve ends with the shortest launch's, or once all launches have reached the loss.
    """
    for run in cases:
        curves = loss_curves_of(run)
        if not curves:
            continue
        length = min(len(curve.losses) for curve in curves)
        if to_loss(run):
            length = min(length, max(curve.steps or 0 for curve in curves))
        window, batch = curves[0].window, curves[0].batch
        if length < window:
            continue
        means = np.mean([smoothed(curve.losses[:length], window) for curve in curves], axis=0)
        times = np.mean([curve.ends_s[:length] for curve in curves], axis=0)
        chosen = np.unique(
            np.linspace(window, length, min(MOST_POINTS, length - window + 1)).round().astype(int)
        )
        for step in map(int, chosen):
            yield LossPoint(
                case_id=run.case_id,
                step=step,
                samples=step * batch,
                time_s=float(times[step - 1]),
                loss=float(means[step - window]),
            )


def trained_to_loss(cases: Sequence[CaseRun]) -> Iterator[TrainedToLoss]:
    """Yield the result of each case that was trained to a loss.

    The field `apart` covers the first `FIRST_STEPS` steps.
    """
    for run in cases:
        curves, cost = loss_curves_of(run), cost_of(run)
        if not curves or cost is None:
            continue
        twin = one_device(run, cases)
        yield TrainedToLoss(
            case_id=run.case_id,
            target=cost.target,
            window=curves[0].window,
            batch=curves[0].batch,
            launches=len(curves),
            reached=sum(curve.steps is not None for curve in curves),
            lowest_loss=cost.lowest,
            steps_trained=max(len(curve.losses) for curve in curves),
            one_device_case_id=twin.case_id if twin is not None else None,
            apart=apart(curves, loss_curves_of(twin)) if twin is not None else None,
        )


def one_device(run: CaseRun, cases: Sequence[CaseRun]) -> CaseRun | None:
    """Return the case on one device with the same data and samples per step.

    None if no case matches, or if `run` itself is on one device.
    """

    def data(other: CaseRun) -> GroupKey:
        return (*grouping.deciding("loss", other.case), other.case.global_batch)

    if traits_of(run.case).role == "base":
        return None
    return next(
        (
            other
            for other in cases
            if traits_of(other.case).role == "base" and data(other) == data(run) and loss_curves_of(other)
        ),
        None,
    )


def apart(own: Sequence[LossCurveRun], other: Sequence[LossCurveRun]) -> float | None:
    """Return the largest relative difference between two cases' losses over the first `FIRST_STEPS` steps.

    None if either has no such step.
    """
    steps = min([FIRST_STEPS, *(len(curve.losses) for curve in (*own, *other))])
    if not own or not other or not steps:
        return None
    mine = np.array([curve.losses[:steps] for curve in own])
    theirs = np.mean([curve.losses[:steps] for curve in other], axis=0)
    return float(np.max(np.abs(mine / theirs - 1)))
