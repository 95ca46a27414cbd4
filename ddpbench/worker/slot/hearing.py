"""Whether slots live: each tells its state at least every `BEAT_S` seconds while anything is done."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from ddpbench.errors import LaunchError
from ddpbench.worker.slot.roster import Seat

LOST_S = 20.0
"""A slot that says nothing for so long is lost, and its node perhaps with it."""
NOTHING_TOLD = {"tick": -1}
"""The state of a slot that has told none yet."""


class Hearing:
    """When each of some slots was last heard of."""

    def __init__(self, seats: Sequence[Seat]) -> None:
        self._seats = seats
        self._heard = [(NOTHING_TOLD["tick"], time.monotonic())] * len(seats)

    def note(self, number: int, state: dict[str, Any]) -> None:
        """Takes the state that a slot, by its place among these, told last.

        Raises:
            LaunchError: it has told nothing new for too long.
        """
        now = time.monotonic()
        tick, heard_at = self._heard[number]
        if state["tick"] != tick:
            self._heard[number] = (state["tick"], now)
        elif now - heard_at > LOST_S:
            raise LaunchError(
                f"{self._seats[number]} has not been heard of for {LOST_S:.0f} s: its process is "
                "stopped or gone, or its node is. Run the same lines again to resume"
            )
