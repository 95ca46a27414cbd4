"""Steadiness of launches, judged from their timed steps on three levels.

The question is whether the mean over the timed blocks is biased by steps that are still changing. The warm-up decides
from a few steps, whereas the timed blocks have more, and a warm-up that is too short recurs in every launch. So a
launch is judged by

1. its own steps, if it has `OWN_STEPS` or more: `ddpbench.trend` finds a change at a level of 1 %;
2. its case: the changes of the case's launches, by a t-test of their mean at `LEVEL`. Launches are the replicates, so
   neither correlation between steps nor their heavy tails matter;
3. its run: the same test over all launches of the run, which start with the same machine, warm-up and libraries. A case
   is exempt if its own launches rule out a change of `TOLERANCE` in that direction.

On each level a mean change within `TOLERANCE` counts as steady. Under noise alone at most about 1 % + 2 `LEVEL` of the
launches are flagged. Changes that a single launch of 20 steps cannot show are found where they matter, in all launches
together.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from ddpbench.analysis.statistics.stats import deviation, t_quantile
from ddpbench.trend import TOLERANCE, TrendChange, change_of

OWN_STEPS = 32
"""Smallest number of timed steps with which a launch is judged by its own steps. With fewer, batches have under four
steps and are correlated.
"""
LEVEL = 0.015
"""Significance level of the two-sided tests over a case's launches and over a run's."""
FEWEST_LAUNCHES = 4
"""Smallest number of launches for a test over launches."""
NOT_READY = "one-time work"
"""Beginning of the reason given by a warm-up that ended before the reducer was rebuilt."""


def launch_change(ranks: Sequence[NDArray[np.int64]]) -> TrendChange | None:
    """Return the change of the step time over a launch's timed steps, from each step's mean over the ranks.

    Each array has the times of a rank that takes samples, and all are cut to the shortest. None for fewer than three
    steps.
    """
    length = min((len(rank) for rank in ranks), default=0)
    if length < 3:
        return None
    return change_of(np.mean([rank[:length] for rank in ranks], axis=0).tolist())


def unsteady(cases: Mapping[str, Sequence[TrendChange]]) -> dict[str, list[bool]]:
    """Return whether each launch's steps were still changing, by case and in order.

    `cases` are all cases of one run.
    """
    every = [change.log for changes in cases.values() for change in changes]
    over_run = _found(every)
    return {
        case: [
            (change.steps >= OWN_STEPS and change.found)
            or _found([each.log for each in changes]) != 0
            or (over_run != 0 and not _spared([each.log for each in changes], over_run))
            for change in changes
        ]
        for case, changes in cases.items()
    }


def _found(logs: Sequence[float]) -> int:
    """Return the sign of the change that launches have in common; 0 if no change is found."""
    if len(logs) < FEWEST_LAUNCHES:
        return 0
    mean, error = math.fsum(logs) / len(logs), deviation(logs) / math.sqrt(len(logs))
    if abs(mean) <= max(TOLERANCE, t_quantile(1 - LEVEL / 2, len(logs) - 1) * error):
        return 0
    return 1 if mean > 0 else -1


def _spared(logs: Sequence[float], sign: int) -> bool:
    """Return whether a change of `TOLERANCE` in the direction `sign` is ruled out (95 %, one-sided)."""
    if len(logs) < FEWEST_LAUNCHES:
        return False
    mean, error = sign * math.fsum(logs) / len(logs), deviation(logs) / math.sqrt(len(logs))
    return mean + t_quantile(0.95, len(logs) - 1) * error < TOLERANCE
