"""Staleness of gradients, which is the number of updates that a server made while a gradient was being computed."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from ddpbench.analysis.names import Names

if TYPE_CHECKING:
    from ddpbench.analysis.read.launches import CaseRun

MOST = 4
"""Largest number of cases that a sentence lists by name."""


def added(counts: Iterable[Sequence[int]]) -> tuple[int, ...]:
    """Add counts by staleness, such as those of blocks; empty without counts.

    `counts[i][s]` is the number of gradients with staleness s in block or launch i.
    """
    return tuple(sum(column) for column in itertools.zip_longest(*counts, fillvalue=0))


def mean_of(counts: Sequence[int]) -> float:
    """Return the mean staleness of gradients, from the number `counts[s]` of gradients with each staleness s.

    At least one number must not be 0.
    """
    return sum(age * count for age, count in enumerate(counts)) / sum(counts)


def percentile_of(counts: Sequence[int], share: float) -> int:
    """Return the smallest staleness that at least a fraction `share` of the gradients did not exceed.

    `counts[s]` is the number of gradients with staleness s.
    """
    reached = itertools.accumulate(counts)
    return next(age for age, below in enumerate(reached) if below >= share * sum(counts))


def staleness_sentences(cases: Iterable[CaseRun], names: Names) -> Iterable[str]:
    """Yield a sentence on the cases whose server applied gradients of older parameters, if there are such cases."""
    counted: list[tuple[str, tuple[int, ...]]] = []
    stale: list[CaseRun] = []
    for case in cases:
        counts = added(launch.staleness for launch in case.good)
        if sum(counts[1:]):
            stale.append(case)
            counted.append((names.of(case), counts))
    if not stale:
        return
    listed: list[str] = []
    for name, counts in counted:
        listed.append(
            f"{mean_of(counts):.2f} on average, 95th percentile {percentile_of(counts, 0.95)}, at most "
            f"{len(counts) - 1} ({name})"
        )
    more = "; the last table has more (staleness_mean, staleness_max)" if len(listed) > MOST else ""
    yield (
        f"{names.count(stale)} applied gradients of older parameters, so that a step is not worth a synchronous one. "
        f"Updates made meanwhile: {'; '.join(listed[:MOST])}{more}."
    )
