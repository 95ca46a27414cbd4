"""A fixed computation whose time tells whether the machine itself ran faster or slower."""

from __future__ import annotations

import hashlib
import statistics

from ddpbench.measure.clock import Clock

_PARTS = 5
_BUFFER = bytes(64 * 1024)
_REPEATS = 150


def fixed_work() -> bytes:
    """About 10 ms of scalar arithmetic in the first-level cache on a machine of the 2020s, always the same.

    It is a hash and not an interpreted loop: a loop's time was seen to change by a quarter with the state
    that training leaves in a process, a hash's by half a per cent.
    """
    digest = hashlib.blake2b()
    for _ in range(_REPEATS):
        digest.update(_BUFFER)
    return digest.digest()


def time_fixed_work(clock: Clock) -> int:
    """Nanoseconds that five times `fixed_work` take now: five times the median, so that one interruption is none."""
    times: list[int] = []
    for _ in range(_PARTS):
        start = clock.now()
        fixed_work()
        times.append(clock.now() - start)
    return int(statistics.median(times) * _PARTS)
