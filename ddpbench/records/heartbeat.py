"""A shared page in which each rank counts its steps, for a watchdog that must not disturb them."""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from dataclasses import dataclass

from ddpbench.spec.limits import MAX_RANKS

PHASES: Sequence[str] = (
    "starting",
    "building the model",
    "meeting the other ranks",
    "proof",
    "warm-up",
    "timed steps",
    "instrumented steps",
    "evaluation",
    "checkpoints",
    "training to a loss",
    "finishing",
)
_SLOT_WORDS = 2  # steps made, and the index of the phase
PAGE_BYTES = MAX_RANKS * _SLOT_WORDS * 8


class Heartbeat:
    """One rank's slot. Counting a step costs a memory write; nobody else writes there."""

    def __init__(self, page: mmap.mmap | bytearray, rank: int) -> None:
        self._words = memoryview(page).cast("Q")
        self._steps = _SLOT_WORDS * rank
        self._words[self._steps] = 0
        self._words[self._steps + 1] = 0

    def beat(self) -> None:
        """Counts a step."""
        self._words[self._steps] += 1

    def enter(self, phase: str) -> None:
        """Notes the phase; the watchdog counts it as a sign of life."""
        self._words[self._steps + 1] = PHASES.index(phase)

    @property
    def pulse(self) -> Pulse:
        """What the slot says now."""
        return read_pulse(self._words, self._steps // _SLOT_WORDS)


@dataclass(frozen=True, slots=True)
class Pulse:
    """What a rank's slot said at a moment."""

    steps: int
    phase: str


def read_pulse(words: memoryview, rank: int) -> Pulse:
    """Return a rank's slot of a page seen as 64-bit words (`memoryview(page).cast("Q")`)."""
    index = words[_SLOT_WORDS * rank + 1]
    return Pulse(words[_SLOT_WORDS * rank], PHASES[index] if index < len(PHASES) else "unknown")
