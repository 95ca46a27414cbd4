"""A clock for exact tests of timing logic."""

from __future__ import annotations

from collections.abc import Sequence

from ddpbench.measure.clock import Mark


class FakeClock:
    """A clock that only `advance` moves, for exact tests of timing logic."""

    def __init__(self, start_ns: int = 0) -> None:
        self.time_ns = start_ns

    def anchor(self) -> None:
        pass

    def advance(self, nanoseconds: int) -> None:
        """Advance by this much time."""
        self.time_ns += nanoseconds

    def mark(self) -> Mark:
        return self.time_ns

    def resolve(self, marks: Sequence[Mark]) -> list[int]:
        return list(marks)

    def now(self) -> int:
        return self.time_ns
