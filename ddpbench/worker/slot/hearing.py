"""Detects slots that stopped reporting, since a busy slot reports at least every `BEAT_S` seconds."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from ddpbench.errors import LaunchError
from ddpbench.worker.slot.roster import Seat

LOST_S = 20.0
"""Seconds without a report after which a slot with a running rank counts as lost, perhaps with its node."""
LOST_BEFORE_S = 40.0
"""Like `LOST_S`, for a slot that has no rank yet. It is longer because such a slot may wait for a file system."""
_AWAY_S = 5.0
"""If `note` was not called for this many seconds, this process itself must have been stopped.

The time since the other slots' last reports then starts again from zero.
"""
NOTHING_TOLD = {"tick": -1}
"""State used for a slot that has not reported yet."""


class Hearing:
    """Keeps the times of the slots' last reports. Call `note` about every second."""

    def __init__(self, seats: Sequence[Seat]) -> None:
        now = time.monotonic()
        self._seats = seats
        self._heard = [(NOTHING_TOLD["tick"], now)] * len(seats)
        self._looked_at = [now] * len(seats)

    def note(self, number: int, state: dict[str, Any], *, has_rank: bool = False) -> None:
        """Record the latest state of the slot with index `number` in the constructor's `seats`.

        Raises:
            LaunchError: the slot has reported nothing new for too long.
        """
        now = time.monotonic()
        looked_at, self._looked_at[number] = self._looked_at[number], now
        tick, heard_at = self._heard[number]
        limit_s = LOST_S if has_rank else LOST_BEFORE_S
        if state["tick"] != tick or now - looked_at > _AWAY_S:
            self._heard[number] = (state["tick"], now)
        elif now - heard_at > limit_s:
            raise LaunchError(
                f"{self._seats[number]} has not been heard from for {limit_s:.0f} s: its process or "
                "its node has stopped or is gone. Run the same commands again to resume"
            )
