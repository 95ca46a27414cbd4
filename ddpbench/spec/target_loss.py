"""A loss to train down to: when it counts as reached. The rule is one for the ranks that stop and for the analysis."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ddpbench.spec.case import Case

SMOOTHED_BATCHES = 32
"""A loss is reached by its mean over as many samples as so many steps of the base case have."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TargetLoss:
    """The loss, and after how many steps or seconds of training a launch gives up."""

    loss: float
    steps: int
    seconds: float


def smoothing_steps(case: Case) -> int:
    """Over how many steps the losses of a case are averaged.

    A batch's loss is noisy, a larger batch's less so. Means over equally many samples are equally noisy and lag
    behind by equally many samples, so that no case reaches a loss sooner for the size of its batches alone.
    """
    return max(1, round(SMOOTHED_BATCHES * case.baseline().global_batch / case.global_batch))


def mean_losses(ranks: Sequence[Sequence[float]]) -> list[float]:
    """Return the job's loss of each step, from those of the ranks that know one; they hold equally many samples."""
    known = [losses for losses in ranks if losses]
    return [math.fsum(step) / len(known) for step in zip(*known, strict=True)]


def smoothed(losses: Sequence[float], window: int) -> list[float]:
    """Return the means over `window` steps in turn: the first is that of the steps up to the one of that number."""
    return [math.fsum(losses[end - window : end]) / window for end in range(window, len(losses) + 1)]


def steps_to(target: float, losses: Sequence[float], window: int) -> int | None:
    """After how many steps the mean over the last `window` is at the target or below; None: it never is."""
    for number, mean in enumerate(smoothed(losses, window), start=window):
        if mean <= target:
            return number
    return None
