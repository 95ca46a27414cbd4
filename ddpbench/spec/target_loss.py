"""A loss to train down to, and the rule that decides when it is reached; for ranks and for the analysis."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ddpbench.spec.case import Case

SMOOTHED_BATCHES = 32
"""Number of steps of the base case over which losses are averaged to decide whether a loss is reached."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TargetLoss:
    """The loss to reach, and the number of steps and seconds of training after which a launch gives up."""

    loss: float
    steps: int
    seconds: float


def smoothing_steps(case: Case) -> int:
    """Return the number of steps over which to average a case's losses.

    The averages of all cases then cover equally many samples, so that they are equally noisy and lag equally.
    """
    return max(1, round(SMOOTHED_BATCHES * case.baseline().global_batch / case.global_batch))


def mean_losses(ranks: Sequence[Sequence[float]]) -> list[float]:
    """Return the job's mean loss at each step, given each rank's losses (an empty sequence for ranks without a loss).

    Ranks that have a loss must have the same number of samples per step.
    """
    known = [losses for losses in ranks if losses]
    return [math.fsum(step) / len(known) for step in zip(*known, strict=True)]


def smoothed(losses: Sequence[float], window: int) -> list[float]:
    """Return the moving means over `window` steps; the first one covers steps 1 to `window`."""
    return [math.fsum(losses[end - window : end]) / window for end in range(window, len(losses) + 1)]


def steps_to(target: float, losses: Sequence[float], window: int) -> int | None:
    """Return the number of steps until the mean loss over `window` steps is at most `target`; else None."""
    for number, mean in enumerate(smoothed(losses, window), start=window):
        if mean <= target:
            return number
    return None
