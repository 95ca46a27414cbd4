"""A configuration's speed-ups at several world sizes, to which laws are fitted.

They are the report's: samples/s divided by those of the base case, `single` at one rank, paired within rounds. A
strategy's own case at one rank is not fitted, because the base case is the point at world size 1.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ddpbench.analysis.statistics.interval import Interval
from ddpbench.analysis.statistics.stats import MIN_ROUNDS, compare, mean_rate, pairs
from ddpbench.analysis.statistics.timings import Timing, TimingKey

Array = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class SpeedupCurve:
    """A configuration's launches at world sizes above one, with separate cores for each rank.

    `base` are the base case's launches. Launches that have no round in common with them are not used.
    """

    scaling: Literal["weak", "strong"]
    base: tuple[Timing, ...]
    sizes: Mapping[int, tuple[Timing, ...]]

    @cached_property
    def paired(self) -> dict[int, dict[TimingKey, tuple[Timing, Timing]]]:
        """Return pairs of a launch's timing and the base case's timing, by world size and round.

        World sizes with too few rounds are left out.
        """
        found = {
            size: {own.pair: (own, base) for own, base in pairs(timings, self.base)}
            for size, timings in sorted(self.sizes.items())
            if size > 1
        }
        return {size: both for size, both in found.items() if len(both) >= MIN_ROUNDS}

    @property
    def correlation(self) -> float:
        """Return the lag-1 correlation of rounds, for which intervals are widened."""
        return max((one.correlation for one in self.base), default=0.0)

    @cached_property
    def strata(self) -> list[list[TimingKey]]:
        """Return the rounds in groups that have equal world sizes. A group of one round joins the largest group.

        A round that was split between two sessions counts as two rounds.
        """
        groups: dict[tuple[int, ...], list[TimingKey]] = {}
        for one in sorted({one for both in self.paired.values() for one in both}):
            groups.setdefault(tuple(n for n, both in self.paired.items() if one in both), []).append(one)
        largest = max(groups.values(), key=len, default=[])
        lonely = [group for group in groups.values() if len(group) == 1 and group is not largest]
        largest += [number for group in lonely for number in group]
        return [group for group in groups.values() if group not in lonely]

    def log_speedups(self, without: TimingKey | None = None) -> Array:
        """Return the logarithm of the speed-up at each paired world size, from all rounds except `without`."""
        logs = []
        for both in self.paired.values():
            kept = [pair for one, pair in both.items() if one != without]
            comparison = compare([own for own, _ in kept], [base for _, base in kept])
            assert comparison is not None  # at least MIN_ROUNDS - 1 rounds are left
            logs.append(-comparison.log)
        return np.array(logs, np.float64)

    def log_base_rate(self, without: TimingKey | None = None) -> float:
        """Return the logarithm of the base case's mean samples/s, from all rounds except `without`.

        A mean is used, because a jackknife needs a smooth statistic, which a median is not.
        """
        return math.log(mean_rate([one for one in self.base if one.pair != without]))


def speedup_of(curve: SpeedupCurve, size: int) -> Interval:
    """Return the speed-up at a paired world size, with its interval."""
    both = curve.paired[size].values()
    comparison = compare([own for own, _ in both], [base for _, base in both])
    assert comparison is not None
    return comparison.rate_ratio()


def standard_error(curve: SpeedupCurve, size: int) -> float:
    """Return the standard error of the logarithm of `speedup_of`; 0 if it is unknown."""
    both = curve.paired[size].values()
    comparison = compare([own for own, _ in both], [base for _, base in both])
    assert comparison is not None
    return comparison.standard_error or 0.0
