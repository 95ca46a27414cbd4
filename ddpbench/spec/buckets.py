"""Compute the gradient buckets that DDP makes, to find before any timing which bucket caps make equal buckets."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ddpbench.spec.case import BucketCap
from ddpbench.spec.grouping import cap_words
from ddpbench.units import series_of

MIB = 2**20
FIRST_DEFAULT_MB, DEFAULT_MB = 1, 25
"""DDP's default cap for the first bucket, and its default cap for every other bucket (MiB)."""
_PARTS = (2, 4, 8, 16)
"""Approximate numbers of buckets for which `caps_worth` suggests caps."""
_MOST_WORTH = 3


def bucket_bytes(sizes: Sequence[int], cap: BucketCap, shrink: int = 1) -> tuple[int, ...]:
    """Return the bytes of each bucket for gradients of these sizes (bytes), in the order in which they become ready.

    A bucket is closed after the gradient that brings it to its cap (see `compute_bucket_assignment_by_size` in torch's
    reducer). The cap `default` has a smaller first bucket. Caps are divided by `shrink`.
    """
    if cap == "default":
        caps = [FIRST_DEFAULT_MB * MIB // shrink, DEFAULT_MB * MIB // shrink]
    else:
        assert cap is not None
        caps = [int(cap / shrink * MIB)]
    buckets: list[int] = []
    open_bytes = 0
    for size in sizes:
        open_bytes += size
        if open_bytes >= caps[min(len(buckets), len(caps) - 1)]:
            buckets.append(open_bytes)
            open_bytes = 0
    return (*buckets, open_bytes) if open_bytes else tuple(buckets)


def caps_worth(sizes: Sequence[int], taken: Sequence[BucketCap], shrink: int = 1) -> tuple[float, ...]:
    """Return bucket caps (MiB), largest first, that divide these gradients into buckets in new ways.

    No two of the returned caps make the same buckets. No returned cap makes the same buckets as a cap in `taken`.
    """
    known = {bucket_bytes(sizes, cap, shrink) for cap in taken}
    caps: list[float] = []
    for parts in _PARTS:
        cap = _rounded(sum(sizes) * shrink / parts / MIB)
        buckets = bucket_bytes(sizes, cap, shrink)
        if buckets not in known:
            known.add(buckets)
            caps.append(cap)
    return tuple(caps[:_MOST_WORTH])


def _rounded(value: float) -> float:
    """Round to two significant digits."""
    return round(value, 1 - math.floor(math.log10(value)))


def equal_words(
    workload: str, cap: BucketCap, stands_for: Sequence[BucketCap], worth: Sequence[float]
) -> str:
    """Return a sentence on the caps with the same buckets as `cap` (`stands_for`) and with others (`worth`).

    For example: `gpt:nano: bucket caps default and 1 MiB make the same buckets and are run once; caps that make others:
    ...`.
    """
    caps = series_of([cap_words(one) for one in (cap, *stands_for)])
    sentence = f"{workload}: bucket caps {caps} make the same buckets and are run once"
    return (
        f"{sentence}; caps that make others: {series_of([f'{one:g}' for one in worth])} MiB"
        if worth
        else sentence
    )
