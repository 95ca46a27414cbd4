"""Keep replayed computation on time: sleep until absolute moments and note the lateness.

A sleeping rank uses no core. Work between sleeps (filling gradients, copying them into buckets) shortens the next
sleep.
"""

from __future__ import annotations

import ctypes
import statistics
import threading
import time
from collections.abc import Callable
from typing import Any

_PR_SET_TIMERSLACK = 29
_NEARLY_NS = 10_000
"""The rank does not sleep for less than this time: falling asleep and waking takes that long."""
_LEAD_NS = 400_000
"""Time before a phase's end at which a sleeping rank wakes early."""
_LEARNING = 1 / 8
_LEARNING_NS = 5_000
"""Share of a sleep's unexpected length that is learned, and the most that is learned from one sleep (ns).

The limit exists because an interrupted sleep says little about other sleeps.
"""
_MOST_OVERSLEPT_NS = 500_000


def _sleep(nanoseconds: int) -> None:
    time.sleep(nanoseconds / 1e9)


class Pacer:
    """Paces one rank's replay. Unless `active`, it neither waits nor records anything.

    The delay of waking (50 µs or more on a virtual machine) is learned and subtracted, so that moments are met on
    average. A sleeping rank may wake early to fill the caches: after a sleep of 5 ms, code took 150 instead of 15 µs.
    """

    def __init__(
        self,
        clock: Callable[[], int] = time.perf_counter_ns,
        sleep: Callable[[int], None] = _sleep,
        *,
        active: bool = False,
    ) -> None:
        """Take `clock`, which returns nanoseconds, and `sleep`, which takes them."""
        self.active = active
        self.update_due_ns = 0
        """Duration of a parameter update in the replayed profile; set by the code that replays it."""
        self._clock, self._sleep = clock, sleep
        self._overslept_ns: dict[int, int] = {}
        self._late: list[int] = []  # passes append to it from several threads
        self._steps: list[int] = []
        self._updates: list[int] = []
        self._threads: set[int] = set()

    def begin(self, scale: float = 1.0) -> Pass:
        """Return a `Pass` that starts now; `scale` multiplies the offsets of its moments."""
        if self.active and (thread := threading.get_ident()) not in self._threads:
            self._threads.add(thread)
            _wake_on_time()
        return Pass(self, self._clock(), scale)

    def wait(
        self, deadline_ns: int, grain_ns: int = 0, wake_early: Callable[[], object] | None = None
    ) -> None:
        """Sleep until `deadline_ns`, unless it is less than `grain_ns` away, and record the lateness.

        In a long wait, `wake_early` is called about `_LEAD_NS` before the deadline.
        """
        ahead = deadline_ns - self._clock()
        if wake_early is not None and ahead > 2 * _LEAD_NS:
            self._sleep(ahead - _LEAD_NS)
            wake_early()
            ahead = deadline_ns - self._clock()
        length = ahead.bit_length()  # groups sleeps whose lengths differ by less than a factor of two
        expected = self._overslept_ns.get(length, 0)
        if ahead > max(grain_ns, expected + _NEARLY_NS):
            self._sleep(ahead - expected)
            ahead = deadline_ns - self._clock()
            surprise = round(-ahead * _LEARNING)
            learned = expected + min(max(surprise, -_LEARNING_NS), _LEARNING_NS)
            self._overslept_ns[length] = min(max(learned, 0), _MOST_OVERSLEPT_NS)
        self._late.append(max(-ahead, 0))

    def updated(self, update_ns: int) -> None:
        """Record the duration of an update of the parameters. A step may have one, none or, on a server, several."""
        if self.active:
            self._updates.append(update_ns)

    def end_step(self) -> None:
        """End a step, and record its worst lateness."""
        if not self.active:
            return
        late, self._late = self._late, []
        self._steps.append(max(late, default=0))

    def take(self) -> tuple[tuple[int, ...], int]:
        """Return the worst lateness of each step since the last call, and the mean duration of the updates (ns)."""
        steps, updates = tuple(self._steps), self._updates
        self._steps, self._updates = [], []
        return steps, round(statistics.fmean(updates)) if updates else 0

    def now(self) -> int:
        """Return the time on the pacer's clock, nanoseconds."""
        return self._clock()

    def __deepcopy__(self, memo: Any) -> Pacer:
        return self  # a copy of a model runs in the same rank


class Pass:
    """Paces a device's work on one batch by waiting for moments relative to the work's start."""

    __slots__ = ("_pacer", "_scale", "_start_ns")

    def __init__(self, pacer: Pacer, start_ns: int, scale: float) -> None:
        self._pacer, self._start_ns, self._scale = pacer, start_ns, scale

    def until(self, offset_ns: float, grain_ns: float = 0) -> None:
        """Wait until `offset_ns` after the pass's start; at most `grain_ns` early."""
        if self._pacer.active:
            scale = self._scale
            self._pacer.wait(self._start_ns + round(offset_ns * scale), round(grain_ns * scale))

    def end(self, offset_ns: float, wake_early: Callable[[], object]) -> None:
        """Wait for the end of a phase, `offset_ns` after the pass's start.

        `wake_early` does a little of the next phase's work.
        """
        if self._pacer.active:
            self._pacer.wait(self._start_ns + round(offset_ns * self._scale), wake_early=wake_early)

    def resume(self, offset_ns: float) -> None:
        """Shift the pass in time after a wait for other ranks: exactly `offset_ns` of it have elapsed now."""
        if self._pacer.active:
            self._start_ns = self._pacer.now() - round(offset_ns * self._scale)


def _wake_on_time() -> None:
    """Remove the 50 µs by which the kernel may delay the ends of this thread's sleeps."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_TIMERSLACK, 1, 0, 0, 0)
