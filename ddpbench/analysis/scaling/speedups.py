"""Data to which laws are fitted: one configuration's speed-ups at several world sizes.

They are the report's speed-ups: samples/s over the base case's, `single` at one rank, paired within rounds. The
base case therefore is the curve's point at world size 1; a strategy's own case at one rank is not fitted, since it
would be a second one.
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
    """A configuration's launches by world size above one, each world size with separate cores for each rank.

    `base` are the base case's launches; those that share no round with it are not used.
    """

    scaling: Literal["weak", "strong"]
    base: tuple[Timing, ...]
    sizes: Mapping[int, tuple[Timing, ...]]

    @cached_property
    def paired(self) -> dict[int, dict[TimingKey, tuple[Timing, Timing]]]:
        """Return, by world size and round, its timing and the base case's, where both have enough rounds."""
        found = {
            size: {own.pair: (own, base) for own, base in pairs(timings, self.base)}
            for size, timings in sorted(self.sizes.items())
            if size > 1
        }
        return {size: both for size, both in found.items() if len(both) >= MIN_ROUNDS}

    @property
    def correlation(self) -> float:
        """Return the lag-1 correlation of rounds that intervals take into account."""
        return max((one.correlation for one in self.base), default=0.0)

    @cached_property
    def strata(self) -> list[list[TimingKey]]:
        """Return the rounds in groups of the same world sizes; a group of one joins the largest.

        A round that two sessions shared counts as two.
        """
        groups: dict[tuple[int, ...], list[TimingKey]] = {}
        for one in sorted({one for both in self.paired.values() for one in both}):
            groups.setdefault(tuple(n for n, both in self.paired.items() if one in both), []).append(one)
        largest = max(groups.values(), key=len, default=[])
        lonely = [group for group in groups.values() if len(group) == 1 and group is not largest]
        largest += [number for group in lonely for number in group]
        return [group for group in groups.values() if group not in lonely]

    def log_speedups(self, without: TimingKey | None = None) -> Array:
        """Return the logarithm of each paired world size's speed-up, all rounds but one."""
        logs = []
        for both in self.paired.values():
            kept = [pair for one, pair in both.items() if one != without]
            comparison = compare([own for own, _ in kept], [base for _, base in kept])
            assert comparison is not None  # MIN_ROUNDS of them, less one
            logs.append(-comparison.log)
        return np.array(logs, np.float64)

    def log_base_rate(self, without: TimingKey | None = None) -> float:
        """Return the logarithm of the base case's samples/s, all rounds but one.

        It is that of the mean: a jackknife needs a smooth statistic, which a median is not.
        """
        return math.log(mean_rate([one for one in self.base if one.pair != without]))


def speedup_of(curve: SpeedupCurve, size: int) -> Interval:
    """Return the speed-up at one of the paired world sizes."""
    both = curve.paired[size].values()
    comparison = compare([own for own, _ in both], [base for _, base in both])
    assert comparison is not None
    return comparison.rate_ratio()


def standard_error(curve: SpeedupCurve, size: int) -> float:
    """Return the standard error of the logarithm of that speed-up; 0 where there is none."""
    both = curve.paired[size].values()
    comparison = compare([own for own, _ in both], [base for _, base in both])
    assert comparison is not None
    return comparison.standard_error or 0.0
