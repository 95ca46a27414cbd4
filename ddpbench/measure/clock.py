"""A rank's timing: the host's clock and CUDA events behind one interface."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Protocol

Mark = Any
"""A moment as a clock notes it: nanoseconds, or a CUDA event that may not have happened yet."""


class Clock(Protocol):
    """Records moments cheaply, and later converts them to nanoseconds of the host's monotonic clock."""

    def anchor(self) -> None:
        """Measure again how the device's clock relates to the host's clock.

        May wait for the device. Earlier marks must be resolved first.
        """

    def mark(self) -> Mark:
        """Record the present moment in the device's work; costs well under a microsecond on the CPU."""

    def resolve(self, marks: Sequence[Mark]) -> list[int]:
        """Return the moments as nanoseconds. May wait for the device: call it outside timed regions."""

    def now(self) -> int:
        """Return the time on the host's monotonic clock, nanoseconds."""


class HostClock:
    """The host's monotonic clock, shared by all processes of the host."""

    mark = staticmethod(time.perf_counter_ns)

    def anchor(self) -> None:
        pass

    def resolve(self, marks: Sequence[Mark]) -> list[int]:
        return list(marks)

    def now(self) -> int:
        return time.perf_counter_ns()


_ANCHOR_TRIES = 10


class CudaClock:
    """CUDA events on the current stream, mapped to the host's clock by a reference event.

    `anchor` renews the reference while the device is idle: `elapsed_time` is float32 milliseconds, which resolve 2 µs
    half a minute later. The reference is read between two readings of the host's clock, with an uncertainty of about 10
    µs.
    """

    def __init__(self) -> None:
        self.anchor()

    def anchor(self) -> None:
        import torch

        torch.cuda.synchronize()
        narrowest: int | None = None
        for _ in range(_ANCHOR_TRIES):
            event: torch.cuda.Event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            before = time.perf_counter_ns()
            event.record()
            event.synchronize()
            after = time.perf_counter_ns()
            # The event happened between the two readings: the closer they are, the better its time is known.
            if narrowest is None or after - before < narrowest:
                narrowest = after - before
                self._reference, self._reference_ns = event, (before + after) // 2

    def mark(self) -> Mark:
        import torch

        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event

    def resolve(self, marks: Sequence[Mark]) -> list[int]:
        import torch

        torch.cuda.synchronize()
        elapsed = (self._reference.elapsed_time(event) for event in marks)
        return [self._reference_ns + round(ms * 1e6) for ms in elapsed]

    def now(self) -> int:
        return time.perf_counter_ns()
