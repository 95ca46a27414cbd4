"""Define what ranks and the analysis share for recovery: the number of kept snapshots, and the steps in a pace."""

from __future__ import annotations

import math

KEPT_SNAPSHOTS = 2
"""Number of snapshots that are kept: the newest, and the one before it in case the newest cannot be read."""
WINDOW_S = 1.0
"""Training time that a pace covers, seconds."""
WINDOW_STEPS = (20, 500)
"""Fewest and most steps that a pace covers."""


def window_of(step_s: float) -> int:
    """Return the number of steps that a pace covers if a step takes `step_s` seconds."""
    least, most = WINDOW_STEPS
    return min(max(math.ceil(WINDOW_S / step_s), least), most) if step_s > 0 else least
