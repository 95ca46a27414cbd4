"""The parts of an instrumented step as shares of the step, with intervals over launches."""

from __future__ import annotations

import math

from ddpbench.analysis.read.overlap import PARTS, Breakdown
from ddpbench.analysis.statistics.interval import Interval
from ddpbench.analysis.statistics.stats import median_launch


def share_of_step(parts: Breakdown, name: str) -> Interval:
    """Return the share of a step that one of `PARTS` takes, in the median launch, with its 95 % interval."""
    steps = [(one[name], math.fsum(one[part] for part in PARTS)) for one in parts.by_round.values()]
    shares = [part / step for part, step in steps if step > 0]
    return median_launch(shares) if shares else Interval(value=0.0)
