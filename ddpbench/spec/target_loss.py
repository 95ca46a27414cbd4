"""A loss to train down to, and when it counts as reached: one rule for ranks that stop and for the analysis."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ddpbench.spec.case import Case

SMOOTHED_BATCHES = 32
"""Number of base-case steps whose samples the mean loss covers; a loss is reached by this mean."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TargetLoss:
    """The loss, and the steps or seconds of training after which a launch stops without it."""

    loss: float
    steps: int
    seconds: float


def smoothing_steps(case: Case) -> int:
    """Return the number of steps over which a case's losses are averaged.

    A batch's loss is noisy, a larger batch's less so. Means over equally many samples are equally noisy and
    lag behind by equally many samples, so that no case reaches a loss sooner for the size of its batches
    alone.
    """
    return max(1, round(SMOOTHED_BATCHES * case.baseline().global_batch / case.global_batch))


def mean_losses(ranks: Sequence[Sequence[float]]) -> list[float]:
    """Return the job's loss of each step, from the losses of ranks that have one; they hold equally many
    samples.
    """
    known = [losses for losses in ranks if losses]
    return [math.fsum(step) / len(known) for step in zip(*known, strict=True)]


def smoothed(losses: Sequence[float], window: int) -> list[float]:
    """Return the moving means over `window` steps: the first is the mean of steps 1 to `window`."""
    return [math.fsum(losses[end - window : end]) / window for end in range(window, len(losses) + 1)]


def steps_to(target: float, losses: Sequence[float], window: int) -> int | None:
    """Return the steps until the mean over the last `window` is at or below the target; None if it never is."""
    for number, mean in enumerate(smoothed(losses, window), start=window):
        if mean <= target:
            return number
    return None
