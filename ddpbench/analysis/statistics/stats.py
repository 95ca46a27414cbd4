"""Intervals, paired comparisons, correction for multiple comparisons, and rules for what a comparison shows.

Rounds are the replicates: a launch gives one number, its total time divided by its total steps or samples, and every
interval here is over rounds, never over steps. Two cases are compared by the ratios within each round, because drift of
the machine cancels in them. This holds only for launches of one session (`pairs`).

A comparison's interval is wider if the run's rounds are correlated (`correlation.py`). Sources:

- Hoefler & Belli, "Scientific Benchmarking of Parallel Computing Systems", SC'15: rules 3 and 4 (totals for
  costs, no averaged ratios), 5 (intervals), 7 (compare by intervals or tests, not by means alone), 8 (mean or median).
- Hettmansperger & Sheather, "Confidence intervals based on interpolated order statistics", Statistics & Probability
  Letters 4 (1986).
- Dunn, "Multiple comparisons among means", J. Am. Stat. Assoc. 56 (1961): a level divided among intervals.
- Welch, "The generalization of 'Student's' problem", Biometrika 34 (1947).
- Fieller, J. R. Statist. Soc. B 16 (1954): the interval of a ratio of two means.
- Donner & Zou, "Closed-form confidence intervals for functions of the normal mean and standard deviation", Stat.
  Methods Med. Res. 21 (2012): the interval of a difference from those of its two terms, which need not be symmetric.
- Schuirmann, J. Pharmacokinet. Biopharm. 15 (1987): equivalence by two one-sided tests, here at half of 5 %.

**A ratio** is the geometric mean of the ratios within pairs. Its interval is point * exp(+-h), where h is the t
half-width of the logarithms. **A step time or a rate** is that of the median launch, and its interval is the sign
test's (`median_launch`). An interval around the mean would be wrong: if one launch in ten is slow, five launches
include no slow one in 59 of 100 cases, and then the interval does not cover the mean of all. Quantiles come from
`scipy.special`, because importing `scipy.stats` takes most of a second, and its `quantile_test` does not interpolate.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from scipy import special

from ddpbench.analysis.statistics.correlation import widened
from ddpbench.analysis.statistics.interval import Interval
from ddpbench.analysis.statistics.judgement import MARGIN, Judgement, judged
from ddpbench.analysis.statistics.timings import Timing, TimingKey
from ddpbench.spec import settings

ALPHA = 0.05
"""Error probability of every interval, one minus its confidence, before correction for the number of comparisons."""
MIN_ROUNDS = settings.MIN_ROUNDS
FEWEST = 3
"""Smallest number of values with an interval. For two values, it would extend 12.7 standard errors to either side."""
FEWEST_FOR_MEDIAN = 5
"""Smallest number of values with an interval of their median. The range of four covers it only 87.5 % of the time.
"""
LEAST_COVERAGE = 0.90
"""Smallest probability with which the interval of a median covers it, for any distribution of the values."""
POWER = 0.8
"""Probability with which a comparison shows its smallest resolvable change."""

COPIES = "launches do not differ at all, as no clock measures: are these copies of one run?"
"""Reason why launches without any scatter are not compared."""


def shows_more(value: Interval, limit: float) -> bool:
    """Return whether a value's interval is entirely above a limit; False if the interval is unknown.

    The value alone shows nothing, because a finding needs an interval that excludes the opposite.
    """
    return value.low is not None and value.low > limit


def shows_less(value: Interval, limit: float) -> bool:
    """Return whether a value's interval is entirely below a limit; False if the interval is unknown."""
    return value.high is not None and value.high < limit


@lru_cache(maxsize=1024)
def t_quantile(probability: float, df: float) -> float:
    """Return the quantile of Student's t distribution with `df` degrees of freedom at this probability."""
    return float(special.stdtrit(df, probability))


def half_width(values: Sequence[float], alpha: float = ALPHA) -> float | None:
    """Return the half-width of the t-interval of the values' mean: t(1 - alpha/2, n-1) * s / sqrt(n).

    None if there are fewer than `FEWEST` values.
    """
    count = len(values)
    if count < FEWEST:
        return None
    return t_quantile(1 - alpha / 2, count - 1) * deviation(values) / math.sqrt(count)


def deviation(values: Sequence[float]) -> float:
    """Return the sample standard deviation of two or more values."""
    mean = math.fsum(values) / len(values)
    return math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1))


def step_time(timings: Sequence[Timing]) -> Interval:
    """Return the median over launches of seconds per step, with its interval. Launches have equal weight."""
    return median_launch([timing.step_s for timing in timings])


def samples_rate(timings: Sequence[Timing]) -> Interval:
    """Return samples per second of the median launch, with its interval.

    This is the reciprocal of the median time per sample.
    """
    return median_launch([timing.sample_s for timing in timings]).reciprocal()


def median_launch(times: Sequence[float]) -> Interval:
    """Return the median of independent times, one per launch, with its 95 % interval.

    The interval is that of the sign test, interpolated between order statistics (Hettmansperger & Sheather, 1986). It
    covers the median of a smooth distribution in about 95 % of cases, for five launches in 93.75 %, and for correlated
    launches in fewer. If the narrower order statistics cover less than `LEAST_COVERAGE`, the wider ones are taken. It
    has no ends under `FEWEST_FOR_MEDIAN` times.
    """
    return _median(times, ALPHA, LEAST_COVERAGE)


def median_difference(a: Sequence[float], b: Sequence[float], alpha: float, *, more: float = 0.0) -> Interval:
    """Return the median of B minus the median of A, with its interval, which has no ends if launches are few.

    The distance of an end is the root of the sum of squares of the distances in the two medians' intervals, which hold
    at `alpha` and are independent (Donner & Zou, 2012). It holds for any two distributions. If 5 % are divided among
    six parts of a step, at least 8 launches per side are needed.

    Args:
        a: times of one run, one per launch.
        b: times of the other run.
        alpha: one minus the confidence.
        more: half-width, at `alpha`, of the interval of a further difference between the runs.
    """
    base, new = (_median(times, alpha, 1 - alpha) for times in (a, b))
    value = new.value - base.value
    if base.low is None or base.high is None or new.low is None or new.high is None:
        return Interval(value=value)
    below = math.hypot(new.value - new.low, base.high - base.value, more)
    above = math.hypot(new.high - new.value, base.value - base.low, more)
    return Interval(value=value, low=value - below, high=value + above)


def _median(times: Sequence[float], alpha: float, least: float) -> Interval:
    """Return the median with its interval, which has no ends if none covers the median with probability `least`."""
    middle = statistics.median(times)
    at = order_statistic(len(times), alpha, least)
    if at is None:
        return Interval(value=middle)
    depth, weight = at
    ordered = sorted(times)
    low, high = (
        (1 - weight) * every[depth - 1] + weight * every[depth] for every in (ordered, ordered[::-1])
    )
    return Interval(value=middle, low=low, high=high)


@lru_cache(maxsize=1024)
def order_statistic(count: int, alpha: float, least: float) -> tuple[int, float] | None:
    """Return the rank from either end at which a median's interval ends, and the fraction towards the next rank.

    None if no interval covers the median with probability `least`.
    """

    def coverage(depth: int) -> float:
        return 1 - 2 * float(special.bdtr(depth - 1, count, 0.5))

    wanted, depth = 1 - alpha, 1
    if coverage(depth) < least:
        return None
    while coverage(depth + 1) >= wanted:
        depth += 1
    wider, narrower = coverage(depth), coverage(depth + 1)
    if wider <= wanted or narrower < least:
        return depth, 0.0
    part = (wider - wanted) / (wider - narrower)
    return depth, (count - depth) * part / (depth + (count - 2 * depth) * part)


def geometric_mean(timings: Sequence[Timing]) -> Interval:
    """Return the geometric mean over launches of seconds per step, with its t-interval.

    The ratio of two runs, or of a history's levels, is the quotient of two such means.
    """
    logs = [math.log(timing.step_s) for timing in timings]
    return Interval.around(math.exp(math.fsum(logs) / len(logs)), half_width(logs))


def mean_step_s(timings: Sequence[Timing]) -> float:
    """Return the arithmetic mean over launches of seconds per step, for comparison with other arithmetic means.

    Total time divided by total steps would weight launches by their steps, and a faster launch has more steps.
    """
    return math.fsum(timing.step_s for timing in timings) / len(timings)


def mean_rate(timings: Sequence[Timing]) -> float:
    """Return the harmonic mean over launches of samples per second.

    Unlike a median, it changes smoothly with every launch.
    """
    return len(timings) / math.fsum(timing.sample_s for timing in timings)


def share(
    parts: Sequence[float], wholes: Sequence[float], alpha: float = ALPHA, *, wider: float = 1.0
) -> Interval:
    """Return the mean part divided by the mean whole, with Fieller's interval.

    A part and its whole are from the same round. `wider` is the interval's width relative to a t-test's
    (`correlation.py`). The ends are None for fewer than `FEWEST` rounds, or if the whole may be 0.
    """
    count = len(wholes)
    part, whole = math.fsum(parts) / count, math.fsum(wholes) / count
    value = part / whole
    if count < FEWEST:
        return Interval(value=value)
    scale = (wider * t_quantile(1 - alpha / 2, count - 1)) ** 2 / (count * (count - 1))

    def spread(a: Sequence[float], b: Sequence[float], mean_a: float, mean_b: float) -> float:
        return scale * math.fsum((x - mean_a) * (y - mean_b) for x, y in zip(a, b, strict=True))

    square = whole**2 - spread(wholes, wholes, whole, whole)
    if square <= 0:
        return Interval(value=value)
    middle = part * whole - spread(parts, wholes, part, whole)
    rest = part**2 - spread(parts, parts, part, part)
    root = math.sqrt(max(middle**2 - square * rest, 0.0))
    return Interval(value=value, low=(middle - root) / square, high=(middle + root) / square)


def by_pair(timings: Sequence[Timing]) -> dict[TimingKey, Timing]:
    """Return the timings by the key `pair`, which pairs them with another case's launches."""
    return {timing.pair: timing for timing in timings}


def rounds_of_all(groups: Sequence[Mapping[TimingKey, Timing]]) -> list[TimingKey]:
    """Return the keys that all groups have in common, in the order of the first group.

    Groups are results of `by_pair`.
    """
    return [key for key in groups[0] if all(key in group for group in groups[1:])] if groups else []


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """The logarithm of A's time per sample divided by B's, with its standard error; negative if A is faster.

    `standard_error` allows for correlated rounds, and is None for too few. `rounds` counts the pairs or, for Welch's
    interval, the launches of the smaller group.
    """

    log: float
    standard_error: float | None
    df: float
    rounds: int
    paired: bool = True

    def half_width(self, alpha: float = ALPHA) -> float | None:
        """Return the half-width of the logarithm's interval at confidence `1 - alpha`.

        None without a standard error.
        """
        if self.standard_error is None:
            return None
        return t_quantile(1 - alpha / 2, self.df) * self.standard_error

    def time_ratio(self, alpha: float = ALPHA) -> Interval:
        """Return A's time per sample divided by B's, with its interval."""
        return Interval.around(math.exp(self.log), self.half_width(alpha))

    def rate_ratio(self, alpha: float = ALPHA) -> Interval:
        """Return A's samples per second divided by B's, with its interval.

        This is the speed-up if B is the base case.
        """
        return Interval.around(math.exp(-self.log), self.half_width(alpha))

    @property
    def p_value(self) -> float | None:
        """Return the two-sided p-value for the hypothesis that A and B take equally long.

        None without a standard error.
        """
        if self.standard_error is None:
            return None
        if self.standard_error == 0:
            return 1.0 if self.log == 0 else 0.0
        return 2 * float(special.stdtr(self.df, -abs(self.log) / self.standard_error))


def pairs(a: Sequence[Timing], b: Sequence[Timing]) -> list[tuple[Timing, Timing]]:
    """Return pairs of A's and B's launches that one session ran in one round, in A's order."""
    partners = by_pair(b)
    return [(timing, partners[timing.pair]) for timing in a if timing.pair in partners]


def compare(a: Sequence[Timing], b: Sequence[Timing]) -> Comparison | None:
    """Compare A with B by `pairs` of launches, or by Welch's interval if they share no round.

    The point is the geometric mean of the ratios within pairs, without an interval for a single pair. Totals would
    weight fast launches more, and drift would not cancel. None if either has no launch.
    """
    if not a or not b:
        return None
    found = pairs(a, b)
    if not found:
        if min(len(a), len(b)) >= 2:
            return _welch(a, b)
        return Comparison(log=_mean_log(a) - _mean_log(b), standard_error=None, df=0, rounds=0)
    ratios = [math.log(mine.compared_s / other.compared_s) for mine, other in found]
    count = len(ratios)
    wider = widened(*zip(*found, strict=True))
    error = wider * deviation(ratios) / math.sqrt(count) if count >= FEWEST else None
    return Comparison(log=math.fsum(ratios) / count, standard_error=error, df=count - 1, rounds=count)


def _welch(a: Sequence[Timing], b: Sequence[Timing]) -> Comparison:
    variances = [
        deviation([math.log(timing.sample_s) for timing in group]) ** 2 / len(group) for group in (a, b)
    ]
    total = sum(variances)
    spread = sum(v**2 / (len(group) - 1) for v, group in zip(variances, (a, b), strict=True))
    df = total**2 / spread if spread else float(min(len(a), len(b)) - 1)
    rounds = min(len(a), len(b))
    error = math.sqrt(total) if rounds >= FEWEST else None
    return Comparison(
        log=_mean_log(a) - _mean_log(b), standard_error=error, df=df, rounds=rounds, paired=False
    )


def _mean_log(timings: Sequence[Timing]) -> float:
    return math.fsum(math.log(timing.sample_s) for timing in timings) / len(timings)


def judge(
    comparison: Comparison, *, alpha: float = ALPHA, margin: float = MARGIN, min_rounds: int = MIN_ROUNDS
) -> Judgement:
    """Judge A compared with B, by an interval at `alpha` and a margin, which is a fraction of the step time.

    "too few" without common rounds, because differences between rounds would not cancel.
    """
    ratio = comparison.time_ratio(alpha)
    if not _enough(comparison, min_rounds):
        return Judgement(verdict="too few", ratio=ratio, rounds=comparison.rounds if comparison.paired else 0)
    return judged(ratio, comparison.rounds, margin=margin)


def _enough(comparison: Comparison, min_rounds: int) -> bool:
    return comparison.paired and comparison.rounds >= min_rounds


def judge_all(
    comparisons: Mapping[str, Comparison], *, margin: float = MARGIN, min_rounds: int = MIN_ROUNDS
) -> dict[str, Judgement]:
    """Judge the comparisons as one family, and return the judgements by name.

    The 5 % are divided among those with enough rounds (Bonferroni), so all intervals and statements about margins hold
    at once. Holm's larger levels would only suffice for tests of no difference.
    """
    enough = sum(
        _enough(comparison, min_rounds) and comparison.p_value is not None
        for comparison in comparisons.values()
    )
    family = max(1, enough)
    return {
        name: replace(
            judge(comparison, alpha=ALPHA / family, margin=margin, min_rounds=min_rounds), comparisons=family
        )
        for name, comparison in comparisons.items()
    }
