"""Training to a loss in one launch, from its ranks' records.

Times are the job's: a group of steps begins with its first rank, and a step ends with its last. The time between
groups, in which ranks agree whether to continue, is left out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ddpbench.analysis.statistics.timings import Timing
from ddpbench.records import LossCurve
from ddpbench.spec import Case
from ddpbench.spec.target_loss import mean_losses, smoothed, smoothing_steps, steps_to


@dataclass(frozen=True, kw_only=True, slots=True)
class LossCurveRun:
    """A launch's training to a loss: the job's loss before each update, and the end of each step."""

    round: int
    target: float
    window: int
    """Number of steps over which losses are averaged."""
    batch: int
    """Samples per step of the entire job."""
    losses: tuple[float, ...]
    ends_s: tuple[float, ...]
    steps: int | None
    """Number of steps after which the target was reached; None if it was not reached."""
    session: str = ""
    """Session of the sweep that ran its launch."""
    correlation: float = 0.0
    """Correlation of rounds, as in its launch's `Timing`."""
    correction: float = 1.0
    """Factor of its times in comparisons (`Launch.late_correction`)."""

    @property
    def timing(self) -> Timing | None:
        """Return the time to the loss, as the timing of a single step; None if the loss was not reached."""
        if self.steps is None:
            return None
        time_s = self.ends_s[self.steps - 1]
        return Timing(
            round=self.round,
            time_s=time_s,
            steps=1,
            samples=1,
            session=self.session,
            correction=self.correction,
            correlation=self.correlation,
        )

    @property
    def lowest(self) -> float | None:
        """Return the lowest mean loss over `window` steps, without infinite and NaN values.

        None if no mean is finite.
        """
        return min(filter(math.isfinite, smoothed(self.losses, self.window)), default=None)


def loss_curve_of(
    number: int, ranks: Sequence[Sequence[LossCurve]], case: Case, *, one_host: bool
) -> LossCurveRun | None:
    """Return a launch's loss curve from all ranks' records; None if any are missing or incomplete.

    A step ends with its slowest rank. Across hosts, which have no common clock, each rank's time counts from its own
    start.
    """
    groups = [sorted(own, key=lambda part: part.index) for own in ranks]
    if not groups or not groups[0] or len({tuple(part.index for part in own) for own in groups}) != 1:
        return None
    losses: list[float] = []
    ends_s: list[float] = []
    batch, before_s = 0, 0.0
    for parts in zip(*groups, strict=True):
        if len({len(part.step_ns) for part in parts}) != 1 or not any(part.losses for part in parts):
            return None
        started = min(part.start_ns for part in parts)
        each = np.array([np.cumsum(part.step_ns) for part in parts], np.int64)
        if one_host:
            each += np.array([[part.start_ns - started] for part in parts], np.int64)
        latest = each.max(axis=0) / 1e9
        ends_s += (before_s + latest).tolist()
        before_s = ends_s[-1]
        losses += mean_losses([part.losses for part in parts])
        batch = sum(part.samples for part in parts) // len(parts[0].step_ns)
    window, target = smoothing_steps(case), groups[0][0].target
    return LossCurveRun(
        round=number,
        target=target,
        window=window,
        batch=batch,
        losses=tuple(losses),
        ends_s=tuple(ends_s),
        steps=steps_to(target, losses, window),
    )
