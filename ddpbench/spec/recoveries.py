"""Facts on recovery shared by ranks and analysis: snapshots that are kept, and the steps of a pace."""

from __future__ import annotations

import math

KEPT_SNAPSHOTS = 2
"""The newest, and one more in case that one cannot be read. Each snapshot after these deletes an old one."""
WINDOW_S = 1.0
WINDOW_STEPS = (20, 500)
"""Training time that a pace covers, and the least and most steps."""


def window_of(step_s: float) -> int:
    """Return the number of steps that a pace covers if a step takes `step_s` seconds."""
    least, most = WINDOW_STEPS
    return min(max(math.ceil(WINDOW_S / step_s), least), most) if step_s > 0 else least
