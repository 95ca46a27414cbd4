"""What the ranks that recover and the analysis of it must both know: snapshots that are kept, and what a pace is of."""

from __future__ import annotations

import math

KEPT_SNAPSHOTS = 2
"""The newest, and one more in case that one cannot be read. From the next one on each lets go of an old one."""
WINDOW_S = 1.0
WINDOW_STEPS = (20, 500)
"""A pace is that of so much training, and of so many steps at least and at most."""


def window_of(step_s: float) -> int:
    """Return of how many steps a pace is told, where a step takes `step_s` seconds."""
    least, most = WINDOW_STEPS
    return min(max(math.ceil(WINDOW_S / step_s), least), most) if step_s > 0 else least
