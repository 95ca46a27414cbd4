"""A fixed computation whose time tells whether the machine itself ran faster or slower."""

from __future__ import annotations

from ddpbench.measure.clock import Clock

_ITERATIONS = 1_200_000


def fixed_work() -> int:
    """About 50 ms of interpreter work on a machine of the 2020s; always the same, allocating nothing."""
    total = 0
    for number in range(_ITERATIONS):
        total ^= number
    return total


def time_fixed_work(clock: Clock) -> int:
    """Nanoseconds that `fixed_work` takes now."""
    start = clock.now()
    fixed_work()
    return clock.now() - start
